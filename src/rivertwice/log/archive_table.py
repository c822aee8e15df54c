"""The archive's Delta table without Spark: its ranges, and its schema.

One table per topic name. The application transactions hold its exact ends: `archive/<topic id>/<p>` is the end of
partition p, `archive/<topic id>/<p>/start` its start. A topic that was deleted and created again has another id, so its
records never mix with those of the old topic.

`archive/<topic id>/<p>/last` is the mark of the partition's last record (`log.marks`), in one number: its offset and 20 bits of its hash.
It is of Kafka's own bytes, also if the archive's are rewritten later.

`archive/<topic id>` counts the commits. Each commit has the next number. So if two commits start from the same state, on
one host or on two, Delta accepts only one.

After a hole that cannot be filled (Kafka deleted records that were not archived) the archive continues with another
segment, whose names have the topic's id with `+1`, `+2` and so on. Segments of a topic never overlap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rivertwice.config import Settings
from rivertwice.log.addresses import OffsetRanges, between
from rivertwice.log.marks import Mark
from rivertwice.store.delta import Table, open_table

FORMAT = 1
PARTITION_BY = ("day",)
MARK_BITS = 20
SCHEMA = pa.schema(
    [
        pa.field("_format", pa.int32()),
        pa.field("cluster_id", pa.string()),
        pa.field("topic_id", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("timestamp_type", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))),
        pa.field("day", pa.string()),
    ]
)


ABSENT = -1
"""`timestamp_type` of an offset that holds no record for a reader: a transaction's marker, or an aborted record. It has a row of
its own, without key, value and headers, so that the archive has one row per offset whatever the topic."""
COUNTED = pa.schema([SCHEMA.field(name) for name in ("topic_id", "partition", "offset")])


def transaction_names(topic_id: str, partition: int, segment: int = 0) -> tuple[str, str]:
    """Return the application ids of a partition's start and end."""
    name = f"archive/{topic_id}{f'+{segment}' if segment else ''}/{partition}"
    return f"{name}/start", name


def last_name(topic_id: str, partition: int, segment: int = 0) -> str:
    """Return the application id of the mark of a partition's last record."""
    return f"{transaction_names(topic_id, partition, segment)[1]}/last"


def version_of(mark: Mark | None) -> int:
    """Return a mark as the version of an application id, which rises with the offset; 0: there is no record."""
    return 0 if mark is None else mark.offset << MARK_BITS | mark.hash & ((1 << MARK_BITS) - 1)


def turn_name(topic_id: str) -> str:
    """Return the application id of the counter of one topic's commits."""
    return f"archive/{topic_id}"


@dataclass(frozen=True)
class Archived:
    """The archived ranges of one topic, read from one handle on its table.

    Attributes:
        segments: ranges by partition, oldest segment first; more than one only after a hole.
        turn: number of its last commit; 0 before the first, and for an archive of a version without the counter.
        marks: partition to the last record of the newest segment, with `MARK_BITS` of its hash; none from a version without marks.
    """

    segments: tuple[OffsetRanges, ...] = ()
    turn: int = 0
    marks: Mapping[int, Mark] = field(default_factory=dict)

    @property
    def newest(self) -> OffsetRanges:
        """The newest segment's ranges; partitions without a record yet have an empty one."""
        return self.segments[-1] if self.segments else {}


def read_archived(table: Table | None, topic_id: str) -> Archived:
    """Return the archived ranges of one topic from a handle; empty without a table."""
    if table is None:
        return Archived()
    segments: list[OffsetRanges] = []
    while ranges := _segment(table, topic_id, len(segments)):
        segments.append(ranges)
    turn = table.transaction_version(turn_name(topic_id)) or 0
    newest = len(segments) - 1
    versions = {
        p: table.transaction_version(last_name(topic_id, p, newest)) for p in (segments[-1] if segments else ())
    }
    marks = {p: Mark(v >> MARK_BITS, 0, v & ((1 << MARK_BITS) - 1)) for p, v in versions.items() if v}
    return Archived(tuple(segments), turn, marks)


def archived(settings: Settings, topic: str, topic_id: str) -> Archived:
    """Return the ranges of one topic that are archived now."""
    return read_archived(open_table(settings.archive(topic)), topic_id)


def archived_segments(settings: Settings, topic: str, topic_id: str) -> list[OffsetRanges]:
    """Return the archived ranges of one topic, oldest segment first; more than one segment only after a hole."""
    return list(archived(settings, topic, topic_id).segments)


def archived_ranges(settings: Settings, topic: str, topic_id: str) -> OffsetRanges:
    """Return the ranges of one topic in the newest segment; partitions without a record yet have an empty range."""
    return archived(settings, topic, topic_id).newest


def _segment(table: Table, topic_id: str, segment: int) -> OffsetRanges:
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    partition = 0
    while True:  # every commit names every partition, so the first without a name is past the last
        start, end = (table.transaction_version(name) for name in transaction_names(topic_id, partition, segment))
        if start is None or end is None:
            return between(starts, ends)
        starts[partition], ends[partition] = int(start), int(end)
        partition += 1


def archived_ends(settings: Settings, topic: str, topic_id: str) -> dict[int, int]:
    """Return per partition the first offset that the archive does not have yet."""
    return {partition: end for partition, (_, end) in archived_ranges(settings, topic, topic_id).items()}


def archived_starts(settings: Settings, topic: str, topic_id: str) -> dict[int, int]:
    """Return per partition the oldest offset that the archive has."""
    return {partition: start for partition, (start, _) in archived_ranges(settings, topic, topic_id).items()}


def count_archived(files: Iterable[str], topic_id: str, ranges: OffsetRanges) -> dict[int, int]:
    """Count the wanted records in the archive's files, by partition; three columns of one file at a time."""
    counts: Counter[int] = Counter()
    for file in files:
        counts.update(count_rows(pq.ParquetFile(file).read(columns=COUNTED.names), topic_id, ranges))
    return dict(counts)


def count_rows(rows: pa.Table, topic_id: str, ranges: OffsetRanges) -> dict[int, int]:
    """Return partition to how many of the archive's rows are wanted. Pure.

    A file that delta-rs rewrote (delete, update) has the types string_view and binary_view, which Arrow's comparisons do
    not accept (ran, pyarrow 26); so the columns are always cast to our own types.
    """
    rows = rows.select(COUNTED.names).cast(COUNTED)
    topic_rows = rows.filter(pc.equal(rows["topic_id"], topic_id))
    counts = {}
    for partition, (start, end) in ranges.items():
        offsets = topic_rows.filter(pc.equal(topic_rows["partition"], partition))["offset"]
        inside = pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end))
        counts[partition] = pc.sum(inside).as_py() or 0
    return counts
