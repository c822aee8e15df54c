"""Produce records to given partitions and learn the address of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from rivertwice.config import Settings
from rivertwice.errors import ServiceError
from rivertwice.log import kafka

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
