from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivertwice.core.errors import RequestError
from rivertwice.log.addresses import (
    OffsetRanges,
    between,
    count,
    decode_ends,
    describe,
    encode_ends,
    intersect,
    merge,
    plan_chunks,
    split,
    subtract,
)

bounds = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda pair: (min(pair), max(pair)))
ranges = st.dictionaries(st.integers(0, 4), bounds, max_size=5)


def offsets(given_ranges: OffsetRanges) -> set[tuple[int, int]]:
    return {(p, offset) for p, (start, end) in given_ranges.items() for offset in range(start, end)}


@given(ranges)
def test_count_is_the_number_of_offsets(some: OffsetRanges) -> None:
    assert count(some) == len(offsets(some))


@given(ranges, ranges)
def test_intersect_holds_what_is_in_both(left: OffsetRanges, right: OffsetRanges) -> None:
    assert offsets(intersect(left, right)) == offsets(left) & offsets(right)


@given(ranges, ranges)
def test_split_cuts_into_three_disjoint_parts_that_make_the_whole(left: OffsetRanges, by: OffsetRanges) -> None:
    below, inside, above = map(offsets, split(left, by))
    assert below | inside | above == offsets(left)
    assert len(below) + len(inside) + len(above) == len(offsets(left))
    assert inside == offsets(left) & offsets(by)


@given(ranges, ranges)
def test_subtract_leaves_the_difference_or_refuses_to_leave_two_pieces(left: OffsetRanges, right: OffsetRanges) -> None:
    try:
        rest = subtract(left, right)
    except RequestError:
        below, _, above = split(left, right)
        assert below.keys() & above.keys()
        return
    assert offsets(rest) == offsets(left) - offsets(right)


@given(ranges, ranges)
def test_merge_holds_both_or_refuses_a_hole(left: OffsetRanges, right: OffsetRanges) -> None:
    try:
        merged = merge(left, right)
    except RequestError:
        return
    assert offsets(merged) == offsets(left) | offsets(right)


def test_merge_names_the_partition_of_a_hole() -> None:
    with pytest.raises(RequestError, match=r"partition 3: \[0, 5\) and \[6, 9\) do not touch"):
        merge({3: (0, 5)}, {3: (6, 9)})


@given(ranges, st.integers(1, 50))
def test_chunks_are_small_enough_follow_each_other_and_make_the_whole(some: OffsetRanges, size: int) -> None:
    #  p0 |====a====|====b====|===c===|
    #  p1 |=a=|=b=|=c|                    each chunk goes on where the one before ended
    chunks = plan_chunks(some, size)
    reached = {partition: start for partition, (start, _) in some.items()}
    for chunk in chunks:
        assert 0 < count(chunk) <= size
        for partition, (start, end) in chunk.items():
            assert start == reached[partition]
            reached[partition] = end
    assert sum(map(count, chunks)) == count(some)
    assert all(reached[p] == max(start, end) for p, (start, end) in some.items())


def test_a_chunk_takes_of_every_partition() -> None:
    assert plan_chunks({0: (0, 100), 1: (50, 150)}, 100)[0] == {0: (0, 50), 1: (50, 100)}


def test_a_chunk_size_of_zero_is_refused() -> None:
    with pytest.raises(RequestError, match="ask for at least 1"):
        plan_chunks({0: (0, 5)}, 0)


def test_a_range_that_runs_backwards_is_refused() -> None:
    with pytest.raises(RequestError, match="partition 1 would run backwards, from offset 9 to 4"):
        between({1: 9}, {1: 4})


@given(st.dictionaries(st.integers(0, 20), st.integers(0, 10**12)))
def test_ends_survive_json(ends: dict[int, int]) -> None:
    assert decode_ends(encode_ends(ends)) == ends


def test_ranges_are_described_with_partition_and_half_open_bounds() -> None:
    assert describe({1: (0, 2), 0: (3, 9)}) == "partition 0 [3, 9), partition 1 [0, 2)"


def test_chunks_cut_all_partitions_at_the_same_share() -> None:
    chunks = plan_chunks({0: (0, 84_000), 1: (0, 85_000), 2: (0, 83_000), 3: (0, 84_776)}, 100_000)
    assert [count(chunk) for chunk in chunks] == [100_000, 100_000, 100_000, 36_776]
    shares = [chunks[0][p][1] / end for p, end in enumerate((84_000, 85_000, 83_000, 84_776))]
    assert max(shares) - min(shares) < 0.001
