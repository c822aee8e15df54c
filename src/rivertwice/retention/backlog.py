"""The backlog of a stream: what waits, when it has caught up, and whether Kafka deletes first. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from statistics import median

from rivertwice.log import OffsetRanges, count
from rivertwice.timeline import LedgerRow

BATCHES = 50
"""So many of the newest batches say how fast a stream reads."""
_PAUSE = 10
"""A batch that came later than this multiple of the usual interval came after a pause of the stream."""


@dataclass(frozen=True)
class Backlog:
    """What waits in a topic.

    Attributes:
        waiting: partition to the half-open range that the stream has not read.
        newest_ms: timestamp of the newest record (epoch ms), or None.
        oldest_ms: timestamp of the first record that waits, or None.
        pace: records a second that the stream read in its newest batches; None: not known yet.
        arriving: records a second that arrived in the newest minutes.
        left: until Kafka may delete the first record that waits; None: it does not.
    """

    topic: str
    waiting: OffsetRanges
    newest_ms: int | None
    oldest_ms: int | None
    pace: float | None
    arriving: float
    left: timedelta | None

    @property
    def records(self) -> int:
        """Records that wait."""
        return count(self.waiting)

    @property
    def caught_up_s(self) -> float | None:
        """Seconds until nothing waits at this pace; infinite if more arrives than is read; None: the pace is not known."""
        if not self.records:
            return 0.0
        if self.pace is None:
            return None
        return self.records / (self.pace - self.arriving) if self.pace > self.arriving else math.inf

    @property
    def is_outrun(self) -> bool:
        """Whether Kafka may delete records before the stream has read them, as far as that is known."""
        if self.left is None or not self.records:
            return False
        seconds = self.caught_up_s
        return seconds is not None and seconds > self.left.total_seconds()


@dataclass(frozen=True)
class HandOver:
    """Records that would be left to backfills, so that the stream continues with the newest.

    Attributes:
        ranges: partition to the half-open range that the stream would skip.
        cut_ms: the stream would continue with records stamped from here on (epoch ms).
    """

    topic: str
    ranges: OffsetRanges
    cut_ms: int

    @property
    def records(self) -> int:
        """Records that the stream would skip."""
        return count(self.ranges)


def measure_pace(rows: Sequence[LedgerRow]) -> float | None:
    """Return the records a second that batches read, one after the other; pauses of the stream are left out. None: too few."""
    steps = [
        ((after.committed_at - before.committed_at).total_seconds(), after.read)
        for before, after in pairwise(rows)
        if after.read
    ]
    if not steps:
        return None
    usual = median(seconds for seconds, _ in steps)
    busy = [(seconds, read) for seconds, read in steps if seconds <= _PAUSE * usual]
    total = sum(seconds for seconds, _ in busy)
    return sum(read for _, read in busy) / total if total > 0 else None


def select_skipped(waiting: OffsetRanges, cut: Mapping[int, int]) -> OffsetRanges:
    """Return what waits before the offsets of a cut; a partition with nothing before it is left out.

    Args:
        waiting: partition to the half-open range that the stream has not read.
        cut: partition to the first offset that it would read.
    """
    ends = {partition: min(end, cut.get(partition, start)) for partition, (start, end) in waiting.items()}
    return {partition: (start, ends[partition]) for partition, (start, _) in waiting.items() if ends[partition] > start}
