"""Run a changed definition beside the running one over a part of the log, and compare the rows. Read only.

Both are run by the batch path of a backfill: the same plan of windows and offsets, the same reading, the same transform. No lease is
taken, and neither tables nor records of the pipeline change: a stream that runs does not notice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from rivertwice.backfill import BackfillPlan, HalfOpenRange, Recompute, RetainedLog
from rivertwice.core import (
    PipelineHome,
    Progress,
    RequestError,
    Settings,
    TimeRange,
    base_of,
    from_ms,
    iso_of_ms,
    to_iso,
    utc_now,
)
from rivertwice.definition import (
    Bundle,
    ChangedComponent,
    Definition,
    build_project_bundle,
    load_bundle,
)
from rivertwice.engine import Spark, check_bundle, read_verdict, result_schema
from rivertwice.storage import Table, TableFiles
from rivertwice.timeline import Timeline, head
from rivertwice.versions.try_compare import compare_rows, count_rows
from rivertwice.versions.try_delay import require_delay, try_delay
from rivertwice.versions.try_model import (
    COMPARED,
    INCOMPARABLE,
    SAME,
    SERVED,
    Trial,
    TrialRange,
    TrialRequest,
    Version,
    compare_schemas,
    describe_sameness,
    find_incomparable,
    find_refusal,
    select_effective,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def _served(job: Recompute, home: PipelineHome) -> DataFrame:
    """Return the served rows of the windows that a plan has.

    Raises:
        RequestError: nothing is served yet.
    """
    table = Table(home.tables.served).open()
    if table is None:
        message = (
            f"nothing of {job.definition.name} is served yet; leave --against served out, which compares with the rows that the running "
            "definition gives"
        )
        raise RequestError(message)
    schema = StructType(list(result_schema(job.spark, job.definition).fields))
    return job.only(TableFiles(table).frame(job.spark, schema, job.settings.home / "cache"))


@dataclass(frozen=True)
class Pair:
    """The two definitions, and what differs between them."""

    old: Bundle
    new: Bundle
    changes: tuple[ChangedComponent, ...]


def try_definition(settings: Settings, request: TrialRequest, spark: Spark, progress: Progress) -> Trial:
    """Compare the rows of the definition in the project with those of the one that the stream runs, or with what is served.

    With a watermark: what the stream emits with what it would emit by that delay; the definition in the project is not looked at.

    Args:
        spark: gives a session; not called if nothing that a result depends on differs.

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
    old = load_bundle(home.bundles, Timeline.load(home, timeline).bundle)
    delay = request.watermark
    if delay is None:
        new = build_project_bundle(settings, request.pipeline)
    else:
        require_delay(old.definition, delay)
        new = old.with_watermark(delay)
    changes = tuple(old.fingerprint.changes_to(new.fingerprint))
    trial = Trial(
        pipeline=request.pipeline,
        against=request.against,
        outcome=SAME,
        reason=describe_sameness(request.pipeline, changes),
        old=Version(old.id, old.fingerprint.semantics, timeline),
        new=Version(new.id, new.fingerprint.semantics),
        changes=tuple(change.component for change in changes),
        watermark=delay,
    )
    if delay is not None:
        return try_delay(settings, request, (old.definition, new.definition), trial, spark, progress)
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
    old_log = RetainedLog.observe(settings, request.pipeline, pair.old).without_unknown()
    new_log = old_log.by(pair.new).without_unknown()
    asked = request.range or old_log.newest(request.last)
    left_out: list[str] = []
    if new_log.unread:
        left_out.append(
            f"{new_log.unread} records: neither Kafka nor the archive has them, and whether the definitions accept any of them for these "
            "windows is not known"
        )
    ranges: tuple[HalfOpenRange, ...] = ()
    if old_log.view.sessions is None:
        ranges, cut = old_log.choose(asked)
        left_out += [f"windows of [{iso_of_ms(start)}, {iso_of_ms(end)}): {why}" for start, end, why in cut]
    elif request.against == SERVED:
        message = (
            f"{request.pipeline} has session windows: which of those that are served are settled is not known without their records; leave "
            "--against served out, which compares with the rows that the running definition gives"
        )
        raise RequestError(message)
    session = spark()
    _require_checked(settings, home, pair.new, session)
    old_plan = new_plan = old_log.plan(session, asked, ranges)
    changed = {change.component for change in pair.changes}
    same_windows = old.window.is_same(new.window)
    if not (old_log.decodes_as(new_log) and same_windows) or {"rows", "keys"} & changed:
        new_plan = new_log.plan(session, asked, ranges if same_windows else None)
    sides = old_log.run(session, old_plan), new_log.run(session, new_plan)
    with _rows(home, sides, request.against) as (frames, records):
        stretch = _stretch(asked, sides, records, left_out)
        progress(
            f"{records} records of [{to_iso(stretch.start)}, {to_iso(stretch.end)}) are read, for {stretch.windows} windows ..."
        )
        types = [{field.name: field.dataType.simpleString() for field in frame.schema} for frame in frames]
        names = [_compared_names(definition) for definition in (old, new)]
        schema = compare_schemas(
            *({name: kinds[name] for name in own} for kinds, own in zip(types, names, strict=True))
        )
        reason = find_incomparable(old, new, schema)
        if reason is not None:
            rows, outcome = count_rows(*frames), INCOMPARABLE
        else:
            rows, outcome = compare_rows(frames[0], frames[1], old, new, request.limit), COMPARED
    for side in sides:
        side.check_topics()
    return replace(trial, outcome=outcome, reason=reason or "", stretch=stretch, schema=schema, rows=rows)


@contextmanager
def _rows(
    home: PipelineHome, sides: tuple[Recompute, Recompute], against: str
) -> Iterator[tuple[list[DataFrame], int]]:
    """Give the rows of both sides, and how many records are read for them."""
    old, new = sides
    if against == SERVED:
        yield [_served(old, home), new.rows()], new.plan.records
        return
    with old.rows_beside(new) as found:
        yield found


def _require_checked(settings: Settings, home: PipelineHome, new: Bundle, session: SparkSession) -> None:
    """Refuse a definition that the checks refuse. A stored verdict is taken; a new one is not stored.

    Raises:
        DefinitionError: the checks refuse it; the message has every finding with its remedy, one a line.
    """
    where = str(settings.definitions / base_of(new.definition.name))
    stored = read_verdict(home, new.id)
    (stored or check_bundle(None, new, lambda: session, utc_now(), where=where)).require()


def _compared_names(definition: Definition) -> list[str]:
    """Return the columns of a result besides those of the window, whose names do not matter."""
    window = definition.window
    return [name for name in definition.result_columns if name not in (window.start_column, window.end_column)]


def _stretch(asked: TimeRange, sides: Sequence[Recompute], records: int, left_out: list[str]) -> TrialRange:
    plans = [side.plan for side in sides if side.plan.ranges]
    start, end = asked.start, asked.end
    if plans:
        start = from_ms(min(plan.ranges[0][0] for plan in plans))
        end = from_ms(max(_end_ms(plan) for plan in plans))
    return TrialRange(start, end, sides[1].plan.windows, records, tuple(left_out))


def _end_ms(plan: BackfillPlan) -> int:
    """Return the end of the last window; a plan of sessions names the stretch that these cover."""
    return plan.ranges[-1][1] if plan.sessions is not None else plan.last_end_ms
