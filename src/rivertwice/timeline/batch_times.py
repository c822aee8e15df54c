"""How long each of the newest micro-batches took, phase by phase: lines of JSON in a file that stays small.

The driver appends a line once Spark has reported a batch. The lines are figures alone: no key, no value and no text of a record. Nothing
that counts depends on them, so the file may be removed at any time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

from rivertwice.core import PipelineHome, parse_iso, to_iso
from rivertwice.storage import LogFile

FORMAT = 1
LIMIT = 200_000
"""Bytes after which the file becomes `batches.jsonl.1`: some 400 batches each."""


@dataclass(frozen=True)
class BatchTimes:
    """The times of one batch, in milliseconds.

    Attributes:
        at: when Spark's trigger began. ms: from then until the batch's checkpoint.
        spark: Spark's own figures by its own names (`durationMs` of a progress).
        sink: of the driver's steps inside `addBatch`: look, tables, rows, check, side, commit, ledger, next.
        state: sums over Spark's state operators: updated, removed (rows), memory (bytes), partitions, and the time of all tasks together
            that update, remove and commit took; empty if there is no state.
        slots: tasks that may run at one moment in a stage with state.
        files: that the commit added to the changelog.
        parts: partitions that it read. part: the one with most of its records. part_share: its share of them.
    """

    timeline: str
    batch: int
    epoch: int
    at: datetime
    ms: int
    read: int
    emitted: int
    spark: Mapping[str, int] = field(default_factory=dict)
    sink: Mapping[str, int] = field(default_factory=dict)
    state: Mapping[str, int] = field(default_factory=dict)
    slots: int = 1
    files: int = 0
    parts: int = 0
    part: str = ""
    part_share: float = 0.0

    @property
    def end(self) -> datetime:
        """When its checkpoint was written."""
        return self.at + timedelta(milliseconds=self.ms)

    def record(self, home: PipelineHome) -> None:
        """Append it to the pipeline's file.

        Raises:
            OSError: it cannot be written; what the file holds stays.
        """
        file = LogFile(batches_file(home))
        file.rotate(LIMIT, copies=1)
        line = {"format": FORMAT, **asdict(self), "at": to_iso(self.at)}
        file.append(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    @classmethod
    def newest(cls, home: PipelineHome) -> list[Self]:
        """Return the newest batches, in the order in which they ran; a line that is damaged or of another format is left out."""
        found = (cls._parsed(line) for line in LogFile(batches_file(home)).tail(2 * LIMIT).splitlines())
        return sorted((times for times in found if times is not None), key=lambda times: times.at)

    @classmethod
    def _parsed(cls, line: bytes) -> Self | None:
        try:
            values: dict[str, Any] = json.loads(line)
            if values.pop("format") != FORMAT:
                return None
            return cls(**{**values, "at": parse_iso(values["at"])})
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def batches_file(home: PipelineHome) -> Path:
    """Return the file of a pipeline's newest batches."""
    return home.root / "batches.jsonl"
