"""The alerts of a pipeline by cause: what lasts, who knows of it, what to do next, and when the same was there before. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from rivertwice.agent import Alert, AlertCause, AlertPhase, Routes, State, due, meaning_of, next_command
from rivertwice.core import Settings, printable_line
from rivertwice.read.problems import NEXT_ACTS
from rivertwice.upkeep import RepairOutcome, RepairRecord

MOST_READ = 400_000  # bytes of `alerts.jsonl` that are read from its end
MOST_EARLIER = 5
"""Earlier times of one cause that are listed; the others are counted."""


@dataclass(frozen=True)
class Acknowledgement:
    """Who knows of an alert, since when, and what they wrote."""

    by: str
    at: datetime | None
    why: str


@dataclass(frozen=True)
class Episode:
    """A time that a cause lasted, as the file of past alerts has it."""

    id: str | None = None
    severity: str | None = None
    since: str | None = None
    until: str | None = None
    message: str | None = None
    resolution: str | None = None
    acknowledged_by: str | None = None
    acknowledgement: str | None = None


@dataclass(frozen=True)
class RepairView:
    """A repair in words.

    Attributes:
        what: what is computed again. before, after: verdict to rows, of the reconciles before and after it.
    """

    run: str
    outcome: str
    at: datetime
    by: str | None
    reason: str | None
    backfill: str | None
    reconcile: str
    what: str
    windows: int
    records: int | None
    before: str
    after: str | None
    note: str | None


@dataclass(frozen=True)
class CauseOfAlert:
    """What an alert is about; whole_home: not one pipeline alone."""

    kind: str
    subject: str
    whole_home: bool
    meaning: str


@dataclass(frozen=True)
class OpenAlert(CauseOfAlert):
    """An alert that lasts.

    Attributes:
        sent_to: routes that have it; waits_for: those that are still to get it.
        repair: the run that proposes a repair. command, acts: what to do next.
        place: where its cause is seen on the page; a message has the same, as a whole address.
        earlier: the newest of the times that the same lasted before, of `earlier_times`.
    """

    id: str
    severity: str
    message: str
    since: datetime
    seen_at: datetime
    over_at: datetime | None
    resolution: str
    times: int
    acknowledged: Acknowledgement | None
    sent_to: tuple[str, ...]
    waits_for: tuple[str, ...]
    dag: str | None
    run: str | None
    repair: str | None
    repair_under_way: RepairView | None
    command: str
    acts: tuple[str, ...]
    place: str
    earlier: tuple[Episode, ...]
    earlier_times: int


@dataclass(frozen=True)
class PastAlert(CauseOfAlert):
    """A cause that is over: the newest time that it lasted, and how often it did."""

    times: int
    earlier: tuple[Episode, ...]
    severity: str | None
    since: str | None
    until: str | None
    message: str | None
    resolution: str | None


@dataclass(frozen=True)
class AlertsView:
    """What the page shows of a pipeline's alerts, of the home's, and of repairs; routes_problem: why the routes cannot be read."""

    open: tuple[OpenAlert, ...]
    over: tuple[PastAlert, ...]
    routes: Sequence[object]
    repairs: tuple[RepairView, ...]
    routes_problem: str | None = None


def describe_alerts(
    settings: Settings,
    pipeline: str,
    state: State,
    routes: Routes,
    past: Iterable[Mapping[str, Any]],
    repairs: Sequence[RepairRecord],
) -> AlertsView:
    """Return what the page shows of a pipeline's alerts, and of those that concern the whole home. Pure.

    Args:
        past: lines of `alerts.jsonl`, oldest first.
        repairs: of the pipeline, oldest first.
    """
    episodes = _episodes(past, pipeline)
    lasting = [alert for alert in state.open() if alert.cause.pipeline in ("", pipeline)]
    under_way = [record for record in repairs if record.outcome in (RepairOutcome.WAITING, RepairOutcome.RUNNING)]
    opened = [_lasting(settings, alert, routes, episodes[_key(alert.cause)], under_way) for alert in lasting]
    lasting_keys = {_key(alert.cause) for alert in lasting}
    over = [
        PastAlert(
            **vars(_cause(AlertCause(*key))),
            times=len(ended),
            earlier=tuple(reversed(ended[-MOST_EARLIER:])),
            **{name: getattr(ended[-1], name) for name in ("severity", "since", "until", "message", "resolution")},
        )
        for key, ended in episodes.items()
        if key not in lasting_keys and ended
    ]
    return AlertsView(
        tuple(opened),
        tuple(sorted(over, key=lambda group: str(group.until), reverse=True)),
        routes.view(state),
        tuple(_repair(record) for record in reversed(repairs)),
    )


def read_past(path: Path, most: int = MOST_READ) -> list[dict[str, Any]]:
    """Return the last lines of `alerts.jsonl`, oldest first; a truncated or damaged line is left out."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - most, 0))
            data = file.read(most)
    except FileNotFoundError:
        return []
    lines = []
    for line in data.splitlines()[1 if size > most else 0 :]:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            lines.append(value)
    return lines


def _lasting(
    settings: Settings,
    alert: Alert,
    routes: Routes,
    earlier: Sequence[Episode],
    under_way: Sequence[RepairRecord],
) -> OpenAlert:
    due_to = [name for name, route in routes.routes.items() if due([alert], name, route.severities)]
    known = None
    if alert.acknowledged_by:
        known = Acknowledgement(alert.acknowledged_by, alert.acknowledged_at, alert.acknowledgement)
    repair = next((record for record in under_way if alert.cause.kind in record.proposal.kinds), None)
    return OpenAlert(
        **vars(_cause(alert.cause)),
        id=alert.id,
        severity=alert.severity,
        message=printable_line(alert.message),
        since=alert.since,
        seen_at=alert.seen_at,
        over_at=alert.resolved_at,
        resolution=printable_line(alert.resolution),
        times=alert.times,
        acknowledged=known,
        sent_to=tuple(sorted(alert.sent)),
        waits_for=tuple(due_to),
        dag=alert.details.get("dag"),
        run=alert.details.get("run"),
        repair=alert.details.get("repair") or None,
        repair_under_way=None if repair is None else _repair(repair),
        command=next_command(settings, alert.cause),
        acts=NEXT_ACTS.get(alert.cause.kind, ()) if alert.cause.pipeline else (),
        place=alert.place,
        earlier=tuple(reversed(earlier[-MOST_EARLIER:])),
        earlier_times=len(earlier),
    )


def _cause(cause: AlertCause) -> CauseOfAlert:
    return CauseOfAlert(cause.kind, cause.subject, not cause.pipeline, meaning_of(cause))


def _key(cause: AlertCause) -> tuple[str, str, str]:
    return cause.pipeline, cause.kind, cause.subject


def _episodes(past: Iterable[Mapping[str, Any]], pipeline: str) -> dict[tuple[str, str, str], list[Episode]]:
    """Return cause to the times that it was over, oldest first."""
    episodes: dict[tuple[str, str, str], list[Episode]] = defaultdict(list)
    for line in past:
        of = line.get("pipeline") or ""
        if of in ("", pipeline) and line.get("status") == AlertPhase.RESOLVED:
            known = Episode(**{field.name: line.get(field.name) for field in fields(Episode)})
            episodes[of, str(line.get("kind")), str(line.get("subject") or "")].append(known)
    return episodes


def _repair(record: RepairRecord) -> RepairView:
    return RepairView(
        run=record.id,
        outcome=record.outcome,
        at=record.at,
        by=record.by,
        reason=record.reason,
        backfill=record.backfill,
        reconcile=record.proposal.reconcile,
        what=record.proposal.text,
        windows=record.proposal.windows,
        records=record.proposal.records,
        before=record.before,
        after=record.left,
        note=record.note,
    )
