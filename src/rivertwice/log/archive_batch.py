"""The archive as a source of Spark's stream: one batch of exact offset ranges, with Kafka's columns and Kafka's offsets.

A stream whose next records Kafka has deleted reads them from here. Its checkpoint holds the same lines as if it had read Kafka, so
the next query continues in Kafka. A query over this source is for one batch: its ends are chosen beforehand, by the driver, which
also names the archive's files. Executors read these. Spark passes all of it through an option, as text.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from rivertwice.core import CheckpointError, LogGapError, Settings, SparkVersion, is_remote
from rivertwice.log.addresses import OffsetRanges, StoredOffsets, between, decode_ends, drop_empty
from rivertwice.log.archive_table import ABSENT, SCHEMA, read_archived
from rivertwice.log.records import KAFKA_COLUMNS, archive_files, kafka_schema
from rivertwice.storage import DataFile, Table, TableFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

NAME = "rivertwice_archive"
_BATCH = "batch"
_WANTED = pa.schema(
    [SCHEMA.field(name) for name in ("topic_id", "timestamp_type", *KAFKA_COLUMNS) if name in SCHEMA.names]
)


@dataclass(frozen=True)
class ArchiveTask:
    """What one task reads: records of one topic in the ranges, from some of the archive's files.

    Attributes:
        place: of the archive, as text.
        files: (path below the place, bytes, values of partition columns) each.
        ranges: (partition, start, end) each.
    """

    topic: str
    topic_id: str
    place: str
    files: Sequence[tuple[str, int, Mapping[str, str | None]]]
    ranges: Sequence[tuple[int, int, int]]


@dataclass(frozen=True)
class ArchiveBatch:
    """One batch of a stream: where it begins and ends, and what its tasks read."""

    start: StoredOffsets
    end: StoredOffsets
    tasks: Sequence[ArchiveTask]

    @property
    def records(self) -> int:
        """How many offsets it covers: as many records, unless the topic has transactions."""
        return sum(
            int(end) - int(self.start[topic][partition])
            for topic, ends in self.end.items()
            for partition, end in ends.items()
        )

    def to_text(self) -> str:
        """Return the batch as an option of Spark's reader."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> ArchiveBatch:
        """Read what `to_text` wrote."""
        data: dict[str, Any] = json.loads(text)
        return cls(data["start"], data["end"], tuple(ArchiveTask(**task) for task in data["tasks"]))


def plan_archive_batch(
    settings: Settings, topic_ids: Mapping[str, str], start: StoredOffsets, end: StoredOffsets
) -> ArchiveBatch:
    """Return a batch that the archive has whole.

    Args:
        start: topic to partition to the first offset.
        end: topic to partition to the offset after the last one.

    Raises:
        LogGapError: the archive lacks a part of it.
        TableDamageError: a file is missing, or differs from what was written.
    """
    tasks: list[ArchiveTask] = []
    for topic, topic_id in topic_ids.items():
        ranges = drop_empty(between(decode_ends(start[topic]), decode_ends(end[topic])))
        if ranges:
            tasks += _tasks(settings, topic, topic_id, ranges)
    return ArchiveBatch(start, end, tuple(tasks))


def _tasks(settings: Settings, topic: str, topic_id: str, ranges: OffsetRanges) -> list[ArchiveTask]:
    place = settings.archive(topic)
    table = Table(place).open()
    newest = read_archived(table, topic_id).newest
    lacking = {p: pair for p, pair in ranges.items() if not _contains(newest.get(p, (0, 0)), pair)}
    if table is None or lacking:
        shown = ", ".join(f"partition {p} [{low}, {high})" for p, (low, high) in lacking.items())
        message = (
            f"the archive of topic {topic} lacks {shown or 'all records'}, which Kafka has no longer; nothing was read"
        )
        raise LogGapError(message)
    shares = TableFiles(table).shares(archive_files(settings, topic, ranges, table))
    wanted = [(p, low, high) for p, (low, high) in ranges.items()]
    return [
        ArchiveTask(topic, topic_id, str(place), [(each.path, each.size, each.partition) for each in share], wanted)
        for share in shares
    ]


def _contains(outer: tuple[int, int], inner: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def archive_stream(spark: SparkSession, batch: ArchiveBatch) -> DataFrame:
    """Return a raw stream of one batch: Kafka's columns, headers among them."""
    spark.dataSource.register(ArchiveSource)
    return spark.readStream.format(NAME).option(_BATCH, batch.to_text()).load()


class ArchiveSource(DataSource):
    """Spark's interface to one batch of the archive."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return NAME

    def schema(self) -> StructType:
        """Return Kafka's columns."""
        return kafka_schema()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """Return the reader of the batch."""
        return _Reader(ArchiveBatch.from_text(self.options[_BATCH]), schema)


class _Task(InputPartition):
    def __init__(self, task: ArchiveTask) -> None:
        self.task = task


class _Reader(DataSourceStreamReader):
    def __init__(self, batch: ArchiveBatch, schema: StructType) -> None:
        self._batch = batch
        self._schema = to_arrow_schema(schema, **SparkVersion.installed().arrow_in_utc)

    def initialOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802 (Spark's name)
        return _plain(self._batch.start)

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, dict[str, int]]:  # noqa: N802 (Spark's name)
        del start, limit  # Spark passes them since 4.2
        return _plain(self._batch.end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        if (start, end) != (_plain(self._batch.start), _plain(self._batch.end)):
            message = (
                f"the archive was to be read from {self._batch.start} to {self._batch.end}, and the stream asks for {start} to {end}; "
                "nothing was read; start the stream again: it plans the batch by its checkpoint"
            )
            raise CheckpointError(message)
        return [_Task(task) for task in self._batch.tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Task), "no other is planned"
        task = partition.task
        place = task.place if is_remote(task.place) else Path(task.place)
        for path, size, values in task.files:
            for rows in DataFile(path, size, values).read(place, _WANTED):
                yield from _as_kafka(rows, task).cast(self._schema).to_batches()


def _as_kafka(rows: pa.Table, task: ArchiveTask) -> pa.Table:
    """Return the requested records among rows of the archive, with Kafka's columns."""
    in_ranges = functools.reduce(operator.or_, (_is_in(*bounds) for bounds in task.ranges))
    is_record = pc.field("timestamp_type") != ABSENT
    kept = rows.filter((pc.field("topic_id") == task.topic_id) & in_ranges & is_record)
    names = ["timestamp_type" if name == "timestampType" else name for name in KAFKA_COLUMNS]
    return kept.select(names).rename_columns(list(KAFKA_COLUMNS))


def _is_in(partition: int, start: int, end: int) -> pc.Expression:
    offset = pc.field("offset")
    return (pc.field("partition") == partition) & (offset >= start) & (offset < end)


def _plain(offsets: StoredOffsets) -> dict[str, dict[str, int]]:
    return {topic: dict(places) for topic, places in offsets.items()}
