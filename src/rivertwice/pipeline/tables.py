"""Sources that are tables: a topic of changes, seen as versions that were valid for a while.

A record of such a source is a version of the row that its `table_keys` name: valid from its event time until the event time
of the row's next version; a delete ends the version before it and is none itself. So a join with it gives what was so at the time of an event, in the stream and in any later
recompute, whatever the table says by then.

What a window sees of a table is all versions that had been read when the window closed: by the batch whose watermark closed it, or an earlier
one. A version that comes later, though valid within the window, is late for it, and named as such.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from rivertwice.pipeline.envelope import is_gone
from rivertwice.pipeline.model import RECORD, VALID_FROM, VALID_TO, Definition
from rivertwice.pipeline.views import record_column

ALL = (1 << 31) - 1
"""Path index behind every batch: who has read so far has seen all versions."""
_GONE = "_gone"


def table_rows(definition: Definition, view: str, versions: DataFrame, windows: DataFrame) -> DataFrame:
    """Return what each window sees of a table: the view's columns, and `_index`, `_partition` and `_offset` of each version."""
    return versions_seen(definition, view, versions, windows).where(~F.col(_GONE)).drop(_GONE)


def versions_seen(definition: Definition, view: str, versions: DataFrame, windows: DataFrame) -> DataFrame:
    """Return what `table_rows` does and the deletes, with `_gone`: whether it is one.

    Args:
        definition: what to run.
        view: name of the table's view.
        versions: accepted rows of the source, with `_index`: the batch that read each.
        windows: the window's two columns, and `_close`: the last batch that the window has seen.
    """
    window, source = definition.window, definition.sources[view]
    start, end = F.col(window.start_column), F.col(window.end_column)
    fields = [F.col(name) for name in source.schema_]
    known = versions.withColumn(RECORD, record_column(F.col("_partition"), F.col("_offset"))).withColumn(
        VALID_FROM, F.col(source.event_time)
    )
    seen = known.join(F.broadcast(windows), (F.col("_index") <= F.col("_close")) & (F.col(VALID_FROM) < end))
    order = Window.partitionBy(window.start_column, *source.table_keys).orderBy(VALID_FROM, RECORD)
    valid = seen.withColumn(VALID_TO, F.lead(VALID_FROM).over(order))
    overlaps = F.col(VALID_TO).isNull() | ((F.col(VALID_TO) > start) & (F.col(VALID_TO) > F.col(VALID_FROM)))
    return valid.where(overlaps).select(
        start,
        end,
        RECORD,
        VALID_FROM,
        VALID_TO,
        *fields,
        *("_index", "_partition", "_offset"),
        is_gone(source).alias(_GONE),
    )


def window_closes(
    spark: SparkSession, definition: Definition, ends_us: Collection[int], watermarks_ms: Sequence[int]
) -> DataFrame:
    """Return windows with `_close`: the path index of the batch that closed each, ALL if none did.

    Args:
        spark: the session.
        definition: gives the windows' length and columns.
        ends_us: ends of the windows, epoch microseconds.
        watermarks_ms: the batches' own watermarks, by path index.
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
    """Return the versions, and deletes, that came when a window that they are valid in was closed, once per such window.

    Args:
        definition: what runs.
        view: of the table.
        versions: accepted rows with `_index`.
        closes: as `window_closes` gave it.
    """
    keys = [definition.window.start_column, definition.window.end_column]
    seen = versions_seen(definition, view, versions, closes.withColumn("_close", F.lit(ALL)))
    return seen.join(F.broadcast(closes), keys).where(F.col("_index") > F.col("_close"))
