"""Who needs which offsets, who still has them, and how long Kafka will keep them. Pure: `now` is a parameter.

The race clock of a claim is the time until Kafka may delete the first offset that the claim needs and the archive does
not have. It is a lower bound: Kafka deletes whole segments, and only if their newest record is old enough, or if the
newer segments alone reach `retention.bytes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum

from rivertwice.core import from_ms
from rivertwice.log.addresses import OffsetRanges

WARNING_SHARE = 0.5
CRITICAL_SHARE = 0.1


class RaceLevel(IntEnum):
    """How close a claim is to becoming impossible; a larger value is worse."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    LOST = 3


@dataclass(frozen=True)
class RetentionClaim:
    """A need for offsets of one topic.

    Attributes:
        holder: its owner, as people name it: `stream t1`, `savepoint sp-t1-9-...`, `backfill bf-...`.
        kind: stream, truth, load, savepoint, backfill or dead_letters.
        ranges: partition to half-open range; an end of None means everything from the start on.
        kafka_only: only Kafka can serve the claim: the stream does not read the archive.
    """

    holder: str
    kind: str
    ranges: Mapping[int, tuple[int, int | None]]
    kafka_only: bool = False

    def first_at_risk(self, partition: int, log: LogState) -> int | None:
        """Return the first offset of a claim that only Kafka has, or None if there is none."""
        start, end = _bounds(self, partition, log)
        low = max(start, log.begin.get(partition, 0))
        in_archive = (0, 0) if self.kafka_only else log.archived.get(partition, (0, 0))
        if in_archive[0] <= low < in_archive[1]:
            low = in_archive[1]
        return low if low < min(end, log.end.get(partition, 0)) else None


@dataclass(frozen=True)
class LogState:
    """The offsets of one topic in Kafka and in the archive, and Kafka's rules for deleting.

    Attributes:
        begin, end: Kafka's offsets per partition, half-open.
        archived: ranges of the archive's newest segment; older: ranges of its older segments, each followed by a hole.
        retention: `retention.ms`; None: kept for ever.
        retention_bytes: `retention.bytes` of a partition; None sets no limit.
        stamps: (partition, offset) to the timestamp (epoch ms) of the first record at or after it.
        record_bytes: mean size of a partition's records; an upper bound if the topic is compressed.
        per_second: measured records per second of a partition.
    """

    topic: str
    topic_id: str
    begin: Mapping[int, int]
    end: Mapping[int, int]
    archived: OffsetRanges
    older: Sequence[OffsetRanges] = ()
    retention: timedelta | None = None
    retention_bytes: int | None = None
    stamps: Mapping[tuple[int, int], int] = field(default_factory=dict)
    record_bytes: Mapping[int, float] = field(default_factory=dict)
    per_second: Mapping[int, float] = field(default_factory=dict)

    @property
    def finite(self) -> bool:
        """Whether Kafka ever deletes records of the topic."""
        return self.retention is not None or self.retention_bytes is not None

    def clock_at(self, partition: int, offset: int, now: datetime) -> Clock:
        """Return the minimum time that Kafka keeps an offset."""
        lefts, shares = [], []
        stamp = self.stamps.get((partition, offset))
        if self.retention is not None and stamp is not None:
            lefts.append(max(timedelta(0), from_ms(stamp) + self.retention - now))
            shares.append(min(1.0, lefts[0].total_seconds() / max(self.retention.total_seconds(), 0.001)))
        if self.retention_bytes is not None and partition in self.record_bytes:
            size = self.record_bytes[partition]
            free = max(0.0, self.retention_bytes - size * (self.end.get(partition, 0) - offset))
            pace = size * self.per_second.get(partition, 0.0)
            lefts += [timedelta(seconds=min(free / pace, 1e9))] if pace > 0 else []
            shares.append(free / max(1, self.retention_bytes))
        if not shares:
            return NO_CLOCK
        least = min(lefts, default=None)
        return Clock(None if least is None else now + least, least, min(shares))


@dataclass(frozen=True)
class Clock:
    """The minimum time that Kafka keeps one offset.

    Attributes:
        deadline: the earliest instant at which the offset may be deleted; None if no limit applies now.
        left: time until the deadline, not below zero.
        share: remaining share of the time or of the bytes, the smaller of the two; between 0 and 1.
    """

    deadline: datetime | None
    left: timedelta | None
    share: float


NO_CLOCK = Clock(None, None, 1.0)


@dataclass(frozen=True)
class RangeLease:
    """One claim on one partition, and where its records are.

    Attributes:
        start, end: the needed range, half-open; `end` is Kafka's end if the claim has none.
        archived: number of offsets that the archive can serve; kafka: that only Kafka can; lost: that are in neither.
        clock: clock of the first offset that only Kafka can serve; NO_CLOCK if there is none.
    """

    holder: str
    kind: str
    topic: str
    partition: int
    start: int
    end: int
    archived: int
    kafka: int
    lost: int
    clock: Clock
    level: RaceLevel


def select_samples(claims: Iterable[RetentionClaim], log: LogState) -> set[tuple[int, int]]:
    """Return the (partition, offset) pairs whose record timestamps the clocks need."""
    pairs = {(p, claim.first_at_risk(p, log)) for claim in claims for p in claim.ranges}
    return {(partition, offset) for partition, offset in pairs if offset is not None}


def view_leases(
    claims: Sequence[RetentionClaim],
    log: LogState,
    now: datetime,
    *,
    warning: float = WARNING_SHARE,
    critical: float = CRITICAL_SHARE,
) -> list[RangeLease]:
    """Return every claim on every partition with its holder, its remaining records, and its clock; worst first.

    A claim whose records are partly gone is LOST. A claim that depends on Kafka alone is a WARNING if less than the share
    `warning` of its time (or bytes) remains, and CRITICAL below `critical`. Records in the archive have no clock.
    """
    leases = [_lease(claim, p, log, now, (warning, critical)) for claim in claims for p in sorted(claim.ranges)]
    return sorted(
        leases, key=lambda lease: (-lease.level, lease.clock.share, lease.kind, lease.holder, lease.partition)
    )


def _bounds(claim: RetentionClaim, partition: int, log: LogState) -> tuple[int, int]:
    start, end = claim.ranges[partition]
    return start, max(start, log.end.get(partition, start)) if end is None else end


def _lease(
    claim: RetentionClaim, partition: int, log: LogState, now: datetime, limits: tuple[float, float]
) -> RangeLease:
    start, end = _bounds(claim, partition, log)
    in_archive = (0, 0) if claim.kafka_only else log.archived.get(partition, (0, 0))
    in_kafka = (log.begin.get(partition, 0), log.end.get(partition, 0))
    archived = _overlap((start, end), in_archive)
    if not claim.kafka_only:
        archived += sum(_overlap((start, end), segment.get(partition, (0, 0))) for segment in log.older)
    kafka = _overlap((start, end), in_kafka) - _overlap(_shared((start, end), in_archive), in_kafka)
    lost = end - start - archived - kafka
    first = claim.first_at_risk(partition, log)
    clock = NO_CLOCK if first is None else log.clock_at(partition, first, now)
    level = RaceLevel.OK
    if lost > 0:
        level = RaceLevel.LOST
    elif first is not None and clock.share < limits[0]:
        level = RaceLevel.CRITICAL if clock.share < limits[1] else RaceLevel.WARNING
    return RangeLease(claim.holder, claim.kind, log.topic, partition, start, end, archived, kafka, lost, clock, level)


def _shared(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    start = max(left[0], right[0])
    return start, max(start, min(left[1], right[1]))


def _overlap(left: tuple[int, int], right: tuple[int, int]) -> int:
    start, end = _shared(left, right)
    return end - start
