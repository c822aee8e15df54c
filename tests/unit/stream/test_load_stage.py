"""Where a batch of the archive ends, when Kafka lacks what comes next, and how large a batch may be."""

from __future__ import annotations

import pytest

from histories.kinds import make_definition
from rivertwice.log.archive_batch import ArchiveBatch, ArchiveTask
from rivertwice.stream.load_stage import MOST_COLLECTED, choose_end, lacks_next, large_limit, with_limit


@pytest.mark.parametrize(
    ("begins", "lacks"),
    [
        ({"t": {0: 0, 1: 0}}, False),
        ({"t": {0: 5, 1: 7}}, False),
        ({"t": {0: 6, 1: 0}}, True),
        ({"t": {0: 0, 1: 8, 2: 4}}, True),
        ({"t": {0: 0, 1: 0, 2: 4}}, False),
    ],
)
def test_kafka_lacks_what_comes_next_if_one_partition_begins_later(
    begins: dict[str, dict[int, int]], lacks: bool
) -> None:
    assert lacks_next({"t": {"0": 5, "1": 7}}, begins) is lacks


@pytest.mark.parametrize(
    ("archived", "most", "end"),
    [
        ({"t": {0: (0, 100), 1: (0, 50)}, "u": {}}, 1000, {"t": {"0": 100, "1": 50}, "u": {"0": 3}}),
        ({"t": {0: (0, 100), 1: (0, 50)}, "u": {}}, 15, {"t": {"0": 10, "1": 5}, "u": {"0": 3}}),
        ({"t": {0: (0, 100)}, "u": {0: (1, 33)}}, 13, {"t": {"0": 10, "1": 0}, "u": {"0": 6}}),
        ({"t": {0: (0, 100)}, "u": {0: (0, 2)}}, 50, {"t": {"0": 50, "1": 0}, "u": {"0": 3}}),
    ],
    ids=["all", "the same share of each", "of several topics", "one is past the archive's end"],
)
def test_a_batch_of_the_archive_takes_the_same_share_of_each_partition(
    archived: dict[str, dict[int, tuple[int, int]]], most: int, end: dict[str, dict[str, int]]
) -> None:
    assert choose_end({"t": {"0": 0, "1": 0}, "u": {"0": 3}}, archived, most) == end


@pytest.mark.parametrize(
    ("kind", "records"), [("fold", 1_000_000), ("session", 1_000_000), ("joined sources", MOST_COLLECTED)]
)
def test_a_batch_whose_rows_the_driver_collects_is_smaller(kind: str, records: int) -> None:
    definition = make_definition(kind)
    assert large_limit(definition) == records
    assert large_limit(with_limit(definition, 5_000_000)) == 5_000_000
    assert definition.stream.max_offsets_per_trigger == 10_000


def test_a_batch_is_passed_as_text_and_counts_its_records() -> None:
    task = ArchiveTask("t", "id", "/archive", (("day=1/a.parquet", 7, {"day": "1"}),), ((0, 2, 9),))
    batch = ArchiveBatch({"t": {"0": 2}}, {"t": {"0": 9}}, (task,))
    read = ArchiveBatch.from_text(batch.to_text())
    assert (read.records, read.end, read.tasks[0].place) == (7, batch.end, "/archive")
    assert ArchiveBatch.from_text(read.to_text()) == read
