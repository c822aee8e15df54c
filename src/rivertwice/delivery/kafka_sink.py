"""Kafka: one transaction per step, with the position in it (`log.outbox`)."""

from __future__ import annotations

import pyarrow as pa

from rivertwice.config import Settings
from rivertwice.delivery.model import DeliveredColumns, DeliveredRecord, Parcel, Position
from rivertwice.delivery.refusals import RefusedRecord, SetAside, none_aside
from rivertwice.delivery.wire import check_rows, position_from_json, position_to_json, row_selection, value_text
from rivertwice.errors import LedgerError
from rivertwice.log import kafka
from rivertwice.log.outbox import Outbox
from rivertwice.pipeline.delivery_model import KafkaDelivery

ENVELOPE = 200
"""Bytes that a record and a batch of one record cost beside key and value, rounded up."""


class KafkaSink:
    """A topic. Readers of committed records (`isolation.level=read_committed`) see every record once."""

    def __init__(self, settings: Settings, pipeline: str, name: str, asked: KafkaDelivery) -> None:
        self._settings = settings
        self._asked = asked
        # Names contain no dot, so no two pairs of pipeline and sink make the same id.
        self._outbox = Outbox(settings, asked.topic, f"rivertwice.{pipeline}.{name}", transactional=asked.transactions)
        self._name = name
        self._topic_id = ""

    def open(self, shape: DeliveredColumns, schema: pa.Schema) -> Position | None:
        """Fence other deliverers, and return the position."""
        stored = self._outbox.open()
        if not stored:
            kafka.ensure_topic(self._settings, self._asked.topic, self._asked.partitions)
            self._outbox.fit_to_topic()
            self._topic_id = kafka.topic_id(self._settings, self._asked.topic)
            return None
        position, more = position_from_json(stored)
        exists = kafka.topic_exists(self._settings, self._asked.topic)
        self._topic_id = kafka.topic_id(self._settings, self._asked.topic) if exists else "none"
        if self._topic_id != more["topic_id"]:
            message = (
                f"topic {self._asked.topic} is not the one that {position.number} steps were delivered to (id {self._topic_id}, "
                f"not {more['topic_id']}): it was deleted or another one is named now; nothing was delivered; deliver all "
                f"again with `rivertwice deliver run {shape.pipeline} --again`"
            )
            raise LedgerError(message)
        check_rows(shape, more, self._name)
        return position

    def deliver(self, parcel: Parcel, set_aside: SetAside = none_aside) -> None:
        """Send records and position in one transaction, without records that are too large for the topic.

        If the parcel allows it, a transaction that gets too old ends with the records that it has.
        """
        refused = [RefusedRecord(record, why) for record in parcel.records if (why := self._too_large(parcel, record))]
        left_out = {refusal.record.key for refusal in refused}
        fitting = [(at, record) for at, record in enumerate(parcel.records) if record.key not in left_out]

        def position_after(sent: int) -> bytes:
            taken = len(parcel.records) if sent == len(fitting) else fitting[sent][0]
            known = {record.key for record in parcel.records[:taken]}
            set_aside([refusal for refusal in refused if refusal.record.key in known], taken)
            position = parcel.position_after(taken)
            return position_to_json(position, topic_id=self._topic_id, **row_selection(parcel.shape)).encode()

        messages = (_message(parcel, record) for _, record in fitting)
        self._outbox.send(messages, position_after, in_parts=parcel.part_of is not None)

    def _too_large(self, parcel: Parcel, record: DeliveredRecord) -> str | None:
        key, value = _message(parcel, record)
        size = len(key) + len(value) + ENVELOPE
        if size <= self._outbox.most_bytes:
            return None
        return f"{size} bytes, and topic {self._asked.topic} takes {self._outbox.most_bytes} (max.message.bytes)"

    def forget(self) -> None:
        """Forget the position."""
        self._outbox.open()
        self._outbox.send([], lambda _: b"")
        self._outbox.close()

    def close(self) -> None:
        """Close the producer."""
        self._outbox.close()


def _message(parcel: Parcel, record: DeliveredRecord) -> tuple[bytes, bytes]:
    return record.key.encode(), value_text(parcel.shape, record, parcel.after).encode()
