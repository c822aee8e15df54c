"""Read exactly the records of given offset ranges, from the archive, from Kafka, or from both."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from rivertwice.config import Settings
from rivertwice.errors import LogGapError
from rivertwice.log import kafka
from rivertwice.log.addresses import OffsetRanges, count, drop_empty, intersect, split
from rivertwice.log.archive_read import KAFKA_COLUMNS, kafka_schema, read_archive
from rivertwice.log.archive_table import archived_segments
from rivertwice.log.client_options import range_options
from rivertwice.log.holes import compacted_away


@dataclass(frozen=True)
class ReadPlan:
    """The source of each wanted record.

    Attributes:
        archive: ranges taken from the archive.
        kafka: ranges taken from Kafka.
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
        wanted: the ranges to read.
        archived: the ranges in the archive's newest segment.
        retained: the ranges that Kafka still has.
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
        spark: the session.
        settings: the archive's folder and the cluster.
        topic: the topic.
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
        f"topic {topic}: {shown} is in neither Kafka nor the archive, so no result over it can be right; run the archive "
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
