from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivertwice.core.errors import LogGapError, RequestError
from rivertwice.log.addresses import OffsetRanges
from rivertwice.log.archive import plan_extension
from rivertwice.log.records import check_count, plan_read, select_files

bounds = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: (min(pair), max(pair)))
ranges = st.dictionaries(st.integers(0, 3), bounds, max_size=4)


def offsets(some: OffsetRanges) -> set[tuple[int, int]]:
    return {(p, offset) for p, (start, end) in some.items() for offset in range(start, end)}


@given(ranges, ranges, ranges)
def test_every_wanted_offset_is_read_once_or_named_as_missing(
    wanted: OffsetRanges, archived: OffsetRanges, retained: OffsetRanges
) -> None:
    #  archive |======|
    #  Kafka       |========|
    #  read    |aaaaaa|kkkkk|mmm
    plan = plan_read(wanted, archived, retained)
    archive, kafka = offsets(plan.archive), offsets(plan.kafka)
    missing = {(p, offset) for p, start, end in plan.missing for offset in range(start, end)}
    assert archive | kafka | missing == offsets(wanted)
    assert len(archive) + len(kafka) + len(missing) == len(offsets(wanted))
    assert archive <= offsets(archived)
    assert kafka <= offsets(retained)
    assert not missing & (offsets(archived) | offsets(retained))


def test_the_seam_is_read_once() -> None:
    plan = plan_read({0: (0, 100)}, archived={0: (0, 60)}, retained={0: (40, 100)})
    assert (plan.archive, plan.kafka, plan.missing) == ({0: (0, 60)}, {0: (60, 100)}, ())


def test_a_gap_between_archive_and_kafka_is_missing() -> None:
    plan = plan_read({0: (0, 100)}, archived={0: (0, 60)}, retained={0: (70, 100)})
    assert plan.missing == ((0, 60, 70),)


def test_records_not_written_yet_are_missing() -> None:
    assert plan_read({1: (0, 9)}, archived={}, retained={1: (0, 7)}).missing == ((1, 7, 9),)


def test_a_first_archive_begins_where_kafka_begins() -> None:
    assert plan_extension({}, {0: (5, 9), 1: (0, 0)}, None) == {0: (5, 9), 1: (0, 0)}


def test_the_archive_goes_on_where_it_ended_and_stops_where_it_is_told() -> None:
    assert plan_extension({0: (0, 4)}, {0: (2, 9), 1: (0, 3)}, {0: 6}) == {0: (4, 6), 1: (0, 0)}


def test_records_deleted_before_they_were_archived_are_named() -> None:
    with pytest.raises(LogGapError, match=r"partition 0 \[4, 6\).*cannot be filled"):
        plan_extension({0: (0, 4)}, {0: (6, 9)}, None)


def test_archiving_beyond_the_end_is_refused() -> None:
    with pytest.raises(RequestError, match="up to offset 10, but Kafka's ends at 9"):
        plan_extension({}, {0: (0, 9)}, {0: 10})


def test_only_files_that_may_hold_a_wanted_record_are_opened() -> None:
    def file(name: str, low: int, high: int) -> dict[str, object]:
        return {"path": f"day=2013-07-01/{name}", "min.partition": 0, "max.partition": 3, "min.offset": low, "max.offset": high}  # fmt: skip

    actions = [file("a", 0, 9), file("b", 10, 19), {"path": "c"}]
    uris = ["/x/day=2013-07-01/b", "/x/day=2013-07-01/a", "/x/c"]
    assert select_files(actions, uris, {2: (10, 12)}) == ["/x/c", "/x/day=2013-07-01/b"]


def test_a_damaged_archive_is_named_by_partition_and_offsets() -> None:
    check_count({0: 5, 1: 2}, {0: (0, 5), 1: (3, 5)}, "the archive")
    with pytest.raises(LogGapError, match=r"partition 1 \[3, 5\) once, but has 1 records in partition 1"):
        check_count({0: 5, 1: 1}, {0: (0, 5), 1: (3, 5)}, "the archive")


def test_older_segments_give_what_they_have_and_holes_stay_missing() -> None:
    #  archive  |===|    |===|    |===|      [0, 5) [10, 15) [20, 25)
    #  Kafka                        |=====|  [22, 40)
    plan = plan_read({0: (2, 30)}, {0: (20, 25)}, {0: (22, 40)}, [{0: (0, 5)}, {0: (10, 15)}])
    assert plan.older == ({0: (2, 5)}, {0: (10, 15)})
    assert plan.archive == {0: (20, 25)}
    assert plan.kafka == {0: (25, 30)}
    assert plan.missing == ((0, 5, 10), (0, 15, 20))
