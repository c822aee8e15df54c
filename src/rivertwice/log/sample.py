"""A bounded sample of a topic: the oldest and the newest records of each partition, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, Message, TopicPartition

from rivertwice.config import Settings
from rivertwice.errors import RequestError, ServiceError
from rivertwice.log.kafka import TIMEOUT, begin_offsets, consumer, end_offsets, topic_names
from rivertwice.nearest import did_you_mean
from rivertwice.waits import Deadline

_EXTRA = {
    "enable.partition.eof": True,
    "queued.min.messages": 1_000,
    "queued.max.messages.kbytes": 4_096,  # the client reads ahead so much, not 64 MB
}


@dataclass(frozen=True)
class Stretch:
    """Successive offsets of a partition, half-open. `newest` says that it ends where the partition ends."""

    partition: int
    begin: int
    end: int
    newest: bool


@dataclass(frozen=True)
class TopicSample:
    """What was read of a topic.

    Attributes:
        partitions: how many it has.
        held: offsets between the begin and the end of its partitions.
        records: by stretch, in the order of their offsets.
    """

    partitions: int
    held: int
    records: Mapping[Stretch, list[Message]]


def plan_stretches(begins: Mapping[int, int], ends: Mapping[int, int], most: int) -> list[Stretch]:
    """Return which offsets to read: of each partition its share, half of it the oldest and half the newest. Pure.

    Args:
        begins: first offset of each partition.
        ends: the offset after its last.
        most: records in all; a partition gets at least two.
    """
    busy = sorted(partition for partition, end in ends.items() if end > begins.get(partition, 0))
    stretches = []
    for partition in busy:
        begin, end, share = begins.get(partition, 0), ends[partition], max(2, most // len(busy))
        if end - begin <= share:
            stretches.append(Stretch(partition, begin, end, newest=False))
            continue
        stretches.append(Stretch(partition, begin, begin + share // 2, newest=False))
        stretches.append(Stretch(partition, end - (share - share // 2), end, newest=True))
    return stretches


def sample_topic(settings: Settings, topic: str, most: int) -> TopicSample:
    """Read at most about `most` records of a topic; nothing is committed, and no consumer group sees it.

    Raises:
        RequestError: there is no such topic, or it has no record.
        ServiceError: Kafka does not answer, or did not give the records in time.
    """
    known = topic_names(settings)
    if topic not in known:
        message = f"Kafka at {settings.bootstrap_servers()} has no topic {topic!r}, so there is nothing to look at; {did_you_mean(topic, known)}"
        raise RequestError(message)
    begins, ends = begin_offsets(settings, topic), end_offsets(settings, topic)
    held = sum(end - begins.get(partition, 0) for partition, end in ends.items())
    if not held:
        message = (
            f"topic {topic} has no record now, so nothing can be guessed from it; send some, or take a file of records with "
            "--from-file"
        )
        raise RequestError(message)
    stretches = plan_stretches(begins, ends, most)
    records: dict[Stretch, list[Message]] = {}
    # The two stretches of a partition are read one after the other: a consumer is at one place of a partition.
    for newest in (False, True):
        records |= _read(settings, topic, [each for each in stretches if each.newest == newest])
    if not any(records.values()):
        message = f"topic {topic} has offsets but no record that can be read (deleted, or of open transactions); send some records"
        raise RequestError(message)
    return TopicSample(len(ends), held, records)


def _read(settings: Settings, topic: str, stretches: list[Stretch]) -> dict[Stretch, list[Message]]:
    by_partition = {each.partition: each for each in stretches}
    records: dict[Stretch, list[Message]] = {each: [] for each in stretches}
    open_partitions = set(by_partition)
    deadline = Deadline.after(TIMEOUT)
    reader = consumer(settings, group="rivertwice-init", extra=_EXTRA)
    try:
        reader.assign([TopicPartition(topic, each.partition, each.begin) for each in stretches])
        while open_partitions and not deadline.is_over():
            for message in reader.consume(500, 0.2):
                partition = int(message.partition() or 0)
                error = message.error()
                if error is not None:
                    _accept_end(error, topic, partition)
                    open_partitions.discard(partition)
                    continue
                stretch, offset = by_partition[partition], int(message.offset() or 0)
                if offset < stretch.end:
                    records[stretch].append(message)
                if offset >= stretch.end - 1:
                    open_partitions.discard(partition)
    finally:
        reader.close()
    if open_partitions:
        message_text = (
            f"Kafka at {settings.bootstrap_servers()} did not give the records of {topic}, partitions {sorted(open_partitions)}, within "
            f"{TIMEOUT:.0f} s, so nothing was guessed; see `rivertwice status`, and try again"
        )
        raise ServiceError(message_text)
    return records


def _accept_end(error: KafkaError, topic: str, partition: int) -> None:
    """Accept the end of a partition: what a compacted topic or an open transaction leaves of a stretch may be less than it.

    Raises:
        ServiceError: it is any other error.
    """
    if error.code() != KafkaError._PARTITION_EOF:
        message = f"reading {topic}/{partition} failed: {error.str()}; see `rivertwice status`, and try again"
        raise ServiceError(message)
