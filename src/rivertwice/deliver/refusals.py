"""Deliveries that a destination refuses for good: which, why, and how later records of the same keys change. Pure.

A refused delivery is set aside, and the sink continues. As consumers fold records by key, a later record of that key must name
as the earlier row the one that the destination really has: the last one that it took, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from rivertwice.core import ConfigError, to_iso
from rivertwice.deliver.model import WITHDRAW, DeliveredRecord, RowOrigin
from rivertwice.deliver.wire import address_json, plain

OPEN, DISCARDED = "open", "discarded"
MOST_IN_A_ROW = 100
"""The number of refusals in a row, without one taken record, after which the records are not the cause."""
MOST_ENTRIES = 10_000
_REASON = 300


@dataclass(frozen=True)
class RefusedRecord:
    """A record that the destination refuses for good, and the destination's reason."""

    record: DeliveredRecord
    reason: str


class SetAside(Protocol):
    """Called by a sink before it takes the position of a parcel."""

    def __call__(self, refused: Sequence[RefusedRecord], taken: int | None = None) -> None:
        """Take the records that the sink leaves out, if any.

        Args:
            refused: of the records that the position covers, those that the destination refuses for good.
            taken: how many of the parcel's records the position covers, from the first on; None: all.
        """
        ...


@dataclass(frozen=True)
class AsideEntry:
    """A delivery that was set aside.

    Attributes:
        op: `emit`, `correct` or `withdraw`.
        reason: the destination's last reason.
        source: the origin of the row (timeline and batch, or backfill); empty for a withdrawal.
        held: the row of this key that the destination took last (`source`, `values`), None if it took none.
        step: the number of the position with which it was left out last.
        times: how often it was refused.
        state: `open`, or `discarded`: it is not tried again.
        why, by: the reason for discarding it, and the person.
    """

    key: str
    op: str
    reason: str
    source: Mapping[str, Any]
    held: Mapping[str, Any] | None
    step: int
    times: int
    first_at: str
    last_at: str
    state: str = OPEN
    why: str = ""
    by: str = ""


@dataclass(frozen=True)
class Aside:
    """What a sink's destination lacks: entries by key, and how many were refused since it last took a record."""

    entries: Mapping[str, AsideEntry] = field(default_factory=dict)
    in_a_row: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is no entry and no count to store."""
        return not self.entries and not self.in_a_row

    def open_keys(self, wanted: Sequence[str] | None = None) -> list[str]:
        """Return the keys of open entries, sorted: all, or only those in `wanted`."""
        return sorted(
            key for key, entry in self.entries.items() if entry.state == OPEN and (wanted is None or key in wanted)
        )

    def describe(self, sink: str) -> str:
        """Return what a sink's destination lacks for good, in a sentence for an alert."""
        first = min((self.entries[key] for key in self.open_keys()), key=lambda entry: (entry.first_at, entry.key))
        count = len(self.open_keys())
        noun = (
            "delivery that its destination refused is" if count == 1 else "deliveries that its destination refused are"
        )
        return (
            f"{count} {noun} set aside at sink {sink}, the first since {first.first_at} ({first.reason}): readers there lack these "
            "rows; correct the destination and retry them, or discard them with the reason"
        )


def fit(records: Sequence[DeliveredRecord], aside: Aside) -> list[DeliveredRecord]:
    """Return the records as the destination must get them, given what it lacks.

    The withdrawal of a row that it never took is left out.
    """
    fitted = []
    for record in records:
        entry = aside.entries.get(record.key)
        if entry is None or record.old is None:
            fitted.append(record)
        elif entry.held is None:
            if record.op != WITHDRAW:
                fitted.append(replace(record, old=None, replaces=None))
        else:
            source, values = entry.held["source"], tuple(entry.held["values"])
            fitted.append(replace(record, old=values, replaces=_address(source)))
    return fitted


def after_step(
    aside: Aside,
    records: Sequence[DeliveredRecord],
    refused: Sequence[RefusedRecord],
    *,
    step: int,
    now: datetime,
    asked: bool = False,
) -> Aside:
    """Return what the destination lacks after a step.

    Args:
        asked: a person asked to send them again; a new refusal of these does not count against other records.
    """
    reasons = {refused_record.record.key: refused_record for refused_record in refused}
    entries = dict(aside.entries)
    for record in records:
        refusal = reasons.get(record.key)
        before = entries.pop(record.key, None)
        if refusal is not None:
            entries[record.key] = _entry(refusal, before, step, to_iso(now))
    in_a_row = aside.in_a_row + len(reasons) if reasons and len(reasons) == len(records) else 0
    return Aside(entries, aside.in_a_row if asked and reasons else in_a_row)


def _entry(refusal: RefusedRecord, before: AsideEntry | None, step: int, at: str) -> AsideEntry:
    record = refusal.record
    if before is not None:
        held, times, first = before.held, before.times, before.first_at
    else:
        held, times, first = None, 0, at
        if record.old is not None:
            held = {"source": address_json(record.replaces), "values": [plain(value) for value in record.old]}
    reason = refusal.reason[:_REASON]
    return AsideEntry(record.key, record.op, reason, address_json(record.address), held, step, times + 1, first, at)


def check_bounds(aside: Aside, refused: Sequence[RefusedRecord], sink: str, pipeline: str) -> None:
    """Refuse to set more aside if the records are not the cause, or if too many are set aside already.

    Raises:
        ConfigError: too many in a row, or too many in all; none was set aside.
    """
    if not refused:
        return
    if aside.in_a_row >= MOST_IN_A_ROW:
        raise all_refused(aside.in_a_row, refused[-1].reason, sink)
    if len(aside.entries) > MOST_ENTRIES:
        message = (
            f"sink {sink} of {pipeline} would have {len(aside.entries)} refused deliveries, more than the {MOST_ENTRIES} that are kept "
            f"(the last one: {refused[-1].reason[:_REASON]}); the position stays; correct the destination, then `rivertwice deliver retry "
            f"{pipeline} --sink {sink}`"
        )
        raise ConfigError(message)


def all_refused(count: int, reason: str, sink: str) -> ConfigError:
    """Return the error that stops a sink whose destination refuses every record."""
    message = (
        f"the destination of sink {sink} refused the last {count} records and took none between them ({reason[:_REASON]}): that is not the "
        "records' fault, so the sink stops and its position stays; correct the destination, then it resumes automatically"
    )
    return ConfigError(message)


def isolate(
    records: Sequence[DeliveredRecord], attempt: Callable[[Sequence[DeliveredRecord]], str | None], sink: str
) -> list[RefusedRecord]:
    """Find the records that the destination refuses: send halves, in order.

    Args:
        attempt: sends some of them; returns None if they were taken, else the reason.

    Raises:
        ConfigError: the first hundred were refused, and none was taken.
    """
    refused: list[RefusedRecord] = []
    is_taken = False
    parts = [records[len(records) // 2 :], records[: len(records) // 2]] if len(records) > 1 else [records]
    while parts:
        part = parts.pop()
        reason = attempt(part)
        if reason is None:
            is_taken = True
        elif len(part) > 1:
            parts += [part[len(part) // 2 :], part[: len(part) // 2]]
        else:
            refused.append(RefusedRecord(part[0], reason))
            if not is_taken and len(refused) >= MOST_IN_A_ROW:
                raise all_refused(len(refused), reason, sink)
    return refused


def none_aside(refused: Sequence[RefusedRecord], taken: int | None = None) -> None:
    """Allow no record to be left out; used by a sink without a record of refused deliveries.

    Raises:
        ConfigError: a record is left out.
    """
    del taken
    if refused:
        message = (
            f"the destination refuses {len(refused)} records for good: {refused[0].reason[:_REASON]}; nothing was taken"
        )
        raise ConfigError(message)


def _address(source: Mapping[str, Any]) -> RowOrigin:
    return RowOrigin(source.get("timeline"), source.get("batch"), source.get("backfill"))
