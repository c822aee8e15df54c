"""Read exact offset ranges with a plain consumer: for few records a JVM would cost more than the reading."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from rivertwice.config import Settings
from rivertwice.errors import LogGapError, ServiceError
from rivertwice.log import kafka
from rivertwice.log.addresses import OffsetRanges, Part, describe, drop_empty
from rivertwice.waits import Deadline

PATIENCE_S = 30.0  # without a record or an end of partition; a killed broker is back in 5 s
_FEW_BYTES = 65_536
BRIEF = {
    "enable.partition.eof": True,
    "isolation.level": "read_uncommitted",
    "fetch.message.max.bytes": _FEW_BYTES,
    "queued.min.messages": 1,
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 0,  # the queue of one record is full at once; the client would wait a second for each piece
}
"""Options of a client that fetches little beyond a short range."""
_GONE = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)


def read_exactly(settings: Settings, topic: str, ranges: OffsetRanges, *, committed: bool = True) -> Iterator[Message]:
    """Yield the records of half-open ranges, in order within each partition.

    Offsets without a record for a reader (a transaction's marker, an aborted or compacted record) are skipped: a caller
    that needs one record per offset must count.

    Args:
        settings: gives the Kafka address.
        topic: the topic.
        ranges: partition to half-open range, which must end at or before Kafka's end.
        committed: leave out records of aborted transactions; False includes them.

    Raises:
        LogGapError: Kafka no longer has the next offset of a partition.
        ServiceError: no record came for half a minute.
    """
    ranges_to_read = drop_empty(ranges)
    if not ranges_to_read:
        return
    reader = _open(settings, "read_committed" if committed else "read_uncommitted")
    try:
        yield from read_with(reader, settings, topic, ranges_to_read)
    finally:
        reader.close()


def read_pieces(settings: Settings, pieces: Mapping[Part, Sequence[tuple[int, int]]]) -> Iterator[tuple[Part, Message]]:
    """Yield the records of many short half-open ranges, in the order given within each partition.

    The client fetches little beyond each range. Errors are those of `read_exactly`; so are offsets without a record.
    """
    reader = kafka.consumer(settings, extra=BRIEF)
    try:
        for topic in sorted({part.topic for part in pieces}):
            of_topic = {part.partition: ranges for part, ranges in pieces.items() if part.topic == topic}
            for number in range(max(map(len, of_topic.values()))):
                turn = {partition: ranges[number] for partition, ranges in of_topic.items() if number < len(ranges)}
                for message in read_with(reader, settings, topic, drop_empty(turn)):
                    yield Part(topic, int(message.partition() or 0)), message
    finally:
        reader.close()


def read_with(reader: Consumer, settings: Settings, topic: str, ranges: OffsetRanges) -> Iterator[Message]:
    """Yield the records of a topic's ranges, none of which is empty, through an open reader. Errors are those of `read_exactly`."""
    reader.assign([TopicPartition(topic, partition, start) for partition, (start, _) in ranges.items()])
    following = {partition: start for partition, (start, _) in ranges.items()}
    quiet_since = time.monotonic()
    while following:
        wanted = sum(ranges[partition][1] - at for partition, at in following.items())
        for message in reader.consume(min(wanted, 1000), 0.2):
            quiet_since = time.monotonic()
            partition = int(message.partition() or 0)
            if partition not in following:
                continue
            if message.error() is None:
                offset = int(message.offset() or 0)
                if offset < following[partition]:
                    continue  # fetched for an earlier range
                if offset < ranges[partition][1]:
                    yield message
                following[partition] = offset + 1
            else:
                following[partition] = _place(message, topic, ranges)
            if following[partition] >= ranges[partition][1]:
                del following[partition]
        if time.monotonic() - quiet_since > PATIENCE_S:
            text = (
                f"Kafka at {settings.bootstrap_servers()} gave no record of topic {topic} for {PATIENCE_S:.0f} s, "
                f"{describe({p: (at, ranges[p][1]) for p, at in following.items()})} is outstanding; an open "
                "transaction may hold it; see `rivertwice status`"
            )
            raise ServiceError(text)


def first_stamps(settings: Settings, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
    """Return per partition the timestamp (epoch ms) of the first record at or after an offset; absent if there is none."""
    ends = kafka.end_offsets(settings, topic)
    remaining = {partition: offset for partition, offset in offsets.items() if offset < ends.get(partition, 0)}
    stamps: dict[int, int] = {}
    if not remaining:
        return stamps
    reader = _open(settings, "read_uncommitted")
    try:
        reader.assign([TopicPartition(topic, partition, offset) for partition, offset in remaining.items()])
        deadline = Deadline.after(kafka.TIMEOUT)
        while remaining and not deadline.is_over():
            for message in reader.consume(50, 0.2):
                partition = int(message.partition() or 0)
                if partition in remaining and message.error() is None:
                    stamps[partition] = int(message.timestamp()[1])
                remaining.pop(partition, None)
    finally:
        reader.close()
    return stamps


def _place(message: Message, topic: str, ranges: OffsetRanges) -> int:
    """Return the offset of an end-of-partition event; raise if the message is an error."""
    error = message.error()
    partition = int(message.partition() or 0)
    if error is not None and error.code() == KafkaError._PARTITION_EOF:
        return int(message.offset() or 0)
    if error is not None and error.code() in _GONE:
        text = (
            f"topic {topic}: the first records of partition {partition} [{ranges[partition][0]}, {ranges[partition][1]}) "
            "are gone from Kafka, so the range was not read; see `rivertwice retention`"
        )
        raise LogGapError(text)
    text = f"Kafka failed at reading partition {partition} of topic {topic}: {error}; see `rivertwice status`"
    raise ServiceError(text)


def read_to(settings: Settings, topic: str, ends: Mapping[int, int]) -> Iterator[Message]:
    """Yield the committed records that Kafka still has before the end of each partition; wait for transactions that are open there.

    Errors are those of `read_exactly`.
    """
    begins = kafka.begin_offsets(settings, topic)
    yield from read_exactly(settings, topic, {partition: (begins[partition], end) for partition, end in ends.items()})


def _open(settings: Settings, isolation: str) -> Consumer:
    return kafka.consumer(
        settings, extra={"enable.partition.eof": True, "isolation.level": isolation, "fetch.wait.max.ms": 20}
    )
