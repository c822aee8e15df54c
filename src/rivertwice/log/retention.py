"""How long Kafka keeps a topic's records, how fast records arrive, and who claims which of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from rivertwice.core import Settings
from rivertwice.log import kafka
from rivertwice.log.archive_table import archived_segments
from rivertwice.log.leases import LogState, RetentionClaim, select_samples
from rivertwice.log.reader import first_stamps, read_exactly

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
