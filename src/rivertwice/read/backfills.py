"""The backfills of a pipeline: what each one is, how far it is, whether it serves, and which cannot be published any more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rivertwice.backfill import (
    BACKFILL_KEY,
    BackfillPlan,
    backfill_app,
    backfill_folder,
    find_refusal,
    list_backfills,
    load_backfill_plan,
    read_audit,
    stale_ranges,
)
from rivertwice.core import PipelineHome, RequestError, Settings, TimeRange, from_ms, is_locked
from rivertwice.read.serving import open_serving
from rivertwice.storage import Remembered, Table
from rivertwice.timeline import (
    Entry,
    EntryKind,
    head_path,
    path_semantics,
    publications_of,
    read_sequence,
    select_serving,
)

LISTED = 25
_HISTORY = 500  # newest commits of `corrections` in which the times of chunks are looked for

RUNNING, PLANNED, INTERRUPTED, FAILED, AUDITED = "running", "planned", "interrupted", "audit failed", "audited"
PUBLISHED, REPLACED, OBSOLETE = "published", "replaced", "obsolete"


@dataclass(frozen=True)
class Facts:
    """What is stored of a backfill besides its plan.

    Attributes:
        done: chunks that are committed.
        locked: whether a process computes it now.
        passed: what its audit found; None: it has none.
        published: number of its publication; None: it is not published.
        serves: whether a window serves rows of it.
        why_obsolete: why it cannot be published any more; None: it can.
    """

    done: int
    locked: bool
    passed: bool | None
    published: int | None
    serves: bool
    why_obsolete: str | None


def decide_state(facts: Facts) -> str:
    """Return what a backfill is, in one word. Pure."""
    if facts.published is not None:
        return PUBLISHED if facts.serves else REPLACED
    if facts.locked:
        return RUNNING
    if facts.passed is False:
        return FAILED
    if facts.why_obsolete is not None:
        return OBSOLETE
    if facts.passed:
        return AUDITED
    return INTERRUPTED if facts.done else PLANNED


@dataclass(frozen=True)
class Span:
    """A range of event time, half-open."""

    from_: datetime
    to: datetime


@dataclass(frozen=True)
class BackfillRow:
    """A backfill in a list.

    Attributes:
        why: why it failed, waits or is obsolete.
        pieces: ranges that its windows lie in. late: late pairs of record and window.
        done, chunks: how many of how many chunks are computed; chunk_times: when the newest were.
        rows: that it has computed. sequence: number of its publication.
        command: what continues it; None: nothing does.
        runs: the DAG runs that made it.
    """

    id: str
    state: str
    why: str | None
    reason: str
    from_: datetime | None
    to: datetime | None
    pieces: int
    windows: int
    records: int
    late: int | None
    done: int
    chunks: int
    chunk_times: tuple[datetime, ...]
    rows: int | None
    planned_at: datetime
    published_at: datetime | None
    sequence: int | None
    replaces: tuple[str, ...]
    command: str | None
    runs: tuple[object, ...] = ()


@dataclass(frozen=True)
class UnreadableBackfill:
    """A backfill whose plan cannot be read, and why."""

    id: str
    why: str
    state: str = "unreadable"
    runs: tuple[object, ...] = ()


@dataclass(frozen=True)
class StaleWindows:
    """The ranges of event time that the newest reconcile found stale: how many, and the first of them."""

    total: int
    ranges: tuple[Span, ...]


@dataclass(frozen=True)
class BackfillList:
    """The stored backfills, newest first, the windows that are stale, and the DAG runs that have planned nothing yet."""

    name: str
    total: int
    skip: int
    backfills: tuple[BackfillRow | UnreadableBackfill, ...]
    stale: StaleWindows
    waiting: tuple[object, ...] = ()


@dataclass(frozen=True)
class EarlierRun:
    """How long a backfill took from its plan to its publication, and of what size it was."""

    id: str
    seconds: float
    records: int
    windows: int


def list_of_backfills(settings: Settings, name: str, skip: int = 0, limit: int = LISTED) -> BackfillList:
    """Return the stored backfills, newest first, and the windows that are stale.

    Args:
        name: the version that serves, or `NAME@v2`.
    """
    home = open_serving(settings, name).home
    ids = list_backfills(home)[::-1]
    entries, path = read_sequence(home), head_path(home)
    semantics, publications = path_semantics(home, path), publications_of(entries)
    serving = {entry.backfill for entry in select_serving(publications, semantics)}
    times = chunk_times(home)
    corrections = Table(home.tables.corrections).open()
    rows: list[BackfillRow | UnreadableBackfill] = []
    for backfill in ids[skip : skip + limit]:
        try:
            plan = load_backfill_plan(home, backfill)
        except RequestError as error:
            rows.append(UnreadableBackfill(backfill, str(error)))
            continue
        done = None if corrections is None else corrections.applied_version(backfill_app(backfill))
        audit = read_audit(home, backfill)
        publication = next((entry for entry in publications if entry.backfill == backfill), None)
        facts = Facts(
            0 if done is None else done + 1,
            is_locked(backfill_folder(home, backfill) / "lock"),
            None if audit is None else bool(audit["passed"]),
            None if publication is None else publication.seq,
            backfill in serving,
            str(find_refusal(home, plan, entries) or "") or None if publication is None else None,
        )
        rows.append(_row(home, plan, facts, audit, entries, times.get(backfill, {})))
    stale = _stale(home)
    ranges = tuple(Span(part.start, part.end) for part in stale[:LISTED])
    return BackfillList(home.root.name, len(ids), skip, tuple(rows), StaleWindows(len(stale), ranges))


def _stale(home: PipelineHome) -> list[TimeRange]:
    """Return the ranges of event time that the newest reconcile found stale and no publication repaired since."""
    tables = (home.tables.verdicts, home.tables.reconciles, home.tables.sequence)
    return _STALE.get(str(home.root), tables, lambda: stale_ranges(home))


def _row(
    home: PipelineHome,
    plan: BackfillPlan,
    facts: Facts,
    audit: Mapping[str, Any] | None,
    entries: Sequence[Entry],
    times: Mapping[int, datetime],
) -> BackfillRow:
    state = decide_state(facts)
    entry = next((each for each in entries if each.seq == facts.published), None)
    failed = [] if audit is None else [check for check in audit["checks"] if not check["passed"]]
    continues = state in (PLANNED, INTERRUPTED, AUDITED, FAILED)
    return BackfillRow(
        id=plan.id,
        state=state,
        why=_why(state, facts, failed),
        reason=plan.reason,
        from_=from_ms(plan.ranges[0][0]) if plan.ranges else None,
        to=from_ms(plan.ranges[-1][1]) if plan.ranges else None,
        pieces=len(plan.ranges),
        windows=plan.windows,
        records=plan.records,
        late=plan.late,
        done=facts.done,
        chunks=len(plan.chunks),
        chunk_times=tuple(times[chunk] for chunk in sorted(times))[-20:],
        rows=None if audit is None else audit["rows"],
        planned_at=planned_at_of(home, plan.id),
        published_at=None if entry is None else entry.created_at,
        sequence=facts.published,
        replaces=plan.replaces,
        command=f"rivertwice backfill run {plan.pipeline} --id {plan.id}" if continues else None,
    )


def _why(state: str, facts: Facts, failed: Sequence[Mapping[str, Any]]) -> str | None:
    if state == FAILED:
        return "; ".join(f"{check['name']}: {check['detail']}" for check in failed)
    if state == OBSOLETE:
        return facts.why_obsolete
    if state == INTERRUPTED:
        return f"no process computes it; run again, it continues after chunk {facts.done}"
    return None


def planned_at_of(home: PipelineHome, backfill: str) -> datetime:
    """Return when a plan was stored."""
    path: Path = backfill_folder(home, backfill) / "plan.json"
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


def chunk_times(home: PipelineHome) -> dict[str, dict[int, datetime]]:
    """Return when the chunks of the newest backfills were committed, as far as the table's log still says so."""
    table = Table(home.tables.corrections).open()
    found: dict[str, dict[int, datetime]] = {}
    for commit in [] if table is None else table.history(_HISTORY):
        if BACKFILL_KEY in commit:
            about = json.loads(commit[BACKFILL_KEY])
            at = datetime.fromtimestamp(int(commit["timestamp"]) / 1000, UTC)
            found.setdefault(about["id"], {})[int(about["chunk"])] = at
    return found


def seconds_of_newest(home: PipelineHome) -> EarlierRun | None:
    """Return how long the newest backfill that was published took."""
    for entry in reversed(read_sequence(home)):
        if entry.kind != EntryKind.PUBLICATION:
            continue
        try:
            plan = load_backfill_plan(home, entry.payload["backfill"])
            seconds = (entry.created_at - planned_at_of(home, plan.id)).total_seconds()
        except (RequestError, FileNotFoundError):  # the plan was removed, or is of another release
            continue
        return EarlierRun(plan.id, round(max(0.0, seconds), 1), plan.records, plan.windows)
    return None


_STALE: Remembered[list[TimeRange]] = Remembered(32)
