"""Dead letters of a micro-batch: its exact range is read again, decoded, and the bad records are kept with address."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.config import Settings
from rivertwice.errors import RangeMismatchError
from rivertwice.log.addresses import Parts, name_parts, of_topic
from rivertwice.log.records import read_ranges
from rivertwice.pipeline.decode import decode
from rivertwice.store import delta
from rivertwice.stream.sink import FORMAT, SinkContext

METADATA_KEY = "dead"


def dead_rows(decoded: DataFrame) -> DataFrame:
    """Return the rejected rows of a decoded frame with their addresses."""
    return decoded.where(F.col("_reason").isNotNull()).select(
        F.col("_reason").alias("reason"),
        F.col("_detail").alias("detail"),
        F.col("_partition").cast("int").alias("partition"),
        F.col("_offset").alias("offset"),
        F.col("_record_time").alias("record_time"),
        F.col("_key").alias("key"),
        F.col("_value").alias("value"),
        F.col("_headers").alias("headers"),
    )


def encode_ranges(ranges: Parts) -> dict[str, list[int]]:
    """Return offset ranges as JSON holds them, by the parts' names (`addresses.name_parts`)."""
    return {name: list(ranges[part]) for part, name in name_parts(ranges).items()}


def check_dead_range(
    recorded: Mapping[str, Sequence[int]] | None, ranges: Parts, batch: int, what: str = "dead letters"
) -> None:
    """Let dead letters (or what else is written before a commit) that are there already stand only if of this very range.

    A batch that was planned but never committed may be planned anew if its `offsets/N` is lost. What its first attempt
    wrote is then not what this one found.

    Raises:
        RangeMismatchError: they are of another range.
    """
    if recorded is not None and {p: list(pair) for p, pair in recorded.items()} != encode_ranges(ranges):
        message = (
            f"the {what} of batch {batch} are there already, of {dict(recorded)} and not of {encode_ranges(ranges)}: "
            "its offsets file was lost and it was planned anew; nothing was committed; restore a savepoint into a new timeline"
        )
        raise RangeMismatchError(message)


def check_dead_there(context: SinkContext, batch: int, ranges: Parts) -> None:
    """Check that dead letters of a batch, if there are any already, are of this very range (`check_dead_range`)."""
    recorded = ranges_written(context.home.tables.dead_letters, METADATA_KEY, f"{context.app}/dead", batch)
    check_dead_range(recorded, ranges, batch)


def ranges_written(place: Path | str, key: str, app: str, batch: int) -> Mapping[str, Sequence[int]] | None:
    """Return the ranges that an earlier attempt at a batch noted under `key` in a table, None if it wrote nothing."""
    notes: list[Any] = [value for _, value in delta.commits(place, key, limit=16)]
    found = [value["ranges"] for value in notes if (value["app"], value["batch"]) == (app, batch)]
    return found[-1] if found else None


def write_dead_letters(
    spark: SparkSession,
    settings: Settings,
    context: SinkContext,
    batch: int,
    ranges: Parts,
    topics: Collection[str],
) -> int:
    """Write the dead letters of one batch once; return how many were written now.

    Only `topics`, those that have any, are read again, whatever topics `ranges` holds. The rows are valid only if
    (_timeline, _batch) is in the ledger. Written before the batch's commit, under a transaction of their own, so a crash
    between the two repeats nothing.
    """
    app = f"{context.app}/dead"
    done = delta.applied_version(context.home.tables.dead_letters, app)
    if done is not None and done >= batch:
        check_dead_there(context, batch, ranges)
        return 0
    found = [_read_dead(spark, settings, context, topic, batch, ranges) for topic in sorted(topics)]
    table = functools.reduce(DataFrame.unionByName, found).toArrow()
    note = {"app": app, "batch": batch, "ranges": encode_ranges(ranges)}
    delta.append(context.home.tables.dead_letters, table, transactions={app: batch}, metadata={METADATA_KEY: note})
    return int(table.num_rows)


def _read_dead(
    spark: SparkSession, settings: Settings, context: SinkContext, topic: str, batch: int, ranges: Parts
) -> DataFrame:
    line = context.timeline
    _, source = context.definition.by_topic[topic]
    raw = read_ranges(spark, settings, topic, of_topic(ranges, topic), topic_id=line.topic_ids[topic])
    return dead_rows(decode(raw, source)).select(
        F.lit(FORMAT).cast("int").alias("_format"),
        F.lit(line.timeline).alias("_timeline"),
        F.lit(batch).cast("long").alias("_batch"),
        "reason",
        "detail",
        F.lit(line.cluster_id).alias("cluster_id"),
        F.lit(line.topic_ids[topic]).alias("topic_id"),
        F.lit(topic).alias("topic"),
        "partition",
        "offset",
        "record_time",
        "key",
        "value",
        "headers",
    )
