"""How long Kafka keeps a topic's records, how fast records arrive, and who claims which of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import IntEnum

from rivertwice.core.instants import from_ms
from rivertwice.core.settings import Settings
from rivertwice.log import kafka
from rivertwice.log.addresses import OffsetRanges
from rivertwice.log.archive_table import archived_segments
from rivertwice.log.reader import first_stamps, read_exactly

# Who needs which offsets, who still has them, and how long Kafka will keep them. Pure: `now` is a parameter.
#
# The race clock of a claim is the time until Kafka may delete the first offset that the claim needs and the archive does
# not have. It is a lower bound: Kafka deletes whole segments, and only if their newest record is old enough, or if the
# newer segments alone reach `retention.bytes`.

WARNING_SHARE = 0.5
CRITICAL_SHARE = 0.1


class Level(IntEnum):
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
    level: Level


def first_at_risk(claim: RetentionClaim, partition: int, log: LogState) -> int | None:
    """Return the first offset of a claim that only Kafka has, or None if there is none."""
    start, end = _bounds(claim, partition, log)
    low = max(start, log.begin.get(partition, 0))
    in_archive = (0, 0) if claim.kafka_only else log.archived.get(partition, (0, 0))
    if in_archive[0] <= low < in_archive[1]:
        low = in_archive[1]
    return low if low < min(end, log.end.get(partition, 0)) else None


def select_samples(claims: Iterable[RetentionClaim], log: LogState) -> set[tuple[int, int]]:
    """Return the (partition, offset) pairs whose record timestamps the clocks need."""
    pairs = {(p, first_at_risk(claim, p, log)) for claim in claims for p in claim.ranges}
    return {(partition, offset) for partition, offset in pairs if offset is not None}


def clock_at(log: LogState, partition: int, offset: int, now: datetime) -> Clock:
    """Return the minimum time that Kafka keeps an offset."""
    lefts, shares = [], []
    stamp = log.stamps.get((partition, offset))
    if log.retention is not None and stamp is not None:
        lefts.append(max(timedelta(0), from_ms(stamp) + log.retention - now))
        shares.append(min(1.0, lefts[0].total_seconds() / max(log.retention.total_seconds(), 0.001)))
    if log.retention_bytes is not None and partition in log.record_bytes:
        size = log.record_bytes[partition]
        free = max(0.0, log.retention_bytes - size * (log.end.get(partition, 0) - offset))
        pace = size * log.per_second.get(partition, 0.0)
        lefts += [timedelta(seconds=min(free / pace, 1e9))] if pace > 0 else []
        shares.append(free / max(1, log.retention_bytes))
    if not shares:
        return NO_CLOCK
    least = min(lefts, default=None)
    return Clock(None if least is None else now + least, least, min(shares))


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


def worst_of(leases: Iterable[RangeLease]) -> RangeLease | None:
    """Return the lease that becomes impossible first, or is lost; None if there is none."""
    return min(leases, key=lambda lease: (-lease.level, lease.clock.share), default=None)


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
    first = first_at_risk(claim, partition, log)
    clock = NO_CLOCK if first is None else clock_at(log, partition, first, now)
    level = Level.OK
    if lost > 0:
        level = Level.LOST
    elif first is not None and clock.share < limits[0]:
        level = Level.CRITICAL if clock.share < limits[1] else Level.WARNING
    return RangeLease(claim.holder, claim.kind, log.topic, partition, start, end, archived, kafka, lost, clock, level)


def _shared(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    start = max(left[0], right[0])
    return start, max(start, min(left[1], right[1]))


def _overlap(left: tuple[int, int], right: tuple[int, int]) -> int:
    start, end = _shared(left, right)
    return end - start


SAMPLED_RECORDS = 100  # newest records of a partition whose size is measured
PACE_S = 1.0  # how long arrivals are counted if no earlier count is known


def parse_limit(value: str | None) -> int | None:
    """Return a retention setting as a number, or None if it sets no limit (-1, or absent)."""
    number = -1 if value is None else int(value)
    return None if number < 0 else number


def kept_for(config: Mapping[str, str]) -> timedelta | None:
    """Return how long a topic with these settings keeps a record; None: Kafka deletes no record by age."""
    kept_ms = parse_limit(config.get("retention.ms")) if deletes(config) else None
    return None if kept_ms is None else timedelta(milliseconds=kept_ms)


def deletes(config: Mapping[str, str]) -> bool:
    """Say whether a topic with these settings deletes old segments at all."""
    return "delete" in config.get("cleanup.policy", "delete")


def observe_log(
    settings: Settings,
    topic: str,
    claims: Sequence[RetentionClaim] = (),
    *,
    earlier: tuple[float, Mapping[int, int]] | None = None,
) -> LogState:
    """Observe a topic as far as the claims need it.

    Args:
        settings: gives the Kafka address and the archive.
        topic: the topic.
        claims: decide which record timestamps are read. Records that the archive lacks are always sampled.
        earlier: (monotonic seconds, end offsets) of an earlier observation, from which the rate is measured; None
            counts arrivals for a second. The rate is measured only for a topic with `retention.bytes`.

    Raises:
        ServiceError: Kafka does not answer, or has no such topic.
    """
    config = kafka.topic_config(settings, topic)
    kept_bytes = parse_limit(config.get("retention.bytes")) if deletes(config) else None
    topic_id = kafka.topic_id(settings, topic)
    *older, archived = archived_segments(settings, topic, topic_id) or [{}]
    state = LogState(
        topic=topic,
        topic_id=topic_id,
        begin=kafka.begin_offsets(settings, topic),
        end=kafka.end_offsets(settings, topic),
        archived=archived,
        older=older,
        retention=kept_for(config),
        retention_bytes=kept_bytes,
    )
    if not state.finite:
        return state
    everyone = [*claims, unarchived_claim(state)]
    state = replace(state, stamps=_stamps(settings, topic, select_samples(everyone, state)))
    if kept_bytes is None:
        return state
    return replace(state, record_bytes=_record_bytes(settings, state), per_second=_pace(settings, state, earlier))


def unarchived_claim(state: LogState) -> RetentionClaim:
    """Return the archive's own claim: all records in Kafka that are not archived yet."""
    ends = {p: state.archived.get(p, (begin, begin))[1] for p, begin in state.begin.items()}
    return RetentionClaim("archive", "archive", {partition: (end, None) for partition, end in ends.items()})


def _stamps(settings: Settings, topic: str, wanted: Iterable[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Read the timestamps in rounds, one offset per partition in each."""
    remaining = sorted(wanted)
    stamps_by_record: dict[tuple[int, int], int] = {}
    while remaining:
        this_round = dict(reversed(remaining))
        stamps = first_stamps(settings, topic, this_round)
        stamps_by_record |= {(p, offset): stamps[p] for p, offset in this_round.items() if p in stamps}
        remaining = [pair for pair in remaining if this_round[pair[0]] != pair[1]]
    return stamps_by_record


def _record_bytes(settings: Settings, state: LogState) -> dict[int, float]:
    newest = {p: (max(state.begin[p], end - SAMPLED_RECORDS), end) for p, end in state.end.items()}
    sizes: dict[int, list[int]] = {}
    for record in read_exactly(settings, state.topic, newest, committed=False):
        size = len(record) + len(record.key() or b"")
        sizes.setdefault(int(record.partition() or 0), []).append(size)
    return {partition: sum(partition_sizes) / len(partition_sizes) for partition, partition_sizes in sizes.items()}


def _pace(settings: Settings, state: LogState, earlier: tuple[float, Mapping[int, int]] | None) -> dict[int, float]:
    ends = state.end
    if earlier is None:
        earlier = (time.monotonic(), state.end)
        time.sleep(PACE_S)
        ends = kafka.end_offsets(settings, state.topic)
    seconds = max(time.monotonic() - earlier[0], 0.001)
    return {partition: max(0, end - earlier[1].get(partition, end)) / seconds for partition, end in ends.items()}
