"""What a retention view says, once it is stored as plain data. Pure; `status` reads it without Kafka or Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rivertwice.log.leases import Level


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
    if worst is None or worst["level"] == Level.OK.name.lower():
        return None
    topic = worst.get("topic") or plain["topic"]
    need = f"{worst['holder']} needs {topic}/{worst['partition']} {worst['needs']}"
    if worst["level"] == Level.LOST.name.lower():
        return f"{need}: {worst['lost']} records are lost"
    left = "no pace is known" if worst["left_s"] is None else f"{worst['left_s']} s"
    return f"{need}, which only Kafka has: {left}, {worst['left_share']:.0%} of its time or bytes left"
