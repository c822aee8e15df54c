"""Read what is true of a pipeline now; nothing is written.

Reading is cheap while nothing changes: small files are read, tables are opened only after a commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from rivertwice.agent import (
    Alert,
    Unreadable,
    alerts_of,
    has_room,
    load_routes,
    observe_stream,
    view_first_load,
    view_quality,
    view_stream,
    view_stream_load,
)
from rivertwice.core import PipelineHome, RivertwiceError, Settings, parse_iso
from rivertwice.definition import NO_SCHEDULE, Definition, parse_duration
from rivertwice.read.facts import Facts, GateFinding, RunVerdict, Savepoints, UnfinishedOperation, Windows
from rivertwice.reconcile import newest_reconcile
from rivertwice.retention import RetentionBrief, retention_file
from rivertwice.savepoint import (
    Operation,
    OperationStep,
    RecoveryView,
    Savepoint,
    plan_of,
    read_operations,
    select_newest,
    view_recovery,
)
from rivertwice.storage import Remembered, Table, read_json
from rivertwice.timeline import (
    Entry,
    EntryKind,
    Verdict,
    committed_batches,
    find_move_off,
    head_path,
    read_newest_dead,
    read_sequence,
    verdicts_of,
)

T = TypeVar("T")
DIFFERING = (Verdict.DEFECT, Verdict.LATE, Verdict.NOT_COMPARABLE)
_SHOWN = ("served", "provisional", "verdicts", "causes")
SAVEPOINTS_EVERY_S = 60.0
"""Savepoints may lie in an object store, where a look costs requests: they are looked at so often at most."""


def collect_facts(settings: Settings, definition: Definition, now: datetime) -> Facts:
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
    for (
        table
    ) in _SHOWN:  # all of them are read elsewhere, and not at each look; in an object store an opening costs too much
        place = getattr(home.tables, table)
        if isinstance(place, Path):
            read(table, lambda place=place: _OPENED.get(str(place), (place,), Table(place).version), -1)  # type: ignore[misc]
    return Facts(
        name=name,
        observation=observation,
        stream=view_stream(settings, name, now, observation),
        alerts=read("alerts", lambda: lasting_alerts(settings, name), ()),
        told=read("routes of alerts", lambda: _has_route(settings), True),
        verdict=read("verdicts", lambda: _verdict(home, definition, entries), None),
        head=_newest(entries, EntryKind.HEAD),
        published=next((each for each in reversed(entries) if each.kind != EntryKind.HEAD), None),
        began_at=read("ledger", lambda: _began_at(home, entries), None),
        quality=None if isinstance(quality, Unreadable) else quality,
        retention=retention,
        retention_at=retention_at,
        savepoints=read("savepoints", lambda: _savepoints(settings, definition), None),
        first_load=_known(view_first_load(home), "first load", unread),
        stream_load=_known(view_stream_load(home), "first load", unread),
        operation=read("operations", lambda: _operation(home), None),
        reconcile_every=reconcile_rhythm(definition),
        compare=definition.compare,
        has_room=has_room(home.root) if home.root.exists() else True,
        dead=read(
            "dead letters", lambda: read_newest_dead(home, definition).describe(definition.alerts.dead_share), ""
        ),
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


def _has_route(settings: Settings) -> bool:
    """Say whether an alert has a route: one that the sender found by its own environment, or one that this process finds."""
    return bool(alerts_of(settings).state().routes) or bool(load_routes(settings).routes)


def reconcile_rhythm(definition: Definition) -> timedelta | None:
    """Return how often a reconcile starts by itself; None if none does, or its cron expression is not a plain rhythm. Pure."""
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


def _known(view: T | Unreadable, what: str, unread: list[tuple[str, str]]) -> T | None:
    if isinstance(view, Unreadable):
        unread.append((what, view.message))
        return None
    return view


def _began_at(home: PipelineHome, entries: list[Entry]) -> datetime | None:
    """Return when the first batch of the head's path was committed; once there is one it stays the same until the head moves."""
    head = _newest(entries, EntryKind.HEAD)
    if head is None:
        return None
    key = (home.root, head.seq, head.created_at)
    known = _BEGAN.get(key)
    if known is None:
        known = committed_batches(home, head_path(home)).began_at
        if known is not None:
            _BEGAN[key] = known
    return known


def _retention(settings: Settings, name: str, now: datetime) -> tuple[datetime | None, RetentionBrief | None]:
    plain = read_json(retention_file(settings, name))
    return (None, None) if plain is None else (parse_iso(plain["at"]), RetentionBrief.read(settings, name, now))


def _verdict(home: PipelineHome, definition: Definition, entries: list[Entry]) -> RunVerdict | None:
    run = newest_reconcile(home)
    if run is None:
        return None
    counts, gate = run["counts"], run["gate"]
    served = counts.get("served", {})
    differs = [verdict for verdict in DIFFERING if served.get(verdict)]
    key = (home.root, str(run["run"]))
    windows = _WINDOWS.get(key)  # the verdicts of a run do not change once it is stored
    if windows is None:
        windows = _windows(home, run["run"], differs) if differs else {}
        _WINDOWS.pop(_NEWEST_RUN.get(home.root, key), None)
        _NEWEST_RUN[home.root], _WINDOWS[key] = key, windows
    return RunVerdict(
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
            GateFinding(each["severity"], each["kind"], each["message"], each.get("pair", ""), each.get("repeats", ""))
            for each in gate["alerts"]
        ),
        passed=gate["passed"],
        left_by=_left_by(home, entries, run),
    )


def _left_by(home: PipelineHome, entries: list[Entry], run: Mapping[str, Any]) -> Entry | None:
    """Return the head move that left what a run saw; the path's records are read only if the head moved at all since."""
    head = _newest(entries, EntryKind.HEAD)
    if head is None or head.seq <= run["sequence"]:
        return None
    return find_move_off(entries, head_path(home), (run["timeline"], run["batch"]), run["sequence"])


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
        each
        for each in read_operations(home)
        if each.step < OperationStep.DONE and each.step != OperationStep.ABANDONED
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


_NO_RETENTION: tuple[datetime | None, RetentionBrief | None] = (None, None)
_OPENED: Remembered[int] = Remembered(4 * 256)
_BEGAN: dict[tuple[Path, int, datetime], datetime] = {}
_WINDOWS: dict[tuple[Path, str], dict[str, Windows]] = {}
_NEWEST_RUN: dict[Path, tuple[Path, str]] = {}
_RECOVERY: dict[Path, tuple[tuple[int, ...], float, RecoveryView]] = {}
