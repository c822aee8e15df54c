"""Offsets without a record for a reader: markers and aborted records of transactions, or records removed by compaction.

Readers are `read_committed`: they never see records of an open or aborted transaction. A transaction's marker takes an offset,
too. In a topic that is not compacted, an offset that such a reader skips is one of these, for ever. So they are counted by a second
reader, and what a batch read plus what is absent must be what its range covers. In a compacted topic any record may vanish later,
so nothing can be concluded from an offset that is skipped: it is refused as a source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rivertwice.config import Settings
from rivertwice.errors import LogGapError, RivertwiceError
from rivertwice.log import kafka
from rivertwice.log.addresses import OffsetRanges, drop_empty
from rivertwice.log.reader import read_exactly

NAMED = 6
MOST_RUNS = 200
Runs = dict[int, tuple[tuple[int, int], ...]]
"""Partition to half-open runs of offsets, in order."""


def find_holes(settings: Settings, topic: str, ranges: OffsetRanges) -> dict[tuple[int, int], str]:
    """Return (partition, offset) of every hole to its cause: `aborted`, or `marker or compacted`.

    Raises:
        ServiceError: Kafka does not answer.
        LogGapError: the range is gone.
    """
    visible = {(r.partition(), r.offset()) for r in read_exactly(settings, topic, ranges)}
    written = {(r.partition(), r.offset()) for r in read_exactly(settings, topic, ranges, committed=False)}
    addresses = {(p, offset) for p, (start, end) in ranges.items() for offset in range(start, end)}
    return {at: "aborted" if at in written else "marker or compacted" for at in sorted(addresses - visible)}


def explain_holes(settings: Settings, topic: str, ranges: OffsetRanges) -> str:
    """Return the holes of ranges in words, the first few by address; or the error if they cannot be read."""
    try:
        holes = find_holes(settings, topic, ranges)
    except RivertwiceError as error:
        return f"which offsets hold no record is not known: {error}"
    named = ", ".join(f"{topic}/{p}@{offset} ({cause})" for (p, offset), cause in list(holes.items())[:NAMED])
    more = f" and {len(holes) - NAMED} more" if len(holes) > NAMED else ""
    return f"no record at {named}{more}" if holes else "every offset holds a record now"


def absent_runs(settings: Settings, topic: str, ranges: OffsetRanges) -> Runs:
    """Return the offsets of ranges that hold no record for a reader, because of transactions alone.

    The records are read, none is kept: memory grows with the number of runs.

    Args:
        settings: gives the Kafka address.
        topic: the topic.
        ranges: half-open, ending at or before the first open transaction.

    Raises:
        LogGapError: the topic is compacted, so an absent record may have been one that counts; or the range is gone.
        ServiceError: Kafka does not answer.
    """
    if kafka.is_compacted(settings, topic):
        message = (
            f"topic {topic} has cleanup.policy=compact: Kafka removes records that newer ones supersede, so a batch cannot be counted, and a "
            f"recompute reads less than the stream did; {explain_holes(settings, topic, ranges)}; what is streamed and archived "
            "before Kafka compacts it is whole: raise the topic's min.compaction.lag.ms, set cleanup.policy=delete, or copy the records to a topic that is not compacted and stream that"
        )
        raise LogGapError(message)
    runs = _skipped(settings, topic, ranges)
    begin = kafka.begin_offsets(settings, topic)
    gone = {p: start for p, (start, end) in drop_empty(ranges).items() if start < begin.get(p, 0)}
    if gone:
        message = (
            f"topic {topic}: Kafka deletes the first records of partition {', '.join(map(str, gone))} while they are counted; nothing "
            "was concluded; see `rivertwice retention`"
        )
        raise LogGapError(message)
    return runs


def compacted_away(settings: Settings, topic: str, ranges: OffsetRanges) -> list[tuple[int, int, int]]:
    """Return (partition, start, end) of what a compacted topic has no record for any more; nothing for another topic.

    Records between two runs that lie close are counted in, if there were too many runs to look at.

    Raises:
        ServiceError: Kafka does not answer.
        LogGapError: the range is gone.
    """
    if not kafka.is_compacted(settings, topic):
        return []
    runs = _skipped(settings, topic, ranges)
    return [(partition, *run) for partition, own in runs.items() for run in merge_close(own, MOST_RUNS)]


def merge_close(runs: Sequence[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Return at most `most` runs that cover `runs`, closing the smallest gaps between them. Pure."""
    if len(runs) <= most:
        return list(runs)
    gaps = sorted(range(1, len(runs)), key=lambda n: runs[n][0] - runs[n - 1][1])
    closed = set(gaps[: len(runs) - most])
    merged: list[tuple[int, int]] = [runs[0]]
    for number, run in enumerate(runs[1:], start=1):
        merged[-1:] = [(merged[-1][0], run[1])] if number in closed else [merged[-1], run]
    return merged


def _skipped(settings: Settings, topic: str, ranges: OffsetRanges) -> Runs:
    records = read_exactly(settings, topic, ranges)
    return runs_between(((int(r.partition() or 0), int(r.offset() or 0)) for r in records), ranges)


def runs_between(addresses: Iterable[tuple[int, int]], ranges: OffsetRanges) -> Runs:
    """Return the runs of offsets of ranges that are not among the addresses. Pure.

    Args:
        addresses: (partition, offset) in the ranges, in order within each partition.
        ranges: half-open.
    """
    following = {partition: start for partition, (start, _) in ranges.items()}
    runs: dict[int, list[tuple[int, int]]] = {}
    for partition, offset in addresses:
        if offset > following[partition]:
            runs.setdefault(partition, []).append((following[partition], offset))
        following[partition] = offset + 1
    for partition, (_, end) in ranges.items():
        if end > following[partition]:
            runs.setdefault(partition, []).append((following[partition], end))
    return {partition: tuple(of_partition) for partition, of_partition in sorted(runs.items())}


def count_runs(runs: Mapping[int, Iterable[tuple[int, int]]]) -> dict[int, int]:
    """Return partition to how many offsets its runs contain."""
    return {partition: sum(end - start for start, end in of_partition) for partition, of_partition in runs.items()}
