"""Retention in short: what is due, when the archive must be ahead, and the last look that was stored. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from rivertwice.core import Attempts, Settings, parse_iso, require_pipeline, to_iso
from rivertwice.log import Clock, RaceLevel
from rivertwice.storage import read_json


def topics_in(plain: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the part of a plain view for each topic."""
    return list(plain["topics"]) if "topics" in plain else [plain]


def summary_of(plain: Mapping[str, Any]) -> str | None:
    """Return the worst problem of a plain view in one line, or None if no record is at risk."""
    open_gaps = [gap for gap in plain["gaps"] if gap["accepted"] is None]
    if open_gaps:
        return f"gap {open_gaps[-1]['id']}: {open_gaps[-1]['topic']} {open_gaps[-1]['ranges']} is gone from Kafka"
    worst = plain["worst"]
    recreated = [topic_plain["topic"] for topic_plain in topics_in(plain) if not topic_plain["same_topic"]]
    if recreated:
        return f"topic {recreated[0]} was deleted and created again: only the archive has the old one's records"
    if worst is None or worst["level"] == RaceLevel.OK.name.lower():
        return None
    topic = worst.get("topic") or plain["topic"]
    need = f"{worst['holder']} needs {topic}/{worst['partition']} {worst['needs']}"
    if worst["level"] == RaceLevel.LOST.name.lower():
        return f"{need}: {worst['lost']} records are lost"
    left = "no pace is known" if worst["left_s"] is None else f"{worst['left_s']} s"
    return f"{need}, which only Kafka has: {left}, {worst['left_share']:.0%} of its time or bytes left"


# Archive before Kafka deletes: when the agent does it by itself. Pure: a value in, a decision with its reason out.

ARCHIVE_SHARE = 0.5  # share of the time (or bytes) until Kafka deletes records that the archive lacks
BACKOFF_BASE = timedelta(seconds=10)
BACKOFF_CAP = timedelta(minutes=10)
BETWEEN_RUNS = timedelta(seconds=5)


@dataclass(frozen=True)
class ArchiveDecision:
    """Whether to archive now, and why or why not."""

    start: bool
    reason: str


def next_archive_attempt(memory: Attempts) -> datetime | None:
    """Return when the agent may archive again; None if at once."""
    if memory.last_end is None:
        return None
    if memory.failures == 0:
        return memory.last_end + BETWEEN_RUNS
    return memory.last_end + memory.pause(BACKOFF_BASE, BACKOFF_CAP)


def decide_archive(finite: bool, waiting: int, clock: Clock, memory: Attempts, now: datetime) -> ArchiveDecision:
    """Decide whether the agent archives a topic now.

    Args:
        finite: whether Kafka ever deletes records of the topic; if not, only people and schedules archive it.
        waiting: number of records that Kafka has and the archive lacks.
        clock: the clock of the first of them.
        memory: of earlier runs; it is busy while the agent archives any topic: one at a time.
    """
    if not finite:
        return ArchiveDecision(False, "Kafka keeps the topic for ever")
    if waiting == 0:
        return ArchiveDecision(False, "the archive has all that Kafka has")
    if clock.share > ARCHIVE_SHARE:
        return ArchiveDecision(False, f"{clock.share:.0%} of the time or bytes are left, more than {ARCHIVE_SHARE:.0%}")
    if memory.busy:
        return ArchiveDecision(False, "an archive job runs")
    allowed = next_archive_attempt(memory)
    if allowed is not None and now < allowed:
        after = f"{memory.failures} failures in a row" if memory.failures else "the last run"
        return ArchiveDecision(False, f"backoff until {to_iso(allowed)} after {after}")
    left = "" if clock.left is None else f", {clock.left.total_seconds():.0f} s"
    return ArchiveDecision(
        True, f"{waiting} records are not archived and {clock.share:.0%} of their time is left{left}"
    )


# What the agent last saw of a pipeline's retention: a small file, which `status` reads without Kafka or Spark.

FORMAT = 1


def retention_file(settings: Settings, name: str) -> Path:
    """Return where the agent writes a pipeline's retention view."""
    return settings.home / "agent" / "retention" / f"{require_pipeline(name)}.json"


@dataclass(frozen=True)
class RetentionBrief:
    """What the agent last saw of a pipeline's retention, in short, with its age.

    Attributes:
        worst: the lease that is nearest to a loss, as stored. unarchived: records that only Kafka has.
        gaps: ids of the gaps that nobody has accepted. summary: what is at risk, in words; None: nothing is.
    """

    age_s: float
    worst: Mapping[str, Any] | None
    unarchived: Any
    gaps: tuple[str, ...]
    summary: str | None

    @classmethod
    def read(cls, settings: Settings, name: str, now: datetime) -> RetentionBrief | None:
        """Return what the agent last saw; None if it never looked."""
        plain = read_json(retention_file(settings, name))
        if plain is None or plain.get("format") != FORMAT:
            return None
        return cls(
            age_s=round((now - parse_iso(plain["at"])).total_seconds(), 1),
            worst=plain["worst"],
            unarchived=plain["unarchived"],
            gaps=tuple(gap["id"] for gap in plain["gaps"] if gap["accepted"] is None),
            summary=summary_of(plain),
        )
