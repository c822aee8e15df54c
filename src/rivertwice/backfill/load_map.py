"""Read the event times of a log, block by block: one Spark job over archive and Kafka, with the definition's own decoder."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from rivertwice.backfill.load_plan import LogMap, block_size
from rivertwice.config import Settings
from rivertwice.errors import LogGapError
from rivertwice.log import kafka
from rivertwice.log.addresses import OffsetRanges, count, drop_empty
from rivertwice.log.archive_table import archived_ranges
from rivertwice.log.records import check_same_topic, observe_read, read_plan
from rivertwice.pipeline.compile import decode_view
from rivertwice.pipeline.definition import Definition
from rivertwice.timeline.first_load import LogZone


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


def read_log_map(
    spark: SparkSession,
    settings: Settings,
    definition: Definition,
    block: int | None = None,
    *,
    only_archived: bool = False,
) -> LogMap:
    """Return the event times of all records of a definition's only topic that Kafka or the archive has.

    Args:
        spark: the session that reads and decodes.
        settings: the cluster and the archive.
        definition: with the decoder.
        block: offsets of a block; None: by the number of records.
        only_archived: leave out what came after the archive's end.

    Raises:
        LogGapError: records were deleted while it was read, or the topic was created again.
    """
    view, source = definition.source
    topic, topic_id = source.topic, kafka.topic_id(settings, source.topic)
    begins = kafka.begin_offsets(settings, topic)
    retained = {p: (begins[p], end) for p, end in kafka.end_offsets(settings, topic).items()}
    ranges = all_records(retained, archived_ranges(settings, topic, topic_id), only_archived=only_archived)
    size = block or block_size(count(ranges))
    plan = observe_read(settings, topic, ranges, topic_id)
    if plan.missing:
        message = f"topic {topic} lost records while its event times were read: {plan.missing[:3]}; nothing was recorded; run it again"
        raise LogGapError(message)
    starts = F.lit(0).cast("bigint")
    for partition, (start, _) in ranges.items():
        starts = F.when(F.col("_partition") == partition, F.lit(start)).otherwise(starts)
    event_ms = F.unix_millis(source.event_time)
    rows = decode_view(definition, view, read_plan(spark, settings, topic, plan, topic_id), details=False)
    offset = F.col("_offset")
    at = (offset - F.pmod(offset - starts, F.lit(size))).alias("_at")
    counts = (F.count(F.lit(1)).alias("rows"), F.min(event_ms).alias("low"), F.max(event_ms).alias("high"))
    table = rows.groupBy("_partition", at, "_reason").agg(*counts).toArrow()
    check_same_topic(settings, topic, topic_id, plan)
    return to_map(topic, ranges, size, table)


def to_map(topic: str, ranges: OffsetRanges, size: int, table: pa.Table) -> LogMap:
    """Return the map of blocks of `size` offsets from what was counted of each. Pure.

    Args:
        topic: of the records.
        ranges: what was read.
        size: offsets of a block.
        table: `_partition`, `_at` (first offset of the block), `_reason` (null: accepted), `rows`, and the least and largest event
            time, `low` and `high`.
    """
    accepted: dict[tuple[int, int], tuple[int, int | None, int | None]] = {}
    rejected: dict[tuple[int, int], dict[str, int]] = defaultdict(dict)
    for row in table.to_pylist():
        where = (row["_partition"], row["_at"])
        if row["_reason"] is None:
            accepted[where] = (row["rows"], row["low"], row["high"])
        else:
            rejected[where][row["_reason"]] = row["rows"]
    zones = [
        LogZone(partition, at, min(end, at + size), *accepted.get((partition, at), (0, None, None)))
        for partition, (start, end) in sorted(drop_empty(dict(ranges)).items())
        for at in range(start, end, size)
    ]
    return LogMap(topic, dict(ranges), zones, dict(rejected))
