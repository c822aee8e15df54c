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
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from rivertwice.definition import RECORD, VALID_FROM, VALID_TO, Definition, Source, format_duration
from rivertwice.engine.envelope import is_gone
from rivertwice.engine.views import record_column, run_views

# Sources that are tables: a topic of changes, seen as versions that were valid for a while.
#
# A record of such a source is a version of the row that its `table_keys` name. It is valid from its event time until the event time of
# the row's next version. A delete ends the version before it and is not a version itself. So a join gives the version at the time of
# an event, in the stream and in any later recompute, even if the table has changed since.
#
# A window sees all versions of a table that had been read when the window closed: by the batch whose watermark closed it, or by an
# earlier one. A version that arrives later, though valid within the window, is late for it, and is reported as late.

ALL = (1 << 31) - 1
"""Path index after every batch: a window with this index sees all versions."""
_GONE = "_gone"


def table_rows(definition: Definition, view: str, versions: DataFrame, windows: DataFrame) -> DataFrame:
    """Return the versions of a table that each window sees, with the columns of the view.

    Args:
        versions: accepted rows of the source, with `_index`: the batch that read each.
        windows: the window's two columns. With `_close`, the last batch that a window sees, later versions are hidden from it.
    """
    frame = _frame(definition)
    columns = (*frame, RECORD, VALID_FROM, VALID_TO, *definition.sources[view].schema_)
    whole = all_versions(definition, view, versions, windows)
    if "_close" not in windows.columns:
        return whole.where(~F.col(_GONE)).select(*columns)
    # A window without a late version sees the same as if it saw all versions. Only the other windows are computed one by one.
    torn = F.broadcast(whole.where(F.col("_index") > F.col("_close")).select(*frame).distinct())
    singly = _read_until_close(definition, view, versions, windows.join(torn, frame, "left_semi"))
    visible = whole.join(torn, frame, "left_anti").unionByName(singly)
    return visible.where(~F.col(_GONE)).select(*columns)


def all_versions(definition: Definition, view: str, versions: DataFrame, windows: DataFrame) -> DataFrame:
    """Return the versions that each window would see if all `versions` had been read, with deletes (`_gone`).

    A version that ends after the window has no end yet for it. Other columns of `windows` are kept.
    """
    end = F.col(definition.window.end_column)
    valid = _valid(definition, view, versions)
    visible = valid.join(F.broadcast(windows), (F.col(VALID_FROM) < end) & _overlaps(definition))
    return visible.withColumn(VALID_TO, F.when(F.col(VALID_TO) < end, F.col(VALID_TO)))


def current_versions(definition: Definition, view: str, versions: DataFrame, since_us: int) -> DataFrame:
    """Return the versions, and deletes, without those that ended by an instant (epoch microseconds): their row's next version begins then.

    To a window that starts at the instant or later, `all_versions` of these, with any further versions, gives what it gives of all: a
    version that is left out ended before, and so has every version that is older than the one that is valid at the instant, however
    late it arrives.
    """
    source = definition.sources[view]
    order = Window.partitionBy(*source.table_keys).orderBy(source.event_time, "_partition", "_offset")
    ends = versions.withColumn("_ends", F.lead(source.event_time).over(order))
    return ends.where(F.col("_ends").isNull() | (F.unix_micros("_ends") > since_us)).drop("_ends")


def _read_until_close(definition: Definition, view: str, versions: DataFrame, windows: DataFrame) -> DataFrame:
    """Return the same, limited to the versions that each window's batch, `_close`, or an earlier batch has read."""
    event_time, end = F.col(definition.sources[view].event_time), F.col(definition.window.end_column)
    read_versions = versions.join(F.broadcast(windows), (F.col("_index") <= F.col("_close")) & (event_time < end))
    return _valid(definition, view, read_versions, *_frame(definition), "_close").where(_overlaps(definition))


def _valid(definition: Definition, view: str, versions: DataFrame, *apart: str) -> DataFrame:
    """Return the versions as a view has them, with their ends, within each group of the columns `apart`."""
    source = definition.sources[view]
    order = Window.partitionBy(*apart, *source.table_keys).orderBy(VALID_FROM, RECORD)
    numbered = versions.withColumn(RECORD, record_column(F.col("_partition"), F.col("_offset")))
    return (
        numbered.withColumn(VALID_FROM, F.col(source.event_time))
        .withColumn(VALID_TO, F.lead(VALID_FROM).over(order))
        .withColumn(_GONE, is_gone(source))
        .select(*apart, RECORD, VALID_FROM, VALID_TO, *source.schema_, "_index", "_partition", "_offset", _GONE)
    )


def _overlaps(definition: Definition) -> Column:
    valid_to = F.col(VALID_TO)
    lives = (valid_to > F.col(definition.window.start_column)) & (valid_to > F.col(VALID_FROM))
    return valid_to.isNull() | lives


def _frame(definition: Definition) -> list[str]:
    return [definition.window.start_column, definition.window.end_column]


def window_closes(
    spark: SparkSession, definition: Definition, ends_us: Collection[int], watermarks_ms: Sequence[int]
) -> DataFrame:
    """Return windows with `_close`: the path index of the batch that closed each, ALL if none did.

    Args:
        ends_us: ends of the windows, epoch microseconds.
        watermarks_ms: the watermark of each batch, by path index.
    """
    window = definition.window
    ends = np.array(sorted(ends_us), dtype=np.int64)
    index = np.searchsorted(np.array(watermarks_ms, dtype=np.int64) * 1000, ends)
    index[index >= len(watermarks_ms)] = ALL
    stamp = pa.timestamp("us", "UTC")
    table = pa.table(
        {
            window.start_column: pa.array(ends - window.length // timedelta(microseconds=1)).cast(stamp),
            window.end_column: pa.array(ends).cast(stamp),
            "_close": pa.array(index.astype(np.int32)),
        }
    )
    return spark.createDataFrame(table)


def late_versions(definition: Definition, view: str, versions: DataFrame, closes: DataFrame) -> DataFrame:
    """Return the versions, and deletes, that arrived after a window that they are valid in had closed, once per such window.

    Args:
        versions: accepted rows with `_index`.
        closes: result of `window_closes`.
    """
    return all_versions(definition, view, versions, closes).where(F.col("_index") > F.col("_close"))


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
