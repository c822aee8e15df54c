"""The archive job: copy Kafka's records, by exact ranges, into a Delta table that outlives Kafka's retention.

One chunk, in steps:
1. Under the archive's lock, read from the table how far each partition is archived.
2. Read exactly the next offsets of each partition from Kafka; this fails if one is gone.
3. Count: each partition must have given one record per offset.
4. One Delta commit: the rows, and per partition the new end as an application transaction.
5. Store the SHA-256 of its files, with which readers check them (`archive_sums`). If it is missing, the next run stores it.

A crash before step 4 leaves at most files that no commit names, and readers do not see them; the next run reads the
same ranges again. After a crash later than step 4 the chunk is complete. There is no state in between, so no record is archived
twice or missed. The lock is a file of the host. With a shared place there is also a lease in that place, so only one
of several hosts works on a topic's archive at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rivertwice.core import (
    LogGapError,
    LostRaceError,
    Measured,
    Progress,
    RequestError,
    Settings,
    TopicName,
    below,
    is_locked,
    lock,
    retry,
)
from rivertwice.log import kafka
from rivertwice.log.addresses import OffsetRanges, between, count, drop_empty, plan_chunks
from rivertwice.log.archive_rows import (
    Origin,
    collect_chunk,
    follow,
    last_marks,
    observe_archive_forks,
    require_followed,
)
from rivertwice.log.archive_table import (
    PARTITION_BY,
    Archived,
    archived,
    archived_ends,
    archived_starts,
    last_name,
    note_sums,
    read_archived,
    transaction_names,
    turn_name,
    version_of,
)
from rivertwice.storage import Snapshot, StillHeld, Table, home_id, shared_lock

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


# Which offsets the archive job reads next, and when a planned chunk no longer fits. Pure.


def plan_extension(archived: OffsetRanges, retained: OffsetRanges, upto: Mapping[int, int] | None) -> OffsetRanges:
    """Return the ranges to archive next, one for every partition; empty if it has no new record.

    Args:
        archived: the ranges in the archive; empty for a new topic, which then begins where Kafka begins.
        retained: the ranges in Kafka, for every partition.
        upto: ends to stop at; None: Kafka's ends.

    Raises:
        LogGapError: Kafka has already deleted records that the archive does not have.
        RequestError: `upto` is beyond Kafka's end.
    """
    planned: OffsetRanges = {}
    gaps: list[str] = []
    for partition, (begin, end) in sorted(retained.items()):
        start = archived.get(partition, (begin, begin))[1]
        target = end if upto is None else upto.get(partition, start)
        if target > end:
            message = (
                f"partition {partition} should be archived up to offset {target}, but Kafka's ends at {end}; the record "
                "was never written, so ask for at most the end"
            )
            raise RequestError(message)
        if start < begin:
            gaps.append(f"partition {partition} [{start}, {begin})")
        planned[partition] = (start, max(start, target))
    if gaps:
        message = (
            f"Kafka has deleted {', '.join(gaps)} before it was archived, so the log has a hole that cannot be filled; "
            "raise the topic's retention, then `rivertwice admin archive NAME --accept-hole` continues after it: records in the "
            "hole stay NOT_COMPARABLE for ever"
        )
        raise LogGapError(message)
    return planned


def behind_hole(archived: OffsetRanges, begin: Mapping[int, int]) -> OffsetRanges | None:
    """Return the begin of a new segment (empty ranges), if Kafka begins beyond the archive's end; else None. Pure."""
    ends = {p: archived.get(p, (first, first))[1] for p, first in begin.items()}
    if all(end >= begin[p] for p, end in ends.items()):
        return None
    return {p: (max(end, begin[p]), max(end, begin[p])) for p, end in ends.items()}


def check_unmoved(archived: OffsetRanges, planned_from: OffsetRanges, topic: str) -> None:
    """Refuse a chunk if the archive has changed since it was planned.

    Raises:
        LostRaceError: another job extended the archive meanwhile.
    """
    if archived and drop_empty(archived) != drop_empty(planned_from):  # a partition may have been added since
        message = (
            f"the archive of {topic} was extended by another job while this chunk was read; run the archive job again"
        )
        raise LostRaceError(message)


def check_turn(turn: int, planned_at: int, topic: str) -> None:
    """Refuse a chunk that was planned before another job's last commit, to any segment.

    Raises:
        LostRaceError: the archive has another number of commits than the chunk was planned from.
    """
    if turn != planned_at:
        message = (
            f"the archive of {topic} has {turn} commits and this chunk was planned from {planned_at}: another job extended it "
            "while the chunk was read; run the archive job again"
        )
        raise LostRaceError(message)


__all__ = [
    "ArchiveReport",
    "archive_lock",
    "archived_ends",
    "archived_starts",
    "behind_hole",
    "check_unmoved",
    "extend_archive",
    "is_archiving",
    "plan_extension",
]

LOG = logging.getLogger(__name__)
CHUNK_RECORDS = 100_000  # one chunk is held in memory once
_LOCKS, _HOME = ".locks", ".home"  # folder names that no topic can have
RACES = 5  # lost races in a run, before it leaves the work to the winner


@dataclass(frozen=True)
class ArchiveReport:
    """The result of one run of the archive job.

    Attributes:
        added: from the first to the last offset that this run archived; another host's chunks may be in between.
        ends: the archive's current end, by partition.
    """

    topic: str
    topic_id: str
    added: OffsetRanges
    ends: dict[int, int]
    records: int
    commits: int


def extend_archive(
    spark: SparkSession | None,
    settings: Settings,
    topic: str,
    *,
    upto: Mapping[int, int] | None = None,
    chunk_records: int = CHUNK_RECORDS,
    progress: Progress | None = None,
    accept_hole: bool = False,
    held: StillHeld | None = None,
) -> ArchiveReport:
    """Archive the topic's new records; a second run, or a run after a crash, adds no record twice.

    Args:
        spark: the session; None reads with a plain consumer, which needs no JVM and suits a few chunks.
        upto: ends to stop at, by partition; None means Kafka's current ends, or the first open transaction.
        chunk_records: maximum number of records per Delta commit.
        accept_hole: if Kafka deleted records before they were archived, continue after the hole with another segment; the
            records in the hole can never be read again. If Kafka has other records at archived offsets, let the archive follow it.
        held: the value that `archive_lock` yielded, if the caller holds the lock already.

    Raises:
        LostRaceError: another host works on this archive.
        LogGapError: Kafka no longer has the next record of a partition; the message names partition and offsets.
        LogForkError: Kafka has other records at archived offsets.
    """
    origin = Origin(kafka.cluster_id(settings), kafka.topic_id(settings, topic), topic)
    with archive_lock(settings, topic) if held is None else nullcontext(held) as check:
        job = _Job(spark, settings, origin, chunk_records, progress, check)

        def extend() -> None:
            now = archived(settings, topic, origin.topic_id)
            forks = observe_archive_forks(settings, origin, now)
            if forks and accept_hole:
                check()
                follow(settings, origin, forks)
                now = archived(settings, topic, origin.topic_id)
            else:
                require_followed(forks)
            job.extend(now, upto, accept_hole=accept_hole)

        def was_extended(error: BaseException) -> bool:
            return isinstance(error, LostRaceError) and kafka.topic_id(settings, topic) == origin.topic_id

        def say(_error: BaseException) -> None:
            LOG.info("the archive of %s was extended by another host; planned again", topic)

        retry(was_extended, tries=RACES, say=say)(extend)
    return ArchiveReport(topic, origin.topic_id, drop_empty(job.added), job.ends, job.records, job.commits)


@dataclass(frozen=True)
class _Chunk:
    """The content of one commit: in its segment each partition continues from `before` to `ends`."""

    segment: int
    turn: int
    starts: Mapping[int, int]
    before: Mapping[int, int]
    ends: Mapping[int, int]


class _Job:
    """One run of the archive job: its settings, and what it has added so far."""

    def __init__(
        self,
        spark: SparkSession | None,
        settings: Settings,
        origin: Origin,
        chunk_records: int,
        progress: Progress | None,
        check: StillHeld,
    ) -> None:
        self._check = check
        self._spark = spark
        self._settings = settings
        self._origin = origin
        self._chunk_records = chunk_records
        self._progress = progress
        self.added: OffsetRanges = {}
        self.ends: dict[int, int] = {}
        self.records = 0
        self.commits = 0

    def extend(self, first: Archived, upto: Mapping[int, int] | None, *, accept_hole: bool) -> None:
        """Plan the ranges after the archive's ends, and add them chunk by chunk.

        Raises:
            LostRaceError: another job extended the archive meanwhile.
        """
        settings, topic = self._settings, self._origin.topic
        reached, segment, turn = first.newest, max(0, len(first.segments) - 1), first.turn
        begin, end = kafka.begin_offsets(settings, topic), kafka.stable_ends(settings, topic)
        retained = {partition: (begin[partition], end[partition]) for partition in end}
        restart = behind_hole(reached, begin) if accept_hole else None
        if restart is not None:
            LOG.warning("the archive of %s continues after a hole as segment %s: %s", topic, segment + 1, restart)
            reached, segment = restart, segment + 1
        planned = plan_extension(reached, retained, upto)
        starts = {p: reached.get(p, bounds)[0] for p, bounds in planned.items()}
        self.ends = {p: start for p, (start, _) in planned.items()}
        chunks = plan_chunks(planned, self._chunk_records)
        note_sums(settings, topic)  # for files without a sum: from an interrupted run, or an earlier version
        for number, ranges in enumerate(chunks, start=1):
            before = dict(self.ends)
            ends = before | {p: high for p, (_, high) in ranges.items()}
            rows = collect_chunk(self._spark, settings, self._origin, ranges)
            _check_same_topic(settings, self._origin)  # read after the records: an id is never used again
            self._check()
            _commit(settings, self._origin, rows, _Chunk(segment, turn, starts, before, ends))
            note_sums(settings, topic)
            turn += 1
            self._count(ranges, ends, rows.num_rows)
            LOG.info("archive of %s: chunk %s of %s, %s records", topic, number, len(chunks), rows.num_rows)
            if self._progress is not None:
                line = f"{topic}: chunk {number} of {len(chunks)}, {rows.num_rows} records"
                self._progress(Measured(line, f"archive {topic}", count(self.added), count(planned)))

    def _count(self, ranges: OffsetRanges, ends: dict[int, int], records: int) -> None:
        self.ends = ends
        self.commits += 1
        self.records += records
        for partition, (start, end) in drop_empty(ranges).items():
            self.added[partition] = (self.added.get(partition, (start, end))[0], end)


def is_archiving(settings: Settings, topic: str) -> bool:
    """Say whether an archive job of the topic runs on this host."""
    return is_locked(_lock_file(settings, topic))


@contextmanager
def archive_lock(settings: Settings, topic: str, *, patience_s: float = 0.0) -> Iterator[StillHeld]:
    """Let one process write the archive of a topic; other processes of this host, and other hosts that share it, wait.

    Args:
        patience_s: how long to wait for another host.

    Yields:
        a check to call directly before each write: a host that was suspended may have lost the lock.

    Raises:
        LostRaceError: another host still works on it.
    """
    with lock(_lock_file(settings, topic)):
        if settings.shared is None:
            yield lambda: None
            return
        place = below(settings.shared, "archive", _LOCKS, TopicName(topic).folder)
        home = home_id(settings.home / "archive" / _HOME)
        with shared_lock(place, home=home, what=f"the archive of {topic}", patience_s=patience_s) as check:
            yield check


def _lock_file(settings: Settings, topic: str) -> Path:
    """Return a lock file, in a folder whose name no topic can have."""
    return settings.home / "archive" / _LOCKS / TopicName(topic).folder


def _check_same_topic(settings: Settings, origin: Origin) -> None:
    now = kafka.topic_id(settings, origin.topic)
    if now != origin.topic_id:
        message = (
            f"topic {origin.topic} was deleted and created again (id {now}, before {origin.topic_id}) while it was being "
            "archived; the chunk was not written; run the archive job again, it begins the new topic's archive"
        )
        raise LostRaceError(message)


def _commit(settings: Settings, origin: Origin, rows: pa.Table, chunk: _Chunk) -> None:
    """Commit one chunk, unless the archive has changed since the chunk was planned.

    Raises:
        LostRaceError: another job extended the archive meanwhile; nothing was written.
    """

    def check(table: Snapshot) -> None:
        now = read_archived(table, origin.topic_id)
        segment = now.segments[chunk.segment] if chunk.segment < len(now.segments) else {}
        check_unmoved(segment, between(chunk.starts, chunk.before), origin.topic)
        check_turn(now.turn, chunk.turn, origin.topic)

    transactions = {turn_name(origin.topic_id): chunk.turn + 1}
    for partition, end in chunk.ends.items():  # every partition every time: so readers know the number of partitions
        start_name, end_name = transaction_names(origin.topic_id, partition, chunk.segment)
        transactions |= {start_name: chunk.starts[partition], end_name: end}
    for partition, mark in last_marks(rows).items():
        transactions[last_name(origin.topic_id, partition, chunk.segment)] = version_of(mark)
    metadata = {
        "archive": {
            "cluster_id": origin.cluster_id,
            "topic_id": origin.topic_id,
            "records": rows.num_rows,
            "segment": chunk.segment,
        }
    }
    Table(settings.archive(origin.topic), partition_by=PARTITION_BY).append(
        rows, transactions=transactions, metadata=metadata, check=check
    )
