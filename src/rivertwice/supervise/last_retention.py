"""What the agent last saw of a pipeline's retention: a small file, which `status` reads without Kafka or Spark."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from rivertwice.config import Settings, require_pipeline
from rivertwice.instants import parse_iso
from rivertwice.retention.summary import summary_of
from rivertwice.store.files import read_json

FORMAT = 1


def retention_file(settings: Settings, name: str) -> Path:
    """Return where the agent writes a pipeline's retention view."""
    return settings.home / "agent" / "retention" / f"{require_pipeline(name)}.json"


def last_retention(settings: Settings, name: str, now: datetime) -> dict[str, Any] | None:
    """Return what the agent last saw of a pipeline's retention, in short, with its age; None if it never looked."""
    plain = read_json(retention_file(settings, name))
    if plain is None or plain.get("format") != FORMAT:
        return None
    return {
        "age_s": round((now - parse_iso(plain["at"])).total_seconds(), 1),
        "worst": plain["worst"],
        "unarchived": plain["unarchived"],
        "gaps": [gap["id"] for gap in plain["gaps"] if gap["accepted"] is None],
        "summary": summary_of(plain),
    }
