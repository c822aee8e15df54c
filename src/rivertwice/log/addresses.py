"""Ranges of offsets, partition by partition. Pure; half-open: `(start, end)` holds start and not end.

A record's address is (cluster id, topic id, partition, offset); the ids say which log, these ranges which records.
Where several topics are looked at together, the key is a `Part` instead of the number of a partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from rivertwice.errors import RequestError

OffsetRanges = dict[int, tuple[int, int]]


class Part(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


Parts = dict[Part, tuple[int, int]]
StoredOffsets = Mapping[str, Mapping[str, int]]
"""Topic to partition, as text, to offset: as JSON and Spark's checkpoint hold them."""
_Key = TypeVar("_Key", int, Part)


def parts_of(topic: str, ranges: Mapping[int, tuple[int, int]]) -> Parts:
    """Return one topic's ranges by part."""
    return {Part(topic, partition): pair for partition, pair in ranges.items()}


def of_topic(parts: Mapping[Part, tuple[int, int]], topic: str) -> OffsetRanges:
    """Return the ranges of one topic by partition."""
    return {part.partition: pair for part, pair in parts.items() if part.topic == topic}


def name_parts(parts: Iterable[Part]) -> dict[Part, str]:
    """Return how people and stored records name all parts of a pipeline: `0`, or `topic/0` if there are several topics."""
    return {part: str(key) for part, key in key_parts(parts).items()}


def key_parts(parts: Iterable[Part]) -> dict[Part, int | str]:
    """Return what machines read all parts of a pipeline by: the partition, or `topic/0` if there are several topics."""
    found = sorted(parts)
    several = len({part.topic for part in found}) > 1
    return {part: f"{part.topic}/{part.partition}" if several else part.partition for part in found}


def between(starts: Mapping[int, int], ends: Mapping[int, int]) -> OffsetRanges:
    """Return the ranges from `starts` to `ends`; a partition without a start begins at 0.

    Raises:
        RequestError: a start lies after its end.
    """
    for partition, end in ends.items():
        if starts.get(partition, 0) > end:
            message = (
                f"partition {partition} would run backwards, from offset {starts[partition]} to {end}; the topic was "
                "created again or the two ends belong to different topics"
            )
            raise RequestError(message)
    return {partition: (starts.get(partition, 0), end) for partition, end in sorted(ends.items())}


def drop_empty(ranges: dict[_Key, tuple[int, int]]) -> dict[_Key, tuple[int, int]]:
    """Return the ranges that hold at least one offset."""
    return {partition: (start, end) for partition, (start, end) in sorted(ranges.items()) if start < end}


def count(ranges: OffsetRanges | Parts) -> int:
    """Return how many offsets the ranges hold; on a plain topic that is the number of records."""
    return sum(max(0, end - start) for start, end in ranges.values())


def contains(ranges: OffsetRanges, partition: int, offset: int) -> bool:
    """Say whether an address lies in the ranges."""
    start, end = ranges.get(partition, (0, 0))
    return start <= offset < end


def intersect(left: dict[_Key, tuple[int, int]], right: dict[_Key, tuple[int, int]]) -> dict[_Key, tuple[int, int]]:
    """Return the offsets that are in both; empty ranges are left out."""
    shared = {
        partition: (max(left[partition][0], right[partition][0]), min(left[partition][1], right[partition][1]))
        for partition in left.keys() & right.keys()
    }
    return drop_empty(shared)


def split(ranges: OffsetRanges, by: OffsetRanges) -> tuple[OffsetRanges, OffsetRanges, OffsetRanges]:
    """Return the parts of `ranges` below, inside and above `by`; where `by` has nothing, all is above."""
    cuts = drop_empty(by)
    below: OffsetRanges = {}
    above: OffsetRanges = {}
    for partition, (start, end) in ranges.items():
        low, high = cuts.get(partition, (start, start))
        below[partition] = (start, min(end, low))
        above[partition] = (max(start, high), end)
    return drop_empty(below), intersect(ranges, cuts), drop_empty(above)


def subtract(ranges: OffsetRanges, taken: OffsetRanges) -> OffsetRanges:
    """Return `ranges` without the offsets of `taken`.

    Raises:
        RequestError: `taken` lies in the middle of a range, so that two pieces would be left; use `split`.
    """
    below, _, above = split(ranges, taken)
    return merge(below, above)


def merge(left: OffsetRanges, right: OffsetRanges) -> OffsetRanges:
    """Return one range per partition that holds exactly the offsets of both.

    Raises:
        RequestError: two ranges of a partition neither touch nor overlap.
    """
    merged = drop_empty(left)
    for partition, (start, end) in drop_empty(right).items():
        low, high = merged.get(partition, (start, end))
        if start > high or end < low:
            message = (
                f"partition {partition}: [{low}, {high}) and [{start}, {end}) do not touch, so one range would take in "
                "offsets of neither; handle the two apart"
            )
            raise RequestError(message)
        merged[partition] = (min(low, start), max(high, end))
    return dict(sorted(merged.items()))


def plan_chunks(ranges: OffsetRanges, size: int) -> list[OffsetRanges]:
    """Cut ranges into successive chunks of at most `size` offsets, together exactly `ranges`.

    The partitions advance side by side: each chunk takes the same share of every range, so that records of the same
    time land in the same chunk and a crash leaves the partitions equally far.

    Raises:
        RequestError: `size` is not positive.
    """
    if size < 1:
        message = f"a chunk of {size} offsets holds nothing, so no chunk would ever be done; ask for at least 1"
        raise RequestError(message)
    return list(_chunks(drop_empty(ranges), size))


def _chunks(left: OffsetRanges, size: int) -> Iterator[OffsetRanges]:
    while left:
        ends = _share(left, size)
        yield drop_empty({partition: (start, ends[partition]) for partition, (start, _) in left.items()})
        left = drop_empty({partition: (ends[partition], end) for partition, (_, end) in left.items()})


def _share(left: OffsetRanges, size: int) -> dict[int, int]:
    """Return where the next chunk ends: the same share of each range, rounded down, then topped up to `size`."""
    total = max(size, count(left))
    ends = {partition: start + (end - start) * size // total for partition, (start, end) in left.items()}
    room = size - sum(ends[partition] - start for partition, (start, _) in left.items())
    for partition, (_, end) in left.items():
        more = min(room, end - ends[partition])
        ends[partition] += more
        room -= more
    return ends


def encode_ends(ends: Mapping[int, int]) -> dict[str, int]:
    """Return offsets with text keys, as JSON wants them."""
    return {str(partition): offset for partition, offset in sorted(ends.items())}


def decode_ends(encoded: Mapping[str, int]) -> dict[int, int]:
    """Return what `encode_ends` was given."""
    return {int(partition): int(offset) for partition, offset in sorted(encoded.items(), key=lambda pair: int(pair[0]))}


def describe(ranges: OffsetRanges) -> str:
    """Return the ranges as a person reads them: `partition 0 [3, 9), partition 2 [0, 4)`."""
    return ", ".join(f"partition {partition} [{start}, {end})" for partition, (start, end) in sorted(ranges.items()))


def describe_parts(parts: Parts) -> str:
    """Return the ranges as a person reads them, topic by topic: `flights partition 0 [3, 9), partition 2 [0, 4)`."""
    topics = sorted({part.topic for part in parts})
    return "; ".join(f"{topic} {describe(of_topic(parts, topic))}" for topic in topics)
