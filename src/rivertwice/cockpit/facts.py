"""What is true of a pipeline now, each fact with its instant: what `now` decides on. Values and their readers; nothing is written.

Reading is cheap while nothing changes: small files are read, tables are opened only after a commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from rivertwice.alerts.model import Alert
from rivertwice.alerts.store import alerts_of
from rivertwice.config import PipelineHome, Settings
from rivertwice.errors import RivertwiceError
from rivertwice.instants import parse_iso
from rivertwice.pipeline.airflow_model import NO_SCHEDULE
from rivertwice.pipeline.definition import Definition
from rivertwice.pipeline.durations import parse_duration
from rivertwice.reconcile.results import newest_reconcile
from rivertwice.savepoint.catalogue import Savepoint, select_newest
from rivertwice.savepoint.operations.record import ABANDONED, DONE, Operation, read_operations
from rivertwice.savepoint.operations.steps import plan_of
from rivertwice.savepoint.recovery_view import RecoveryView, view_recovery
from rivertwice.store.files import read_json
from rivertwice.store.remembered import Remembered
from rivertwice.store.room import has_room
from rivertwice.supervise.archiver import last_retention, retention_file
from rivertwice.supervise.health import StreamObservation, observe_stream
from rivertwice.supervise.view import view_first_load, view_quality, view_stream, view_stream_load
from rivertwice.timeline.committed import committed_batches
from rivertwice.timeline.judgements import verdicts_of
from rivertwice.timeline.lineage import head_path
from rivertwice.timeline.sequence import HEAD, Entry, read_sequence
from rivertwice.verdicts import DEFECT, LATE, NOT_COMPARABLE

T = TypeVar("T")
DIFFERING = (DEFECT, LATE, NOT_COMPARABLE)
SAVEPOINTS_EVERY_S = 60.0
"""Savepoints may lie on S3, where a look costs requests: they are looked at so often at most."""


@dataclass(frozen=True)
class Finding:
    """One thing that the gate of a reconcile found."""

    severity: str
    kind: str
    message: str
    pair: str = ""


@dataclass(frozen=True)
class Windows:
    """Windows in which served rows have one verdict: how many, and the first and last start."""

    count: int
    first: datetime
    last: datetime


@dataclass(frozen=True)
class Verdict:
    """What the newest reconcile found.

    Attributes:
        at: when it ran. timeline, batch, sequence: what it looked at.
        served, stream: verdict to rows.
        windows: verdict to the windows of served rows that have it; only of those that differ.
        late_share: late pairs of record and window among all; limit: above which it is an alert.
    """

    run: str
    at: datetime
    timeline: str
    batch: int
    sequence: int
    served: Mapping[str, int]
    stream: Mapping[str, int]
    late_share: float | None
    limit: float
    windows: Mapping[str, Windows] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    passed: bool = True


@dataclass(frozen=True)
class UnfinishedOperation:
    """A restore, rewind or upgrade that is not done."""

    id: str
    noun: str
    since: datetime
    step: int
    steps: int
    name: str
    finish: str


@dataclass(frozen=True)
class Savepoints:
    """The newest proved savepoint.

    Attributes:
        proved_at: when it was taken; None: none is proved.
        limit: age beyond which it is too old.
        recovery_s: what a fall-back to it would take; over: whether that is longer than was promised.
    """

    proved_at: datetime | None
    limit: timedelta
    recovery_s: float | None = None
    over: bool = False


@dataclass(frozen=True)
class Facts:
    """What is true of one pipeline.

    Attributes:
        stream: what `supervise.view.view_stream` returns.
        alerts: those whose cause lasts, of the pipeline and of the whole home.
        head_at: when the head last moved, its number in the sequence, and to which timeline.
        published_at: the newest publication, and its number.
        began_at: when the first batch of the head's path was committed.
        reconcile_every: how often a reconcile starts by itself; None: nobody has scheduled one, or its rhythm is not a simple one.
        compare: whether the definition asks for a comparison.
        has_room: whether the home's disk has room.
        unread: what cannot be read now, with the reason.
    """

    name: str
    observation: StreamObservation
    stream: Mapping[str, Any]
    alerts: tuple[Alert, ...] = ()
    verdict: Verdict | None = None
    head: Entry | None = None
    published: Entry | None = None
    began_at: datetime | None = None
    quality: Mapping[str, Any] | None = None
    retention: Mapping[str, Any] | None = None
    retention_at: datetime | None = None
    savepoints: Savepoints | None = None
    first_load: Mapping[str, Any] | None = None
    stream_load: Mapping[str, Any] | None = None
    operation: UnfinishedOperation | None = None
    reconcile_every: timedelta | None = None
    compare: bool = True
    has_room: bool = True
    unread: tuple[tuple[str, str], ...] = ()


def read_facts(settings: Settings, definition: Definition, now: datetime) -> Facts:
    """Return what is true of a pipeline. A part that cannot be read is named in `unread` and hides no other."""
    name = definition.name
    home = settings.pipeline(name)
    unread: list[tuple[str, str]] = []

    def read(what: str, ask: Callable[[], T], otherwise: T) -> T:
        try:
            return ask()
        except (RivertwiceError, OSError, ValueError, KeyError) as error:
            unread.append((what, str(error)))
            return otherwise

    observation = observe_stream(settings, name, now)
    entries: list[Entry] = read("sequence", lambda: read_sequence(home), [])
    retention_at, retention = read("retention", lambda: _retention(settings, name, now), _NO_RETENTION)
    quality = view_quality(settings, home)
    return Facts(
        name=name,
        observation=observation,
        stream=view_stream(settings, name, now, observation),
        alerts=read("alerts", lambda: lasting_alerts(settings, name), ()),
        verdict=read("verdicts", lambda: _verdict(home, definition), None),
        head=_newest(entries, HEAD),
        published=next((each for each in reversed(entries) if each.kind != HEAD), None),
        began_at=read("ledger", lambda: _began_at(home, entries), None),
        quality=quality if quality is None or "error" not in quality else None,
        retention=retention,
        retention_at=retention_at,
        savepoints=read("savepoints", lambda: _savepoints(settings, definition), None),
        first_load=_known(view_first_load(home), "first load", unread),
        stream_load=_known(view_stream_load(home), "first load", unread),
        operation=read("operations", lambda: _operation(home), None),
        reconcile_every=reconcile_rhythm(definition),
        compare=definition.compare,
        has_room=has_room(home.root) if home.root.exists() else True,
        unread=tuple(unread),
    )


def lasting_alerts(settings: Settings, name: str) -> tuple[Alert, ...]:
    """Return the alerts whose cause lasts: of a pipeline, and of the whole home."""
    alerts = alerts_of(settings).state().alerts
    return tuple(
        alert
        for alert in alerts
        if alert.cause.pipeline in ("", name) and not alert.closed and alert.resolved_at is None
    )


def reconcile_rhythm(definition: Definition) -> timedelta | None:
    """Return how often a reconcile starts by itself; None if none does, or its cron expression is no plain rhythm. Pure."""
    text = definition.airflow.schedules.reconcile
    plain = {"@hourly": timedelta(hours=1), "@daily": timedelta(days=1), "@midnight": timedelta(days=1),
             "@weekly": timedelta(days=7)}  # fmt: skip
    if text in plain:
        return plain[text]
    fields = text.split()
    if text == NO_SCHEDULE or text.startswith("@"):
        return None
    if len(fields) <= 2:
        return parse_duration(text)
    minute, hour, *others = fields
    if others != ["*", "*", "*"]:
        return timedelta(days=7)
    if hour.isdigit():
        return timedelta(days=1)
    if hour != "*":
        return timedelta(hours=int(hour[2:])) if hour.startswith("*/") and hour[2:].isdigit() else timedelta(days=1)
    if minute.startswith("*/") and minute[2:].isdigit():
        return timedelta(minutes=int(minute[2:]))
    return timedelta(hours=1)


def _newest(entries: list[Entry], kind: str) -> Entry | None:
    return next((each for each in reversed(entries) if each.kind == kind), None)


def _known(view: dict[str, Any] | None, what: str, unread: list[tuple[str, str]]) -> dict[str, Any] | None:
    if view is not None and "error" in view:
        unread.append((what, str(view["message"])))
        return None
    return view


def _began_at(home: PipelineHome, entries: list[Entry]) -> datetime | None:
    """Return when the first batch of the head's path was committed; once there is one it stays the same until the head moves."""
    head = _newest(entries, HEAD)
    if head is None:
        return None
    key = (home.root, head.seq, head.created_at)
    known = _BEGAN.get(key)
    if known is None:
        known = committed_batches(home, head_path(home)).began_at
        if known is not None:
            _BEGAN[key] = known
    return known


def _retention(settings: Settings, name: str, now: datetime) -> tuple[datetime | None, Mapping[str, Any] | None]:
    plain = read_json(retention_file(settings, name))
    return (None, None) if plain is None else (parse_iso(plain["at"]), last_retention(settings, name, now))


def _verdict(home: PipelineHome, definition: Definition) -> Verdict | None:
    run = newest_reconcile(home)
    if run is None:
        return None
    counts, gate = run["counts"], run["gate"]
    served = counts.get("served", {})
    differs = [verdict for verdict in DIFFERING if served.get(verdict)]
    windows = _WINDOWS.get(
        (str(home.root), run["run"]),
        (home.tables.reconciles, home.tables.verdicts),
        lambda: _windows(home, run["run"], differs) if differs else {},
    )
    return Verdict(
        run=run["run"],
        at=run["created_at"],
        timeline=run["timeline"],
        batch=run["batch"],
        sequence=run["sequence"],
        served=served,
        stream=counts.get("stream", {}),
        late_share=run["balance"]["total"].get("late_share"),
        limit=definition.late.alert_share,
        windows=windows,
        findings=tuple(
            Finding(each["severity"], each["kind"], each["message"], each.get("pair", "")) for each in gate["alerts"]
        ),
        passed=gate["passed"],
    )


def _windows(home: PipelineHome, run: str, wanted: list[str]) -> dict[str, Windows]:
    """Return the windows of served rows by verdict."""
    starts: dict[str, set[datetime]] = {}
    for row in verdicts_of(home, run, wanted=wanted):
        if row["pair"] == "served" and row["window_start"] is not None:
            starts.setdefault(row["verdict"], set()).add(row["window_start"])
    return {verdict: Windows(len(own), min(own), max(own)) for verdict, own in starts.items()}


def known_savepoints(settings: Settings, name: str) -> tuple[Savepoint, ...]:
    """Return all savepoints, as they were within the last minute."""
    return _recovery(settings, name).savepoints


def _savepoints(settings: Settings, definition: Definition) -> Savepoints | None:
    view = _recovery(settings, definition.name)
    newest = select_newest(view.savepoints, proved=True)
    return Savepoints(
        proved_at=None if newest is None else newest.manifest.created_at,
        limit=definition.alerts.savepoint_age,
        recovery_s=None if view.estimate is None else view.estimate.seconds,
        over=view.is_over,
    )


def _recovery(settings: Settings, name: str) -> RecoveryView:
    """Return the savepoints; what a process has seen within a minute is not asked for again, unless one was taken here."""
    home = settings.pipeline(name)
    stamp = tuple(_changed(place) for place in (home.savepoints, home.operations))
    kept = _RECOVERY.get(home.root)
    if kept is not None and kept[0] == stamp and time.monotonic() - kept[1] < SAVEPOINTS_EVERY_S:
        return kept[2]
    view = view_recovery(settings, name)
    _RECOVERY[home.root] = (stamp, time.monotonic(), view)
    return view


def _changed(place: object) -> int:
    try:
        return Path(str(place)).stat().st_mtime_ns
    except OSError:
        return -1


def _operation(home: PipelineHome) -> UnfinishedOperation | None:
    unfinished: list[Operation] = [
        each for each in read_operations(home) if each.step < DONE and each.step != ABANDONED
    ]
    if not unfinished:
        return None
    record = unfinished[-1]
    plan = plan_of(record)
    done = [step.number for step in plan.steps if step.number <= record.step]
    return UnfinishedOperation(
        id=record.id,
        noun=plan.noun,
        since=record.started_at,
        step=len(done),
        steps=len(plan.steps),
        name=plan.name_of(record.step),
        finish=plan.finish.format(pipeline=home.root.name),
    )


def instant_of(text: str | None) -> datetime | None:
    """Return the instant of a text that a view contains."""
    return None if text is None else parse_iso(text).astimezone(UTC)


_NO_RETENTION: tuple[datetime | None, Mapping[str, Any] | None] = (None, None)
_BEGAN: dict[tuple[Path, int, datetime], datetime] = {}
_WINDOWS: Remembered[dict[str, Windows]] = Remembered(64)
_RECOVERY: dict[Path, tuple[tuple[int, ...], float, RecoveryView]] = {}
