"""Which batch read which record: offset ranges as marks that are looked up for each record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.log import OffsetRanges

# A partition and a slot are two ints, which Spark looks up as one long; a slot that comes twice does no harm.
_SLOTS = 2**31 - 1


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

    @classmethod
    def of(cls, spark: SparkSession, ranges: Iterable[tuple[int, OffsetRanges]]) -> BatchMarks:
        """Return which batch read which offsets of one topic: the index of each batch, and what it read.

        Between two ranges of a partition nothing is left out: a range reaches to the start of the next one.
        """
        marks = [
            (partition, start, end, index)
            for index, batch in ranges
            for partition, (start, end) in batch.items()
            if start < end
        ]
        found = np.array(sorted(marks), np.int64).reshape(-1, 4)
        partition, start, end, _ = found.T
        follows = partition[1:] == partition[:-1]
        end[:-1] = np.where(follows, start[1:], end[:-1])
        return cls._in_slots(spark, found)

    @classmethod
    def of_runs(cls, spark: SparkSession, runs: Mapping[int, Sequence[tuple[int, int]]]) -> BatchMarks:
        """Return marks of the offsets in some runs of one topic."""
        marks = [(partition, *run, 0) for partition, own in runs.items() for run in own]
        return cls._in_slots(spark, np.array(sorted(marks), np.int64).reshape(-1, 4))

    @classmethod
    def _in_slots(cls, spark: SparkSession, marks: npt.NDArray[np.int64]) -> BatchMarks:
        """Return rows of partition, start, end and index as marks."""
        partition, start, end, index = marks.T
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
        return cls(spark.createDataFrame(table), bits)

    def tag(self, records: DataFrame) -> DataFrame:
        """Return `records` of the topic with `_index`: that of the batch whose range contains the offset, null if none does.

        The marks are broadcast and looked up by partition and slot, so no record moves to another task and nothing is sorted.

        Args:
            records: `_partition`, `_offset` and any other columns.
        """
        holds = self._is_marked("_partition", "_offset")
        return records.join(F.broadcast(self.frame), holds, "left").select(*records.columns, "_index")

    def select(self, raw: DataFrame) -> DataFrame:
        """Return the records of the topic, in Kafka's columns, whose offsets are marked."""
        return raw.join(F.broadcast(self.frame), self._is_marked("partition", "offset"), "left_semi")

    def _is_marked(self, partition: str, offset: str) -> Column:
        # not `%`, whose result has the sign of the offset: a history in a lake has offsets below 0
        slot = F.pmod(F.shiftright(offset, self.bits), F.lit(_SLOTS)).cast("int")
        return (
            (F.col(partition) == F.col("_mark_partition"))
            & (slot == F.col("_mark_slot"))
            & F.col(offset).between(F.col("_mark_start"), F.col("_mark_end") - 1)
        )
