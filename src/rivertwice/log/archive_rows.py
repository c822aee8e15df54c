"""One chunk of the archive: read from Kafka, counted, and converted to the archive's columns."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.core import LogForkError, LogGapError, Row, Settings, from_ms, to_ms
from rivertwice.log import kafka
from rivertwice.log.addresses import OffsetRanges, Part
from rivertwice.log.archive_table import (
    ABSENT,
    FORMAT,
    MARK_BITS,
    SCHEMA,
    Archived,
    last_name,
    read_archived,
    transaction_names,
    turn_name,
    version_of,
)
from rivertwice.log.forks import observe_forks
from rivertwice.log.marks import Fork, LastRecord, hash_of, mark_of
from rivertwice.log.reader import Runs, absent_runs, count_runs, read_exactly
from rivertwice.log.records import KAFKA_COLUMNS, read_kafka
from rivertwice.storage import Table, Where

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAIN = pa.schema(
    [pa.field("timestampType", pa.int32()) if name == "timestampType" else SCHEMA.field(name) for name in KAFKA_COLUMNS]
)
"""Kafka's columns."""


@dataclass(frozen=True)
class Origin:
    """The origin of records: the first parts of their addresses, and the topic's name."""

    cluster_id: str
    topic_id: str
    topic: str


def _read_plainly(settings: Settings, origin: Origin, chunk: OffsetRanges) -> pa.Table:
    """Return a chunk in Kafka's columns, read without Spark."""
    rows = [plain_row(origin.topic, record) for record in read_exactly(settings, origin.topic, chunk)]
    return pa.Table.from_pylist(rows, schema=PLAIN)


def plain_row(topic: str, record: Any) -> Row:
    """Return a record of the plain client in Kafka's columns, a row of PLAIN."""
    stamped: Any = record.timestamp()  # (type, epoch ms)
    pairs: Any = record.headers() or []
    headers = [{"key": name, "value": value} for name, value in pairs]
    return {
        "key": record.key(),
        "value": record.value(),
        "topic": topic,
        "partition": record.partition(),
        "offset": record.offset(),
        "timestamp": from_ms(int(stamped[1])),
        "timestampType": int(stamped[0]) - 1,  # the client counts from 1 (CreateTime), Kafka from 0
        "headers": headers or None,
    }


def collect_chunk(spark: SparkSession | None, settings: Settings, origin: Origin, chunk: OffsetRanges) -> pa.Table:
    """Return a chunk as the archive's rows.

    Args:
        spark: the session; None reads with a plain consumer.
        chunk: half-open ranges by partition.

    An offset that a transaction left without a record has a row, too (`archive_table.ABSENT`).

    Raises:
        LogGapError: a partition did not give one record per offset, and transactions do not explain it.
    """
    if spark is None:
        rows = _read_plainly(settings, origin, chunk)
    else:
        rows = read_kafka(spark, settings, origin.topic, chunk).toArrow()
    counts = {row["values"]: row["counts"] for row in pc.value_counts(rows["partition"]).to_pylist()}
    short = {p: bounds for p, bounds in chunk.items() if counts.get(p, 0) < bounds[1] - bounds[0]}
    runs = absent_runs(settings, origin.topic, short) if short else {}
    absent = count_runs(runs)
    for partition, (start, end) in chunk.items():
        if counts.get(partition, 0) + absent.get(partition, 0) != end - start:
            message = (
                f"topic {origin.topic}, partition {partition} [{start}, {end}) gave {counts.get(partition, 0)} records for "
                f"{end - start} offsets, {absent.get(partition, 0)} of which transactions left without one, so the chunk was not "
                "archived; run the archive again, and look at the brokers' disks if it says the same"
            )
            raise LogGapError(message)
    found = _archive_rows(rows, origin)
    return found if not runs else _with_absent(found, runs, origin)


def _with_absent(rows: pa.Table, runs: Runs, origin: Origin) -> pa.Table:
    """Return the archive's rows with one for each absent offset, on the day of the record before it, or else of the first one."""
    stamps = _stamps_before(rows, runs)
    absent = [
        {
            "_format": FORMAT,
            "cluster_id": origin.cluster_id,
            "topic_id": origin.topic_id,
            "topic": origin.topic,
            "partition": partition,
            "offset": offset,
            "timestamp": stamp,
            "timestamp_type": ABSENT,
            "day": stamp.strftime("%Y-%m-%d"),
        }
        for (partition, start, end), stamp in stamps.items()
        for offset in range(start, end)
    ]
    both = pa.concat_tables([rows, pa.Table.from_pylist(absent, schema=SCHEMA)])
    return both.sort_by([("day", "ascending"), ("partition", "ascending"), ("offset", "ascending")])


def _stamps_before(rows: pa.Table, runs: Runs) -> dict[tuple[int, int, int], datetime]:
    """Return (partition, start, end) of each run to the timestamp of the record before it."""
    stamps: dict[tuple[int, int, int], datetime] = {}
    for partition, of_partition in runs.items():
        own = rows.filter(pc.equal(rows["partition"], partition)).sort_by("offset")
        offsets, times = own["offset"].to_numpy(), own["timestamp"]
        for start, end in of_partition:
            place = max(0, int(np.searchsorted(offsets, start)) - 1)
            stamps[partition, start, end] = times[place].as_py() if len(offsets) else from_ms(0)
    return stamps


def _archive_rows(rows: pa.Table, origin: Origin) -> pa.Table:
    """Return Kafka's columns as the archive's columns."""
    size = rows.num_rows
    stamps = rows["timestamp"].cast(pa.timestamp("us", "UTC"))
    columns = {
        "_format": pa.repeat(pa.scalar(FORMAT, pa.int32()), size),
        "cluster_id": pa.repeat(pa.scalar(origin.cluster_id), size),
        "topic_id": pa.repeat(pa.scalar(origin.topic_id), size),
        "timestamp": stamps,
        "timestamp_type": rows["timestampType"],
        "day": pc.strftime(stamps, format="%Y-%m-%d"),
    }
    arrays = [columns[name] if name in columns else rows[name] for name in SCHEMA.names]
    table = pa.table(dict(zip(SCHEMA.names, arrays, strict=True)))
    return table.cast(SCHEMA).sort_by([("day", "ascending"), ("partition", "ascending"), ("offset", "ascending")])


# The archive after Kafka gave archived offsets to other records: found at an extension, and followed if a person accepts it.
#
# What Kafka lost stays in the archive's table, under the topic's id with `~` and the number of the commit: no reader of the log takes it
# for the records that have these offsets now. The archive ends before the first of these, and the next chunk continues there. One commit
# does all of it. Where Kafka and archive part is found from the end: records of before are the same bytes in both. Values that were erased
# from the archive differ too, but never a whole block of records.

LOG = logging.getLogger(__name__)
_BLOCK = 1_000
_COLUMNS = ("topic_id", "offset", "timestamp", "timestamp_type", "key", "value")


@dataclass(frozen=True)
class ArchiveCut:
    """Where a partition's archive has to end: before `end`, after the record `last`, if there is one."""

    end: int
    last: LastRecord | None


def last_marks(rows: pa.Table) -> dict[int, LastRecord]:
    """Return the mark of each partition's last record in rows of the archive. Pure."""
    records = rows.filter(pc.not_equal(rows["timestamp_type"], ABSENT))
    marks: dict[int, LastRecord] = {}
    for partition in pc.unique(records["partition"]).to_pylist():
        own = records.filter(pc.equal(records["partition"], partition))
        place = pc.index(own["offset"], pc.max(own["offset"])).as_py()
        marks[partition] = _mark(own.slice(place, 1).to_pylist()[0])
    return marks


def observe_archive_forks(settings: Settings, origin: Origin, now: Archived) -> list[Fork]:
    """Return where Kafka does not have the archive's last record.

    Raises:
        ServiceError: Kafka does not answer.
    """
    marks = {Part(origin.topic, partition): mark for partition, mark in now.marks.items()}
    return observe_forks(settings, {origin.topic: origin.topic_id}, marks, MARK_BITS)


def require_followed(forks: Sequence[Fork]) -> None:
    """Refuse to extend an archive that does not have the same records as Kafka.

    Raises:
        LogForkError: the message names each partition, and the way on.
    """
    if forks:
        message = (
            f"Kafka does not have the records that were archived: {', '.join(map(str, forks))}; after an unclean leader election or from a backup, "
            "Kafka gave their offsets to other records, which the archive lacks; `rivertwice savepoint rewind NAME` takes the stream back to "
            "before that, and `rivertwice admin archive NAME --accept-hole` lets the archive follow Kafka: it keeps what Kafka lost, apart"
        )
        raise LogForkError(message)


def follow(settings: Settings, origin: Origin, forks: Sequence[Fork]) -> None:
    """Let the archive end where Kafka has other records, and keep its own records of after that under another id.

    Raises:
        LostRaceError: another job extended the archive meanwhile.
        ServiceError: Kafka does not answer.
    """
    place = settings.archive(origin.topic)
    table = Table(place).open()
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
    where = Where.any(
        Where.all([Where("partition").is_between(p, p), Where("offset").is_between(cut.end, now.newest[p][1] - 1)])
        for p, cut in cuts.items()
    )
    rows = table.read(matching=where)
    assert rows is not None, "the table is there"
    apart = pa.scalar(f"{origin.topic_id}~{now.turn}", rows.schema.field("topic_id").type)
    own = pc.equal(rows["topic_id"], pa.scalar(origin.topic_id, rows.schema.field("topic_id").type))
    column = rows.schema.get_field_index("topic_id")
    renamed = rows.set_column(column, rows.schema.field(column), pc.if_else(own, apart, rows["topic_id"]))
    Table(place).replace_rows(renamed, where=where, transactions=_transactions(origin, now, cuts), at=table)
    LOG.warning("the archive of %s follows Kafka from %s on; what Kafka lost is kept as %s", origin.topic, cuts, apart)


def _transactions(origin: Origin, now: Archived, cuts: Mapping[int, ArchiveCut]) -> dict[str, int]:
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
) -> ArchiveCut:
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
            return ArchiveCut(last.offset + 1, last)
    return ArchiveCut(max(start, begin.get(partition, 0)), None)


def _blocks(first: int, end: int) -> Iterator[tuple[int, int]]:
    while end > first:
        low = max(first, end - _BLOCK)
        yield low, end
        end = low


def _read(settings: Settings, origin: Origin, ranges: OffsetRanges) -> Iterable[Any]:
    return read_exactly(settings, origin.topic, {p: (low, max(low, high)) for p, (low, high) in ranges.items()})


def _read_archived(settings: Settings, origin: Origin, partition: int, low: int, high: int) -> list[LastRecord]:
    where = Where.all([Where("partition").is_between(partition, partition), Where("offset").is_between(low, high - 1)])
    rows = Table(settings.archive(origin.topic)).read(columns=_COLUMNS, matching=where)
    found = [] if rows is None else rows.to_pylist()
    return [_mark(row) for row in found if row["topic_id"] == origin.topic_id and row["timestamp_type"] != ABSENT]


def _mark(row: Mapping[str, Any]) -> LastRecord:
    at_ms = to_ms(row["timestamp"])
    return LastRecord(row["offset"], at_ms, hash_of(at_ms, row["key"], row["value"]))
