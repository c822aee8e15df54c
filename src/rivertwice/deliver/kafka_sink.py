"""Kafka: one transaction per step, with the position in it (`log.outbox`)."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from rivertwice.core import Deadline, LedgerError, RequestError, Settings
from rivertwice.definition import KafkaDelivery
from rivertwice.deliver.model import DeliveredColumns, DeliveredRecord, DeliveryBatch, Holding, Position
from rivertwice.deliver.refusals import RefusedRecord, SetAside, none_aside
from rivertwice.deliver.wire import (
    check_rows,
    key_start,
    position_from_json,
    position_to_json,
    row_selection,
    value_text,
    values_of,
)
from rivertwice.log import Outbox, kafka, read_to

STILL_S = 30.0
"""Seconds for which a check waits for a moment in which the sink takes no step."""
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
                f"not {more['topic_id']}): it was deleted or another one is named now; deliver all "
                f"again with `rivertwice deliver run {shape.pipeline} --again`"
            )
            raise LedgerError(message)
        check_rows(shape, more, self._name)
        return position

    def deliver(self, parcel: DeliveryBatch, set_aside: SetAside = none_aside) -> None:
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

    def _too_large(self, parcel: DeliveryBatch, record: DeliveredRecord) -> str | None:
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

    @contextmanager
    def inspect(self) -> Iterator[Holding]:
        """Read position and committed records of one moment."""
        topic = self._asked.topic
        stored, ends = self._outbox.look(), dict[int, int]()
        if kafka.topic_exists(self._settings, topic):
            for _ in Deadline.after(STILL_S).polls(0.2):
                before, ends = stored, kafka.stable_ends(self._settings, topic)
                stored = self._outbox.look()
                if stored == before:
                    break
            else:
                message = (
                    f"sink {self._name} took steps all the time for {STILL_S:.0f} s, so its position and records are never of one moment; "
                    "check it when fewer batches come"
                )
                raise RequestError(message)
        position = position_from_json(stored)[0] if stored else None
        yield Holding(position, functools.partial(self._rows, ends), self._lacks(ends))

    def _rows(
        self, ends: Mapping[int, int], shape: DeliveredColumns, schema: pa.Schema
    ) -> Iterator[tuple[str, list[Any] | None]]:
        del schema
        start = key_start(shape.pipeline).encode()
        for message in read_to(self._settings, self._asked.topic, ends) if ends else ():
            key, value = message.key(), message.value()
            if key is not None and value is not None and key.startswith(start):
                yield key.decode(), values_of(shape, json.loads(value))

    def _lacks(self, ends: Mapping[int, int]) -> str:
        if not ends or not any(kafka.begin_offsets(self._settings, self._asked.topic).values()):
            return ""
        if kafka.is_compacted(self._settings, self._asked.topic):
            return ""
        return f"Kafka has deleted the oldest records of {self._asked.topic} (its retention)"

    def close(self) -> None:
        """Close the producer."""
        self._outbox.close()


def _message(parcel: DeliveryBatch, record: DeliveredRecord) -> tuple[bytes, bytes]:
    return record.key.encode(), value_text(parcel.shape, record, parcel.after).encode()
