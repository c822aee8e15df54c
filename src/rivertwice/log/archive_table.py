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

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rivertwice.core import DamagedFileError, Settings, TableDamageError, TopicName, below
from rivertwice.log.addresses import OffsetRanges, between
from rivertwice.log.decoded_files import ANOTHER_SUM, has_sum, sum_of, tidy_decoded
from rivertwice.log.history import LakeHistory
from rivertwice.log.marks import LastRecord
from rivertwice.storage import Snapshot, Table, check_size, read_json, replace_json

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
"""`timestamp_type` of an offset that holds no record for a reader: a transaction's marker, or an aborted record. It has a separate
row, without key, value and headers, so that the archive has one row per offset whatever the topic."""
COUNTED = pa.schema([SCHEMA.field(name) for name in ("topic_id", "partition", "offset")])


def transaction_names(topic_id: str, partition: int, segment: int = 0) -> tuple[str, str]:
    """Return the application ids of a partition's start and end."""
    name = f"archive/{topic_id}{f'+{segment}' if segment else ''}/{partition}"
    return f"{name}/start", name


def last_name(topic_id: str, partition: int, segment: int = 0) -> str:
    """Return the application id of the mark of a partition's last record."""
    return f"{transaction_names(topic_id, partition, segment)[1]}/last"


def version_of(mark: LastRecord | None) -> int:
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
    marks: Mapping[int, LastRecord] = field(default_factory=dict)

    @property
    def newest(self) -> OffsetRanges:
        """The newest segment's ranges; partitions without a record yet have an empty one."""
        return self.segments[-1] if self.segments else {}


def read_archived(table: Snapshot | None, topic_id: str) -> Archived:
    """Return the archived ranges of one topic from a handle; empty without a table."""
    if table is None:
        return Archived()
    segments: list[OffsetRanges] = []
    while ranges := _segment(table, topic_id, len(segments)):
        segments.append(ranges)
    turn = table.applied_version(turn_name(topic_id)) or 0
    newest = len(segments) - 1
    versions = {p: table.applied_version(last_name(topic_id, p, newest)) for p in (segments[-1] if segments else ())}
    marks = {p: LastRecord(v >> MARK_BITS, 0, v & ((1 << MARK_BITS) - 1)) for p, v in versions.items() if v}
    return Archived(tuple(segments), turn, marks)


def archived(settings: Settings, topic: str, topic_id: str) -> Archived:
    """Return the ranges of one topic that are archived now."""
    return read_archived(Table(settings.archive(topic)).open(), topic_id)


def archived_segments(settings: Settings, topic: str, topic_id: str) -> list[OffsetRanges]:
    """Return the ranges of one topic that can be read without Kafka, oldest first: its history in a lake, if it has one, then the archive.

    The archive is one segment, and one more after each hole. After a history it may have no record yet.
    """
    segments = list(archived(settings, topic, topic_id).segments)
    history = LakeHistory.pinned(settings, topic, topic_id)
    return segments if history is None else [history.ranges, *(segments or [{}])]


def archived_ranges(settings: Settings, topic: str, topic_id: str) -> OffsetRanges:
    """Return the ranges of one topic in the newest segment; partitions without a record yet have an empty range."""
    return archived(settings, topic, topic_id).newest


def _segment(table: Snapshot, topic_id: str, segment: int) -> OffsetRanges:
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    partition = 0
    while True:  # every commit names every partition, so the first without a name is past the last
        start, end = (table.applied_version(name) for name in transaction_names(topic_id, partition, segment))
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
    """Count the requested records in the archive's files, by partition; three columns of one file at a time."""
    counts: Counter[int] = Counter()
    for file in files:
        counts.update(count_rows(pq.ParquetFile(file).read(columns=COUNTED.names), topic_id, ranges))
    return dict(counts)


def count_rows(rows: pa.Table, topic_id: str, ranges: OffsetRanges) -> dict[int, int]:
    """Return partition to how many of the archive's rows are in the ranges. Pure.

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


# The SHA-256 of the archive's data files, stored beside the tables when the files are written, and compared before they are read.
#
# A data file of a Delta table never changes, and it does not show a flipped bit: a backfill would compute another number from it. So a
# writer of a topic's archive stores the sums of its live files in `archive/.sums/TOPIC.json`. A reader of a file compares size and sum
# first, once per process. A file of an earlier version has no sum until the archive is extended; until then only its size is compared.
# In an object store an object is written whole and kept by the store, so no sum is stored.

LOG = logging.getLogger(__name__)
SUMS_FORMAT = 1
_FOLDER = ".sums"  # no topic can have this name


@dataclass(frozen=True)
class BrokenFile:
    """A data file that differs from what was written, or is missing.

    Attributes:
        path: path of the file, also if it is missing.
    """

    path: Path
    how: str


def sums_file(settings: Settings, topic: str) -> Path | None:
    """Return the file of a topic's sums; None if its archive is in an object store."""
    place = below(settings.home if settings.shared is None else settings.shared, "archive", _FOLDER)
    return place / f"{TopicName(topic).folder}.json" if isinstance(place, Path) else None


def read_sums(settings: Settings, topic: str) -> dict[str, str]:
    """Return data file, relative to the archive, to its SHA-256 in hex, if it is stored.

    Raises:
        DamagedFileError: the stored sums cannot be decoded.
    """
    path = sums_file(settings, topic)
    data = None if path is None else read_json(path)
    return {} if data is None or data.get("format") != SUMS_FORMAT else dict(data["sums"])


def note_sums(settings: Settings, topic: str) -> int:
    """Store the sums of live files that have none, and remove the sums of deleted files; return how many are new.

    What was kept decoded of deleted files is removed too. The caller must hold the archive's lock.
    """
    place, path = settings.archive(topic), sums_file(settings, topic)
    table = Table(place).open() if isinstance(place, Path) else None
    if table is None or path is None or not isinstance(place, Path):
        return 0
    try:
        noted = read_sums(settings, topic)
    except DamagedFileError as error:
        LOG.warning("%s; the sums of the files as they are now are noted", error)
        noted = {}
    live = table.sizes()
    tidy_decoded(settings, topic, {Path(name).name for name in live})
    updated = {name: noted[name] for name in live if name in noted}
    new = [name for name in live if name not in noted and (place / name).is_file()]
    updated |= {name: sum_of(place / name) for name in new}
    if updated != noted:
        replace_json(path, {"format": SUMS_FORMAT, "sums": updated})
    return len(new)


def find_broken(place: Path, sizes: Mapping[str, int], sums: Mapping[str, str]) -> list[BrokenFile]:
    """Return the data files that are missing, or differ from what was written.

    Args:
        sizes: the files to check, relative to the folder, with their sizes.
        sums: SHA-256 of the files that have one.
    """
    broken_files = []
    for name, size in sorted(sizes.items()):
        how = _how_broken(place / name, size, sums.get(name))
        if how is not None:
            broken_files.append(BrokenFile(place / name, how))
    return broken_files


def _how_broken(path: Path, size: int, noted: str | None) -> str | None:
    status = check_size(path, size)
    if isinstance(status, str):
        return status
    return None if noted is None or has_sum(path, status, noted) else ANOTHER_SUM


def require_sound(settings: Settings, topic: str, table: Snapshot, files: Sequence[str] | None = None) -> None:
    """Check that files of an archive are as they were written, before they are read.

    Args:
        files: full names of the files; None: all live files.

    Raises:
        TableDamageError: a file is missing or changed; the message names it and the remedy.
    """
    place = settings.archive(topic)
    if not isinstance(place, Path):
        return
    sizes = table.sizes()
    if files is not None:
        requested = {Path(name).relative_to(place).as_posix() for name in files}
        sizes = {name: size for name, size in sizes.items() if name in requested}
    broken = find_broken(place, sizes, read_sums(settings, topic))
    if broken:
        damage = "; ".join(f"{file.path} {file.how}" for file in broken[:5])
        message = (
            f"the archive of topic {topic} is damaged: {damage}; nothing was computed from it; `rivertwice admin repair NAME`, of a pipeline that "
            "reads the topic, lists the lost records, and writes them again while Kafka has them"
        )
        raise TableDamageError(message)
