"""What outlives a process besides tables: a checkpoint with its texts, the drain marker, and a build of `served`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from lab.model.stream import Address, State
from rivertwice.timeline.served_stamp import ServedStamp


@dataclass
class Checkpoint:
    """A checkpoint folder: `offsets` and `commits` as texts, one state version a batch, and where the source began.

    `remains` is half of a first plan, beside which Spark refuses to begin.
    """

    initial: Mapping[str, Mapping[str, int]]
    offsets: dict[int, str] = field(default_factory=dict)
    commits: dict[int, str] = field(default_factory=dict)
    state: dict[int, State] = field(default_factory=dict)
    remains: bool = False

    def copied(self) -> Checkpoint:
        """Return a copy that shares nothing that changes."""
        return Checkpoint(self.initial, dict(self.offsets), dict(self.commits), dict(self.state), self.remains)


@dataclass
class Drain:
    """The drain marker; `pid` is the process that holds it, None for the agent's own; `by` is a rewind's id."""

    pid: int | None
    since: datetime
    by: str = ""


@dataclass
class Erasure:
    """A request to erase a record's value that is not done; `is_begun`: it was carried out for a first step."""

    address: Address
    is_begun: bool = False


@dataclass
class Served:
    """The served table: what it shows, by window end, and the stamp of its look, with the mark of the version that wrote it."""

    sequence: int
    timeline: str
    batch: int
    rows: Mapping[int, frozenset[Address]]
    version: str = ""

    @property
    def stamp(self) -> ServedStamp:
        """The stamp."""
        return ServedStamp(self.sequence, self.timeline, self.batch, self.version)


def offsets_text(ends: Mapping[str, Mapping[str, int]], watermark_ms: int, timestamp_ms: int) -> str:
    """Return `offsets/N` as Spark writes it."""
    metadata = f'{{"batchWatermarkMs":{watermark_ms},"batchTimestampMs":{timestamp_ms},"conf":{{}}}}'
    return f"v1\n{metadata}\n{json.dumps(ends, separators=(',', ':'))}"


def commit_text(next_watermark_ms: int) -> str:
    """Return `commits/N` as Spark writes it."""
    return f'v1\n{{"nextBatchWatermarkMs":{next_watermark_ms}}}'
