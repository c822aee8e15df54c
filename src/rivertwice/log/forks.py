"""Compare the marks of what was read (`log.marks`) with the records that Kafka has now, and make new ones."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer

from rivertwice.core import LogGapError, Settings, retry
from rivertwice.log import kafka
from rivertwice.log.addresses import OffsetRanges, Part, Parts, drop_empty, of_topic
from rivertwice.log.marks import HASH_BITS, Fork, LastRecord, Marks, find_forks, mark_of
from rivertwice.log.reader import BRIEF, read_pieces, read_with

_LOOK_BACK = 8
"""So many offsets before the end are looked at: the last ones may be a transaction's marker, which is not a record."""
_TRIES = 3


def observe_forks(settings: Settings, topic_ids: Mapping[str, str], marks: Marks, bits: int = HASH_BITS) -> list[Fork]:
    """Return where Kafka does not have the records that were read now; one record of each partition is read.

    A topic that was deleted and created again has another id; it is not looked at here.

    Raises:
        ServiceError: Kafka does not answer.
    """
    same = {
        topic for topic in {part.topic for part in marks} if kafka.topic_id(settings, topic) == topic_ids.get(topic)
    }
    known = {part: mark for part, mark in marks.items() if part.topic in same}
    return retry(LogGapError, tries=_TRIES)(_observe_forks, settings, known, bits) if known else []


def _observe_forks(settings: Settings, marks: Marks, bits: int) -> list[Fork]:
    kept: dict[Part, tuple[int, int]] = {}
    for topic in sorted({part.topic for part in marks}):
        begin, end = kafka.begin_offsets(settings, topic), kafka.end_offsets(settings, topic)
        kept |= {Part(topic, partition): (begin[partition], end[partition]) for partition in end}
    there = {
        part: mark.offset
        for part, mark in marks.items()
        if part in kept and kept[part][0] <= mark.offset < kept[part][1]
    }
    pieces = {part: [(offset, offset + 1)] for part, offset in there.items()}
    found = {part: mark_of(record) for part, record in (read_pieces(settings, pieces) if pieces else ())}
    silent = {part.topic for part in there.keys() - found.keys()}
    compacted = frozenset(topic for topic in silent if kafka.is_compacted(settings, topic))
    return find_forks(marks, found, kept, compacted, bits)


class LastRecords:
    """Reads the last records of batches, over one connection."""

    def __init__(self, settings: Settings) -> None:
        """Connect at the first read."""
        self._settings = settings
        self._reader: Consumer | None = None

    def read(self, parts: Parts) -> dict[Part, LastRecord]:
        """Return the mark of the last record of each range; none where the last offsets hold no record, or Kafka deleted them.

        Raises:
            ServiceError: Kafka does not answer.
        """
        self._reader = self._reader or kafka.consumer(self._settings, extra=BRIEF)
        marks: dict[Part, LastRecord] = {}
        for topic in sorted({part.topic for part in parts}):
            ranges = drop_empty(of_topic(parts, topic))
            marks |= self._read_topic(topic, {p: (end - 1, end) for p, (_, end) in ranges.items()})
            silent = {p: bounds for p, bounds in ranges.items() if Part(topic, p) not in marks}
            before = {p: (max(start, end - _LOOK_BACK), end - 1) for p, (start, end) in silent.items()}
            marks |= self._read_topic(topic, drop_empty(before))
        return marks

    def _read_topic(self, topic: str, ranges: OffsetRanges) -> dict[Part, LastRecord]:
        assert self._reader is not None, "it was opened"
        try:
            records = list(read_with(self._reader, self._settings, topic, ranges)) if ranges else []
        except LogGapError:  # retention deletes them at this moment: there is nothing to compare with later either
            return {}
        finally:
            self._reader.unassign()  # else it would ask for further records all the time
        return {Part(topic, int(record.partition() or 0)): mark_of(record) for record in records}
