"""Whether the agent leaves the oldest part of a backlog to batch, and when it fills the gap. Pure: values in, a decision out.

It is done once for one downtime: while records that were left to batch are not published, nothing more is left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

from rivertwice.retention.backlog import Backlog
from rivertwice.retry import delay_after

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
