"""Late rows of a micro-batch: the records that the stream had to leave out of windows, stored with address and content.

The batch's observed event times show whether it can have late records; only then is its exact range read again. There is a row
per (record, window): a record of hopping windows may be late for some of them only. Versions of tables are never late here: the
stream keeps them all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.core import Settings
from rivertwice.definition import Definition
from rivertwice.engine import accepted, included, with_window_end
from rivertwice.log import Parts
from rivertwice.stream.pieces import read_topics
from rivertwice.stream.result_rows import DriverContext
from rivertwice.stream.side import SideTable, origin, read_again, stamps
from rivertwice.timeline import BatchCounts, Timeline

FORMAT = 1
METADATA_KEY = "late"
CONTENT = ("fields",)
ADDRESS = ("_timeline", "topic", "partition", "offset", "window_end")


def select_suspects(definition: Definition, counts: Mapping[str, BatchCounts], late_ms: int) -> list[str]:
    """Return the topics from which a batch may have late rows. Pure.

    Args:
        counts: counts of the batch's accepted records, by topic.
        late_ms: the watermark of the batch before it, by which its rows are late (epoch ms).
    """
    streams = {source.topic for source in definition.streams.values()}
    return [
        topic
        for topic, topic_counts in sorted(counts.items())
        if topic in streams
        and topic_counts.min_event_ms is not None
        and definition.window.first_end_ms(topic_counts.min_event_ms) <= late_ms
    ]


def late_table(context: DriverContext) -> SideTable:
    """Return the table of the late rows of a driver's timeline."""
    return SideTable(context.home.tables.late_rows, METADATA_KEY, f"{context.app}/late", "late rows")


def write_late_rows(
    spark: SparkSession,
    settings: Settings,
    context: DriverContext,
    batch: int,
    ranges: Parts,
    late_ms: int,
    topics: Collection[str],
) -> int:
    """Write the late rows of one batch once; return how many it has.

    Only `topics` (`select_suspects`) are read again. If there are none, only the rows of an earlier attempt are checked.

    Raises:
        RangeMismatchError: an earlier attempt at the batch left late rows of another range.
    """
    table = late_table(context)
    if table.is_written(batch, ranges):
        return table.count(context.timeline.timeline, batch)
    if not topics:
        return 0

    pieces = read_late(spark, settings, context.timeline, context.definition, batch, ranges, late_ms, topics)
    table.write_pieces(batch, ranges, pieces, ADDRESS)
    return table.count(context.timeline.timeline, batch)  # an interrupted attempt may have written some


def read_late(
    spark: SparkSession,
    settings: Settings,
    line: Timeline,
    definition: Definition,
    batch: int,
    ranges: Parts,
    late_ms: int,
    topics: Collection[str],
) -> Iterator[pa.Table]:
    """Yield the late rows of a batch's exact ranges of some topics, as they are stored, in pieces of bounded size."""

    def select(topic: str, part: Parts) -> DataFrame:
        return _read_late(spark, settings, line, definition, topic, batch, part, late_ms)

    return read_topics(select, ranges, CONTENT, dict.fromkeys(topics), per_offset=definition.window.passes)


def _read_late(
    spark: SparkSession,
    settings: Settings,
    line: Timeline,
    definition: Definition,
    topic: str,
    batch: int,
    ranges: Parts,
    late_ms: int,
) -> DataFrame:
    view, source = definition.by_topic[topic]
    rows = accepted(read_again(spark, settings, line, definition, topic, ranges), source)
    return late_rows(spark, definition, view, rows, late_ms).select(
        *stamps(FORMAT, line, batch),
        "window_start",
        "window_end",
        "event_time",
        F.timestamp_millis(F.lit(late_ms)).alias("late_watermark"),
        *origin(line, topic),
        "partition",
        "offset",
        "record_time",
        "fields",
    )


def late_rows(spark: SparkSession, definition: Definition, view: str, rows: DataFrame, late_ms: int) -> DataFrame:
    """Return the late (record, window) pairs among accepted rows of one source, with the record's fields as JSON."""
    source = definition.sources[view]
    pairs = with_window_end(included(spark, definition, rows), definition, view)
    length = F.make_dt_interval(secs=F.lit(definition.window.length.total_seconds()))
    return pairs.where(F.unix_micros("_window_end") <= F.lit(late_ms * 1000)).select(
        (F.col("_window_end") - length).alias("window_start"),
        F.col("_window_end").alias("window_end"),
        F.col(source.event_time).alias("event_time"),
        F.col("_partition").cast("int").alias("partition"),
        F.col("_offset").alias("offset"),
        F.col("_record_time").alias("record_time"),
        F.to_json(F.struct(*source.schema_), {"ignoreNullFields": "false"}).alias("fields"),
    )
