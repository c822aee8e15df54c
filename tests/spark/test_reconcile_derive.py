"""Records are tagged with the batch that read them, by offset ranges alone."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from rivertwice.log.addresses import OffsetRanges
from rivertwice.reconcile.derive import batch_marks, tag_batches

pytestmark = pytest.mark.spark


def tagged(
    spark: SparkSession, records: list[tuple[int, int]], ranges: list[OffsetRanges]
) -> dict[tuple[int, int], int]:
    table = pa.table(
        {
            "_partition": pa.array([p for p, _ in records], pa.int32()),
            "_offset": pa.array([o for _, o in records], pa.int64()),
        }
    )
    rows = tag_batches(spark.createDataFrame(table), batch_marks(spark, ranges)).toArrow().to_pylist()
    assert len(rows) == len(records)
    return {(row["_partition"], row["_offset"]): row["_index"] for row in rows}


def test_a_record_belongs_to_the_batch_whose_range_holds_its_offset(spark: SparkSession) -> None:
    #   partition 0   0 1 2 | 3 | 4 5        partition 1   7 8 | . | 9
    ranges: list[OffsetRanges] = [{0: (0, 3), 1: (7, 9)}, {0: (3, 4), 1: (9, 9)}, {0: (4, 6), 1: (9, 10)}]
    records = [(0, offset) for offset in range(6)] + [(1, offset) for offset in range(7, 10)]
    found = tagged(spark, records, ranges)
    assert [found[0, offset] for offset in range(6)] == [0, 0, 0, 1, 2, 2]
    assert [found[1, offset] for offset in range(7, 10)] == [0, 0, 2]


@pytest.mark.parametrize("seed", range(3))
def test_tags_equal_a_search_through_random_ranges(spark: SparkSession, seed: int) -> None:
    chance = random.Random(seed)
    ends = dict.fromkeys(range(3), 0)
    ranges: list[OffsetRanges] = []
    wanted: dict[tuple[int, int], int] = {}
    for index in range(200):
        batch: OffsetRanges = {}
        for partition, end in ends.items():
            size = chance.choice([0, 0, 1, 2, 7])
            batch[partition] = (end, end + size)
            wanted |= {(partition, offset): index for offset in range(end, end + size)}
            ends[partition] = end + size
        ranges.append(batch)
    records = list(wanted)
    chance.shuffle(records)
    assert tagged(spark, records, ranges) == wanted
