"""Accepted records as relations: the parts of the plan of every kind of windows, streaming or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.definition import Definition, Source
from rivertwice.engine.decode import DEAD_COLUMNS, HASH, decode
from rivertwice.engine.row_errors import RowChecks
from rivertwice.engine.views import run_views

READ_METRICS = "rt_read"
ACCEPTED_METRICS = "rt_accepted"


def accepted(decoded: DataFrame, source: Source) -> DataFrame:
    """Return the accepted rows of `decode`'s result: the source's fields and their addresses."""
    fields = [*source.schema_, *(name for name in decoded.columns if name.startswith("_"))]
    columns = [name for name in fields if name not in (*DEAD_COLUMNS, HASH)]
    return decoded.where(F.col("_reason").isNull()).select(*columns)


def accepted_branches(
    definition: Definition, raw: DataFrame, checks: Mapping[str, RowChecks], *, observe: bool = True
) -> dict[str, DataFrame]:
    """Return view to accepted rows of each stream under its own watermark, all branches of one Kafka source.

    Tables have no branch: a batch reads its versions of them separately (`stream.versions`). Several sources are
    distinguished by the record's topic. Each branch has its own two observations, named by `metric_names`;
    `compile_stream` explains what they count, and the place of the second.
    """
    several = definition.has_several_sources
    return {
        view: _accepted_branch(
            raw.where(F.col("topic") == F.lit(source.topic)) if several else raw,
            source,
            checks[view],
            metric_names(definition, view) if observe else None,
        )
        for view, source in definition.streams.items()
    }


def metric_names(definition: Definition, view: str) -> tuple[str, str]:
    """Return the names of a source's two observations: for the records read, and for the records accepted."""
    suffix = f"_{view}" if definition.has_several_sources else ""
    return f"{READ_METRICS}{suffix}", f"{ACCEPTED_METRICS}{suffix}"


def _accepted_branch(raw: DataFrame, source: Source, checks: RowChecks, metrics: tuple[str, str] | None) -> DataFrame:
    decoded = decode(raw, source, checks, details=False, hashed=metrics is not None)
    if metrics is not None:
        read = F.count(F.lit(1)).alias("read")
        decoded = decoded.observe(metrics[0], read, F.count("_reason").alias("bad"), F.bit_xor(HASH).alias("digest"))
    rows = accepted(decoded, source)
    if source.has_watermark:
        # Spark does not read "ms", so it cannot read the text of a delay that is zero or no whole number of seconds.
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

    `view` names the source of the rows; None: the only source. A row gives one row for tumbling windows, and
    `window.passes` rows for hopping windows. A session with only this row ends one gap after it; Spark uses that end to
    decide whether the row is late.
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
    """Return the transform's result over `rows`; it sees only the source's fields.

    Addresses are hidden: a result must not depend on a record's place in the log.
    """
    _, source = definition.source
    return run_sql(spark, definition, definition.transform_sql, rows.select(*source.schema_))


def run_sql(spark: SparkSession, definition: Definition, sql: str, rows: DataFrame) -> DataFrame:
    """Return the result of the definition's `sql` over `rows`, which it sees under the source's name."""
    view, _ = definition.source
    return run_views(spark, sql, {view: rows})


def with_batch(spark: SparkSession, rows: DataFrame, batch_of: Sequence[int]) -> DataFrame:
    """Return rows with `_index`: the micro-batch of each row, given by offset."""
    offsets = pa.array(range(len(batch_of)), pa.int64())
    marks = pa.table({"_offset": offsets, "_index": pa.array(list(batch_of), pa.int32())})
    return rows.join(F.broadcast(spark.createDataFrame(marks)), "_offset")
