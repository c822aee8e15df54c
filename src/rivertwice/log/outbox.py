"""Send records and a position together: in one Kafka transaction, or, without transactions, the position last.

The position is stored in a compacted topic, under a key of its own, and not in a consumer group's offsets. Kafka deletes those if a
group is idle for `offsets.retention.minutes` (seven days), and all records would be sent again.

`open` fences: a running producer with the same transactional id can no longer commit, and its unfinished transaction is
aborted before the position is read. So after `open` the position changes only by this outbox.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, Producer, TopicPartition

from rivertwice.config import Settings
from rivertwice.errors import LeaseLostError, ServiceError, UnknownOutcomeError
from rivertwice.log import kafka

LOG = logging.getLogger(__name__)
POSITIONS = "rivertwice-positions"
COMMIT_S = 60.0
MOST_BYTES = 1_048_588  # Kafka's own default of max.message.bytes
OPEN_S = 60.0
_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "4194304",
    "min.cleanable.dirty.ratio": "0.1",
}
_FENCED = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)


class Outbox:
    """Sends to one topic; only one outbox per transactional id works at a time in the whole cluster."""

    def __init__(self, settings: Settings, topic: str, name: str, *, transactional: bool) -> None:
        """Create an outbox; it sends nothing until `open`.

        Args:
            settings: the cluster.
            topic: the target topic.
            name: key of the position, and transactional id.
            transactional: whether records and position are one transaction.
        """
        self._settings = settings
        self._topic = topic
        self._name = name
        self._transactional = transactional
        self._producer: Producer | None = None
        self._failures: list[KafkaError] = []
        self.most_bytes = MOST_BYTES
        """Bytes of the largest batch that the topic accepts, with one record or more."""

    def open(self) -> bytes | None:
        """Fence every earlier outbox of this name, and return its last position, or None.

        Raises:
            ServiceError: Kafka does not answer.
        """
        kafka.ensure_topic(self._settings, POSITIONS, 1, _COMPACTED)
        if kafka.topic_exists(self._settings, self._topic):
            self.most_bytes = self._limit()
        self._make_producer()
        return read_newest(self._settings, POSITIONS, self._name.encode())

    def fit_to_topic(self) -> None:
        """Limit batches to the size that the topic accepts; call it if the topic was created after `open`."""
        limit = self._limit()
        if limit != self.most_bytes:
            self.close()
            self.most_bytes = limit
            self._make_producer()

    def _limit(self) -> int:
        try:
            config = kafka.topic_config(self._settings, self._topic)
        except ServiceError as error:  # a client may have the right to write to a topic, but not to read its settings
            LOG.info(
                "the largest batch that %s takes is not known, %s bytes are assumed: %s", self._topic, MOST_BYTES, error
            )
            return MOST_BYTES
        return int(config.get("max.message.bytes", MOST_BYTES))

    def _make_producer(self) -> None:
        self._producer = kafka.producer(
            self._settings,
            transactional_id=self._name if self._transactional else None,
            most_bytes=self.most_bytes,
        )
        if self._transactional:
            try:
                self._producer.init_transactions(OPEN_S)
            except KafkaException as error:
                message = (
                    f"Kafka gave {self._name} no transactions ({error.args[0]}); nothing was sent; see `rivertwice status`, and "
                    "that the cluster allows the transactional id"
                )
                raise ServiceError(message) from error

    def send(self, records: Iterable[tuple[bytes, bytes]], position: bytes) -> None:
        """Send (key, value) pairs and the position; a reader of committed records sees all of them or none.

        Raises:
            LeaseLostError: another outbox of this name was opened; none of these records is visible.
            ServiceError: Kafka refused; nothing is visible (without transactions: perhaps records, but no position).
            UnknownOutcomeError: the commit was not answered; opening the outbox again shows the outcome by the position.
        """
        producer = self._producer
        assert producer is not None, "open comes first"
        self._failures = []
        try:
            if self._transactional:
                producer.begin_transaction()
            for key, value in records:
                self._hand_over(producer, self._topic, key, value)
            if not self._transactional:
                self._flush(producer)
            self._hand_over(producer, POSITIONS, self._name.encode(), position)
            if not self._transactional:
                self._flush(producer)
                return
            self._check()
        except KafkaException as error:
            self._give_up(producer)
            raise self._explained(error) from error
        except BaseException:  # also an interruption: an unfinished transaction must never be committed
            self._give_up(producer)
            raise
        self._commit(producer)

    def close(self) -> None:
        """Drop the producer; an uncommitted transaction is aborted by the next `open`, or by Kafka after a minute."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

    def _commit(self, producer: Producer) -> None:
        try:
            producer.commit_transaction(COMMIT_S)
        except KafkaException as error:
            cause: Any = error.args[0]
            if cause.txn_requires_abort():
                self._give_up(producer)
                raise self._explained(error) from error
            self._producer = None
            if cause.code() in _FENCED:
                raise self._explained(error) from error
            message = (
                f"no answer came to the commit of a transaction of {self._name} ({cause}); it is not known whether it counts; "
                "opening it again shows the outcome by the position"
            )
            raise UnknownOutcomeError(message) from error

    def _hand_over(self, producer: Producer, topic: str, key: bytes, value: bytes) -> None:
        while True:
            try:
                producer.produce(topic, value=value, key=key, on_delivery=self._on_delivery)
            except BufferError:
                producer.poll(0.1)
                self._check()
            else:
                producer.poll(0)
                return

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failures.append(error)

    def _check(self) -> None:
        if self._failures:
            raise KafkaException(self._failures[0])

    def _flush(self, producer: Producer) -> None:
        unsent = producer.flush(COMMIT_S)
        self._check()
        if unsent:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def _give_up(self, producer: Producer) -> None:
        """Abort; if that fails too, the next `open` does it."""
        self._producer = None
        if self._transactional:
            try:
                producer.abort_transaction(10.0)
            except KafkaException as error:
                LOG.info("the transaction of %s was not aborted here (%s); the next start does it", self._name, error)
        producer.purge()

    def _explained(self, error: KafkaException) -> ServiceError | LeaseLostError:
        cause = error.args[0]
        if cause.code() in _FENCED:
            message = (
                f"another deliverer opened {self._name} on this cluster, so this one is fenced: nothing of its unfinished "
                "transaction is visible; run one deliverer per sink, see `rivertwice deliver status`"
            )
            return LeaseLostError(message)
        message = f"Kafka refused records of {self._name} for {self._topic}: {cause}; the transaction was aborted; it is tried again"
        return ServiceError(message)


def read_newest(settings: Settings, topic: str, key: bytes) -> bytes | None:
    """Return the newest committed value of a key in a topic of one partition, or None.

    Raises:
        ServiceError: Kafka does not give the topic to its end in time.
    """
    reader = kafka.consumer(settings, extra={"enable.partition.eof": True, "auto.offset.reset": "earliest"})
    newest: bytes | None = None
    quiet = 0.0
    try:
        reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while quiet < OPEN_S:
            message = reader.poll(1.0)
            quiet = quiet + 1.0 if message is None else 0.0
            error = None if message is None else message.error()
            if message is not None and error is None:
                newest = message.value() if message.key() == key else newest
            elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                return newest
            elif error is not None and not error.retriable():
                text = f"Kafka did not give {topic} ({error}); see `rivertwice status`"
                raise ServiceError(text)
    finally:
        reader.close()
    text = f"Kafka did not give {topic} to its end within {OPEN_S:.0f} s; see `rivertwice status`"
    raise ServiceError(text)
