"""Run a changed definition beside the running one over a part of the log, and compare the rows. Nothing is written.

Both are run by the batch path of a backfill: the same plan of windows and offsets, the same reading, the same transform. No lease is
taken, and neither tables nor records of the pipeline change: a stream that runs does not notice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql.types import StructType

from rivertwice.backfill.compute import check_same_topics, rows_by_view, sessions_frame, starting_in, windows_frame
from rivertwice.backfill.kinds.planner import window_ms
from rivertwice.backfill.model import BackfillPlan, BackfillRequest, BackfillView
from rivertwice.backfill.observe import observe_backfill
from rivertwice.backfill.ranges import HalfOpenRange
from rivertwice.backfill.reading import with_sessions
from rivertwice.backfill.session_plan import asked_sessions
from rivertwice.core.errors import RequestError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.installed import base_of
from rivertwice.core.instants import from_ms, iso_of_ms, to_iso, utc_now
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Progress
from rivertwice.definition.bundle import Bundle, build_project_bundle, load_bundle
from rivertwice.definition.definition import Definition
from rivertwice.definition.fingerprint import ChangedComponent, compare_fingerprints
from rivertwice.definition.upgrade import has_same_windows
from rivertwice.engine.checked import check_bundle, read_verdict
from rivertwice.engine.compile import result_schema
from rivertwice.engine.jvm import Spark
from rivertwice.storage.delta import open_table
from rivertwice.storage.spark_scan import read_files
from rivertwice.timeline.lineage import load_timeline, path_ledger
from rivertwice.timeline.sequence import head
from rivertwice.versions.try_compare import compare_rows, count_rows
from rivertwice.versions.try_model import (
    COMPARED,
    INCOMPARABLE,
    SAME,
    SERVED,
    Side,
    Trial,
    TrialRange,
    TrialRequest,
    Version,
    compare_schemas,
    decodes_alike,
    describe_sameness,
    find_incomparable,
    find_refusal,
    keeps_zones,
    select_effective,
)
from rivertwice.versions.try_stretch import (
    choose_ranges,
    newest_stretch,
    plan_settled,
    plan_windows,
    view_of,
    without_unknown_losses,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# The rows of both sides of a trial as frames of Spark: read and run by the batch path of a backfill.


@contextmanager
def side_frames(
    session: SparkSession, settings: Settings, home: PipelineHome, sides: Sequence[Side], *, alike: bool, against: str
) -> Iterator[tuple[list[DataFrame], int]]:
    """Give the rows of both sides, and how many records are read for them: once if both take the same ones as the same rows."""
    old, new = sides
    new_rows = _rows(session, settings, new)
    if against == SERVED:
        yield [_served(session, settings, home, old), _result(session, new, new_rows)], _records(new)
        return
    is_shared = alike and _same_offsets(old, new)
    if not is_shared:
        old_rows = _rows(session, settings, old)
        yield [_result(session, old, old_rows), _result(session, new, new_rows)], _records(old) + _records(new)
        return
    kept = {view: rows.persist(StorageLevel.MEMORY_AND_DISK) for view, rows in new_rows.items()}
    try:
        yield [_result(session, old, kept), _result(session, new, kept)], _records(new)
    finally:
        for rows in kept.values():
            rows.unpersist()


def _same_offsets(old: Side, new: Side) -> bool:
    return old.plan is not None and new.plan is not None and old.plan.offsets == new.plan.offsets


def _records(side: Side) -> int:
    return 0 if side.plan is None else side.plan.records


def _rows(session: SparkSession, settings: Settings, side: Side) -> dict[str, DataFrame]:
    if side.plan is None:
        return {}
    return rows_by_view(session, settings, side.plan, side.definition, side.plan.offsets)


def _result(session: SparkSession, side: Side, rows: Mapping[str, DataFrame]) -> DataFrame:
    """Return the rows of a side's windows or sessions, not computed yet."""
    if side.plan is None:
        return session.createDataFrame([], result_schema(session, side.definition))
    if side.plan.sessions is None:
        return windows_frame(session, side.definition, side.plan, rows)
    (source_rows,) = rows.values()
    (chunk,) = side.plan.chunks
    return sessions_frame(session, side.definition, side.plan, chunk, source_rows)[0]


def _served(session: SparkSession, settings: Settings, home: PipelineHome, side: Side) -> DataFrame:
    """Return the served rows of a side's windows.

    Raises:
        RequestError: nothing is served yet.
    """
    table = open_table(home.tables.served)
    if table is None or side.plan is None:
        message = (
            f"nothing of {side.definition.name} is served yet; leave --against served out, which compares with the rows that the running "
            "definition gives"
        )
        raise RequestError(message)
    schema = StructType(list(result_schema(session, side.definition).fields))
    rows = read_files(session, home.tables.served, table, schema, settings.home / "cache")
    return starting_in(rows, side.definition, side.plan.ranges)


@dataclass(frozen=True)
class Pair:
    """The two definitions, and what differs between them."""

    old: Bundle
    new: Bundle
    changes: tuple[ChangedComponent, ...]

    @property
    def alike(self) -> bool:
        """Whether both accept the same records as the same rows."""
        return decodes_alike(self.old.definition, self.new.definition, self.changes)

    @property
    def takes_same_records(self) -> bool:
        """Whether both have the same windows, or sessions, of the same records: then one plan is both sides'."""
        changed = {change.component for change in self.changes}
        same = self.alike and has_same_windows(self.old.definition, self.new.definition)
        return same and not {"rows", "keys"} & changed


def try_definition(settings: Settings, request: TrialRequest, spark: Spark, progress: Progress) -> Trial:
    """Compare the rows of the definition in the project with those of the one that the stream runs, or with what is served.

    Args:
        settings: where everything is stored.
        request: what is asked.
        spark: gives a session; not called if nothing that a result depends on differs.
        progress: is passed one line per fact.

    Raises:
        DefinitionError: the definition in the project cannot be loaded, or the checks refuse it.
        RequestError: the pipeline never ran, it is a fold, it reads another topic, or no closed window is asked for and retained.
        LogGapError: a record that is needed is in neither Kafka nor the archive.
    """
    home = settings.pipeline(request.pipeline)
    timeline = head(home)
    if timeline is None:
        message = (
            f"{request.pipeline} never ran, so there is no running definition to compare with; `rivertwice test {request.pipeline}` runs its "
            f"cases, `rivertwice start {request.pipeline}` starts it"
        )
        raise RequestError(message)
    old = load_bundle(home.bundles, load_timeline(home, timeline).bundle)
    new = build_project_bundle(settings, request.pipeline)
    changes = tuple(compare_fingerprints(old.fingerprint, new.fingerprint))
    trial = Trial(
        pipeline=request.pipeline,
        against=request.against,
        outcome=SAME,
        reason=describe_sameness(request.pipeline, changes),
        old=Version(old.id, old.fingerprint.semantics, timeline),
        new=Version(new.id, new.fingerprint.semantics),
        changes=tuple(change.component for change in changes),
    )
    if not select_effective(changes):
        return trial
    refusal = find_refusal(old.definition, new.definition)
    if refusal is not None:
        raise RequestError(refusal)
    progress(
        f"bundle {new.id[:12]} of the project against "
        + ("what is served" if request.against == SERVED else f"bundle {old.id[:12]} of timeline {timeline}")
        + f"; changed: {', '.join(trial.changes)}"
    )
    return _compare(settings, home, request, Pair(old, new, changes), trial, spark, progress)


def _compare(
    settings: Settings,
    home: PipelineHome,
    request: TrialRequest,
    pair: Pair,
    trial: Trial,
    spark: Spark,
    progress: Progress,
) -> Trial:
    old, new = pair.old.definition, pair.new.definition
    old_view, unread = without_unknown_losses(observe_backfill(settings, request.pipeline))
    new_view, also_unread = without_unknown_losses(changed_view(home, old_view, pair))
    asked = BackfillRequest(request.pipeline, request.range or newest_stretch(old_view, request.last), "try")
    left_out: list[str] = []
    if unread + also_unread:
        left_out.append(
            f"{unread + also_unread} records: neither Kafka nor the archive has them, and whether the definitions accept any of them for these "
            "windows is not known"
        )
    ranges: tuple[HalfOpenRange, ...] = ()
    if old_view.sessions is None:
        ranges, cut = choose_ranges(asked, old_view)
        left_out += [f"windows of [{iso_of_ms(start)}, {iso_of_ms(end)}): {why}" for start, end, why in cut]
    elif request.against == SERVED:
        message = (
            f"{request.pipeline} has session windows: which of those that are served are settled is not known without their records; leave "
            "--against served out, which compares with the rows that the running definition gives"
        )
        raise RequestError(message)
    session = spark()
    _require_checked(settings, home, pair.new, session)
    old_plan = new_plan = _plan(session, settings, asked, old_view, old, ranges)
    if not pair.takes_same_records:
        new_plan = _plan(session, settings, asked, new_view, new, ranges if has_same_windows(old, new) else None)
    sides = [Side(old, old_plan), Side(new, new_plan)]
    with side_frames(session, settings, home, sides, alike=pair.alike, against=request.against) as (frames, records):
        stretch = _stretch(asked, sides, records, left_out)
        progress(
            f"{records} records of [{to_iso(stretch.start)}, {to_iso(stretch.end)}) are read, for {stretch.windows} windows ..."
        )
        types = [{field.name: field.dataType.simpleString() for field in frame.schema} for frame in frames]
        names = [_compared_names(side.definition) for side in sides]
        schema = compare_schemas(
            *({name: kinds[name] for name in own} for kinds, own in zip(types, names, strict=True))
        )
        reason = find_incomparable(old, new, schema)
        if reason is not None:
            rows, outcome = count_rows(*frames), INCOMPARABLE
        else:
            rows, outcome = compare_rows(frames[0], frames[1], old, new, request.limit), COMPARED
    for side in sides:
        if side.plan is not None:
            check_same_topics(settings, side.plan)
    return replace(trial, outcome=outcome, reason=reason or "", stretch=stretch, schema=schema, rows=rows)


def changed_view(home: PipelineHome, view: BackfillView, pair: Pair) -> BackfillView:
    """Return what was observed for the running definition as a view of the changed one."""
    old, new = pair.old.definition, pair.new.definition
    return view_of(
        view,
        pair.new,
        window_ms(new),
        clean={(row.timeline, row.batch) for row in path_ledger(home) if not row.bad},
        alike=pair.alike,
        keeps_zones=keeps_zones(old, new, pair.changes),
        has_sessions=new.session_keys is not None,
    )


def _require_checked(settings: Settings, home: PipelineHome, new: Bundle, session: SparkSession) -> None:
    """Refuse a definition that the checks refuse. A stored verdict is taken; a new one is not stored.

    Raises:
        DefinitionError: the checks refuse it; the message has every finding with its remedy, one a line.
    """
    where = str(settings.definitions / base_of(new.definition.name))
    stored = read_verdict(home, new.id)
    (stored or check_bundle(None, new, lambda: session, utc_now(), where=where)).require()


def _plan(
    session: SparkSession,
    settings: Settings,
    request: BackfillRequest,
    view: BackfillView,
    definition: Definition,
    ranges: tuple[HalfOpenRange, ...] | None,
) -> BackfillPlan | None:
    """Return the plan of one side; without ranges, of the windows or sessions that the request means."""
    if view.sessions is None:
        return plan_windows(request, view, choose_ranges(request, view)[0] if ranges is None else ranges)
    return plan_settled(request, with_sessions(session, settings, view, definition, asked_sessions(request, view)))


def _compared_names(definition: Definition) -> list[str]:
    """Return the columns of a result besides those of the window, whose names do not matter."""
    window = definition.window
    return [name for name in definition.result_columns if name not in (window.start_column, window.end_column)]


def _stretch(asked: BackfillRequest, sides: list[Side], records: int, left_out: list[str]) -> TrialRange:
    assert asked.range is not None, "the command chose one"
    plans = [side.plan for side in sides if side.plan is not None]
    start, end = asked.range.start, asked.range.end
    if plans:
        start = from_ms(min(plan.ranges[0][0] for plan in plans))
        end = from_ms(max(_end_ms(plan) for plan in plans))
    new = sides[1].plan
    return TrialRange(start, end, 0 if new is None else new.windows, records, tuple(left_out))


def _end_ms(plan: BackfillPlan) -> int:
    """Return the end of the last window; a plan of sessions names the stretch that these cover."""
    return plan.ranges[-1][1] if plan.sessions is not None else plan.last_end_ms
