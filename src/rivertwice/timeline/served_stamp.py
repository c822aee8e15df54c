"""The stamp of the served table: what a build of it shows. It is in the commit's metadata, not in the rows."""

from __future__ import annotations

from dataclasses import dataclass

from rivertwice.config import PipelineHome, Place
from rivertwice.store import delta

METADATA_KEY = "served"


@dataclass(frozen=True)
class ServedStamp:
    """What a build of the served table shows: the sequence, and the last committed batch on the head's path."""

    sequence: int
    timeline: str
    batch: int


def served_stamp(home: PipelineHome) -> ServedStamp | None:
    """Return what the served table shows, or None if it was never built."""
    return stamp_of(home.tables.served)


def provisional_stamp(home: PipelineHome) -> ServedStamp | None:
    """Return what the table of open windows shows, or None if it was never built."""
    return stamp_of(home.tables.provisional)


def stamp_of(table: Place) -> ServedStamp | None:
    """Return the stamp of the newest commit that has one, or None."""
    for limit in (4, None):
        commits = delta.commits(table, METADATA_KEY, limit=limit)
        if commits:
            return ServedStamp(**commits[-1][1])
    return None
