"""Produce records: to given partitions, to the topics of a replay; and what a broker answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from rivertwice.core import Deadline, LogGapError, ServiceError, Settings, require_topic
from rivertwice.log import kafka
from rivertwice.log.addresses import OffsetRanges
from rivertwice.log.kafka import python_options

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

FLUSH_SECONDS = 120.0


class SentRecord(Protocol):
    """A record that can be sent."""

    @property
    def partition(self) -> int:
        """Target partition."""

    @property
    def key(self) -> bytes | None:
        """Key."""

    @property
    def value(self) -> bytes | None:
        """Value; None is a tombstone."""

    @property
    def timestamp_ms(self) -> int:
        """The record's own timestamp."""

    @property
    def headers(self) -> tuple[tuple[str, bytes], ...]:
        """Headers."""


@dataclass(frozen=True)
class Sent:
    """The place of an acknowledged record."""

    partition: int
    offset: int


def hand_over(
    client: Producer,
    topic: str,
    record: SentRecord,
    on_delivery: Callable[[KafkaError | None, Message], None],
    give_up: Callable[[], bool] = lambda: False,
) -> None:
    """Put a record into the producer's queue; while the queue is full, let it send, until `give_up()` returns true."""
    while not give_up():
        try:
            client.produce(
                topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                timestamp=record.timestamp_ms,
                headers=list(record.headers),
                on_delivery=on_delivery,
            )
        except BufferError:
            client.poll(0.1)
        else:
            return


def send_records(settings: Settings, topic: str, records: Sequence[SentRecord]) -> list[Sent]:
    """Produce `records`, in order within each partition, and return their addresses in the same order.

    Raises:
        ServiceError: not all records were acknowledged.
    """
    client = kafka.producer(settings)
    places: dict[int, Sent] = {}
    errors: list[KafkaError] = []

    def delivered(number: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            places[number] = Sent(int(message.partition() or 0), int(message.offset() or 0))
        else:
            errors.append(error)

    for number, record in enumerate(records):
        hand_over(client, topic, record, partial(delivered, number))
        client.poll(0)
    client.flush(FLUSH_SECONDS)
    if len(places) < len(records):
        first = errors[0] if errors else f"no answer within {FLUSH_SECONDS:.0f} s"
        message = (
            f"Kafka acknowledged {len(places)} of {len(records)} records for topic {topic} ({first}); it is not known "
            "which of the others it holds; use a new topic"
        )
        raise ServiceError(message)
    return [places[number] for number in range(len(records))]


# A temporary topic with a range of the log, so that a stream can replay records that Kafka has deleted.

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
        ranges: partition to half-open offset range; its start becomes offset 0.
        records: Kafka's columns, ordered by offset within each partition.
        absent: partition to how many of its offsets hold no record, as recorded; exactly this number must lack one.

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


# Whether Kafka answers, and how long a start waits for the answer.

START_SECONDS = 90.0
_QUIET = logging.getLogger("rivertwice.log.quiet")  # a broker that is still starting is not logged
_QUIET.setLevel(logging.CRITICAL)


def ask_cluster_id(settings: Settings, seconds: float) -> str | None:
    """Return the cluster's id if a broker answers within a time limit."""
    options: dict[str, Any] = {**python_options(settings), "logger": _QUIET}
    client = AdminClient(options)
    try:
        answer = client.list_topics(timeout=seconds)
    except KafkaException:
        return None
    return str(answer.cluster_id) if answer.brokers else None


def await_kafka(settings: Settings, require_starting: Callable[[], None] | None = None) -> str:
    """Wait until Kafka answers at the configured address, or the embedded broker's, and return the cluster's id.

    Args:
        require_starting: raises if waiting has no purpose any more; for the embedded broker. None for a Kafka that somebody
            else runs.

    Raises:
        ServiceError: Kafka did not answer in time, or refuses this client.
        ConfigError: no address is known.
    """
    bootstrap = settings.bootstrap_servers()
    for _ in Deadline.after(START_SECONDS).polls(0.05):
        cluster_id = ask_cluster_id(settings, 1.0)
        if cluster_id is not None:
            return cluster_id
        if require_starting is not None:
            require_starting()
        elif (refused := kafka.refusal(settings)) is not None:
            message = f"Kafka at {bootstrap} refuses this client ({refused}); check RIVERTWICE_KAFKA_*"
            raise ServiceError(message)
    where = "the address" if settings.bootstrap else f"{settings.broker / 'logs'} or the address"
    message = f"no broker answers at {bootstrap} after {START_SECONDS:.0f} s; see {where}"
    raise ServiceError(message)
