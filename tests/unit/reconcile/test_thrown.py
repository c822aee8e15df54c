"""The windows over whose records the SQL throws are found by halves of event time: each of them, and few others."""

from __future__ import annotations

import itertools
import random

import pytest

from rivertwice.reconcile.judge_head import _doubt
from rivertwice.stream.throwing import find_stretches

MINUTE = 60_000


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize(("size", "step"), [(MINUTE, MINUTE), (MINUTE, 20_000)])
def test_every_window_that_throws_is_found_and_little_beside_it(seed: int, size: int, step: int) -> None:
    """Two records of one window throw together, as a sum that overflows."""
    chance = random.Random(seed)
    start, end = 0, chance.randint(1, 2000) * step
    bad = sorted(chance.randrange(start, end) // step * step for _ in range(chance.randint(0, 4)))
    pairs = [(window, window + size - 1) for window in bad]
    runs = 0

    def throws(low: int, high: int) -> bool:
        nonlocal runs
        runs += 1
        return any(low <= first and second < high for first, second in pairs)

    inside = [pair for pair in pairs if pair[1] < end]
    found = find_stretches(start, end, size - step, step, throws)
    assert all(any(low <= first and second < high for low, high in found) for first, second in inside)
    assert sum(high - low for low, high in found) <= 3 * size * len(set(inside))
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(found))
    assert runs <= 1 + 2 * 13 * max(1, len(set(inside)))


def test_what_no_half_shows_is_named_as_a_whole() -> None:
    """A session is as long as its records make it."""
    assert find_stretches(0, 64 * MINUTE, MINUTE, MINUTE, lambda low, high: low == 0 and high == 64 * MINUTE) == [
        (0, 64 * MINUTE)
    ]


def test_a_window_with_records_of_the_range_is_in_doubt_with_condition_and_range() -> None:
    doubt = _doubt(MINUTE, 2 * MINUTE, "[ARITHMETIC_OVERFLOW] long overflow.")
    assert doubt.covers(MINUTE, 2 * MINUTE)
    assert doubt.covers(MINUTE - 20_000, 2 * MINUTE - 20_000)
    assert not doubt.covers(0, MINUTE)
    assert not doubt.covers(2 * MINUTE, 3 * MINUTE)
    assert (
        "throws over the records from 1970-01-01T00:01:00Z to 1970-01-01T00:02:00Z: [ARITHMETIC_OVERFLOW]"
        in doubt.reason
    )
