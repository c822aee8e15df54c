"""Intervals: raw records are kept until their range of event time is closed, then one SELECT runs over all of them at once.

Intervals are for results that Spark cannot stream exactly, or that would depend on how batches were cut: joins with unmatched
rows, rolling figures per event, first sightings, patterns. An interval `[t, t + every)` sees the window `[t - lookback,
t + every + lookahead)`. Intervals of one length whose windows overlap are hopping windows. So Spark keeps and closes
them, and drops late records, exactly as it does for hopping windows. The streaming state holds the raw records, in blocks:

    records of each view  ->  groupBy(window, view, block), collect_list  ->  closed intervals  ->  transform.sql over the views

The second step is the same for stream, backfill and reconcile. Each view has its source's fields, the window's two columns
and `record`. `interval_check` proves on Spark's plan that no row of a result depends on records of two windows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.pipeline.durations import format_duration
from rivertwice.pipeline.model import Definition
from rivertwice.pipeline.names import RECORD, VALID_FROM, VALID_TO
from rivertwice.pipeline.source_model import Source
from rivertwice.pipeline.tables import table_rows
from rivertwice.pipeline.views import record_column, run_views

RowsOf = Callable[[Any, int], pa.Table]
"""Function that turns a micro-batch's frame, and its number, into result rows."""
VersionsAt = Callable[[SparkSession, int, int | None], Mapping[str, DataFrame]]
"""Function that gives view to the versions of each table that are known when a batch runs: accepted rows with `_index`.

Its last argument is the start of the earliest window that the batch closes (epoch microseconds; None: it closes none): versions that
no such window and no later one can see may be left out.
"""


def no_versions(_spark: SparkSession, _batch: int, _since_us: int | None) -> Mapping[str, DataFrame]:
    """Return an empty mapping: there are no tables."""
    return {}


BLOCK = 256
"""Records of one partition in a row of the state. A new record rewrites its block, so a block is small."""


def stream_intervals(definition: Definition, rows: Mapping[str, DataFrame]) -> DataFrame:
    """Return the closed intervals of a stream: `_window` and `_records`, one row per block of a view's records.

    Args:
        definition: what to run.
        rows: view to accepted rows, with their watermarks.
    """
    window = definition.window
    records = functools.reduce(
        DataFrame.unionByName, (_kept(definition, view, rows[view]) for view in definition.streams)
    )
    length, step = format_duration(window.length), format_duration(window.step)
    frames = F.window("_event_time", length) if window.passes == 1 else F.window("_event_time", length, step)
    block = F.floor(F.col("_records")["offset"] / BLOCK)
    return (
        records.groupBy(frames.alias("_window"), "_view", F.col("_records")["partition"], block)
        .agg(F.collect_list("_records").alias("_records"))
        .select("_window", "_view", "_records")
    )


def _kept(definition: Definition, view: str, rows: DataFrame) -> DataFrame:
    source = definition.sources[view]
    fields = [
        F.struct(*stream.schema_).alias(name) if name == view else F.lit(None).cast(struct_type(stream)).alias(name)
        for name, stream in definition.streams.items()
    ]
    address = [F.col("_partition").alias("partition"), F.col("_offset").alias("offset")]
    return rows.select(
        F.col(source.event_time).alias("_event_time"),
        F.lit(view).alias("_view"),
        F.struct(*address, *fields).alias("_records"),
    )


def struct_type(source: Source) -> str:
    """Return the DDL of a source's fields as one struct."""
    return f"struct<{', '.join(f'`{name}`: {kind}' for name, kind in source.schema_.items())}>"


def view_rows(definition: Definition, view: str, pairs: DataFrame) -> DataFrame:
    """Return a view as `transform.sql` sees it, from accepted rows once per interval that sees them (`_window_end`)."""
    window = definition.window
    start = F.col("_window_end") - F.make_dt_interval(secs=F.lit(window.length.total_seconds()))
    return pairs.select(
        start.alias(window.start_column),
        F.col("_window_end").alias(window.end_column),
        record_column(F.col("_partition"), F.col("_offset")),
        *definition.sources[view].schema_,
    )


def view_schema(definition: Definition, view: str) -> str:
    """Return the DDL of a view as `transform.sql` sees it."""
    window = definition.window
    source = definition.sources[view]
    fields = [f"`{name}` {kind}" for name, kind in source.schema_.items()]
    versions = [f"{VALID_FROM} timestamp", f"{VALID_TO} timestamp"] if source.is_table else []
    frame = [f"{name} timestamp" for name in (window.start_column, window.end_column)]
    return ", ".join([*frame, f"{RECORD} bigint", *versions, *fields])


def interval_views(
    definition: Definition,
    pairs: Mapping[str, DataFrame],
    versions: Mapping[str, DataFrame],
    closes: DataFrame | None = None,
) -> dict[str, DataFrame]:
    """Return all views as `transform.sql` sees them.

    Args:
        definition: what to run.
        pairs: stream to accepted rows, once per window that sees them (`_window_end`).
        versions: table to accepted rows with `_index`.
        closes: the windows, and `_close` of each (`tables.table_rows`); None: every window sees all versions.
    """
    views = {view: view_rows(definition, view, rows) for view, rows in pairs.items()}
    if not versions:
        return views
    frame = [definition.window.start_column, definition.window.end_column]
    seen_windows = functools.reduce(DataFrame.unionAll, (rows.select(*frame) for rows in views.values())).distinct()
    windows = seen_windows if closes is None else closes
    return views | {view: table_rows(definition, view, rows, windows) for view, rows in versions.items()}


def compute_interval_rows(spark: SparkSession, definition: Definition, views: Mapping[str, DataFrame]) -> DataFrame:
    """Return the transform's rows over `views`; for each window, the rows that belong to its interval."""
    window = definition.window
    assert window.at is not None, "the definition was checked"
    result = run_views(spark, definition.transform_sql, views)
    begin = F.col(window.start_column) + F.make_dt_interval(secs=F.lit(window.lookback.total_seconds()))
    end = begin + F.make_dt_interval(secs=F.lit(window.step.total_seconds()))
    return result.where((F.col(window.at) >= begin) & (F.col(window.at) < end))


class IntervalSink:
    """Turns a micro-batch of a stream's closed intervals into result rows."""

    def __init__(self, definition: Definition, versions: VersionsAt = no_versions) -> None:
        """Take the definition of the intervals, and the function for the known versions of its tables."""
        self._definition = definition
        self._versions = versions
        self._empty: pa.Table | None = None

    def rows(self, frame: Any, batch: int) -> pa.Table:
        """Return the result rows of the intervals that the batch closes; all of the batch's state is materialised."""
        closed: DataFrame = frame.persist()
        try:
            if self._empty is not None and not closed.count():
                return self._empty
            spark = closed.sparkSession
            versions = self._versions(spark, batch, self._earliest_us(closed))
            views = interval_views(self._definition, self._pairs(closed), versions)
            result = compute_interval_rows(spark, self._definition, views).toArrow()
        finally:
            closed.unpersist()
        if self._empty is None:
            self._empty = result.schema.empty_table()
        return result

    def _earliest_us(self, closed: DataFrame) -> int | None:
        """Return the start of the earliest closed window; None without one, and without tables, for which it is asked."""
        if not self._definition.tables:
            return None
        row = closed.agg(F.min(F.unix_micros(F.col("_window")["start"]))).first()
        return None if row is None else row[0]

    def _pairs(self, closed: DataFrame) -> dict[str, DataFrame]:
        """Return view to the records of the closed intervals, as their original rows, once per window."""
        rows_by_view = {}
        for view, source in self._definition.streams.items():
            exploded = closed.where(F.col("_view") == view).select("_window", F.explode("_records").alias("_one"))
            rows_by_view[view] = exploded.select(
                F.col("_window")["end"].alias("_window_end"),
                F.col("_one")["partition"].alias("_partition"),
                F.col("_one")["offset"].alias("_offset"),
                *(F.col("_one")[view][name].alias(name) for name in source.schema_),
            )
        return rows_by_view
