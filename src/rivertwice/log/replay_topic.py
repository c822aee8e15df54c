"""A temporary topic with a range of the log, so that a stream can replay records that Kafka has deleted."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from rivertwice.config import Settings, require_topic
from rivertwice.errors import LogGapError, ServiceError
from rivertwice.log import kafka
from rivertwice.log.addresses import OffsetRanges

_log = logging.getLogger(__name__)
_FLUSH_S = 60.0
OFFSET_HEADER = "rivertwice-offset"
"""Header of a replay topic's record: its offset in the log. Only where that cannot be computed from the record's place."""


@contextmanager
def replay_topic(settings: Settings, name: str, partitions: int) -> Iterator[str]:
    """Create an empty temporary topic for the block, and delete it afterwards; one left by a crash is replaced."""
    require_topic(name)
    if kafka.topic_exists(settings, name):
        kafka.delete_topic(settings, name)
    kafka.ensure_topic(settings, name, partitions)
    try:
        yield name
    finally:
        kafka.delete_topic(settings, name)


def feed_replay_topic(
    settings: Settings,
    name: str,
    ranges: OffsetRanges,
    records: Iterable[Mapping[str, Any]],
    *,
    absent: Mapping[int, int] | None = None,
) -> int:
    """Produce records into an empty temporary topic: same partition, key, value, headers and timestamp, offset - start.

    Offsets of the range without a record are left out, so later records move up; then each record carries its own offset in the
    header `OFFSET_HEADER`.

    Args:
        settings: gives the Kafka address.
        name: the temporary topic.
        ranges: partition to half-open offset range; its start becomes offset 0.
        records: Kafka's columns, ordered by offset within each partition.
        absent: partition to how many of its offsets hold no record, as recorded; exactly so many must lack one.

    Returns:
        how many records were produced.

    Raises:
        LogGapError: a record is missing, so later offsets would shift.
        ServiceError: Kafka did not acknowledge all records.
    """
    following = {partition: start for partition, (start, _) in ranges.items()}
    failed: list[str] = []
    producer = kafka.producer(settings)
    allowed = dict(absent or {})
    left_out = dict.fromkeys(ranges, 0)
    count = 0
    for record in records:
        partition, offset = int(record["partition"]), int(record["offset"])
        expected = following.get(partition)
        if expected is None or not 0 <= offset - expected <= allowed.get(partition, 0) - left_out[partition]:
            raise LogGapError(_gap(partition, expected, offset))
        left_out[partition] += offset - expected
        following[partition] = offset + 1
        place = offset - ranges[partition][0] - left_out[partition]
        headers = [(header["key"], header["value"]) for header in record["headers"] or []]
        if allowed:
            headers.append((OFFSET_HEADER, str(offset).encode()))
        while True:
            try:
                producer.produce(
                    name,
                    value=_bytes(record["value"]),
                    key=_bytes(record["key"]),
                    partition=partition,
                    timestamp=int(record["timestamp_ms"]),
                    headers=headers,
                    on_delivery=partial(_check, failed, place),
                )
                break
            except BufferError:
                producer.poll(0.5)
        count += 1
        if count % 1000 == 0:
            producer.poll(0)
    unsent = producer.flush(_FLUSH_S)
    for partition, (_, end) in ranges.items():
        if end - following[partition] + left_out[partition] != allowed.get(partition, 0):
            raise LogGapError(_gap(partition, following[partition], end))
    if unsent or failed:
        message = f"Kafka did not take {unsent} records of replay topic {name} ({failed[:1]}); nothing depends on it; run it again"
        raise ServiceError(message)
    _log.info("replay topic %s: %s records", name, count)
    return count


def _check(failed: list[str], place: int, error: Any, message: Any) -> None:
    if error is not None:
        failed.append(str(error))
    elif message.offset() != place:
        failed.append(f"offset {message.offset()} instead of {place}")


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _gap(partition: int, expected: int | None, following: int) -> str:
    return (
        f"partition {partition}: the record at offset {expected} is missing (the next one is {following}); a replay would shift "
        "all later offsets and is refused; neither Kafka nor the archive has it, so use a newer savepoint"
    )
