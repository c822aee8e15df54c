"""Gaps: records that the stream did not read: Kafka no longer has them, or a person handed them over to batch.

They are recorded; only a person accepts them.

Files under `HOME/pipelines/NAME/gaps/ID/`, format 1, each written once: `gap.json` is the gap, `accepted.json` records that
the stream continued after it, and on which timeline. The id is a hash of what was lost. So the same gap is recorded
once, and a gap that has grown is another gap.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from rivertwice.core import PipelineHome, Place, RequestError, below, from_ms, parse_iso, to_iso
from rivertwice.log.addresses import OffsetRanges, count, describe, drop_empty
from rivertwice.storage import RecordStore, encode_json

FORMAT = 1
GAP = "gap.json"
ACCEPTED = "accepted.json"


class GapReason:
    """Why a range of offsets was skipped."""

    EXPIRED = "expired"
    BACKWARDS = "backwards"
    HANDED_OVER = "handed over"


REPAIRABLE = "gap, which the archive can fill"
"""Start of a verdict's reason if all lost records are in the archive: a backfill corrects the window."""
_ID = re.compile(r"^gap-[0-9a-f]{12}\Z")
_LONGEST_AHEAD_MS = 10 * 365 * 24 * 3_600_000  # a larger limit of a broker counts as none


@dataclass(frozen=True)
class Gap:
    """Offsets that the stream needed next, and that it does not read.

    Attributes:
        timeline, batch: the last batch that the stream had committed; a batch of None: it had committed none.
        cause: `expired`: Kafka's begin is beyond the stream's position. `backwards`: Kafka's end is before it. `handed over`: a person
            left them to backfills; the archive has all of them.
        ranges: partition to the half-open range that is gone.
        archived: the part that the archive has; the rest is lost for ever.
        watermark_ms: watermark of `batch`: the stream had closed the windows that end by then, 0 if none.
        until_ms: upper bound of the event time of the lost records (beyond it, a record is a dead letter); None: no bound.
    """

    pipeline: str
    timeline: str
    batch: int | None
    topic: str
    topic_id: str
    cause: str
    ranges: OffsetRanges
    archived: OffsetRanges
    watermark_ms: int
    until_ms: int | None
    noted_at: datetime

    @property
    def id(self) -> str:
        """`gap-` and a hash of what was lost."""
        identity = [self.timeline, self.batch, self.topic_id, self.cause, sorted(self.ranges.items())]
        return f"gap-{hashlib.sha256(encode_json(identity)).hexdigest()[:12]}"

    @property
    def lost(self) -> int:
        """Number of offsets that neither Kafka nor the archive has."""
        return count(self.ranges) - count(self.archived)

    def describe(self) -> str:
        """Return the gap for people: what is gone, and what the archive still has."""
        archived = f"; the archive has {describe(self.archived)}" if self.archived else "; the archive has none of it"
        return f"{self.topic} {describe(self.ranges)} ({count(self.ranges)} records{archived})"

    def message(self) -> str:
        """Return why the stream stops at a gap, and the remedy."""
        if self.cause == GapReason.BACKWARDS:
            return (
                f"gap {self.id}: Kafka's log ends before the stream's place: {self.describe()}; the records were read and "
                "committed but Kafka has lost them, so the same offsets will mean other records; the stream stops; "
                f"`rivertwice savepoint rewind {self.pipeline}` goes back to the newest proved savepoint from before that and reads the log again"
            )
        return (
            f"gap {self.id}: Kafka deleted records that the stream of {self.pipeline} had not read: {self.describe()}; "
            f"{self.lost} are lost for ever; the stream stops after batch {self.batch} of timeline {self.timeline}, because "
            f"continuing would skip them; raise the topic's retention, then `rivertwice start {self.pipeline} --accept-gap {self.id}` "
            "continues after the gap: windows it touches are never called equal"
            + (", and a backfill brings back what the archive has" if self.archived else "")
        )

    def plain(self, accepted: Acceptance | None) -> dict[str, Any]:
        """Return it for people and programs."""
        return {
            "id": self.id,
            "cause": self.cause,
            "topic": self.topic,
            "behind": {"timeline": self.timeline, "batch": self.batch},
            "ranges": _pairs(self.ranges),
            "archived": _pairs(self.archived),
            "lost": self.lost,
            "windows_after": to_iso(from_ms(self.watermark_ms)),
            "windows_until": None if self.until_ms is None else to_iso(from_ms(self.until_ms)),
            "noted_at": to_iso(self.noted_at),
            "accepted": None
            if accepted is None
            else {"timeline": accepted.timeline, "by": accepted.by, "at": to_iso(accepted.at)},
        }

    def record(self, home: PipelineHome) -> bool:
        """Record it; return False if it is recorded already."""
        body = {**asdict(self), "ranges": _pairs(self.ranges), "archived": _pairs(self.archived)}
        stored = {"format": FORMAT, "id": self.id, **body, "noted_at": to_iso(self.noted_at)}
        return RecordStore(_place(home)).put_if_absent(f"{self.id}/{GAP}", stored)

    @classmethod
    def load(cls, home: PipelineHome, gap_id: str) -> Gap:
        """Return one gap.

        Raises:
            RequestError: there is no gap with this id, or its format is unknown.
        """
        data = _read(home, f"{_require_id(gap_id)}/{GAP}")
        if data is None:
            known_ids = ", ".join(gap.id for gap in cls.recorded(home)) or "none"
            message = f"{home.root.name} has no gap {gap_id}; known: {known_ids}; see `rivertwice admin retention {home.root.name}`"
            raise RequestError(message)
        data.pop("id")
        data |= {name: _ranges(data[name]) for name in ("ranges", "archived")}
        return cls(**{**data, "noted_at": parse_iso(data["noted_at"])})

    @classmethod
    def recorded(cls, home: PipelineHome) -> list[Gap]:
        """Return all recorded gaps, oldest first."""
        gaps = (cls.load(home, name) for name in RecordStore(_place(home)).folders_with(GAP) if _ID.match(name))
        return sorted(gaps, key=lambda gap: (gap.noted_at, gap.id))


@dataclass(frozen=True)
class Acceptance:
    """A person's decision to continue after a gap: `timeline` is the child that begins after it."""

    gap: str
    timeline: str
    by: str
    at: datetime

    @classmethod
    def load(cls, home: PipelineHome, gap_id: str) -> Acceptance | None:
        """Return the acceptance of a gap, or None."""
        data = _read(home, f"{_require_id(gap_id)}/{ACCEPTED}")
        return None if data is None else cls(**{**data, "at": parse_iso(data["at"])})


def find_gap(
    position: Mapping[int, int], begin: Mapping[int, int], end: Mapping[int, int]
) -> tuple[str, OffsetRanges] | None:
    """Compare a stream's position with Kafka's offsets: (cause, ranges), or None if no record is missing.

    Args:
        position: partition to the next offset the stream reads.
        begin: the first offset that Kafka has; an absent partition is empty.
        end: the first offset that Kafka does not have yet.
    """
    backwards = drop_empty({p: (end.get(p, 0), place) for p, place in position.items()})
    if backwards:
        return GapReason.BACKWARDS, backwards
    expired = drop_empty({p: (place, begin.get(p, 0)) for p, place in position.items()})
    return (GapReason.EXPIRED, expired) if expired else None


def bound_event_time(
    config: Mapping[str, str], ranges: OffsetRanges, following: Mapping[int, int], now_ms: int, max_future_ms: int
) -> int | None:
    """Return the latest event time (epoch ms) that an accepted record of a gap can have had, or None without a bound.

    A record's event time is at most `max_future` after its own timestamp. Timestamps of the broker increase, so the first
    record after the gap bounds them. Timestamps of producers need not increase: the broker only refuses those too far ahead
    of its own clock, if it is configured to. The age of a lost record has no bound.

    Args:
        following: partition to timestamp of the first record after the gap, if there is one.
    """
    if config.get("message.timestamp.type") == "LogAppendTime":
        return max(following.get(partition, now_ms) for partition in ranges) + max_future_ms
    ahead = int(config.get("message.timestamp.after.max.ms", _LONGEST_AHEAD_MS + 1))
    return None if ahead > _LONGEST_AHEAD_MS else now_ms + ahead + max_future_ms


def _place(home: PipelineHome) -> Place:
    """Return the place of a pipeline's gaps: they outlive a host."""
    return below(home.place, "gaps")


def record_acceptance(home: PipelineHome, accepted: Acceptance) -> bool:
    """Record that the stream continues after a gap; return False if it was accepted before."""
    stored = {"format": FORMAT, **asdict(accepted), "at": to_iso(accepted.at)}
    return RecordStore(_place(home)).put_if_absent(f"{accepted.gap}/{ACCEPTED}", stored)


def accepted_gaps(home: PipelineHome) -> dict[str, Gap]:
    """Return the accepted gaps by the timeline that begins after each."""
    pairs = ((Acceptance.load(home, gap.id), gap) for gap in Gap.recorded(home))
    return {accepted.timeline: gap for accepted, gap in pairs if accepted is not None}


def _require_id(value: str) -> str:
    """Return `value` if it is a gap's id.

    Raises:
        RequestError: it is not a gap's id, so it could name another file.
    """
    if not _ID.match(value):
        message = (
            f"{value[:80]!r} is not a valid gap id; ids look like gap-0f3a9c2e71b4, see `rivertwice admin retention`"
        )
        raise RequestError(message)
    return value


def _read(home: PipelineHome, key: str) -> dict[str, Any] | None:
    data: dict[str, Any] | None = RecordStore(_place(home)).read(key)
    if data is not None and data.pop("format", None) != FORMAT:
        message = f"{key} is not of format {FORMAT}, which this version reads; use a newer rivertwice"
        raise RequestError(message)
    return data


def _pairs(ranges: OffsetRanges) -> dict[str, list[int]]:
    return {str(partition): [start, end] for partition, (start, end) in sorted(ranges.items())}


def _ranges(data: Mapping[str, Any]) -> OffsetRanges:
    return {int(partition): (int(pair[0]), int(pair[1])) for partition, pair in data.items()}
