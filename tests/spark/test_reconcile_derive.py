"""Records are tagged with the batch that read them, by offset ranges alone."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from rivertwice.engine.batch_marks import BatchMarks
from rivertwice.log.addresses import OffsetRanges
from rivertwice.reconcile.gaps import GAP_INDEX

pytestmark = pytest.mark.spark


def tagged(
    spark: SparkSession, records: list[tuple[int, int]], ranges: list[OffsetRanges]
) -> dict[tuple[int, int], int | None]:
    table = pa.table(
        {
            "_partition": pa.array([p for p, _ in records], pa.int32()),
            "_offset": pa.array([o for _, o in records], pa.int64()),
        }
    )
    rows = BatchMarks.of(spark, enumerate(ranges)).tag(spark.createDataFrame(table)).toArrow().to_pylist()
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


def test_no_record_is_sorted_or_moved_to_find_its_batch(spark: SparkSession) -> None:
    records = spark.range(100).selectExpr("cast(id % 2 as int) as _partition", "id as _offset")
    ranges: list[OffsetRanges] = [{0: (0, 50), 1: (0, 50)}, {0: (50, 100), 1: (50, 100)}]
    rows = BatchMarks.of(spark, enumerate(ranges)).tag(records)
    plan = rows._jdf.queryExecution().executedPlan().toString()
    assert "BroadcastHashJoin" in plan
    assert "Sort" not in plan
    assert "Exchange hashpartitioning" not in plan
    assert rows.where("_index is null").count() == 0


def test_a_record_outside_all_ranges_belongs_to_no_batch(spark: SparkSession) -> None:
    assert tagged(spark, [(0, 1), (0, 9), (5, 3)], [{0: (2, 4), 1: (0, 1)}]) == {
        (0, 1): None,
        (0, 9): None,
        (5, 3): None,
    }


def test_a_gap_that_was_skipped_has_an_index_of_its_own(spark: SparkSession) -> None:
    table = pa.table({"_partition": pa.array([0] * 6, pa.int32()), "_offset": pa.array(range(6), pa.int64())})
    marks = BatchMarks.of(spark, [(0, {0: (0, 2)}), (1, {0: (4, 6)}), (GAP_INDEX, {0: (2, 4)})])
    rows = marks.tag(spark.createDataFrame(table)).orderBy("_offset").toArrow().to_pylist()
    assert [row["_index"] for row in rows] == [0, 0, GAP_INDEX, GAP_INDEX, 1, 1]


def test_a_range_much_longer_than_the_others_is_found_everywhere(spark: SparkSession) -> None:
    ranges: list[OffsetRanges] = [{0: (number, number + 1)} for number in range(50)] + [{0: (50, 5_000_000)}]
    records = [(0, 49), (0, 50), (0, 2_500_000), (0, 4_999_999)]
    assert tagged(spark, records, ranges) == dict(zip(records, [49, 50, 50, 50], strict=True))
