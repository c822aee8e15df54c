"""Dead letters of a micro-batch: its exact range is read again, decoded, and the bad records are kept with address."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.config import Settings
from rivertwice.log.records import read_ranges
from rivertwice.pipeline.decode import decode
from rivertwice.store import delta
from rivertwice.stream.sink import FORMAT, SinkContext


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


def write_dead_letters(
    spark: SparkSession, settings: Settings, context: SinkContext, batch: int, ranges: dict[int, tuple[int, int]]
) -> int:
    """Write the dead letters of one batch once; return how many were written now.

    The rows are valid only if (_timeline, _batch) is in the ledger. Written before the batch's commit, under a
    transaction of their own, so a crash between the two repeats nothing.
    """
    _, source = context.definition.source
    app = f"{context.app}/dead"
    done = delta.applied_version(context.home.tables.dead_letters, app)
    if done is not None and done >= batch:
        return 0
    raw = read_ranges(spark, settings, source.topic, ranges)
    line = context.timeline
    rows = dead_rows(decode(raw, source)).select(
        F.lit(FORMAT).cast("int").alias("_format"),
        F.lit(line.timeline).alias("_timeline"),
        F.lit(batch).cast("long").alias("_batch"),
        "reason",
        "detail",
        F.lit(line.cluster_id).alias("cluster_id"),
        F.lit(line.topic_ids[source.topic]).alias("topic_id"),
        F.lit(source.topic).alias("topic"),
        "partition",
        "offset",
        "record_time",
        "key",
        "value",
        "headers",
    )
    table = rows.toArrow()
    delta.append(context.home.tables.dead_letters, table, transactions={app: batch})
    return int(table.num_rows)
