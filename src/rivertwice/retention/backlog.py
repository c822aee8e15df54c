"""The backlog of a stream: what waits, when it has caught up, whether Kafka deletes first, and what the policy says. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median

from rivertwice.core.waits import delay_after
from rivertwice.log.addresses import OffsetRanges, count
from rivertwice.timeline.ledger import LedgerRow

BATCHES = 50
"""So many of the newest batches say how fast a stream reads."""
_PAUSE = 10
"""A batch that came so many times the usual time after the one before it came after a pause of the stream."""


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


# Whether the agent leaves the oldest part of a backlog to batch, and when it fills the gap. Pure: values in, a decision out.
#
# It is done once for one downtime: while records that were left to batch are not published, nothing more is left.

WAIT, HAND_OVER, FILL = "wait", "hand over", "fill"
BACKOFF_BASE = timedelta(minutes=1)
BACKOFF_CAP = timedelta(minutes=30)


@dataclass(frozen=True)
class Leaving:
    """Records that were left to batch and whose windows no backfill has published yet.

    Attributes:
        gap: id of the gap.
        filled_from_ms: watermark (epoch ms) from which the stream has closed the windows of the skipped records; None: not known yet.
        watermark_ms: of the newest batch.
    """

    gap: str
    filled_from_ms: int | None
    watermark_ms: int

    @property
    def is_closed(self) -> bool:
        """Whether a backfill can publish all their windows now."""
        return self.filled_from_ms is not None and self.watermark_ms >= self.filled_from_ms


@dataclass(frozen=True)
class LeaveMemory:
    """What is known of the jobs before: whether one is at work, how many failed in a row, and when the last one ended."""

    busy: bool = False
    failures: int = 0
    last_end: datetime | None = None


@dataclass(frozen=True)
class LeaveDecision:
    """What the agent does about a backlog: `wait`, `hand over` or `fill`, and why."""

    kind: str
    reason: str


def decide_leave(
    backlog: Backlog, limit: timedelta, leaving: Leaving | None, memory: LeaveMemory, now: datetime, *, wanted: bool
) -> LeaveDecision:
    """Decide what to do about what waits for a stream.

    Args:
        backlog: of its topic.
        limit: `stream.catch_up.by_batch_when` of its definition.
        leaving: what was left to batch before and is not published yet; None: nothing.
        memory: of the jobs before.
        now: the present instant.
        wanted: the stream is wanted running.
    """
    if memory.busy:
        return LeaveDecision(WAIT, "a job is at work")
    if not wanted:
        return LeaveDecision(WAIT, "the stream is not wanted running")
    allowed = _allowed_at(memory)
    if allowed is not None and now < allowed:
        return LeaveDecision(
            WAIT, f"the last job failed, {memory.failures} in a row; the next one may start at {allowed}"
        )
    if leaving is not None:
        if not leaving.is_closed:
            return LeaveDecision(WAIT, f"the stream has not closed the windows of {leaving.gap} yet")
        return LeaveDecision(
            FILL, f"the stream has closed the windows of {leaving.gap}, which no backfill has published yet"
        )
    seconds = backlog.caught_up_s
    if not backlog.records or seconds is None:
        return LeaveDecision(
            WAIT, "nothing waits" if not backlog.records else "how fast the stream reads is not known yet"
        )
    if backlog.is_outrun:
        left = backlog.left.total_seconds() if backlog.left is not None else 0.0
        return LeaveDecision(
            HAND_OVER,
            f"{backlog.records} records wait, catching up takes {_long(seconds)}, and Kafka may delete the first of them in {left:.0f} s",
        )
    if seconds > limit.total_seconds():
        return LeaveDecision(
            HAND_OVER,
            f"{backlog.records} records wait, and catching up takes {_long(seconds)}, longer than the limit of {limit}",
        )
    return LeaveDecision(WAIT, f"the stream has caught up in {seconds:.0f} s")


def _allowed_at(memory: LeaveMemory) -> datetime | None:
    if not memory.failures or memory.last_end is None:
        return None
    return memory.last_end + delay_after(memory.failures, BACKOFF_BASE, BACKOFF_CAP)


def _long(seconds: float) -> str:
    return "forever, for as much arrives as is read" if math.isinf(seconds) else f"{seconds:.0f} s"
