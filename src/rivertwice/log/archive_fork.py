"""The archive after Kafka gave archived offsets to other records: found at an extension, and followed if a person accepts it.

What Kafka lost stays in the archive's table, under the topic's id with `~` and the number of the commit: no reader of the log takes it
for the records that have these offsets now. The archive ends before the first of these, and the next chunk continues there. One commit
does all of it. Where Kafka and archive part is found from the end: records of before are the same bytes in both. Values that were erased
from the archive differ too, but never a whole block of records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.config import Settings
from rivertwice.errors import LogForkError
from rivertwice.instants import to_ms
from rivertwice.log import kafka
from rivertwice.log.addresses import OffsetRanges, Part
from rivertwice.log.archive_rows import Origin
from rivertwice.log.archive_table import (
    ABSENT,
    MARK_BITS,
    Archived,
    last_name,
    read_archived,
    transaction_names,
    turn_name,
    version_of,
)
from rivertwice.log.forks import observe_forks
from rivertwice.log.marks import Fork, Mark, hash_of, mark_of
from rivertwice.log.reader import read_exactly
from rivertwice.store.delta import open_table, read, replace_rows
from rivertwice.store.sql import all_of, any_of, is_between

LOG = logging.getLogger(__name__)
_BLOCK = 1_000
_COLUMNS = ("topic_id", "offset", "timestamp", "timestamp_type", "key", "value")


@dataclass(frozen=True)
class Cut:
    """Where a partition's archive has to end: before `end`, after the record `last`, if there is one."""

    end: int
    last: Mark | None


def last_marks(rows: pa.Table) -> dict[int, Mark]:
    """Return the mark of each partition's last record in rows of the archive. Pure."""
    records = rows.filter(pc.not_equal(rows["timestamp_type"], ABSENT))
    marks: dict[int, Mark] = {}
    for partition in pc.unique(records["partition"]).to_pylist():
        own = records.filter(pc.equal(records["partition"], partition))
        place = pc.index(own["offset"], pc.max(own["offset"])).as_py()
        marks[partition] = _mark(own.slice(place, 1).to_pylist()[0])
    return marks


def observe_archive_forks(settings: Settings, origin: Origin, now: Archived) -> list[Fork]:
    """Return where Kafka has not the archive's last record.

    Raises:
        ServiceError: Kafka does not answer.
    """
    marks = {Part(origin.topic, partition): mark for partition, mark in now.marks.items()}
    return observe_forks(settings, {origin.topic: origin.topic_id}, marks, MARK_BITS)


def require_followed(forks: Sequence[Fork]) -> None:
    """Refuse to extend an archive that has not the same records as Kafka.

    Raises:
        LogForkError: the message names each partition, and the way on.
    """
    if forks:
        message = (
            f"Kafka has not the records that were archived: {', '.join(map(str, forks))}; after an unclean leader election or from a backup, "
            "Kafka gave their offsets to other records, which the archive lacks; `rivertwice savepoint rewind NAME` takes the stream back to "
            "before that, and `rivertwice archive NAME --accept-hole` lets the archive follow Kafka: it keeps what Kafka lost, apart"
        )
        raise LogForkError(message)


def follow(settings: Settings, origin: Origin, forks: Sequence[Fork]) -> None:
    """Let the archive end where Kafka has other records, and keep its own records of after that under another id.

    Raises:
        LostRaceError: another job extended the archive meanwhile.
        ServiceError: Kafka does not answer.
    """
    place = settings.archive(origin.topic)
    table = open_table(place)
    assert table is not None, "it has marks"
    now = read_archived(table, origin.topic_id)
    begin = kafka.begin_offsets(settings, origin.topic)
    ends = kafka.end_offsets(settings, origin.topic)
    cuts = {
        fork.part.partition: _find_cut(
            settings, origin, fork.part.partition, now.newest[fork.part.partition], begin, ends
        )
        for fork in forks
    }
    where = any_of(
        all_of([is_between("partition", p, p), is_between("offset", cut.end, now.newest[p][1] - 1)])
        for p, cut in cuts.items()
    )
    rows = read(place, matching=where, at=table)
    assert rows is not None, "the table is there"
    apart = pa.scalar(f"{origin.topic_id}~{now.turn}", rows.schema.field("topic_id").type)
    own = pc.equal(rows["topic_id"], pa.scalar(origin.topic_id, rows.schema.field("topic_id").type))
    column = rows.schema.get_field_index("topic_id")
    renamed = rows.set_column(column, rows.schema.field(column), pc.if_else(own, apart, rows["topic_id"]))
    replace_rows(place, renamed, where=where, transactions=_transactions(origin, now, cuts), at=table)
    LOG.warning("the archive of %s follows Kafka from %s on; what Kafka lost is kept as %s", origin.topic, cuts, apart)


def _transactions(origin: Origin, now: Archived, cuts: Mapping[int, Cut]) -> dict[str, int]:
    segment = len(now.segments) - 1
    transactions = {turn_name(origin.topic_id): now.turn + 1}
    for partition, cut in cuts.items():
        transactions[transaction_names(origin.topic_id, partition, segment)[1]] = cut.end
        transactions[last_name(origin.topic_id, partition, segment)] = version_of(cut.last)
    return transactions


def _find_cut(
    settings: Settings,
    origin: Origin,
    partition: int,
    archived: tuple[int, int],
    begin: Mapping[int, int],
    ends: Mapping[int, int],
) -> Cut:
    start, end = archived
    for low, high in _blocks(max(start, begin.get(partition, 0)), end):
        there = {partition: (low, min(high, ends.get(partition, 0)))}
        in_kafka = {mark.offset: mark.hash for mark in map(mark_of, _read(settings, origin, there))}
        same = [
            mark
            for mark in _read_archived(settings, origin, partition, low, high)
            if in_kafka.get(mark.offset) == mark.hash
        ]
        if same:
            last = max(same)
            return Cut(last.offset + 1, last)
    return Cut(max(start, begin.get(partition, 0)), None)


def _blocks(first: int, end: int) -> Iterator[tuple[int, int]]:
    while end > first:
        low = max(first, end - _BLOCK)
        yield low, end
        end = low


def _read(settings: Settings, origin: Origin, ranges: OffsetRanges) -> Iterable[Any]:
    return read_exactly(settings, origin.topic, {p: (low, max(low, high)) for p, (low, high) in ranges.items()})


def _read_archived(settings: Settings, origin: Origin, partition: int, low: int, high: int) -> list[Mark]:
    where = all_of([is_between("partition", partition, partition), is_between("offset", low, high - 1)])
    rows = read(settings.archive(origin.topic), columns=_COLUMNS, matching=where)
    found = [] if rows is None else rows.to_pylist()
    return [_mark(row) for row in found if row["topic_id"] == origin.topic_id and row["timestamp_type"] != ABSENT]


def _mark(row: Mapping[str, Any]) -> Mark:
    at_ms = to_ms(row["timestamp"])
    return Mark(row["offset"], at_ms, hash_of(at_ms, row["key"], row["value"]))
