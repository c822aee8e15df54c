"""Sources that are tables: a topic of changes, seen as versions that were valid for a while.

A record of such a source is a version of the row that its `table_keys` name. It is valid from its event time until the event time of
the row's next version. A delete ends the version before it and is not a version itself. So a join gives the version at the time of
an event, in the stream and in any later recompute, even if the table has changed since.

A window sees all versions of a table that had been read when the window closed: by the batch whose watermark closed it, or by an
earlier one. A version that arrives later, though valid within the window, is late for it, and is reported as late.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from rivertwice.pipeline.envelope import is_gone
from rivertwice.pipeline.model import Definition
from rivertwice.pipeline.names import RECORD, VALID_FROM, VALID_TO
from rivertwice.pipeline.views import record_column

ALL = (1 << 31) - 1
"""Path index after every batch: a window with this index sees all versions."""
_GONE = "_gone"


def table_rows(definition: Definition, view: str, versions: DataFrame, windows: DataFrame) -> DataFrame:
    """Return the versions of a table that each window sees, with the columns of the view.

    Args:
        definition: what to run.
        view: name of the table's view.
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
        spark: the session.
        definition: gives the windows' length and columns.
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
        definition: the running definition.
        view: name of the table's view.
        versions: accepted rows with `_index`.
        closes: result of `window_closes`.
    """
    return all_versions(definition, view, versions, closes).where(F.col("_index") > F.col("_close"))
