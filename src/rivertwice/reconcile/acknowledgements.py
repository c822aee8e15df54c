"""A person accepts that a run could compare nothing: who decided it, why, and what ends it.

After an upgrade, or after an accepted gap, every row of a pair can be NOT_COMPARABLE for days, and every run would fail its
gate. An acceptance, stored as an acknowledgement, holds for one timeline and for the reasons that the run reported. With another head, or for a new
reason, the gate fails again. It is stored as `acknowledgements/ID.json` beside the tables, format 1. `ID.ended.json` records
that a person ended it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rivertwice.core import LedgerError, PipelineHome, RequestError, parse_iso, to_iso
from rivertwice.reconcile.model import OLDER
from rivertwice.storage import open_store
from rivertwice.timeline import Verdict

FORMAT = 1
NOTHING_COMPARED = "nothing_compared"
_FOLDER, _ENDING, _ENDED = "acknowledgements/", ".json", ".ended.json"
Reasons = Mapping[str, frozenset[str]]
"""Pair to the reasons why its rows cannot be compared."""


@dataclass(frozen=True)
class Acknowledgement:
    """A person knows why nothing of a pair can be compared.

    Attributes:
        timeline: it holds for runs that end on this one.
        reasons: what that run reported, by pair; a run with another reason is not covered.
        until: it does not hold from this instant on; None: no date ends it.
    """

    id: str
    timeline: str
    run: str
    reasons: Reasons
    why: str
    by: str
    at: datetime
    until: datetime | None = None
    ended_at: datetime | None = None
    ended_by: str = ""

    def holds(self, timeline: str, now: datetime) -> bool:
        """Whether it holds for a run that ends on a timeline."""
        return self.timeline == timeline and self.ended_at is None and (self.until is None or now < self.until)


def reasons_of(rows: Iterable[tuple[str, str, str, str]]) -> Reasons:
    """Return why rows of each pair cannot be compared, from (pair, verdict, presence, reason). Pure."""
    by_pair: dict[str, set[str]] = {}
    for pair, verdict, presence, reason in rows:
        if verdict == Verdict.NOT_COMPARABLE and presence != OLDER:
            by_pair.setdefault(pair, set()).add(reason)
    return {pair: frozenset(reasons) for pair, reasons in by_pair.items()}


def select_acknowledged(
    known: Sequence[Acknowledgement], timeline: str, reasons: Reasons, now: datetime
) -> dict[str, str]:
    """Return who acknowledged that a pair cannot be compared, and why, by pair, for the pairs that are covered. Pure."""
    covered = {}
    for acknowledgement in known:
        if not acknowledgement.holds(timeline, now):
            continue
        for pair, pair_reasons in reasons.items():
            if pair in acknowledgement.reasons and pair_reasons <= acknowledgement.reasons[pair]:
                covered[pair] = (
                    f"{acknowledgement.id} by {acknowledgement.by} on {to_iso(acknowledgement.at)}: {acknowledgement.why}"
                )
    return covered


def acknowledge(
    home: PipelineHome,
    run: Mapping[str, Any],
    rows: Iterable[Mapping[str, Any]],
    *,
    why: str,
    by: str,
    until: datetime | None,
    now: datetime,
) -> Acknowledgement:
    """Record that what a run could not compare is known.

    Raises:
        RequestError: the run compared something, or the date has passed.
    """
    pairs = {_pair_of(alert) for alert in _alerts(run)}
    if not pairs:
        message = (
            f"the newest reconcile of {home.root.name}, {run['run']}, has no alert {NOTHING_COMPARED}, so there is nothing to "
            f"accept; see `rivertwice verdicts {home.root.name}`"
        )
        raise RequestError(message)
    if until is not None and until <= now:
        message = f"--until {to_iso(until)} has passed, so it would never hold; name a later date, or leave it out"
        raise RequestError(message)
    reasons_by_pair = reasons_of(
        (row["pair"], row["verdict"], "", row["reason"]) for row in rows if row["pair"] in pairs
    )
    acknowledgement = Acknowledgement(
        f"ak-{secrets.token_hex(4)}", str(run["timeline"]), str(run["run"]), reasons_by_pair, why, by, now, until
    )
    value = {
        "format": FORMAT,
        "timeline": acknowledgement.timeline,
        "run": acknowledgement.run,
        "reasons": {pair: sorted(reasons) for pair, reasons in reasons_by_pair.items()},
        "why": why,
        "by": by,
        "at": to_iso(now),
        "until": None if until is None else to_iso(until),
    }
    open_store(home.place).put_if_absent(
        f"{_FOLDER}{acknowledgement.id}{_ENDING}", json.dumps(value, sort_keys=True).encode()
    )
    return acknowledgement


def end_acknowledgement(home: PipelineHome, wanted: str, *, by: str, now: datetime) -> Acknowledgement:
    """End an acknowledgement; one that has already ended stays as it is.

    Raises:
        RequestError: no acknowledgement has this id.
    """
    known = {acknowledgement.id: acknowledgement for acknowledgement in read_acknowledgements(home)}
    if wanted not in known:
        message = f"{home.root.name} has no acceptance {wanted[:80]!r}; there are: {', '.join(known) or 'none'}"
        raise RequestError(message)
    value = {"format": FORMAT, "at": to_iso(now), "by": by}
    open_store(home.place).put_if_absent(f"{_FOLDER}{wanted}{_ENDED}", json.dumps(value, sort_keys=True).encode())
    return next(acknowledgement for acknowledgement in read_acknowledgements(home) if acknowledgement.id == wanted)


def read_acknowledgements(home: PipelineHome) -> list[Acknowledgement]:
    """Return all acknowledgements, oldest first.

    Raises:
        LedgerError: one cannot be read.
    """
    store = open_store(home.place)
    keys = set(store.list(_FOLDER))
    acknowledgements = []
    for key in sorted(key for key in keys if key.endswith(_ENDING) and not key.endswith(_ENDED)):
        name = key.removeprefix(_FOLDER).removesuffix(_ENDING)
        value = _decoded(home, key, store.get(key))
        ended_key = f"{_FOLDER}{name}{_ENDED}"
        ended = _decoded(home, ended_key, store.get(ended_key)) if ended_key in keys else None
        try:
            acknowledgements.append(_parsed(name, value, ended))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _unreadable(home, key, str(error)) from None
    return sorted(acknowledgements, key=lambda acknowledgement: (acknowledgement.at, acknowledgement.id))


def _parsed(name: str, value: Mapping[str, Any], ended: Mapping[str, Any] | None) -> Acknowledgement:
    return Acknowledgement(
        name,
        value["timeline"],
        value["run"],
        {pair: frozenset(map(_in_todays_words, reasons)) for pair, reasons in value["reasons"].items()},
        value["why"],
        value["by"],
        parse_iso(value["at"]),
        None if value["until"] is None else parse_iso(value["until"]),
        None if ended is None else parse_iso(ended["at"]),
        "" if ended is None else ended["by"],
    )


def _in_todays_words(reason: str) -> str:
    """Return a stored reason in the words of today: until November 2026 it had `hangs on` instead of `depends on`."""
    return reason.replace(" hangs on ", " depends on ")


def _decoded(home: PipelineHome, key: str, data: bytes | None) -> dict[str, Any]:
    try:
        value = json.loads(data or b"")
    except ValueError as error:
        raise _unreadable(home, key, str(error)) from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise _unreadable(home, key, f"it is not of format {FORMAT}")
    return value


def _unreadable(home: PipelineHome, key: str, why: str) -> LedgerError:
    return LedgerError(
        f"{key} of {home.root.name} cannot be read ({why}), so it is not known what was accepted; delete the file, and "
        f"accept it again with `rivertwice verdicts {home.root.name} --accept`"
    )


def _alerts(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [alert for alert in run["gate"]["alerts"] if alert["kind"] == NOTHING_COMPARED]


def _pair_of(alert: Mapping[str, Any]) -> str:
    """Return the pair that a stored alert is about; an alert without the field has it in its message only."""
    if "pair" in alert:
        return str(alert["pair"])
    return str(alert["message"]).partition(" of the pair ")[2].split(" ")[0]
