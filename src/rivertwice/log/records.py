"""Read exactly the records of given offset ranges, from the archive, from Kafka, or from both."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from rivertwice.core import LogGapError, Settings
from rivertwice.log import kafka
from rivertwice.log.addresses import OffsetRanges, count, describe, drop_empty, intersect, split
from rivertwice.log.archive_table import ABSENT, COUNTED, archived_segments, count_archived, count_rows, require_sound
from rivertwice.log.kafka import range_options
from rivertwice.log.reader import compacted_away
from rivertwice.storage import Snapshot, Table, TableFiles

# Records of the archive as a frame of Spark: the files that may hold them, counted and read where the executors are.

KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
_HEADERS = T.ArrayType(T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())]))
_ARCHIVE = T.StructType(
    [
        T.StructField("topic_id", T.StringType()),
        T.StructField("topic", T.StringType()),
        T.StructField("partition", T.IntegerType()),
        T.StructField("offset", T.LongType()),
        T.StructField("timestamp", T.TimestampType()),
        T.StructField("timestamp_type", T.IntegerType()),
        T.StructField("key", T.BinaryType()),
        T.StructField("value", T.BinaryType()),
        T.StructField("headers", _HEADERS),
    ]
)

_COUNTS = T.StructType([T.StructField("partition", T.IntegerType()), T.StructField("rows", T.LongType())])


def select_files(actions: Iterable[Mapping[str, Any]], uris: Sequence[str], ranges: OffsetRanges) -> list[str]:
    """Return the files that may have a requested record, by the bounds that Delta keeps for each.

    Args:
        actions: one mapping per file with `path`, `min.partition`, `max.partition`, `min.offset`, `max.offset`.
        uris: full names of the same files; they end with `path`.
        ranges: requested offsets. A file without bounds is kept.
    """
    by_name = {uri.rpartition("/")[2]: uri for uri in uris}
    files = [by_name[str(action["path"]).rpartition("/")[2]] for action in actions if _may_hold(action, ranges)]
    return sorted(files)


def _may_hold(action: Mapping[str, Any], ranges: OffsetRanges) -> bool:
    names = ("min.partition", "max.partition", "min.offset", "max.offset")
    bounds = [int(action[name]) for name in names if action.get(name) is not None]
    if len(bounds) < len(names):
        return True
    first, last, low, high = bounds
    return any(first <= p <= last and start <= high and low < end for p, (start, end) in ranges.items())


def archive_files(settings: Settings, topic: str, ranges: OffsetRanges, table: Snapshot | None = None) -> list[str]:
    """Return the full names of the archive's files that may have a requested record.

    Args:
        table: an open handle; None: the archive as it is now.

    Raises:
        TableDamageError: a file is missing, or differs from what was written.
    """
    table = table or Table(settings.archive(topic)).open()
    if table is None:
        return []
    files = select_files(table.actions().to_pylist(), table.uris(), ranges)
    require_sound(settings, topic, table, files)
    return files


def read_archive(
    spark: SparkSession, settings: Settings, topic: str, ranges: OffsetRanges, topic_id: str, *, count_check: bool
) -> DataFrame:
    """Return the records of `ranges` from the archive, with Kafka's columns.

    Raises:
        LogGapError: the archive has more or fewer records than offsets; only with `count_check`.
        TableDamageError: a file is missing, or differs from what was written.
    """
    cache = settings.home / "cache"
    table = Table(settings.archive(topic)).open()
    uris = [] if table is None else archive_files(settings, topic, ranges, table)
    if count_check:
        if table is None:
            counted = {}
        elif TableFiles(table).are_read_by_executors(spark):
            counted = _count_by_executors(spark, table, uris, topic_id, ranges)
        else:
            counted = count_archived(TableFiles(table).copies(uris, cache), topic_id, ranges)
        check_count(counted, ranges, f"the archive of topic {topic}")
    if table is None or not uris:
        return spark.createDataFrame([], kafka_schema())
    rows = TableFiles(table).frame(spark, _ARCHIVE, cache, uris=uris)
    in_ranges = functools.reduce(operator.or_, (_in_range(p, *bounds) for p, bounds in ranges.items()))
    is_record = F.col("timestamp_type") != F.lit(ABSENT)
    records = rows.where((F.col("topic_id") == F.lit(topic_id)) & in_ranges & is_record)
    return records.withColumnRenamed("timestamp_type", "timestampType").select(*KAFKA_COLUMNS)


def _count_by_executors(
    spark: SparkSession, table: Snapshot, uris: Sequence[str], topic_id: str, ranges: OffsetRanges
) -> dict[int, int]:
    """Return what `count_archived` returns, counted where the files are read."""

    def counts(rows: pa.Table) -> pa.Table:
        counted = count_rows(rows, topic_id, ranges)
        return pa.table({"partition": [*counted], "rows": [*counted.values()]}, schema=to_arrow_schema(_COUNTS))

    files = TableFiles(table)
    pieces = files.scan(spark, _COUNTS, counts, files=files.named(uris), columns=COUNTED.names)
    sums = pieces.groupBy("partition").agg(F.sum("rows").alias("rows")).toArrow()
    return {row["partition"]: row["rows"] for row in sums.to_pylist()}


def _in_range(partition: int, start: int, end: int) -> Column:
    offset = F.col("offset")
    return (F.col("partition") == F.lit(partition)) & (offset >= F.lit(start)) & (offset < F.lit(end))


def check_count(counted: Mapping[int, int], ranges: OffsetRanges, what: str) -> None:
    """Compare counted records per partition with the ranges.

    Raises:
        LogGapError: a partition has more or fewer records than offsets.
    """
    wrong = {p: bounds for p, bounds in drop_empty(ranges).items() if counted.get(p, 0) != bounds[1] - bounds[0]}
    if wrong:
        counts = ", ".join(f"{counted.get(p, 0)} records in partition {p}" for p in wrong)
        message = (
            f"{what} should hold every offset of {describe(wrong)} once, but has {counts}; it is damaged; nothing "
            "was computed from it; `rivertwice admin repair` shows what can be read from Kafka again"
        )
        raise LogGapError(message)


def kafka_schema() -> T.StructType:
    """Return the schema of records in Kafka's columns."""
    fields = {field.name: field for field in _ARCHIVE.fields}
    stamp = T.StructField("timestampType", T.IntegerType())
    return T.StructType([fields.get(name, stamp) for name in KAFKA_COLUMNS])


@dataclass(frozen=True)
class ReadPlan:
    """The source of each requested record.

    Attributes:
        missing: ranges that are in neither: (partition, start, end).
        older: ranges taken from the archive's older segments, one mapping per segment.
    """

    archive: OffsetRanges
    kafka: OffsetRanges
    missing: tuple[tuple[int, int, int], ...]
    older: tuple[OffsetRanges, ...] = ()


def plan_read(
    wanted: OffsetRanges, archived: OffsetRanges, retained: OffsetRanges, older: Sequence[OffsetRanges] = ()
) -> ReadPlan:
    """Decide where to read: the archive has precedence, the rest comes from Kafka, so each offset is read once.

    Args:
        archived: the ranges in the archive's newest segment.
        older: the ranges in the archive's older segments; each is followed by a hole.
    """
    below, inside, above = split(drop_empty(wanted), archived)
    old_gap, old_here, between_gap = split(below, retained)
    seam_gap, new_here, new_gap = split(above, retained)
    whole = old_here.keys() & new_here.keys()  # Kafka reaches around the archive: one read instead of three
    joined = {p: (old_here[p][0], new_here[p][1]) for p in whole}
    gaps = (old_gap, between_gap, seam_gap, new_gap)
    missing = sorted((p, *bounds) for gap in gaps for p, bounds in gap.items())
    from_older, missing = _from_older(missing, older)
    return ReadPlan(
        archive={p: bounds for p, bounds in inside.items() if p not in whole},
        kafka=dict(sorted({**old_here, **new_here, **joined}.items())),
        missing=tuple(missing),
        older=tuple(from_older),
    )


def _from_older(
    missing: list[tuple[int, int, int]], older: Sequence[OffsetRanges]
) -> tuple[list[OffsetRanges], list[tuple[int, int, int]]]:
    """Return the missing ranges that older segments have, and the ranges that are still missing."""
    from_older: list[OffsetRanges] = []
    for segment in older:
        still_missing: list[tuple[int, int, int]] = []
        for partition, start, end in missing:
            below, inside, above = split({partition: (start, end)}, {partition: segment.get(partition, (start, start))})
            if inside:
                from_older.append(inside)
            still_missing += [(p, *bounds) for part in (below, above) for p, bounds in part.items()]
        missing = still_missing
    return from_older, sorted(missing)


def read_ranges(
    spark: SparkSession,
    settings: Settings,
    topic: str,
    ranges: OffsetRanges,
    *,
    count_check: bool = True,
    topic_id: str | None = None,
) -> DataFrame:
    """Return exactly the records of `ranges`, with Kafka's columns (`headers` among them).

    Archived records come from the archive, the rest from Kafka; every offset is read once.

    Args:
        ranges: half-open offset ranges by partition.
        count_check: also count the archive's records, so that a damaged archive is an error and not a smaller result.
        topic_id: id of the topic of the offsets; None: the id that Kafka reports now.

    Raises:
        LogGapError: records are in neither; the message names partition and offsets.
    """
    known_id = topic_id or kafka.topic_id(settings, topic)
    plan = observe_read(settings, topic, ranges, known_id)
    if plan.missing:
        raise _gap(topic, plan.missing)
    return read_plan(spark, settings, topic, plan, known_id, count_check=count_check)


def observe_read(settings: Settings, topic: str, ranges: OffsetRanges, topic_id: str) -> ReadPlan:
    """Find where the records of `ranges` can be read now; the plan's `missing` has the ranges that are nowhere.

    What Kafka has compacted away, and the archive lacks, is missing, too.
    """
    *older, archived = archived_segments(settings, topic, topic_id) or [{}]
    plan = plan_read(ranges, archived, _retained(settings, topic, topic_id, ranges, archived), older)
    gone = compacted_away(settings, topic, plan.kafka) if plan.kafka else []
    return plan if not gone else replace(plan, missing=tuple(sorted([*plan.missing, *gone])))


def read_plan(
    spark: SparkSession, settings: Settings, topic: str, plan: ReadPlan, known: str, *, count_check: bool = True
) -> DataFrame:
    """Return the readable records of a plan, with Kafka's columns; `known` is the topic's id."""
    frames: list[DataFrame] = []
    for ranges in (*plan.older, plan.archive):
        if ranges:
            frames.append(read_archive(spark, settings, topic, ranges, known, count_check=count_check))
    if plan.kafka:
        frames.append(read_kafka(spark, settings, topic, plan.kafka))
    if not frames:
        return spark.createDataFrame([], kafka_schema())
    return functools.reduce(DataFrame.unionByName, frames)


def _retained(
    settings: Settings, topic: str, topic_id: str, wanted: OffsetRanges, archived: OffsetRanges
) -> OffsetRanges:
    """Return Kafka's ranges of the topic; empty if the archive suffices, or if the topic now has another id."""
    if count(intersect(wanted, archived)) == count(wanted) or kafka.topic_id(settings, topic) != topic_id:
        return {}
    begin, end = kafka.begin_offsets(settings, topic), kafka.end_offsets(settings, topic)
    return {partition: (begin[partition], end[partition]) for partition in end}


def check_same_topic(settings: Settings, topic: str, topic_id: str, plan: ReadPlan) -> None:
    """Check, after records were read from Kafka, that they belong to this topic: an id is never used again.

    Raises:
        LogGapError: the topic was deleted and created again meanwhile.
    """
    if plan.kafka and kafka.topic_id(settings, topic) != topic_id:
        message = (
            f"topic {topic} is no longer the one with id {topic_id}: it was deleted and created again while it was being "
            "read, so the records may be others; nothing was concluded from them; ask again for what the archive holds"
        )
        raise LogGapError(message)


def _gap(topic: str, missing: Iterable[tuple[int, int, int]]) -> LogGapError:
    shown = ", ".join(f"partition {partition} [{start}, {end})" for partition, start, end in missing)
    message = (
        f"topic {topic}: {shown} is in neither Kafka nor the archive, and results over it would be wrong; run the archive "
        "more often than Kafka's retention deletes, or ask for a range that is still there"
    )
    return LogGapError(message)


def read_kafka(spark: SparkSession, settings: Settings, topic: str, ranges: OffsetRanges) -> DataFrame:
    """Return the records of `ranges` from Kafka alone; Spark fails if one of them was deleted meanwhile."""
    wanted = drop_empty(ranges)
    starts = {str(partition): start for partition, (start, _) in wanted.items()}
    ends = {str(partition): end for partition, (_, end) in wanted.items()}
    return (
        spark.read.format("kafka")
        .options(**range_options(settings))
        .option("assign", json.dumps({topic: sorted(wanted)}))
        .option("startingOffsets", json.dumps({topic: starts}))
        .option("endingOffsets", json.dumps({topic: ends}))
        .option("failOnDataLoss", "true")
        .option("includeHeaders", "true")
        .load()
        .select(*KAFKA_COLUMNS)
    )
