"""Accepted records as relations: what the plan of every kind of windows is made of, streaming or not."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.pipeline.decode import DEAD_COLUMNS, decode
from rivertwice.pipeline.model import Definition
from rivertwice.pipeline.source_model import Source
from rivertwice.pipeline.views import run_views

READ_METRICS = "rt_read"
ACCEPTED_METRICS = "rt_accepted"


def accepted(decoded: DataFrame, source: Source) -> DataFrame:
    """Return the accepted rows of `decode`'s result: the source's fields and their addresses."""
    fields = [*source.schema_, *(name for name in decoded.columns if name.startswith("_"))]
    kept = [name for name in fields if name not in DEAD_COLUMNS]
    return decoded.where(F.col("_reason").isNull()).select(*kept)


def accepted_branches(definition: Definition, raw: DataFrame, *, observe: bool = True) -> dict[str, DataFrame]:
    """Return view to accepted rows of each stream under its own watermark, all branches of one Kafka source.

    Tables have no branch: what a batch holds of them is read apart (`stream.versions`). Several sources are told apart
    by the record's topic. Each branch has its own two observations, named by `metric_names`; see `compile_stream` for
    what they count, and why the second stands where it does.
    """
    several = definition.has_several_sources
    return {
        view: _accepted_branch(
            raw.where(F.col("topic") == F.lit(source.topic)) if several else raw,
            source,
            metric_names(definition, view) if observe else None,
        )
        for view, source in definition.streams.items()
    }


def metric_names(definition: Definition, view: str) -> tuple[str, str]:
    """Return the names of a source's two observations: of what was read, and of what was accepted."""
    suffix = f"_{view}" if definition.has_several_sources else ""
    return f"{READ_METRICS}{suffix}", f"{ACCEPTED_METRICS}{suffix}"


def _accepted_branch(raw: DataFrame, source: Source, metrics: tuple[str, str] | None) -> DataFrame:
    decoded = decode(raw, source)
    if metrics is not None:
        read = F.count(F.lit(1)).alias("read")
        decoded = decoded.observe(metrics[0], read, F.count("_reason").alias("bad"))
    rows = accepted(decoded, source)
    if source.has_watermark:
        # Spark reads no "ms", and so not the text of a delay that is zero or no whole number of seconds.
        delay = f"{source.watermark // timedelta(milliseconds=1)} milliseconds"
        rows = rows.withWatermark(source.event_time, delay)
    if metrics is None:
        return rows
    event_ms = F.unix_millis(source.event_time)
    return rows.observe(
        metrics[1],
        F.count(F.lit(1)).alias("accepted"),
        F.min(event_ms).alias("min_event_ms"),
        F.max(event_ms).alias("max_event_ms"),
    )


def included(spark: SparkSession, definition: Definition, rows: DataFrame) -> DataFrame:
    """Return the accepted rows that `rows.sql` keeps, with all their columns; all rows if there is no such file."""
    if definition.rows_sql is None:
        return rows
    return run_sql(spark, definition, definition.rows_sql, rows)


def with_window_end(rows: DataFrame, definition: Definition, view: str | None = None) -> DataFrame:
    """Return `rows` once per window that holds the row's event time, with that window's end as `_window_end`.

    `view` says whose rows they are; None: the one source's. That is one row of a tumbling window, and `window.passes`
    of a hopping one. A session that holds the row alone ends the gap after it, and by that end Spark judges whether it
    is late.
    """
    source = definition.source[1] if view is None else definition.sources[view]
    size, step = window_micros(definition)
    event = F.unix_micros(source.event_time)
    if not definition.window.kind.is_aligned:
        return rows.withColumn("_window_end", F.timestamp_micros(event + F.lit(size)))
    first = event - F.pmod(event, F.lit(step)) + F.lit(step)
    if definition.window.passes == 1:
        return rows.withColumn("_window_end", F.timestamp_micros(first))
    later = F.explode(F.sequence(F.lit(0), F.lit(size - step), F.lit(step)))
    return (
        rows.withColumn("_later", later)
        .withColumn("_window_end", F.timestamp_micros(first + F.col("_later")))
        .drop("_later")
    )


def window_micros(definition: Definition) -> tuple[int, int]:
    """Return length of a window and time between two starts, in microseconds."""
    micro = timedelta(microseconds=1)
    return definition.window.length // micro, definition.window.step // micro


def rows_schema(source: Source) -> str:
    """Return the DDL of accepted rows."""
    fields = [f"`{name}` {kind}" for name, kind in {**source.schema_, **source.marks}.items()]
    return ", ".join([*fields, "_partition int", "_offset bigint", "_record_time timestamp"])


def transform(spark: SparkSession, definition: Definition, rows: DataFrame) -> DataFrame:
    """Return the transform's result over `rows`, of which it sees the source's fields only.

    Addresses stay out of sight: a result must not depend on where a record lay in the log.
    """
    _, source = definition.source
    return run_sql(spark, definition, definition.transform_sql, rows.select(*source.schema_))


def run_sql(spark: SparkSession, definition: Definition, sql: str, rows: DataFrame) -> DataFrame:
    """Return what the definition's `sql` makes of `rows`, seen under the source's name."""
    view, _ = definition.source
    return run_views(spark, sql, {view: rows})


def with_batch(spark: SparkSession, rows: DataFrame, batch_of: Sequence[int]) -> DataFrame:
    """Return rows with `_index`: the micro-batch that each is of, given by offset."""
    offsets = pa.array(range(len(batch_of)), pa.int64())
    marks = pa.table({"_offset": offsets, "_index": pa.array(list(batch_of), pa.int32())})
    return rows.join(F.broadcast(spark.createDataFrame(marks)), "_offset")
