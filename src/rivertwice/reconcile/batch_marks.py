"""Which batch read which record: offset ranges as marks that are looked up for each record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.log.addresses import OffsetRanges
from rivertwice.reconcile.gaps import GAP_INDEX, LOADED_INDEX

_SLOTS = (
    2**31 - 1
)  # a partition and a slot are two ints, which Spark looks up as one long; a slot that comes twice does no harm


@dataclass(frozen=True)
class BatchMarks:
    """Which batch read which offsets of one topic, ready to be looked up for each record.

    Attributes:
        frame: `_mark_partition`, `_mark_slot`, `_mark_start`, `_mark_end` (half-open), `_index`: a row for each slot that a range
            touches, about three for each range.
        bits: a slot has 2^bits offsets.
    """

    frame: DataFrame
    bits: int


def tag_batches(records: DataFrame, marks: BatchMarks) -> DataFrame:
    """Return `records` with `_index`: the path index of the batch whose range contains the offset, null if none does.

    The marks are broadcast and looked up by partition and slot, so no record moves to another task and nothing is sorted.

    Args:
        records: `_partition`, `_offset` and any other columns.
        marks: of the same topic.
    """
    slot = (F.shiftright("_offset", marks.bits) % F.lit(_SLOTS)).cast("int")
    holds = (
        (F.col("_partition") == F.col("_mark_partition"))
        & (slot == F.col("_mark_slot"))
        & F.col("_offset").between(F.col("_mark_start"), F.col("_mark_end") - 1)
    )
    return records.join(F.broadcast(marks.frame), holds, "left").select(*records.columns, "_index")


def batch_marks(
    spark: SparkSession,
    ranges: Sequence[OffsetRanges],
    skipped: Sequence[OffsetRanges] = (),
    loaded: Sequence[OffsetRanges] = (),
) -> BatchMarks:
    """Return which batch read which offsets of one topic, by path index.

    A gap that no batch read (`skipped`) has GAP_INDEX, what a first load left out (`loaded`) has LOADED_INDEX. Between two ranges
    of a partition nothing is left out: a range reaches to the start of the next one.
    """
    marks = [
        (partition, start, end, index)
        for index, batch in [
            *enumerate(ranges),
            *((GAP_INDEX, gap) for gap in skipped),
            *((LOADED_INDEX, load) for load in loaded),
        ]
        for partition, (start, end) in batch.items()
        if start < end
    ]
    partition, start, end, index = np.array(sorted(marks), np.int64).reshape(-1, 4).T
    follows = partition[1:] == partition[:-1]
    end[:-1] = np.where(follows, start[1:], end[:-1])
    bits = max(0, int((end - start).sum()) // max(1, len(marks)) - 1).bit_length()
    slots = ((end - 1) >> bits) - (start >> bits) + 1
    mark = np.repeat(np.arange(len(marks)), slots)
    within = np.arange(len(mark)) - np.repeat(np.cumsum(slots) - slots, slots)
    table = pa.table(
        {
            "_mark_partition": pa.array(partition[mark], pa.int32()),
            "_mark_slot": pa.array(((start >> bits)[mark] + within) % _SLOTS, pa.int32()),
            "_mark_start": pa.array(start[mark], pa.int64()),
            "_mark_end": pa.array(end[mark], pa.int64()),
            "_index": pa.array(index[mark], pa.int32()),
        }
    )
    return BatchMarks(spark.createDataFrame(table), bits)
