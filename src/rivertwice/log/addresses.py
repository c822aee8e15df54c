"""Ranges of offsets, by partition. Pure; half-open: `(start, end)` contains start but not end.

A record's address is (cluster id, topic id, partition, offset). The ids identify the log, these ranges the records.
For several topics together, the key is a `Part` instead of the number of a partition.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from rivertwice.core import RequestError

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
    """Return the names of all parts of a pipeline for people and stored records: `0`, or `topic/0` if there are several topics."""
    return {part: str(key) for part, key in key_parts(parts).items()}


def key_parts(parts: Iterable[Part]) -> dict[Part, int | str]:
    """Return the keys of all parts of a pipeline for programs: the partition, or `topic/0` if there are several topics."""
    sorted_parts = sorted(parts)
    several = len({part.topic for part in sorted_parts}) > 1
    return {part: f"{part.topic}/{part.partition}" if several else part.partition for part in sorted_parts}


def between(starts: Mapping[int, int], ends: Mapping[int, int]) -> OffsetRanges:
    """Return the ranges from `starts` to `ends`; a partition without a start begins at 0.

    Raises:
        RequestError: a start is after its end.
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
    """Return the ranges that contain at least one offset."""
    return {partition: (start, end) for partition, (start, end) in sorted(ranges.items()) if start < end}


def count(ranges: OffsetRanges | Parts) -> int:
    """Return how many offsets the ranges contain; on a plain topic this is the number of records."""
    return sum(max(0, end - start) for start, end in ranges.values())


def contains(ranges: OffsetRanges, partition: int, offset: int) -> bool:
    """Say whether an address is in the ranges."""
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
    """Return the parts of `ranges` below, inside and above `by`; without a range in `by`, the whole range is above."""
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
        RequestError: `taken` is in the middle of a range, so that two pieces would remain; use `split`.
    """
    below, _, above = split(ranges, taken)
    return merge(below, above)


def merge(left: OffsetRanges, right: OffsetRanges) -> OffsetRanges:
    """Return one range per partition that contains exactly the offsets of both.

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
    """Cut ranges into successive chunks of at most `size` offsets; together they are exactly `ranges`.

    The partitions advance together: each chunk takes the same share of every range. So records of the same time are in
    the same chunk, and after a crash all partitions have made the same progress.

    Raises:
        RequestError: `size` is not positive.
    """
    if size < 1:
        message = f"a chunk of {size} offsets is empty, so no chunk would ever be done; ask for at least 1"
        raise RequestError(message)
    return list(_chunks(drop_empty(ranges), size))


def _chunks(remaining: OffsetRanges, size: int) -> Iterator[OffsetRanges]:
    while remaining:
        ends = _share(remaining, size)
        yield drop_empty({partition: (start, ends[partition]) for partition, (start, _) in remaining.items()})
        remaining = drop_empty({partition: (ends[partition], end) for partition, (_, end) in remaining.items()})


def _share(remaining: OffsetRanges, size: int) -> dict[int, int]:
    """Return the ends of the next chunk: the same share of each range, rounded down, then filled up to `size`."""
    total = max(size, count(remaining))
    ends = {partition: start + (end - start) * size // total for partition, (start, end) in remaining.items()}
    room = size - sum(ends[partition] - start for partition, (start, _) in remaining.items())
    for partition, (_, end) in remaining.items():
        more = min(room, end - ends[partition])
        ends[partition] += more
        room -= more
    return ends


def encode_offsets(offsets: StoredOffsets) -> str:
    """Return offsets as Spark writes them."""
    return json.dumps(offsets, separators=(",", ":"))


def encode_ends(ends: Mapping[int, int]) -> dict[str, int]:
    """Return offsets with text keys, as JSON needs them."""
    return {str(partition): offset for partition, offset in sorted(ends.items())}


def decode_ends(encoded: Mapping[str, int]) -> dict[int, int]:
    """Return the offsets that `encode_ends` encoded."""
    return {int(partition): int(offset) for partition, offset in sorted(encoded.items(), key=lambda pair: int(pair[0]))}


def describe(ranges: OffsetRanges) -> str:
    """Return the ranges for people: `partition 0 [3, 9), partition 2 [0, 4)`."""
    return ", ".join(f"partition {partition} [{start}, {end})" for partition, (start, end) in sorted(ranges.items()))


def describe_parts(parts: Parts) -> str:
    """Return the ranges for people, topic by topic: `flights partition 0 [3, 9), partition 2 [0, 4)`."""
    topics = sorted({part.topic for part in parts})
    return "; ".join(f"{topic} {describe(of_topic(parts, topic))}" for topic in topics)
