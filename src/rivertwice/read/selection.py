"""A selection of windows and the plan of their backfill, and one backfill as the page shows it. Read only.

The plan is the one that `rivertwice backfill plan` shows, made from the tables and from what Kafka and the archive hold. Sessions
are only known by reading the log, which needs Spark; no Spark runs where the page is served, so their plan is made by the DAG's dry
run.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.backfill import (
    BackfillPlan,
    BackfillRequest,
    BackfillView,
    HalfOpenRange,
    explain_plan,
    load_backfill_plan,
    merge,
    observe_backfill,
    plan_backfill,
    read_audit,
)
from rivertwice.core import (
    ConfigError,
    LogGapError,
    RequestError,
    Row,
    ServiceError,
    Settings,
    TimeRange,
    from_ms,
    to_iso,
    to_ms,
)
from rivertwice.definition import Definition
from rivertwice.read.backfills import EarlierRun, Span, seconds_of_newest
from rivertwice.read.heatmap import axis_key, key_label
from rivertwice.read.serving import Runs, Serving, open_serving, read_runs
from rivertwice.reconcile import shape_of
from rivertwice.storage import Table, Where
from rivertwice.timeline import (
    WITHDRAWN,
    Verdict,
    head_path,
    is_on_path,
    key_texts,
    newest_rows,
    publications_of,
    read_sequence,
    read_verdicts,
    rows_of,
    to_epoch_ms,
)

PLANNED, NEEDS_JOB, REFUSED, UNREACHABLE = "planned", "needs a job", "refused", "unreachable"
LISTED = 12
_FEW_RANGES = 20  # delta-rs needs a time that grows with the square of the number of ranges


@dataclass(frozen=True)
class CutRange:
    """A range that a plan leaves out, and why."""

    from_: datetime
    to: datetime
    why: str


@dataclass(frozen=True)
class PlanView:
    """A plan: its figures, and the text that the command prints.

    Attributes:
        ranges: the first of `pieces` ranges. largest: records of the largest chunk.
    """

    id: str
    windows: int
    ranges: tuple[Span, ...]
    pieces: int
    records: int
    chunks: int
    largest: int
    late: int | None
    replaces: tuple[str, ...]
    cut: tuple[CutRange, ...]
    text: str


@dataclass(frozen=True)
class DifferingRow:
    """A served row that differs, by the newest reconcile."""

    start: datetime
    label: str
    verdict: str
    reason: str


@dataclass(frozen=True)
class WindowVerdicts:
    """What a reconcile said of the served rows of some windows: verdict to rows."""

    run: str
    at: datetime
    counts: Mapping[str, int]


@dataclass(frozen=True)
class ExpectedChanges(WindowVerdicts):
    """What a backfill of some windows would change: how many rows differ, and the worst of them."""

    total: int
    rows: tuple[DifferingRow, ...]


@dataclass(frozen=True)
class BackfillPreview:
    """The plan of a backfill, or why there is none.

    Attributes:
        asked: the range; None: the windows that are stale. command: what makes the same plan.
        state: `planned`, `needs a job`, `refused` or `unreachable`. why: why it is not planned.
        earlier: how long the newest one took.
    """

    name: str
    asked: Span | None
    command: str
    state: str = ""
    why: str | None = None
    plan: PlanView | None = None
    changes: ExpectedChanges | None = None
    earlier: EarlierRun | None = None


@dataclass(frozen=True)
class ChangedRows:
    """Rows of a backfill, and how many of them differ from the stream's, are new or vanish."""

    rows: int
    changed: int
    new: int
    vanished: int


@dataclass(frozen=True)
class BackfillDetail:
    """A backfill: its plan and audit, and what reconciles said of its windows before and after it.

    Attributes:
        audit: as it is stored. changed: how many rows it changes; None: too many to compare, or none yet.
    """

    id: str
    reason: str
    plan: PlanView
    audit: Mapping[str, Any] | None
    published_at: datetime | None
    before: WindowVerdicts | None
    after: WindowVerdicts | None
    changed: ChangedRows | None


def preview_backfill(
    settings: Settings, name: str, start: datetime | None, end: datetime | None, reason: str = "manual"
) -> BackfillPreview:
    """Return the plan of a backfill, or why there is none.

    Args:
        name: the version that serves, or `NAME@v2`.
        start: start of the range of event time; None, as `end`: the windows that the newest reconcile found stale.
        end: its end, exclusive.

    Raises:
        RequestError: one end is missing, or the range is reversed.
    """
    if (start is None) != (end is None):
        message = "a range is half-open and needs both its ends; give `from` and `to`, or neither for the windows that are stale"
        raise RequestError(message)
    asked = None if start is None or end is None else TimeRange(start, end)
    serving = open_serving(settings, name)
    pipeline = serving.home.root.name
    span = None if asked is None else Span(asked.start, asked.end)
    preview = BackfillPreview(pipeline, span, backfill_command(pipeline, asked))
    definition, runs = serving.definition, read_runs(serving.home)
    if definition is None:
        why = f"{pipeline} has no committed batch and no closed windows; start it first"
        return replace(preview, state=REFUSED, why=why)
    if not definition.has_lone_windows:
        why = f"windows of {pipeline} are not published alone: it is a fold; `rivertwice upgrade {pipeline} --new-version` computes all of it"
        return replace(preview, state=REFUSED, why=why)
    request = BackfillRequest(pipeline, asked, reason)
    try:
        view = observe_backfill(settings, pipeline)
        if view.sessions is not None:
            return _preview_sessions(preview, view, serving, definition, runs, asked)
        plan = plan_backfill(request, view)
    except (ServiceError, ConfigError) as error:
        why = f"{error}; the dry run of the DAG plans it where Kafka can be reached"
        return replace(preview, state=UNREACHABLE, why=why)
    except (RequestError, LogGapError) as error:
        return replace(preview, state=REFUSED, why=str(error))
    changes = count_changes(serving, definition, runs, plan.ranges)
    earlier = seconds_of_newest(serving.home)
    return replace(preview, state=PLANNED, plan=describe_plan(plan), changes=changes, earlier=earlier)


def backfill_command(pipeline: str, asked: TimeRange | None) -> str:
    """Return the command that makes the same plan. Pure."""
    words = ["rivertwice", "backfill", "plan", pipeline]
    words += [] if asked is None else ["--from", to_iso(asked.start), "--to", to_iso(asked.end)]
    return shlex.join(words)


def describe_plan(plan: BackfillPlan) -> PlanView:
    """Return a plan as it is shown. Pure."""
    return PlanView(
        id=plan.id,
        windows=plan.windows,
        ranges=tuple(Span(from_ms(low), from_ms(high)) for low, high in plan.ranges[:LISTED]),
        pieces=len(plan.ranges),
        records=plan.records,
        chunks=len(plan.chunks),
        largest=max((chunk.estimate for chunk in plan.chunks), default=0),
        late=plan.late,
        replaces=plan.replaces,
        cut=tuple(CutRange(from_ms(part.start_ms), from_ms(part.end_ms), part.why) for part in plan.cut[:LISTED]),
        text=explain_plan(plan),
    )


def count_changes(
    serving: Serving, definition: Definition, runs: Runs | None, ranges: Sequence[HalfOpenRange]
) -> ExpectedChanges | None:
    """Return what the newest reconcile says of the served rows of some windows: what a backfill of them would change.

    Args:
        runs: its reconciles; None: nothing is known.
        ranges: window starts.
    """
    rows = None if runs is None else read_in_ranges(serving, runs, ranges)
    if runs is None or rows is None:
        return None
    differing = [row for row in rows if row["verdict"] not in (Verdict.AGREES, Verdict.OPEN)]
    differing.sort(key=lambda row: (Verdict.BY_GRAVITY.index(row["verdict"]), -(row["late"] or 0), row["window_start"]))
    shown = tuple(
        DifferingRow(
            row["window_start"],
            "all rows" if row["key"] is None else key_label(axis_key(row["key"], definition)),
            row["verdict"],
            row["reason"],
        )
        for row in differing[:LISTED]
    )
    return ExpectedChanges(runs.newest["run"], runs.newest["created_at"], count_rows(rows), len(differing), shown)


def read_in_ranges(serving: Serving, runs: Runs, ranges: Sequence[HalfOpenRange]) -> list[Row] | None:
    """Return the verdicts of a run's served rows in some ranges of window starts; None: there are none any more."""
    merged = merge(ranges)
    if not merged:
        return []
    read = merged if len(merged) <= _FEW_RANGES else ((merged[0][0], merged[-1][1]),)
    rows = read_verdicts(serving.home, runs.chain, read, Where("pair").equals("served"))
    if rows is None or not rows.num_rows:
        return None
    lows, highs = np.array(merged).T
    starts = to_epoch_ms(rows["window_start"])
    place = np.searchsorted(lows, starts, side="right") - 1
    inside = (place >= 0) & (starts < highs[np.maximum(place, 0)])
    found: list[dict[str, Any]] = rows.filter(inside).to_pylist()
    return [{"late": 0, **row} for row in found]


def count_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many rows some stored verdicts say what of. Pure."""
    counts = dict.fromkeys(Verdict.BY_GRAVITY, 0)
    for row in rows:
        counts[row["verdict"]] += rows_of(row)
    return {word: number for word, number in counts.items() if number}


def _preview_sessions(
    preview: BackfillPreview,
    view: BackfillView,
    serving: Serving,
    definition: Definition,
    runs: Runs | None,
    asked: TimeRange | None,
) -> BackfillPreview:
    """Return what is known of a backfill of sessions without reading the log."""
    stale = () if view.sessions is None else view.sessions.stale
    low, high = (None, None) if asked is None else (to_ms(asked.start), to_ms(asked.end))
    meant = [seed for seed in stale if low is None or high is None or (seed.start_ms < high and low < seed.end_ms)]
    ranges = (
        [(low, high)]
        if low is not None and high is not None
        else [(seed.start_ms, seed.start_ms + 1) for seed in meant]
    )
    if not ranges:
        why = f"no session of {view.pipeline} is stale; name a range to recompute others"
        return replace(preview, state=REFUSED, why=why)
    why = (
        f"sessions are known by their records alone, so their plan needs a Spark job: the dry run of the DAG makes it. The newest "
        f"reconcile found {len(meant)} sessions of it stale"
    )
    return replace(preview, state=NEEDS_JOB, why=why, changes=count_changes(serving, definition, runs, ranges))


# One backfill with its plan, its audit, and what was served before and after it by the verdicts of the reconciles around it.

MOST_COMPARED = 200_000
"""Rows of a backfill that are compared with the stream's; of a larger one the audit counts the rows."""


def describe_backfill(settings: Settings, name: str, backfill: str) -> BackfillDetail:
    """Return a stored backfill.

    Raises:
        RequestError: there is no such backfill.
    """
    serving = open_serving(settings, name)
    plan = load_backfill_plan(serving.home, backfill)
    audit = read_audit(serving.home, backfill)
    entries = read_sequence(serving.home)
    publication = next((each for each in publications_of(entries) if each.backfill == backfill), None)
    entry = None if publication is None else next(each for each in entries if each.seq == publication.seq)
    runs = read_runs(serving.home)
    before = after = None
    if runs is not None and entry is not None:
        before = _verdicts(serving, runs.upto(entry.created_at), plan)
        is_later = runs.newest["created_at"] > entry.created_at and runs.newest["sequence"] >= entry.seq
        after = _verdicts(serving, runs, plan) if is_later else None
    elif runs is not None:
        before = _verdicts(serving, runs, plan)
    return BackfillDetail(
        plan.id,
        plan.reason,
        describe_plan(plan),
        audit,
        None if entry is None else entry.created_at,
        before,
        after,
        None if serving.definition is None else count_changed(serving, serving.definition, plan),
    )


def _verdicts(serving: Serving, runs: Runs | None, plan: BackfillPlan) -> WindowVerdicts | None:
    """Return what a reconcile said of the served rows of the plan's windows; None: its verdicts were removed, or there was none."""
    rows = None if runs is None else read_in_ranges(serving, runs, plan.ranges)
    if runs is None or not rows:
        return None
    return WindowVerdicts(runs.newest["run"], runs.newest["created_at"], count_rows(rows))


def count_changed(serving: Serving, definition: Definition, plan: BackfillPlan) -> ChangedRows | None:
    """Return how many rows of a backfill differ from the stream's, are new or vanish; None: it has too many, or none yet.

    Only the corrections of the backfill and the stream's rows of its windows are read.
    """
    if not plan.ranges or plan.sessions is not None:
        return None
    start = definition.window.start_column
    within = Where(start).is_within([(plan.ranges[0][0], plan.ranges[-1][1])])
    rows = Table(serving.home.tables.corrections).read(matching=Where.all([Where("_backfill").equals(plan.id), within]))
    if rows is None or not 0 < rows.num_rows <= MOST_COMPARED:
        return None
    if WITHDRAWN in rows.column_names:
        rows = rows.filter(pc.invert(pc.fill_null(rows[WITHDRAWN], False)))
    stream = _stream_rows(serving, definition, within)
    shape = shape_of(definition)
    ours, theirs = (_by_address(table, definition, shape.columns) for table in (rows, stream))
    inside = {address for address in theirs if any(low <= address[0] < high for low, high in plan.ranges)}
    changed = sum(1 for address in ours.keys() & inside if shape.differences(ours[address], theirs[address]))
    return ChangedRows(len(ours), changed, len(ours.keys() - inside), len(inside - ours.keys()))


def _stream_rows(serving: Serving, definition: Definition, within: str) -> pa.Table:
    """Return the rows that batches of the head's path emitted for some windows."""
    rows = Table(serving.home.tables.changelog).read(matching=within)
    return pa.table({}) if rows is None else newest_rows(rows.filter(is_on_path(head_path(serving.home))), definition)


def _by_address(
    table: pa.Table, definition: Definition, columns: Sequence[str]
) -> dict[tuple[int, str], tuple[Any, ...]]:
    if not table.num_rows:
        return {}
    starts = pc.cast(pc.cast(table[definition.window.start_column], pa.timestamp("ms", "UTC"), safe=False), pa.int64())
    values = zip(*(table[name].to_pylist() for name in columns), strict=True)
    keys = key_texts(table, definition.row_keys)
    return {(start, key): row for start, key, row in zip(starts.to_pylist(), keys, values, strict=True)}
