"""Half-open integer ranges `[start, end)`: pure algebra under windows (epoch milliseconds) and offsets.

Every function takes ranges in any order, overlapping or empty, and returns them sorted, disjoint, not touching
and not empty; so two answers are equal exactly when they hold the same integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from rivertwice.timeline import merged

HalfOpenRange = tuple[int, int]


def merge(ranges: Iterable[HalfOpenRange]) -> tuple[HalfOpenRange, ...]:
    """Return the union. Ranges that touch become one; empty and reversed ones vanish."""
    return tuple(merged(ranges))


def subtract(ranges: Iterable[HalfOpenRange], cut: Iterable[HalfOpenRange]) -> tuple[HalfOpenRange, ...]:
    """Return what is in `ranges` and not in `cut`."""
    holes = merge(cut)
    remaining: list[HalfOpenRange] = []
    first = 0
    for start, end in merge(ranges):
        at = start
        while first < len(holes) and holes[first][1] <= start:
            first += 1
        for hole_start, hole_end in islice(holes, first, None):
            if hole_start >= end:
                break
            if hole_start > at:
                remaining.append((at, hole_start))
            at = max(at, hole_end)
        if at < end:
            remaining.append((at, end))
    return tuple(remaining)


def intersect(ranges: Iterable[HalfOpenRange], others: Iterable[HalfOpenRange]) -> tuple[HalfOpenRange, ...]:
    """Return the integers that are in both."""
    left, right = merge(ranges), merge(others)
    shared: list[HalfOpenRange] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < end:
            shared.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(shared)


def clamp(ranges: Iterable[HalfOpenRange], start: int, end: int) -> tuple[HalfOpenRange, ...]:
    """Return the part of the ranges in `[start, end)`."""
    return intersect(ranges, [(start, end)])


def align_outwards(ranges: Iterable[HalfOpenRange], size: int) -> tuple[HalfOpenRange, ...]:
    """Widen every range to whole windows of `size`, counted from zero; nothing is lost."""
    return merge((start // size * size, -(-end // size) * size) for start, end in ranges if start < end)


def covering(ranges: Iterable[HalfOpenRange], size: int, step: int) -> tuple[HalfOpenRange, ...]:
    """Return where the windows start that hold any integer of `ranges`: windows of `size`, one each `step`."""
    return merge(((start - size) // step * step + step, -(-end // step) * step) for start, end in ranges if start < end)


def reach(starts: Iterable[HalfOpenRange], size: int, step: int) -> tuple[HalfOpenRange, ...]:
    """Return the ranges that the windows cover which start in `starts`; these are aligned to `step`."""
    return merge((start, end - step + size) for start, end in starts if start < end)


def length(ranges: Iterable[HalfOpenRange]) -> int:
    """Return how many integers are in the union."""
    return sum(end - start for start, end in merge(ranges))


def windows(ranges: Iterable[HalfOpenRange], size: int, step: int | None = None) -> Iterator[HalfOpenRange]:
    """Yield the windows of `size` that start in aligned `ranges`, one each `step` (without it: one after the other)."""
    for start, end in merge(ranges):
        for at in range(start, end, step or size):
            yield at, at + size


def coalesce(ranges: Iterable[HalfOpenRange], gap: int, most: int) -> tuple[HalfOpenRange, ...]:
    """Close holes of at most `gap`, then the smallest ones until at most `most` ranges remain.

    The result covers `ranges`. A scan of it needs few passes, but reads the closed holes too.
    """
    runs = list(merge(ranges))
    if not runs:
        return ()
    holes = sorted((runs[i + 1][0] - runs[i][1], i) for i in range(len(runs) - 1))
    surplus = len(runs) - most
    closed = {i for rank, (size, i) in enumerate(holes) if size <= gap or rank < surplus}
    return merge([*runs, *((runs[i][1], runs[i + 1][0]) for i in closed)])
