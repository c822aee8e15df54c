"""Archive before Kafka deletes: when the agent does it by itself. Pure: a value in, a decision with its reason out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from rivertwice.instants import to_iso
from rivertwice.log.leases import Clock
from rivertwice.retry import delay_after

ARCHIVE_SHARE = 0.5  # share of the time (or bytes) until Kafka deletes records that the archive lacks
BACKOFF_BASE = timedelta(seconds=10)
BACKOFF_CAP = timedelta(minutes=10)
BETWEEN_RUNS = timedelta(seconds=5)


@dataclass(frozen=True)
class ArchiveMemory:
    """What is known of earlier archive runs of a topic.

    Attributes:
        running: a process archives this topic, or the agent archives another one: one at a time.
        failures: runs that failed in a row; last_end: when the last run ended.
    """

    running: bool = False
    failures: int = 0
    last_end: datetime | None = None


@dataclass(frozen=True)
class ArchiveDecision:
    """Whether to archive now, and why or why not."""

    start: bool
    reason: str


def next_archive_attempt(memory: ArchiveMemory) -> datetime | None:
    """Return when the agent may archive again; None if at once."""
    if memory.last_end is None:
        return None
    if memory.failures == 0:
        return memory.last_end + BETWEEN_RUNS
    return memory.last_end + delay_after(memory.failures, BACKOFF_BASE, BACKOFF_CAP)


def decide_archive(finite: bool, waiting: int, clock: Clock, memory: ArchiveMemory, now: datetime) -> ArchiveDecision:
    """Decide whether the agent archives a topic now.

    Args:
        finite: whether Kafka ever deletes records of the topic; if not, only people and schedules archive it.
        waiting: number of records that Kafka has and the archive lacks.
        clock: the clock of the first of them.
        memory: what is known of earlier runs.
        now: the present instant.
    """
    if not finite:
        return ArchiveDecision(False, "Kafka keeps the topic for ever")
    if waiting == 0:
        return ArchiveDecision(False, "the archive has all that Kafka has")
    if clock.share > ARCHIVE_SHARE:
        return ArchiveDecision(False, f"{clock.share:.0%} of the time or bytes are left, more than {ARCHIVE_SHARE:.0%}")
    if memory.running:
        return ArchiveDecision(False, "an archive job runs")
    allowed = next_archive_attempt(memory)
    if allowed is not None and now < allowed:
        after = f"{memory.failures} failures in a row" if memory.failures else "the last run"
        return ArchiveDecision(False, f"backoff until {to_iso(allowed)} after {after}")
    left = "" if clock.left is None else f", {clock.left.total_seconds():.0f} s"
    return ArchiveDecision(
        True, f"{waiting} records are not archived and {clock.share:.0%} of their time is left{left}"
    )
