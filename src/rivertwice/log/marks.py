"""Whether Kafka still has the records that were read: after an unclean election, or from a backup, it gives their offsets to others.

Neither the topic's id nor its offsets show that. So with each batch, and each commit of the archive, a mark of the last record of
each partition is stored: its offset, timestamp, a hash of its bytes, and the leader's epoch. Kafka never loses the middle of a
partition, only what comes last. So where the record at a mark is the one that was read, all records before it are.

A mark that cannot be compared says nothing: the record was deleted by retention or compaction, or an older release left no mark.
Pure; `log.forks` reads Kafka.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rivertwice.core import LogForkError
from rivertwice.log.addresses import Part

if TYPE_CHECKING:
    from confluent_kafka import Message

HASH_BITS = 63


class LastRecord(NamedTuple):
    """One record that was read: `at_ms` is its timestamp, `epoch` its leader's, -1 if that is not known."""

    offset: int
    at_ms: int
    hash: int
    epoch: int = -1


Marks = Mapping[Part, LastRecord]
StoredMarks = Mapping[str, Mapping[str, Sequence[int]]]
"""Topic to partition, as text, to the fields of its mark: as JSON holds them."""


@dataclass(frozen=True)
class Fork:
    """A partition in which Kafka has another record, or none, where one was read: `mark` is that one."""

    part: Part
    mark: LastRecord
    now: str

    def __str__(self) -> str:
        """Return the fork for people."""
        return f"{self.part.topic}/{self.part.partition}@{self.mark.offset} ({self.now})"


def hash_of(at_ms: int, key: bytes | None, value: bytes | None) -> int:
    """Return `HASH_BITS` of a hash over a record's timestamp (epoch ms), key and value; an absent one is not an empty one. Pure."""
    digest = hashlib.blake2b(b"%d" % at_ms, digest_size=8)
    for data in (key, value):
        digest.update(b"|-" if data is None else b"|%d:" % len(data) + data)
    return int.from_bytes(digest.digest(), "big") >> 1


def mark_of(record: Message) -> LastRecord:
    """Return the mark of a record of the plain client."""
    at_ms, epoch = int(record.timestamp()[1]), record.leader_epoch()
    value: bytes | None = record.value()
    key: bytes | None = record.key()
    return LastRecord(int(record.offset() or 0), at_ms, hash_of(at_ms, key, value), -1 if epoch is None else int(epoch))


def marks_to_plain(marks: Marks) -> StoredMarks:
    """Return marks as JSON holds them: topic to partition to the fields of the mark."""
    plain: dict[str, dict[str, list[int]]] = {}
    for part, mark in sorted(marks.items()):
        plain.setdefault(part.topic, {})[str(part.partition)] = list(mark)
    return plain


def marks_from_plain(plain: StoredMarks) -> dict[Part, LastRecord]:
    """Return the marks that `marks_to_plain` encoded."""
    return {
        Part(topic, int(partition)): LastRecord(*mark)
        for topic, marks in plain.items()
        for partition, mark in marks.items()
    }


def find_forks(
    marks: Marks,
    found: Marks,
    kept: Mapping[Part, tuple[int, int]],
    compacted: frozenset[str] = frozenset(),
    bits: int = HASH_BITS,
) -> list[Fork]:
    """Return where Kafka does not have the record that was read. Pure.

    Args:
        found: the records that Kafka has at the same offsets.
        kept: the half-open range of offsets that Kafka has of each partition.
        compacted: topics from which Kafka removes single records.
        bits: how many bits of the hashes the marks have.
    """
    forks = []
    for part, mark in sorted(marks.items()):
        begin, end = kept.get(part, (0, 0))
        if mark.offset < begin:
            continue
        now = found.get(part)
        if mark.offset >= end:
            forks.append(Fork(part, mark, f"Kafka's log ends at {end}"))
        elif now is None and part.topic not in compacted:
            forks.append(Fork(part, mark, "Kafka has no record there"))
        elif now is not None and (now.hash ^ mark.hash) & ((1 << bits) - 1):
            forks.append(Fork(part, mark, "Kafka has another record there"))
    return forks


def require_no_fork(forks: Sequence[Fork], pipeline: str) -> None:
    """Refuse a log without the records that a stream read.

    Raises:
        LogForkError: the message names each partition.
    """
    if forks:
        raise LogForkError(fork_message(forks, pipeline))


def fork_message(forks: Sequence[Fork], pipeline: str) -> str:
    """Return what is wrong with the log, and the way on."""
    return (
        f"Kafka does not have the records that the stream of {pipeline} read: {', '.join(map(str, forks))}; after an unclean leader election or "
        "from a backup, Kafka gave their offsets to other records, which the stream would never read; "
        f"`rivertwice savepoint rewind {pipeline}` goes back to the newest proved savepoint from before that and reads the log again"
    )
