"""Half-open ranges of window starts in epoch milliseconds, merged and sorted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Ranges = list[tuple[int, int]]


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the union of some ranges: sorted, none empty, none touching another."""
    union: Ranges = []
    for start, end in sorted(ranges):
        if start >= end:
            continue
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def joined(ranges: Ranges, most: int) -> Ranges:
    """Return at most `most` ranges that cover merged ones; the shortest gaps between them are covered too."""
    if len(ranges) <= most:
        return ranges
    gaps = sorted(range(1, len(ranges)), key=lambda at: ranges[at][0] - ranges[at - 1][1])
    closed = set(gaps[: len(ranges) - most])
    covers: Ranges = []
    for at, (start, end) in enumerate(ranges):
        if at in closed:
            covers[-1] = (covers[-1][0], end)
        else:
            covers.append((start, end))
    return covers


def is_inside(instants: npt.NDArray[np.int64], ranges: Ranges) -> npt.NDArray[np.bool_]:
    """Return for each instant whether it lies in one of merged ranges."""
    import numpy as np  # here, because suites are linted without it

    if not ranges:
        return np.zeros(len(instants), dtype=bool)
    bounds = np.array(ranges, dtype=np.int64).reshape(-1)
    inside: npt.NDArray[np.bool_] = np.searchsorted(bounds, instants, side="right") % 2 == 1
    return inside


def overlaps(some: Sequence[tuple[int, int]], ranges: Ranges) -> bool:
    """Say whether any range overlaps one of merged ranges."""
    return any(start < high and low < end for start, end in some for low, high in ranges)


def has_start(ranges: Iterable[tuple[int, int]], within: tuple[int, int], step: int) -> bool:
    """Say whether a multiple of `step` lies in one of some ranges and in `within`: whether such a window is covered."""
    low, high = within
    return any(-(-max(start, low) // step) * step < min(end, high) for start, end in ranges)
