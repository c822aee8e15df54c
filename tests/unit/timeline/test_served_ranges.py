"""Ranges of window starts, against sets of whole numbers."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from rivertwice.timeline.lineage import Segment, last_in_common, path_until
from rivertwice.timeline.served_ranges import has_start, is_inside, joined, merged, overlaps


def members(ranges: list[tuple[int, int]]) -> set[int]:
    return {number for start, end in ranges for number in range(start, end)}


@pytest.mark.parametrize("seed", range(20))
def test_ranges_are_merged_joined_and_asked_as_sets_of_numbers_are(seed: int) -> None:
    chance = random.Random(seed)
    some = [(at, at + chance.randrange(5)) for at in (chance.randrange(60) for _ in range(8))]
    others = merged((at, at + 3) for at in (chance.randrange(60) for _ in range(2)))
    union = merged(some)
    assert members(union) == members(some)
    assert all(left[1] < right[0] for left, right in itertools.pairwise(union))
    numbers = np.arange(-2, 70)
    assert {int(number) for number in numbers[is_inside(numbers, union)]} == members(some)
    assert overlaps(union, others) == bool(members(some) & members(others))
    for most in range(1, 9):
        covers = joined(union, most)
        assert len(covers) == min(most, len(union))
        assert members(union) <= members(covers)
    step, within = chance.choice([1, 3, 7]), (chance.randrange(30), chance.randrange(60))
    starts = {number for number in members(some) if number % step == 0 and within[0] <= number < within[1]}
    assert has_start(some, within, step) == bool(starts)


def test_the_shortest_gaps_are_covered_first() -> None:
    assert joined([(0, 1), (3, 4), (5, 6), (9, 10)], 2) == [(0, 6), (9, 10)]


def test_paths_have_the_batches_in_common_up_to_the_fork() -> None:
    trunk = [Segment("t1", 0, None)]
    child = [Segment("t1", 0, 5), Segment("t2", 6, None)]
    grandchild = [Segment("t1", 0, 5), Segment("t2", 6, 5), Segment("t3", 6, None)]
    assert path_until(child, 5) == path_until(trunk, 5) == path_until(grandchild, 5)
    assert last_in_common(path_until(trunk, 9), path_until(child, 8)) == 5
    assert last_in_common(path_until(trunk, 4), path_until(child, 8)) == 4
    assert last_in_common(path_until(child, 8), path_until(grandchild, 9)) == 5
    assert last_in_common(path_until(child, 8), path_until(child, 9)) == 8
    assert last_in_common(path_until(child, 8), [Segment("other", 0, 3)]) is None
    assert last_in_common([], path_until(child, 8)) is None
