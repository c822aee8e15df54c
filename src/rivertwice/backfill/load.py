"""Load a pipeline's past by batch, and let its stream begin where the oldest open window begins.

1. Archive the topic, so that no record that the stream leaves out exists in Kafka alone.
   A history in a lake (`history` of a source) continues the log below its first offset; it is pinned before step 3.
2. Read the log's event times, and plan (`load_plan`).
3. With drivers kept away, record the load with these event times. From then on every start begins after it (`stream.loaded`).
4. The stream closes the windows to load. It has read a part of their records at most, so they serve nothing yet.
5. Backfills publish them: ordinary ones, over records that the stream read and others.

A crash before step 3 is done leaves an archive, and a note of the step for people (`load_state`). After it, the same call continues: a step that is done is not done
again, and an interrupted backfill continues after its last chunk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from rivertwice.backfill.audit import audit_backfill, read_audit
from rivertwice.backfill.compute import compute_backfill
from rivertwice.backfill.load_plan import (
    REASON,
    LoadPlan,
    LogMap,
    ask_for,
    block_size,
    cut_pieces,
    plan_load,
    refuse_load,
)
from rivertwice.backfill.load_state import ARCHIVE, LOOK, forget_step, note_step, unloaded_windows
from rivertwice.backfill.model import BackfillPlan
from rivertwice.backfill.plan import MAX_WINDOWS
from rivertwice.backfill.prepare import make_plan
from rivertwice.backfill.publish import publish_backfill
from rivertwice.backfill.ranges import HalfOpenRange, subtract
from rivertwice.backfill.store import list_backfills, load_backfill_plan, save_plan
from rivertwice.core import (
    LogGapError,
    LostRaceError,
    Measured,
    PipelineHome,
    Progress,
    RequestError,
    Settings,
    to_iso,
)
from rivertwice.definition import Bundle, Definition, load_bundle_definition
from rivertwice.engine import LogDecoder, Spark
from rivertwice.log import (
    LakeHistory,
    LakeTable,
    LogRead,
    OffsetRanges,
    archived_ranges,
    count,
    describe,
    drop_empty,
    extend_archive,
    intersect,
    kafka,
)
from rivertwice.log import subtract as without
from rivertwice.stream import at_rest, begin_after_load, lease_owner, require_checked
from rivertwice.timeline import FirstLoad, LogZone, Timeline, head, publications_of, read_sequence, record_load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Read the event times of a log, block by block: one Spark job over archive and Kafka, with the definition's own decoder.


def all_records(retained: OffsetRanges, archived: OffsetRanges, *, only_archived: bool = False) -> OffsetRanges:
    """Return the offsets of all records that exist and follow each other up to the log's end. Pure.

    Args:
        retained: partition to the offsets that Kafka has.
        archived: those that the archive's newest segment has.
        only_archived: leave out what came after the archive's end.
    """
    ranges: OffsetRanges = {}
    for partition, (begin, end) in retained.items():
        start, upto = archived.get(partition, (begin, begin))
        first = min(start, begin) if start < upto and begin <= upto else begin
        ranges[partition] = (first, max(first, min(end, upto)) if only_archived else end)
    return ranges


def take_history(settings: Settings, definition: Definition, ranges: OffsetRanges) -> LakeHistory | None:
    """Return the history of a definition's only topic, which ends where the log begins; None if it has none. Nothing is written.

    Args:
        ranges: of all records that Kafka and the archive have.

    Raises:
        RequestError: the table, a column or the snapshot is not there or does not fit; or another history is pinned.
    """
    _, source = definition.source
    if source.history is None:
        return None
    asked = source.history
    table = LakeTable(
        form=asked.format,
        table=asked.table.rstrip("/"),
        catalog=asked.catalog,
        number=asked.snapshot,
        columns={".".join(source.parts_of(name)): column for name, column in asked.columns.items()},
        payload=asked.payload,
        key=asked.key,
        time=asked.time_column(source),
        until=asked.until,
    )
    topic_id = kafka.topic_id(settings, source.topic)
    return LakeHistory.take(settings, source.topic, topic_id, table, asked.fitting(source), ranges.get(0, (0, 0))[0])


def read_log_map(
    spark: SparkSession,
    settings: Settings,
    definition: Definition,
    block: int | None = None,
    *,
    only_archived: bool = False,
) -> LogMap:
    """Return the event times of all records of a definition's only topic that a lake, Kafka or the archive has.

    Args:
        block: offsets of a block; None: by the number of records.
        only_archived: leave out what came after the archive's end.

    Raises:
        LogGapError: records were deleted while it was read, or the topic was created again.
        RequestError: records of the log may be in the history of the lake, too.
    """
    view, source = definition.source
    topic, topic_id = source.topic, kafka.topic_id(settings, source.topic)
    begins = kafka.begin_offsets(settings, topic)
    retained = {p: (begins[p], end) for p, end in kafka.end_offsets(settings, topic).items()}
    ranges = all_records(retained, archived_ranges(settings, topic, topic_id), only_archived=only_archived)
    history = take_history(settings, definition, ranges)
    begin_at = {partition: start for partition, (start, _) in ranges.items()}
    if history is not None:
        ranges |= {p: (start, ranges[p][1]) for p, (start, _) in history.ranges.items()}
    size = block or block_size(count(ranges))
    read = LogRead(spark, settings, topic, [ranges], topic_id, leave_out=history is None, history=history)
    if read.missing:
        message = f"topic {topic} lost records while its event times were read: {read.missing[:3]}; run it again"
        raise LogGapError(message)
    starts = F.lit(0).cast("bigint")
    for partition, start in begin_at.items():
        starts = F.when(F.col("_partition") == partition, F.lit(start)).otherwise(starts)
    event_ms = F.unix_millis(source.event_time)
    rows = LogDecoder(spark, definition, view).records(read, details=False)
    offset = F.col("_offset")
    at = (offset - F.pmod(offset - starts, F.lit(size))).alias("_at")
    counts = (F.count(F.lit(1)).alias("rows"), F.min(event_ms).alias("low"), F.max(event_ms).alias("high"))
    time = F.col("_record_time") if source.history is None or source.history.timestamp else F.col(source.event_time)
    first = F.min(F.when(offset >= starts, F.struct(time.alias("time"), "_partition", "_offset"))).alias("first")
    table = rows.groupBy("_partition", at, "_reason").agg(*counts, *([] if history is None else [first])).toArrow()
    read.check_same_topic()
    if history is not None:
        require_apart(history, topic, table)
        table = table.drop_columns(["first"])
    return replace(to_map(topic, ranges, size, table, begin_at), history=history)


def require_apart(history: LakeHistory, topic: str, table: pa.Table) -> None:
    """Check that no record of the log is before the end of the history: it might be in both, and count twice. Pure.

    Args:
        table: `first` has time, partition and offset of the earliest record of the log in a block, or is null.

    Raises:
        RequestError: one is; the message names the earliest.
    """
    early = [row for row in table["first"].to_pylist() if row is not None and row["time"] is not None]
    first = min(early, key=lambda row: row["time"], default=None)
    if first is None or first["time"] >= history.table.until:
        return
    message = (
        f"the history of topic {topic} has what is before {to_iso(history.table.until)} ({history.table.time} of {history.table.name}), and the log "
        f"has an earlier record: {topic}/{first['_partition']}@{first['_offset']} of {to_iso(first['time'])}; it may be in both and would count "
        f"twice; let `until` be {to_iso(first['time'])} or earlier, if the log has all that the table has from then on, or name a column with the "
        "time at which records were written as `timestamp`"
    )
    raise RequestError(message)


def to_map(
    topic: str, ranges: OffsetRanges, size: int, table: pa.Table, begin_at: Mapping[int, int] | None = None
) -> LogMap:
    """Return the map of blocks of `size` offsets from what was counted of each. Pure.

    Args:
        table: `_partition`, `_at` (first offset of the block), `_reason` (null: accepted), `rows`, and the least and largest event
            time, `low` and `high`.
        begin_at: partition to an offset at which a block begins: where the log begins, so that no block has records of a history, too; None: at the
            first offset.
    """
    aligned = begin_at or {partition: start for partition, (start, _) in ranges.items()}
    accepted: dict[tuple[int, int], tuple[int, int | None, int | None]] = {}
    rejected: dict[tuple[int, int], dict[str, int]] = defaultdict(dict)
    for row in table.to_pylist():
        where = (row["_partition"], max(row["_at"], ranges[row["_partition"]][0]))
        if row["_reason"] is None:
            accepted[where] = (row["rows"], row["low"], row["high"])
        else:
            rejected[where][row["_reason"]] = row["rows"]
    zones = [
        LogZone(
            partition, max(at, start), min(end, at + size), *accepted.get((partition, max(at, start)), (0, None, None))
        )
        for partition, (start, end) in sorted(drop_empty(dict(ranges)).items())
        for at in range(start - (start - aligned[partition]) % size, end, size)
    ]
    return LogMap(topic, dict(ranges), zones, dict(rejected))


_MS = timedelta(milliseconds=1)


@dataclass(frozen=True)
class LoadedPiece:
    """A backfill that published a part of the windows."""

    backfill: str
    windows: int
    sequence: int


def require_first_start(home: PipelineHome) -> FirstLoad | None:
    """Return the load that is recorded, finished or not; None if the pipeline never started.

    Raises:
        RequestError: it started without one, so its stream reads the log from the beginning.
    """
    name, load = head(home), FirstLoad.load(home)
    if load is None and name is not None:
        pipeline = home.root.name
        message = (
            f"{pipeline} began already: timeline {name} streams the log from its beginning, and only a first start can begin after what "
            f"is loaded by batch; `rivertwice start {pipeline}` continues it, and "
            f"`rivertwice backfill run {pipeline} --from ... --to ...` recomputes closed windows"
        )
        raise RequestError(message)
    return load


def look_at_log(
    spark: SparkSession, settings: Settings, bundle: Bundle, block: int | None = None, *, only_archived: bool = False
) -> LoadPlan | str:
    """Return what a first load would do, or why there is nothing to load; nothing is written.

    Args:
        block: offsets of a block of the log's map; None: by the number of records.
        only_archived: leave out what came after the archive's end.

    Raises:
        RequestError: the definition cannot be loaded by batch.
        LogGapError: records were deleted while the log was read.
    """
    refuse_load(bundle.definition)
    log = read_log_map(spark, settings, bundle.definition, block, only_archived=only_archived)
    return plan_load(bundle.definition, log)


def begin_load(
    settings: Settings,
    bundle: Bundle,
    spark: Spark,
    *,
    by: str,
    now: datetime,
    progress: Progress,
    block: int | None = None,
) -> FirstLoad | str:
    """Archive, plan, record, and let the stream's timeline serve: steps 1 to 3. A text says why there is nothing to load.

    Args:
        block: offsets of a block of the log's map; None: by the number of records.

    Raises:
        RequestError: the definition cannot be loaded by batch, or the pipeline began already.
        DefinitionError: the checks refuse the definition.
        LogGapError: records were deleted before they were archived.
        LeaseLostError: a driver runs.
        LostRaceError: another operation holds the stream, or began it meanwhile.
    """
    definition = bundle.definition
    refuse_load(definition)
    home = settings.pipeline(definition.name)
    require_checked(settings, bundle, spark, None, now)
    _, source = definition.source
    note_step(home, ARCHIVE)
    extend_archive(spark(), settings, source.topic, progress=progress)  # step 1
    note_step(home, LOOK)
    plan = look_at_log(spark(), settings, bundle, block, only_archived=True)  # step 2; records may come all the time
    if isinstance(plan, str):
        forget_step(home)
        return plan
    topic_id = kafka.topic_id(settings, source.topic)
    _require_archived(settings, plan, topic_id)
    if plan.history is not None:
        plan.history.pin(settings)
    bundle.save(home.bundles)
    with at_rest(home, "first load", now, running="its stream began, or is about to, at the log's beginning") as check:
        if require_first_start(home) is not None:
            message = f"another process recorded a first load of {definition.name} meanwhile; run it again, it continues that one"
            raise LostRaceError(message)
        load = FirstLoad(
            pipeline=definition.name,
            timeline=Timeline.next_name(home),
            bundle=bundle.id,
            fingerprint=bundle.fingerprint.hashes(),
            cluster_id=kafka.cluster_id(settings),
            topic=source.topic,
            topic_id=topic_id,
            ranges=plan.ranges,
            since_ms=plan.since_ms,
            before_ms=plan.before_ms,
            closed_ms=plan.closed_ms,
            accepted=plan.accepted,
            rejected=plan.rejected,
            by=by,
            noted_at=now,
            history=None if plan.history is None else plan.history.text,
            history_ms=plan.history_ms,
        )
        check()
        record_load(home, load, plan.zones)  # step 3
        forget_step(home)
        begin_after_load(home, load, now)
    return load


def continue_load(home: PipelineHome, load: FirstLoad, now: datetime) -> None:
    """Let the timeline of a recorded load serve if it does not yet; a driver that runs does so itself.

    Raises:
        LostRaceError: another operation holds the stream.
    """
    if head(home) is None and lease_owner(home) is None:
        with at_rest(home, load.id, now, running="it begins after the load by itself"):
            begin_after_load(home, load, now)


def publish_load(settings: Settings, load: FirstLoad, spark: Spark, progress: Progress) -> Iterator[LoadedPiece]:
    """Publish the windows that no backfill has published yet: step 5. Yields each backfill once it is published.

    Args:
        load: whose windows the stream has closed.

    Raises:
        LogGapError: a record that a window needs is gone.
        AuditError: what was computed failed its audit; the same call plans its windows again.
        LostRaceError: another process computes the same backfill.
    """
    home = settings.pipeline(load.pipeline)
    window = load_bundle_definition(home.bundles, load.bundle).window
    size, step = window.length // _MS, window.step // _MS
    pieces = list(cut_pieces(unloaded_windows(home, load), step, MAX_WINDOWS))
    for number, piece in enumerate(pieces, start=1):
        request = ask_for(load.pipeline, piece, size, step)
        plan = find_interrupted(home, piece) or save_plan(home, make_plan(settings, request, spark))
        progress(f"backfill {plan.id}: {plan.windows} windows, {plan.records} records, {len(plan.chunks)} chunks")
        compute_backfill(spark(), settings, plan, progress)
        audit_backfill(settings, plan, spark)
        entry = publish_backfill(settings, plan)
        progress(Measured(f"{load.id}: part {number} of {len(pieces)} published", load.id, number, len(pieces)))
        yield LoadedPiece(plan.id, plan.windows, entry.seq)


def find_interrupted(home: PipelineHome, piece: HalfOpenRange) -> BackfillPlan | None:
    """Return the plan of a load's earlier run that covers a piece and can still be published, or None."""
    name = head(home)
    semantics = None if name is None else Timeline.load(home, name).fingerprint["semantics"]
    published = {publication.backfill for publication in publications_of(read_sequence(home))}
    for backfill in reversed(list_backfills(home)):
        if backfill in published or (read_audit(home, backfill) or {"passed": True})["passed"] is False:
            continue
        plan = load_backfill_plan(home, backfill)
        if plan.reason == REASON and plan.semantics == semantics and not subtract([piece], plan.ranges):
            return plan
    return None


def _require_archived(settings: Settings, plan: LoadPlan, topic_id: str) -> None:
    """Check that the archive has all that the stream will leave out.

    Raises:
        LogGapError: it lacks some.
    """
    history = {} if plan.history is None else plan.history.ranges
    wanted = drop_empty(without(dict(plan.ranges), history))
    archived = intersect(wanted, archived_ranges(settings, plan.topic, topic_id))
    if count(archived) != count(wanted):
        message = (
            f"the archive of {plan.topic} lacks {describe(without(wanted, archived))}, which the stream would leave out; "
            "run it again: it archives first"
        )
        raise LogGapError(message)
