"""One log of several topics: where a source's `topic` is a pattern, `orders.*`, each topic that matches it is a part of its log.

What must hold for a topic that joins is what holds for a partition that a topic gets: it is read from its first record, from the batch
in which it joined. So the log of a pattern has partitions with consecutive numbers; each is a partition of one of its topics, and what
joins gets the next numbers. Ledger, archive, savepoints and reconciles know these numbers alone. Only what asks Kafka, or reads
and writes a file of Spark's checkpoint, translates them.

What joins is a record `topics/PATTERN/N.json` (`*` is written `~`), which is created once and never changes: of two that look at the same time one
numbers. A topic's id is recorded with it, so a topic that is deleted and created again is seen, as it is without a pattern.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from rivertwice.core import LogGapError, Place, Settings, TopicName, below, to_iso
from rivertwice.log.addresses import Part, StoredOffsets
from rivertwice.storage import RecordStore


@dataclass(frozen=True)
class Joined:
    """A topic, or further partitions of one, that joined.

    Attributes:
        topic_id: its id in Kafka when it joined.
    """

    topic: str
    topic_id: str
    partitions: tuple[int, ...]


@dataclass(frozen=True)
class TopicSet:
    """The log of a pattern.

    Attributes:
        id: of the log, as a topic has one; empty while nothing has joined.
        joined: in the order of their numbers.
    """

    pattern: str
    id: str
    joined: tuple[Joined, ...]
    records: int = 0

    @classmethod
    def load(cls, settings: Settings, pattern: str) -> TopicSet:
        """Return what has joined so far."""
        place = _place(settings, pattern)
        known = _known.setdefault((str(settings.home), str(place)), {})
        store = _store(settings, pattern)
        number = len(known)
        while (record := store.read(f"{number}.json")) is not None:
            known[number] = record
            number += 1
        return cls._of(pattern, [known[each] for each in range(number)])

    @classmethod
    def _of(cls, pattern: str, records: Sequence[Mapping[str, Any]]) -> TopicSet:
        joined = tuple(
            Joined(each["topic"], each["topic_id"], tuple(each["partitions"]))
            for record in records
            for each in record["joined"]
        )
        return cls(pattern, records[0]["id"] if records else "", joined, len(records))

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The partition of a topic that has each number."""
        return tuple(Part(each.topic, partition) for each in self.joined for partition in each.partitions)

    @cached_property
    def numbers(self) -> dict[Part, int]:
        """The number of each partition of a topic."""
        return {part: number for number, part in enumerate(self.parts)}

    @property
    def topic_ids(self) -> dict[str, str]:
        """Topic to the id with which it joined."""
        return {each.topic: each.topic_id for each in reversed(self.joined)}

    def find_new(self, found: Mapping[str, tuple[str, Sequence[int]]]) -> list[Joined]:
        """Return what Kafka has and has not joined yet. Pure.

        Args:
            found: topic that matches to its id and partitions. A topic under another id than it joined with adds nothing.
        """
        new = []
        for topic, (topic_id, partitions) in sorted(found.items()):
            more = tuple(sorted(p for p in partitions if Part(topic, p) not in self.numbers))
            if more and self.topic_ids.get(topic, topic_id) == topic_id:
                new.append(Joined(topic, topic_id, more))
        return new

    def record(self, settings: Settings, joined: Sequence[Joined], now: datetime) -> bool:
        """Record what joins after this; return False if another process recorded something first."""
        value = {
            "format": 1,
            "pattern": self.pattern,
            "id": self.id or uuid.uuid4().hex,
            "joined_at": to_iso(now),
            "joined": [
                {"topic": each.topic, "topic_id": each.topic_id, "partitions": list(each.partitions)} for each in joined
            ],
        }
        return _store(settings, self.pattern).put_if_absent(f"{self.records}.json", value)

    def part(self, number: int) -> Part:
        """Return the partition of a topic that has a number.

        Raises:
            LogGapError: none has it.
        """
        if not 0 <= number < len(self.parts):
            message = f"{self.pattern} has no partition {number}: {len(self.parts)} have joined"
            raise LogGapError(message)
        return self.parts[number]


_known: dict[tuple[str, str], dict[int, Any]] = {}
"""The records that this process has read, by number: none of them changes, so threads may read one twice."""


def _place(settings: Settings, pattern: str) -> Place:
    return below(settings.home if settings.shared is None else settings.shared, "topics", TopicName(pattern).folder)


def _store(settings: Settings, pattern: str) -> RecordStore:
    from rivertwice.storage import (
        RecordStore,
    )  # here: definitions use what is pure of this, and are read at each parse of a DAG

    return RecordStore(_place(settings, pattern))


class TopicSets:
    """The logs of the patterns among some topics, as offsets name them: by the pattern's numbers, or as Kafka and Spark do."""

    def __init__(self, sets: Iterable[TopicSet]) -> None:
        """Take the sets; without any, offsets are the same both ways."""
        self._sets = {each.pattern: each for each in sets}

    @classmethod
    def load(cls, settings: Settings, topics: Iterable[str]) -> TopicSets:
        """Return the logs of the patterns among `topics`, as they are now."""
        return cls(TopicSet.load(settings, topic) for topic in topics if TopicName(topic).is_pattern)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> TopicSets:
        """Return what `to_plain` encoded."""
        return cls(TopicSet._of(pattern, [record]) for pattern, record in plain.items())

    def to_plain(self) -> dict[str, Any]:
        """Return the sets as JSON holds them."""
        return {
            pattern: {
                "id": each.id,
                "joined": [
                    {"topic": one.topic, "topic_id": one.topic_id, "partitions": list(one.partitions)}
                    for one in each.joined
                ],
            }
            for pattern, each in sorted(self._sets.items())
        }

    def __bool__(self) -> bool:
        """Say whether there is a pattern."""
        return bool(self._sets)

    def items(self) -> Iterable[tuple[str, TopicSet]]:
        """Return pattern and set."""
        return self._sets.items()

    def numbers(self, topic: str) -> range:
        """Return the partitions of a pattern's log; none for a topic."""
        return range(len(self._sets[topic].parts) if topic in self._sets else 0)

    def part(self, topic: str, partition: int) -> Part:
        """Return where a partition is in Kafka."""
        return self._sets[topic].part(partition) if topic in self._sets else Part(topic, partition)

    def to_kafka(self, offsets: StoredOffsets) -> dict[str, dict[str, int]]:
        """Return offsets by the names that Kafka and Spark use."""
        named: dict[str, dict[str, int]] = {}
        for topic, places in offsets.items():
            for partition, offset in places.items():
                part = self.part(topic, int(partition))
                named.setdefault(part.topic, {})[str(part.partition)] = int(offset)
        return named

    def to_log(self, offsets: StoredOffsets) -> dict[str, dict[str, int]]:
        """Return offsets by the numbers of the patterns, in their order; other topics keep their names."""
        numbers = {
            part: (each.pattern, number) for each in self._sets.values() for part, number in each.numbers.items()
        }
        found: dict[str, dict[int, int]] = {}
        for topic, places in offsets.items():
            for partition, offset in places.items():
                part = Part(topic, int(partition))
                log, number = numbers.get(part, part)
                found.setdefault(log, {})[number] = int(offset)
        return {log: {str(number): places[number] for number in sorted(places)} for log, places in found.items()}

    def text_to_kafka(self, text: str) -> str:
        """Return an `offsets/N` as Spark reads it."""
        return self._with(text, self.to_kafka) if self else text

    def text_to_log(self, text: str) -> str:
        """Return an `offsets/N` as the ledger keeps it; what cannot be read stays as it is."""
        return self._with(text, self.to_log) if self else text

    @staticmethod
    def _with(text: str, named: Any) -> str:
        head = text.split("\n", 2)
        if len(head) < 3:
            return text
        lines = []
        for line in head[2].split("\n"):
            try:
                lines.append(json.dumps(named(json.loads(line)), separators=(",", ":")) if line else line)
            except (ValueError, TypeError, AttributeError):
                lines.append(line)
        return "\n".join([*head[:2], *lines])
