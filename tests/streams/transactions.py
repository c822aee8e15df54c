"""Records in transactions, of which some are aborted: what readers of committed records may see, and what they never may."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rivertwice.core.instants import from_ms, to_iso
from rivertwice.core.settings import Settings
from rivertwice.log import kafka
from streams.keyed import HOUR_MS, PARTITIONS, Keyed


class TransactionalSource:
    """A producer that sends every record in a transaction, and aborts some transactions of records of its own making."""

    def __init__(self, settings: Settings, topic: str, seed: int) -> None:
        kafka.ensure_topic(settings, topic, PARTITIONS)
        self._topic = topic
        self._dice = random.Random(seed)
        self._producer = kafka.producer(settings, transactional_id=f"source-{topic}")
        self._producer.init_transactions(30)
        self.sent: list[Keyed] = []
        self.aborted = 0

    def send(self, records: Sequence[Keyed]) -> None:
        """Send records in transactions of one to nine; after about every third comes an aborted one."""
        at = 0
        while at < len(records):
            size = self._dice.randint(1, 9)
            self._in_transaction(records[at : at + size])
            self._producer.commit_transaction(30)
            if self._dice.random() < 0.3:
                lost = records[at : at + self._dice.randint(1, 4)]
                self._in_transaction([Keyed(r.partition, "aborted", r.event_ms, r.sent_ms) for r in lost])
                self._producer.abort_transaction(30)
                self.aborted += len(lost)
            at += size
        self.sent += records

    @contextmanager
    def holding(self, records: Sequence[Keyed]) -> Iterator[None]:
        """Send records in a transaction that is open for as long as the block lasts, and is committed then."""
        self._in_transaction(records)
        yield
        self._producer.commit_transaction(30)
        self.sent += records

    def _in_transaction(self, records: Sequence[Keyed]) -> None:
        self._producer.begin_transaction()
        for record in records:
            value = json.dumps({"k": record.key, "at": to_iso(from_ms(record.event_ms))}).encode()
            key = record.key.encode()
            self._producer.produce(self._topic, value, key, record.partition, timestamp=record.sent_ms)
        assert self._producer.flush(30) == 0

    def hours(self) -> Counter[tuple[str, int]]:
        """Return (key, start of the hour) to how many committed records it has."""
        return Counter((record.key, record.event_ms // HOUR_MS * HOUR_MS) for record in self.sent)
