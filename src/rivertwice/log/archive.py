"""The archive job: Kafka's records, range by exact range, into a Delta table that outlives Kafka's retention.

One chunk, in steps:
1. Under the archive's lock, read from the table how far each partition is archived.
2. Read exactly the next offsets of each partition from Kafka, which fails if one is gone.
3. Count: each partition must have given one record per offset.
4. One Delta commit: the rows, and per partition the new end as an application transaction.

A crash before step 4 leaves at most files that no commit names, which readers do not see; the next run reads the
same ranges again. A crash after it leaves the chunk done. There is no state in between, so no record is archived
twice or missed. The lock is local to the host: run the archive job of a topic on one host.
"""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from rivertwice.config import Settings, require_name
from rivertwice.errors import LogGapError, LostRaceError, RequestError
from rivertwice.instants import from_ms
from rivertwice.log import kafka
from rivertwice.log.addresses import OffsetRanges, between, count, drop_empty, plan_chunks
from rivertwice.log.archive_table import (
    FORMAT,
    PARTITION_BY,
    SCHEMA,
    archived_ends,
    archived_segments,
    archived_starts,
    transaction_names,
)
from rivertwice.log.reader import read_exactly
from rivertwice.log.records import KAFKA_COLUMNS, read_kafka
from rivertwice.store.delta import append

__all__ = ["ArchiveReport", "archived_ends", "archived_starts", "extend_archive", "plan_extension"]

LOG = logging.getLogger(__name__)
CHUNK_RECORDS = 100_000  # one chunk is held in memory once
_PLAIN = pa.schema(
    [pa.field("timestampType", pa.int32()) if name == "timestampType" else SCHEMA.field(name) for name in KAFKA_COLUMNS]
)


@dataclass(frozen=True)
class ArchiveReport:
    """What one run of the archive job did.

    Attributes:
        topic: the topic's name.
        topic_id: its id.
        added: the ranges this run archived.
        ends: where the archive ends now, by partition.
        records: how many records were added.
        commits: how many Delta commits that took.
    """

    topic: str
    topic_id: str
    added: OffsetRanges
    ends: dict[int, int]
    records: int
    commits: int


@dataclass(frozen=True)
class _Origin:
    cluster_id: str
    topic_id: str
    topic: str


def plan_extension(archived: OffsetRanges, retained: OffsetRanges, upto: Mapping[int, int] | None) -> OffsetRanges:
    """Return the ranges to archive next, one for every partition; empty where nothing is new.

    Args:
        archived: what the archive has; nothing for a new topic, which then begins where Kafka begins.
        retained: what Kafka has, for every partition.
        upto: ends to stop at; None archives all there is.

    Raises:
        LogGapError: Kafka has already deleted records the archive does not have.
        RequestError: `upto` lies beyond Kafka's end.
    """
    planned: OffsetRanges = {}
    gaps: list[str] = []
    for partition, (begin, end) in sorted(retained.items()):
        start = archived.get(partition, (begin, begin))[1]
        wanted = end if upto is None else upto.get(partition, start)
        if wanted > end:
            message = (
                f"partition {partition} should be archived up to offset {wanted}, but Kafka's ends at {end}; the record "
                "was never written, so ask for at most the end"
            )
            raise RequestError(message)
        if start < begin:
            gaps.append(f"partition {partition} [{start}, {begin})")
        planned[partition] = (start, max(start, wanted))
    if gaps:
        message = (
            f"Kafka has deleted {', '.join(gaps)} before it was archived, so the log has a hole that nothing can fill; "
            "raise the topic's retention, then `rivertwice archive NAME --accept-hole` goes on behind it: what lies in the "
            "hole stays NOT_COMPARABLE for ever"
        )
        raise LogGapError(message)
    return planned


def behind_hole(archived: OffsetRanges, begin: Mapping[int, int]) -> OffsetRanges | None:
    """Return where a new segment begins (empty ranges), if Kafka begins beyond the archive's end; else None. Pure."""
    ends = {p: archived.get(p, (first, first))[1] for p, first in begin.items()}
    if all(end >= begin[p] for p, end in ends.items()):
        return None
    return {p: (max(end, begin[p]), max(end, begin[p])) for p, end in ends.items()}


def extend_archive(
    spark: SparkSession | None,
    settings: Settings,
    topic: str,
    *,
    upto: Mapping[int, int] | None = None,
    chunk_records: int = CHUNK_RECORDS,
    progress: Callable[[str], None] | None = None,
    accept_hole: bool = False,
) -> ArchiveReport:
    """Archive the topic's new records; running it again, or after a crash, adds nothing twice.

    Args:
        spark: the session; None reads through a plain consumer, which needs no JVM and suits a few chunks.
        settings: the cluster and the archive's folder.
        topic: the topic.
        upto: ends to stop at, by partition; None means Kafka's ends now.
        chunk_records: at most so many records per Delta commit.
        progress: told one line per chunk.
        accept_hole: if Kafka deleted records before they were archived, go on behind the hole as another segment; what
            lies in it can never be read again.

    Raises:
        LogGapError: Kafka no longer has the next record of a partition; the message names partition and offsets.
    """
    origin = _Origin(kafka.cluster_id(settings), kafka.topic_id(settings, topic), topic)
    with _locked(settings, topic):
        segments = archived_segments(settings, topic, origin.topic_id)
        archived, segment = (segments[-1], len(segments) - 1) if segments else ({}, 0)
        begin, end = kafka.begin_offsets(settings, topic), kafka.end_offsets(settings, topic)
        retained = {partition: (begin[partition], end[partition]) for partition in end}
        behind = behind_hole(archived, begin) if accept_hole else None
        if behind is not None:
            LOG.warning("the archive of %s goes on behind a hole as segment %s: %s", topic, segment + 1, behind)
            archived, segment = behind, segment + 1
        planned = plan_extension(archived, retained, upto)
        starts = {p: archived.get(p, bounds)[0] for p, bounds in planned.items()}
        ends = {p: start for p, (start, _) in planned.items()}
        chunks = plan_chunks(planned, chunk_records)
        for number, chunk in enumerate(chunks, start=1):
            before = dict(ends)
            ends |= {p: high for p, (_, high) in chunk.items()}
            rows = _collect(spark, settings, origin, chunk)
            _check_same_topic(settings, origin)  # read after the records: an id never comes back
            _commit(settings, origin, rows, starts, before, ends, segment)
            LOG.info("archive of %s: chunk %s of %s, %s records", topic, number, len(chunks), rows.num_rows)
            if progress is not None:
                progress(f"{topic}: chunk {number} of {len(chunks)}, {rows.num_rows} records")
    added = drop_empty(planned)
    return ArchiveReport(topic, origin.topic_id, added, ends, count(added), len(chunks))


def is_archiving(settings: Settings, topic: str) -> bool:
    """Say whether an archive job of the topic runs on this host."""
    path = settings.home / "archive" / f"{require_name(topic, 'topic')}.lock"
    if not path.exists():
        return False
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextmanager
def _locked(settings: Settings, topic: str) -> Iterator[None]:
    folder = settings.home / "archive"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{topic}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _check_same_topic(settings: Settings, origin: _Origin) -> None:
    now = kafka.topic_id(settings, origin.topic)
    if now != origin.topic_id:
        message = (
            f"topic {origin.topic} was deleted and created again (id {now}, before {origin.topic_id}) while it was being "
            "archived; the chunk was not written; run the archive job again, it begins the new topic's archive"
        )
        raise LostRaceError(message)


def _read_plainly(settings: Settings, origin: _Origin, chunk: OffsetRanges) -> pa.Table:
    """Return a chunk in Kafka's columns, read without Spark."""
    rows = []
    for record in read_exactly(settings, origin.topic, chunk):
        stamped: Any = record.timestamp()  # (type, epoch ms)
        pairs: Any = record.headers() or []
        headers = [{"key": name, "value": value} for name, value in pairs]
        rows.append(
            {
                "key": record.key(),
                "value": record.value(),
                "topic": origin.topic,
                "partition": record.partition(),
                "offset": record.offset(),
                "timestamp": from_ms(int(stamped[1])),
                "timestampType": int(stamped[0]) - 1,  # the client counts from 1 (CreateTime), Kafka from 0
                "headers": headers or None,
            }
        )
    return pa.Table.from_pylist(rows, schema=_PLAIN)


def _collect(spark: SparkSession | None, settings: Settings, origin: _Origin, chunk: OffsetRanges) -> pa.Table:
    if spark is None:
        rows = _read_plainly(settings, origin, chunk)
    else:
        rows = read_kafka(spark, settings, origin.topic, chunk).toArrow()
    found = {row["values"]: row["counts"] for row in pc.value_counts(rows["partition"]).to_pylist()}
    for partition, (start, end) in chunk.items():
        if found.get(partition, 0) != end - start:
            message = (
                f"topic {origin.topic}, partition {partition} [{start}, {end}) gave {found.get(partition, 0)} records for "
                f"{end - start} offsets, so the chunk was not archived; the topic is compacted or transactional, and "
                "only plain topics can be archived"
            )
            raise LogGapError(message)
    return _archive_rows(rows, origin)


def _archive_rows(rows: pa.Table, origin: _Origin) -> pa.Table:
    """Return Kafka's columns as the archive's."""
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


def _commit(
    settings: Settings,
    origin: _Origin,
    rows: pa.Table,
    starts: Mapping[int, int],
    before: Mapping[int, int],
    ends: Mapping[int, int],
    segment: int,
) -> None:
    segments = archived_segments(settings, origin.topic, origin.topic_id)
    check_unmoved(segments[segment] if segment < len(segments) else {}, between(starts, before), origin.topic)
    transactions: dict[str, int] = {}
    for partition, end in ends.items():  # every partition every time: that is how readers know how many there are
        start_name, end_name = transaction_names(origin.topic_id, partition, segment)
        transactions |= {start_name: starts[partition], end_name: end}
    metadata = {
        "archive": {
            "cluster_id": origin.cluster_id,
            "topic_id": origin.topic_id,
            "records": rows.num_rows,
            "segment": segment,
        }
    }
    append(
        settings.archive(origin.topic), rows, transactions=transactions, metadata=metadata, partition_by=PARTITION_BY
    )


def check_unmoved(archived: OffsetRanges, planned_from: OffsetRanges, topic: str) -> None:
    """Refuse a chunk that was planned on another archive than there is now.

    Raises:
        LostRaceError: somebody else extended the archive meanwhile.
    """
    if archived and drop_empty(archived) != drop_empty(planned_from):  # a partition may have been added since
        message = (
            f"the archive of {topic} was extended by somebody else while this chunk was read; nothing was written; "
            "run the archive job again, and on one host only"
        )
        raise LostRaceError(message)
