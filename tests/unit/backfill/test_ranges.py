from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rivertwice.backfill.ranges import align_outwards, clamp, coalesce, intersect, length, merge, subtract, windows

RANGES = st.lists(st.tuples(st.integers(-40, 40), st.integers(-40, 40)), max_size=12)


def members(ranges):
    return {n for start, end in ranges for n in range(start, end)}


def normal(ranges):
    return all(s < e for s, e in ranges) and all(a[1] < b[0] for a, b in pairwise(ranges))


@given(RANGES)
def test_merge_holds_the_same_integers_sorted_disjoint_and_not_touching(ranges):
    assert members(merge(ranges)) == members(ranges)
    assert normal(merge(ranges))
    assert length(ranges) == len(members(ranges))


@given(RANGES, RANGES)
def test_subtract_and_intersect_are_set_difference_and_intersection(left, right):
    assert members(subtract(left, right)) == members(left) - members(right)
    assert members(intersect(left, right)) == members(left) & members(right)
    assert normal(subtract(left, right))
    assert normal(intersect(left, right))


@given(RANGES, st.integers(-40, 40), st.integers(-40, 40))
def test_clamp_keeps_what_lies_inside(ranges, start, end):
    assert members(clamp(ranges, start, end)) == members(ranges) & set(range(start, end))


@given(RANGES, st.integers(1, 9))
def test_aligning_outwards_gives_exactly_the_windows_that_are_touched(ranges, size):
    aligned = align_outwards(ranges, size)
    assert members(aligned) == {w for n in members(ranges) for w in range(n // size * size, n // size * size + size)}
    assert all(start % size == 0 and end == start + size for start, end in windows(aligned, size))


@given(RANGES, st.integers(0, 10), st.integers(1, 4))
def test_coalescing_covers_the_ranges_in_few_runs_and_adds_only_holes(ranges, gap, most):
    runs = coalesce(ranges, gap, most)
    assert members(ranges) <= members(runs)
    assert len(runs) <= most
    assert normal(runs)
    if merge(ranges):
        assert (runs[0][0], runs[-1][1]) == (merge(ranges)[0][0], merge(ranges)[-1][1])


def test_the_smallest_holes_are_closed_first():
    assert coalesce([(0, 1), (2, 3), (10, 11), (13, 14)], 0, 3) == ((0, 3), (10, 11), (13, 14))
    assert coalesce([(0, 1), (2, 3), (10, 11), (13, 14)], 2, 9) == ((0, 3), (10, 14))
    assert coalesce([(0, 10), (11, 12), (14, 15)], 0, 2) == ((0, 12), (14, 15))  # a hole begins where a range ends
