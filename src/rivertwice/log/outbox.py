"""Send records and a position together: in one Kafka transaction, or, without transactions, the position last.

The position is stored in a compacted topic, under a separate key, and not in a consumer group's offsets. Kafka deletes those if a
group is idle for `offsets.retention.minutes` (seven days), and all records would be sent again.

`open` fences: a running producer with the same transactional id can no longer commit, and its unfinished transaction is
aborted before the position is read. So after `open` the position changes only by this outbox.

Each transaction has a producer epoch that no other transaction has. A request names its epoch, not its transaction. So on one epoch a
commit request of one transaction that the network delays would commit the next one, half sent (librdkafka has no KIP-890:
confluentinc/librdkafka#5423). A new epoch needs a new client, because librdkafka asks for an epoch once in a client's life. An
unfinished transaction is not aborted by a request either, but by the next epoch. It also reaches the partitions, so that a delayed
record of an aborted transaction is refused there by brokers of any version.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from rivertwice.core import Deadline, LeaseLostError, ServiceError, Settings, UnknownOutcomeError
from rivertwice.log import kafka
from rivertwice.log.reader import read_exactly, read_to

LOG = logging.getLogger(__name__)
POSITIONS = "rivertwice-positions"
COMMIT_S = 60.0
PART_S = 20.0
"""Seconds after which a transaction takes no more records. Kafka aborts it after `kafka.TRANSACTION_S`; the rest is for what is queued."""
MOST_BYTES = 1_048_588  # Kafka's own default of max.message.bytes
OPEN_S = 60.0
_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "4194304",
    "min.cleanable.dirty.ratio": "0.1",
}
Outgoing = tuple[Any, ...]
"""Key and value; perhaps also the timestamp in epoch ms, and the headers."""
_FENCED = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)


class Outbox:
    """Sends to one topic; only one outbox per transactional id works at a time in the whole cluster."""

    def __init__(self, settings: Settings, topic: str, name: str, *, transactional: bool) -> None:
        """Create an outbox; it sends nothing until `open`.

        Args:
            name: key of the position, and transactional id.
            transactional: whether records and position are one transaction.
        """
        self._settings = settings
        self._topic = topic
        self._name = name
        self._transactional = transactional
        self._producer: Producer | None = None
        self._failures: list[KafkaError] = []
        self._seen = 0
        """Offset after the newest position of this name, in the topic of positions."""
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
        self._producer = self._make_producer()
        newest, self._seen = read_newest(self._settings, POSITIONS, self._name.encode())
        return newest

    def look(self) -> bytes | None:
        """Return the last position, without fencing."""
        if not kafka.topic_exists(self._settings, POSITIONS):
            return None
        return read_newest(self._settings, POSITIONS, self._name.encode())[0]

    def fit_to_topic(self) -> None:
        """Limit batches to the size that the topic accepts; call it if the topic was created after `open`."""
        limit = self._limit()
        if limit != self.most_bytes:
            self.close()
            self.most_bytes = limit
            self._producer = self._make_producer()

    def _limit(self) -> int:
        try:
            config = kafka.topic_config(self._settings, self._topic)
        except ServiceError as error:  # a client may have the right to write to a topic, but not to read its settings
            LOG.info(
                "the largest batch that %s takes is not known, %s bytes are assumed: %s", self._topic, MOST_BYTES, error
            )
            return MOST_BYTES
        return int(config.get("max.message.bytes", MOST_BYTES))

    def _make_producer(self) -> Producer:
        """Return a client with a new epoch; transactions of earlier epochs are decided once it has it."""
        client = kafka.producer(
            self._settings,
            transactional_id=self._name if self._transactional else None,
            most_bytes=self.most_bytes,
        )
        if self._transactional:
            try:
                client.list_topics(POSITIONS, timeout=OPEN_S)  # with a connection the epoch comes in 5 ms, else in 500
                client.init_transactions(OPEN_S)
            except KafkaException as error:
                message = (
                    f"Kafka gave {self._name} no transactions ({error.args[0]}); nothing was sent; see `rivertwice status`, and "
                    "that the cluster allows the transactional id"
                )
                raise ServiceError(message) from error
        return client

    def _next_epoch(self) -> Producer:
        """Return a client with a new epoch, if no other client has sent under this name since.

        Raises:
            LeaseLostError: somebody has, so the position is not the one that is known here.
            ServiceError: Kafka does not answer.
        """
        client = self._make_producer()
        ends = kafka.end_offsets(self._settings, POSITIONS)
        if ends[0] > self._seen + 1:  # else there is only the mark of the own commit
            others = read_exactly(self._settings, POSITIONS, {0: (self._seen, ends[0])}, committed=False)
            if any(message.key() == self._name.encode() for message in others):
                raise LeaseLostError(self._fenced())
        return client

    def send(
        self,
        records: Iterable[Outgoing],
        position_after: Callable[[int], bytes],
        *,
        in_parts: bool = False,
    ) -> int:
        """Send records and the position; a reader of committed records sees all of them or none.

        Args:
            position_after: returns the position, from the number of records that are sent with it.
            in_parts: after `PART_S` the transaction ends with the records that it has by then, at least one.

        Returns:
            The number of records, from the first on, that were sent.

        Raises:
            LeaseLostError: another outbox of this name was opened; none of these records is visible.
            ServiceError: Kafka refused; nothing is visible (without transactions: perhaps records, but no position).
            UnknownOutcomeError: the commit was not answered; opening the outbox again shows the outcome by the position.
        """
        producer = self._producer if self._producer is not None else self._next_epoch()
        if self._transactional:
            self._producer = None  # whatever comes of it, its epoch is used
        self._failures = []
        try:
            if self._transactional:
                producer.begin_transaction()
            sent = self._hand_over_all(producer, records, Deadline.after(PART_S) if in_parts else None)
            if not self._transactional:
                self._flush(producer)
            self._hand_over(producer, POSITIONS, self._name.encode(), position_after(sent))
            if not self._transactional:
                self._flush(producer)
                return sent
            self._check()
        except KafkaException as error:
            producer.purge()
            raise self._explained(error) from error
        except BaseException:  # also an interruption: an unfinished transaction must never be committed
            producer.purge()
            raise
        self._commit(producer)
        self._prepare()
        return sent

    def copy_from(self, source: str) -> int:
        """Send what another topic has by now and was not copied before: keys, values, tombstones, timestamps, headers.

        Records are committed with the position in the source, so each is copied once, however often this is killed and run again. What
        Kafka compacted away before is not there to be copied. A key's records keep their order.

        Returns:
            The number of records that were copied.

        Raises:
            LogGapError: Kafka deleted records that were not copied yet.
            ServiceError, LeaseLostError, UnknownOutcomeError: as `send`.
        """
        known = json.loads(self.open() or b"{}")
        ends = kafka.stable_ends(self._settings, source)
        begins = kafka.begin_offsets(self._settings, source)
        reached = {part: int(known.get(str(part), begins.get(part, 0))) for part in ends}

        def records() -> Iterator[Outgoing]:
            for message in read_exactly(self._settings, source, {part: (reached[part], ends[part]) for part in ends}):
                reached[int(message.partition() or 0)] = int(message.offset() or 0) + 1
                yield message.key(), message.value(), message.timestamp()[1], message.headers()

        waiting, copied = records(), 0
        while (following := next(waiting, None)) is not None:
            copied += self.send(
                chain([following], waiting),
                lambda _: json.dumps({str(part): at for part, at in reached.items()}).encode(),
                in_parts=True,
            )
        return copied

    def close(self) -> None:
        """Drop the producer; an uncommitted transaction is aborted by the next `open`, or by Kafka after a minute."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

    def _prepare(self) -> None:
        """Ask for the next epoch now, so that the next records do not wait for it."""
        try:
            self._producer = self._next_epoch()
        except (
            ServiceError,
            LeaseLostError,
        ) as error:  # what was sent is committed; the next `send` asks again, and raises
            LOG.info("no epoch for the next transaction of %s yet: %s", self._name, error)

    def _commit(self, producer: Producer) -> None:
        try:
            producer.commit_transaction(COMMIT_S)
        except KafkaException as error:
            cause: Any = error.args[0]
            producer.purge()
            if cause.txn_requires_abort() or cause.code() in _FENCED:
                raise self._explained(error) from error
            message = (
                f"no answer came to the commit of a transaction of {self._name} ({cause}); it is not known whether it counts; "
                "opening it again shows the outcome by the position"
            )
            raise UnknownOutcomeError(message) from error

    def _hand_over_all(self, producer: Producer, records: Iterable[Outgoing], deadline: Deadline | None) -> int:
        sent = 0
        for record in records:
            self._hand_over(producer, self._topic, *record)
            sent += 1
            if deadline is not None and deadline.is_over():
                break
        return sent

    def _hand_over(
        self,
        producer: Producer,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        at_ms: int = 0,
        headers: Any = None,
    ) -> None:
        while True:
            try:
                producer.produce(
                    topic, value=value, key=key, timestamp=at_ms, headers=headers or [], on_delivery=self._on_delivery
                )
            except BufferError:
                producer.poll(0.1)
                self._check()
            else:
                producer.poll(0)
                return

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failures.append(error)
        elif message.topic() == POSITIONS:
            self._seen = int(message.offset() or 0) + 1

    def _check(self) -> None:
        if self._failures:
            raise KafkaException(self._failures[0])

    def _flush(self, producer: Producer) -> None:
        unsent = producer.flush(COMMIT_S)
        self._check()
        if unsent:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def _explained(self, error: KafkaException) -> ServiceError | LeaseLostError:
        cause = error.args[0]
        if cause.code() in _FENCED:
            return LeaseLostError(self._fenced())
        message = f"Kafka refused records of {self._name} for {self._topic}: {cause}; nothing of the transaction is visible; it is tried again"
        return ServiceError(message)

    def _fenced(self) -> str:
        return (
            f"another deliverer opened {self._name} on this cluster, so this one is fenced: nothing of its unfinished "
            "transaction is visible; run one deliverer per sink, see `rivertwice deliver status`"
        )


def read_newest(settings: Settings, topic: str, key: bytes) -> tuple[bytes | None, int]:
    """Return the newest committed value of a key in a topic of one partition, None if there is none, and the offset after it.

    An open transaction of another key hides what was committed after it began. So this waits until no transaction is open that
    was when it was called.

    Raises:
        ServiceError: Kafka does not give the topic to its end in time.
    """
    newest: bytes | None = None
    ends = kafka.end_offsets(settings, topic)
    for message in read_to(settings, topic, ends):
        newest = message.value() if message.key() == key else newest
    return newest, ends[0]
