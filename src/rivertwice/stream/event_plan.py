"""Where a batch shall end while a stream catches up: at one event time in all partitions. Pure.

Spark splits a batch over the partitions in proportion to what waits in them. A partition with fewer records for a day then runs
through more days in a batch than the others. Its event times raise the watermark, and the other partitions' records are late.

Here a batch ends in every partition where that partition's *frontier* passes the same event time. The frontier at an offset is
the largest event time of the records before it. It is known at some offsets only (`PartitionIndex`), so the plan is either a
batch (`Cut`), or what must be read first to place it (`Look`). The ends of a batch differ by at most the tolerance, plus what a
frontier hides between two known offsets: records that are newer than the next known ones.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rivertwice.log.addresses import Part

RUN = 64
"""An interval of so many records is read whole."""
GLANCE = 8
"""Records that are read at a place within a longer interval: one alone may be late and say nothing of those before it."""
_PIECES = 6
_FULL = 0.95
"""A batch that takes a smaller share of what it may is placed only once nothing more can be known of the records after it."""
_AHEAD = 8
"""A look reads for so many batches at once, for a look costs about the same whatever it reads."""


NOTHING = -(1 << 62)
"""Frontier of records of which none was accepted, epoch ms."""


@dataclass(frozen=True)
class PartitionIndex:
    """What is known of one partition's event times.

    Attributes:
        start: offset of the next record to read.
        end: end of the log.
        floor_ms: frontier at `start`, epoch ms; NOTHING if it is not known.
        points: offset after `start` to frontier, epoch ms: offsets rise, frontiers never fall.
    """

    start: int
    end: int
    floor_ms: int
    points: Sequence[tuple[int, int]]

    @property
    def known(self) -> int:
        """The offset up to which the frontier is known."""
        return self.points[-1][0] if self.points else self.start

    def place(self, until_ms: int) -> int:
        """Return how many points have a frontier of at most `until_ms`."""
        return bisect_right(self.points, until_ms, key=_frontier)

    def cut(self, until_ms: int) -> int:
        """Return the last known offset whose frontier is at most `until_ms`."""
        return self._offset(self.place(until_ms))

    def gap(self, until_ms: int) -> tuple[int, int]:
        """Return the interval between the points around `until_ms`; empty if there is none after it."""
        place = self.place(until_ms)
        start = self._offset(place)
        return (start, self.points[place][0] if place < len(self.points) else start)

    def hidden_ms(self, until_ms: int) -> int:
        """Return how far before `until_ms` an unread record can be after a cut there."""
        start, end = self.gap(until_ms)
        if end - start <= 1:
            return 0  # the next record is known, and is newer; or no record is left
        place = self.place(until_ms)
        return until_ms - (self.points[place - 1][1] if place else self.floor_ms)

    def _offset(self, place: int) -> int:
        return self.points[place - 1][0] if place else self.start


@dataclass(frozen=True)
class Cut:
    """A batch's ends.

    Attributes:
        ends: for every partition.
        until_ms: no record of the batch is newer, as far as it is known; epoch ms, or NOTHING.
    """

    ends: Mapping[Part, int]
    until_ms: int


@dataclass(frozen=True)
class Look:
    """Half-open ranges whose records must be read before a batch can be placed; in each partition they rise."""

    ranges: Mapping[Part, tuple[tuple[int, int], ...]]


def plan_cut(index: Mapping[Part, PartitionIndex], most: int, tolerance_ms: int) -> Cut | Look | None:
    """Return the next batch, what must be read first, or None if one batch takes all that waits.

    Args:
        index: what is known of every partition.
        most: records of a batch, at most; at least 1.
        tolerance_ms: by how much event time a partition may end ahead of another.
    """
    if sum(part.end - part.start for part in index.values()) <= most:
        return None
    coarse = {key: _coarse(part, most) for key, part in index.items() if part.known < min(part.end, part.start + most)}
    if coarse:
        return Look(coarse)
    steps = sorted({frontier for part in index.values() for _, frontier in part.points})
    looks: dict[Part, set[tuple[int, int]]] = {}
    for number in range(1, _AHEAD + 1):
        cut, times = _cut(index, steps, most * number, tolerance_ms // 2)
        vague = {
            (key, part.gap(until_ms))
            for until_ms in times
            for key, part in index.items()
            if part.hidden_ms(until_ms) > tolerance_ms // 2
        }
        if number == 1 and not vague:
            return cut
        for key, gap in vague:
            looks.setdefault(key, set()).update(_split(*gap))
        if any(cut.ends[key] >= part.known for key, part in index.items() if part.known > part.start):
            break  # what comes after it is not known, or there is nothing
    return Look({key: _merge(ranges) for key, ranges in looks.items()})


def _cut(
    index: Mapping[Part, PartitionIndex], steps: Sequence[int], most: int, tolerance_ms: int
) -> tuple[Cut, tuple[int, ...]]:
    """Return the batch by what is known, and the event times around which it must be known well."""
    full = bisect_right(steps, most, key=lambda until_ms: sum(_amounts(index, until_ms).values()))
    below = steps[full - 1] if full else NOTHING - 1
    before = _amounts(index, below)
    total = sum(before.values())
    ends = {key: part.start + before[key] for key, part in index.items()}
    if full == len(steps):
        return Cut(ends, below), (below,)
    above = steps[full]
    if total and above - below > tolerance_ms:
        return Cut(ends, below), (below,) if total > most * _FULL else (below, above - 1)
    there = {key: amount - before[key] for key, amount in _amounts(index, above).items()}
    shares = _share_out(there, most - total)
    return Cut({key: end + shares[key] for key, end in ends.items()}, above), (below if total else above - 1, above)


def _amounts(index: Mapping[Part, PartitionIndex], until_ms: int) -> dict[Part, int]:
    return {key: part.cut(until_ms) - part.start for key, part in index.items()}


def _share_out(amounts: Mapping[Part, int], budget: int) -> dict[Part, int]:
    """Return a part of each amount, in proportion; together they are the budget, which is at most their sum."""
    whole = sum(amounts.values())
    shares = {key: amount * budget // whole for key, amount in amounts.items()}
    rest = budget - sum(shares.values())
    for key in sorted((key for key in amounts if shares[key] < amounts[key]), key=lambda each: (-amounts[each], each)):
        if rest:
            shares[key] += 1
            rest -= 1
    return shares


def _coarse(part: PartitionIndex, most: int) -> tuple[tuple[int, int], ...]:
    """Return places at even distances, from what is known on; the last one is at the end of the stretch."""
    end = min(part.end, part.known + most * _AHEAD)
    step = max(1, most // 4)
    if step <= GLANCE or end - part.known <= RUN:
        return ((part.known, end),)
    starts = [*range(part.known, end - GLANCE, step), end - GLANCE]
    return _merge((start, start + GLANCE) for start in starts)


def _split(start: int, end: int) -> Iterator[tuple[int, int]]:
    if end - start <= RUN:
        yield (start, end)
        return
    for piece in range(_PIECES):
        place = start + (end - start) * piece // _PIECES
        yield (place, place + GLANCE)


def _merge(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the ranges in order, those joined that overlap or touch."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def _frontier(point: tuple[int, int]) -> int:
    return point[1]
