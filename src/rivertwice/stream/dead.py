"""Dead letters of a micro-batch: its exact range is read again and decoded, and the bad records are stored with their address."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.core import Settings
from rivertwice.definition import Definition
from rivertwice.log import Parts
from rivertwice.stream.pieces import read_topics
from rivertwice.stream.result_rows import FORMAT, DriverContext
from rivertwice.stream.side import SideTable, origin, read_again, stamps
from rivertwice.timeline import Timeline

METADATA_KEY = "dead"
CONTENT = ("key", "value", "headers")
ADDRESS = ("_timeline", "topic", "partition", "offset")


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


def dead_table(context: DriverContext) -> SideTable:
    """Return the table of the dead letters of a driver's timeline."""
    return SideTable(context.home.tables.dead_letters, METADATA_KEY, f"{context.app}/dead", "dead letters")


def write_dead_letters(
    spark: SparkSession,
    settings: Settings,
    context: DriverContext,
    batch: int,
    ranges: Parts,
    counts: Mapping[str, int],
) -> int:
    """Write the dead letters of one batch once, in pieces of bounded size; return how many were written now.

    Only topics with dead letters are read again, whatever topics `ranges` contains. The rows are valid only if
    (_timeline, _batch) is in the ledger.

    Args:
        counts: topic to the number of its dead letters.

    Raises:
        RangeMismatchError: an earlier attempt at the batch left dead letters of another range.
    """
    table = dead_table(context)
    if table.is_written(batch, ranges):
        return 0

    pieces = read_dead(spark, settings, context.timeline, context.definition, batch, ranges, counts)
    return table.write_pieces(batch, ranges, pieces, ADDRESS)


def read_dead(
    spark: SparkSession,
    settings: Settings,
    line: Timeline,
    definition: Definition,
    batch: int,
    ranges: Parts,
    counts: Mapping[str, int],
) -> Iterator[pa.Table]:
    """Yield the dead letters of a batch's exact ranges, as they are stored, in pieces of bounded size; `counts` by topic."""

    def select(topic: str, part: Parts) -> DataFrame:
        return _read_dead(spark, settings, line, definition, topic, batch, part)

    return read_topics(select, ranges, CONTENT, dict(counts))


def _read_dead(
    spark: SparkSession,
    settings: Settings,
    line: Timeline,
    definition: Definition,
    topic: str,
    batch: int,
    ranges: Parts,
) -> DataFrame:
    return dead_rows(read_again(spark, settings, line, definition, topic, ranges)).select(
        *stamps(FORMAT, line, batch),
        "reason",
        "detail",
        *origin(line, topic),
        "partition",
        "offset",
        "record_time",
        "key",
        "value",
        "headers",
    )
