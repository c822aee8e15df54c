"""Accepted rows of a path with the batch that read each: its watermark, its definition, and whether there is such a batch."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from rivertwice.reconcile.gaps import AMENDED_INDEX, GAP_INDEX, LOADED_INDEX
from rivertwice.reconcile.rederive import Chain

NEVER_MS = -(1 << 50)
"""A watermark by which no record is late."""
AMENDED_GROUP = -1
"""Definition number of what a dead letter should have been: it belongs to the truth of every definition."""


def with_watermarks(spark: SparkSession, rows: DataFrame, chain: Chain, groups: Sequence[int]) -> DataFrame:
    """Return accepted rows tagged with `_index`, with the late watermark of that batch and the number of its definition."""
    marks = pa.table(
        {
            "_index": pa.array([LOADED_INDEX, GAP_INDEX, *range(len(chain.late))], pa.int32()),
            "_late_ms": pa.array([NEVER_MS, NEVER_MS, *chain.late], pa.int64()),
            "_group": pa.array([groups[-1], groups[-1], *groups], pa.int32()),
        }
    )
    return rows.join(F.broadcast(spark.createDataFrame(marks)), "_index")


def is_read() -> Column:
    """Return whether a batch of the path read and accepted the row."""
    return F.col("_index") >= 0


def is_below(ends: Mapping[int, int]) -> Column:
    """Return whether a row's address is below the offset of its partition; no row is in a partition without one."""
    below = F.lit(False)
    for partition, end in ends.items():
        below = below | ((F.col("_partition") == partition) & (F.col("_offset") < end))
    return below


def without_barred(rows: DataFrame, event_time: str, barred: Sequence[tuple[int, int]]) -> DataFrame:
    """Return the rows whose event time is in none of some half-open ranges (epoch ms)."""
    event_ms = F.unix_millis(event_time)
    for start, end in barred:
        rows = rows.where((event_ms < F.lit(start)) | (event_ms >= F.lit(end)))
    return rows


def as_read(amended: DataFrame) -> DataFrame:
    """Return what dead letters should have been, with the columns of rows that a batch read."""
    return amended.withColumns(
        {"_index": F.lit(AMENDED_INDEX), "_late_ms": F.lit(NEVER_MS).cast("long"), "_group": F.lit(AMENDED_GROUP)}
    )


# Several results of Spark in one job: where there are few records, most of what a result costs is that it is asked for.

_NAME = "_result"


def collect_together(frames: Mapping[str, DataFrame]) -> dict[str, pa.Table]:
    """Return the rows of each frame, computed by one job, under the names of the frames.

    A row of any frame becomes a row of one frame with a struct for each of them, of which one is filled.

    Args:
        frames: of one session; each has at least one column.
    """
    kinds = {name: _nullable(frame.schema) for name, frame in frames.items()}
    rows = [
        frame.select(
            F.lit(name).alias(_NAME),
            *(
                (F.struct("*") if other == name else F.lit(None)).cast(kind).alias(other)
                for other, kind in kinds.items()
            ),
        )
        for name, frame in frames.items()
    ]
    collected = functools.reduce(DataFrame.unionAll, rows).toArrow()
    return {
        name: pa.Table.from_struct_array(collected.filter(pc.equal(collected[_NAME], name))[name]) for name in frames
    }


def _nullable(schema: StructType) -> StructType:
    """Return a schema whose fields may be null: a struct that is not filled has none of its fields, and Arrow checks that."""
    return StructType([StructField(field.name, field.dataType) for field in schema.fields])
