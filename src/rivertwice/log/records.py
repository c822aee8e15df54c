"""Read exactly the records of given offset ranges, from the archive, from Kafka, or from both."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from rivertwice.core import LogGapError, Settings
from rivertwice.log import kafka
from rivertwice.log.addresses import OffsetRanges, count, describe, drop_empty, intersect, split
from rivertwice.log.archive_table import ABSENT, COUNTED, archived, count_archived, count_rows, require_sound
from rivertwice.log.decoded_files import DecodedFiles, decoded_place
from rivertwice.log.history import LakeHistory
from rivertwice.log.kafka import range_options
from rivertwice.log.reader import compacted_away
from rivertwice.log.topic_sets import TopicSets
from rivertwice.storage import Snapshot, Table, TableFiles

# Records of the archive as a frame of Spark: the files that may hold them, counted and read where the executors are.

KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
_HEADERS = T.ArrayType(T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())]))
_ARCHIVE = T.StructType(
    [
        T.StructField("topic_id", T.StringType()),
        T.StructField("topic", T.StringType()),
        T.StructField("partition", T.IntegerType()),
        T.StructField("offset", T.LongType()),
        T.StructField("timestamp", T.TimestampType()),
        T.StructField("timestamp_type", T.IntegerType()),
        T.StructField("key", T.BinaryType()),
        T.StructField("value", T.BinaryType()),
        T.StructField("headers", _HEADERS),
    ]
)

_COUNTS = T.StructType([T.StructField("partition", T.IntegerType()), T.StructField("rows", T.LongType())])


def select_files(actions: Iterable[Mapping[str, Any]], uris: Sequence[str], ranges: OffsetRanges) -> list[str]:
    """Return the files that may have a requested record, by the bounds that Delta keeps for each.

    Args:
        actions: one mapping per file with `path`, `min.partition`, `max.partition`, `min.offset`, `max.offset`.
        uris: full names of the same files; they end with `path`.
        ranges: requested offsets. A file without bounds is kept.
    """
    by_name = {uri.rpartition("/")[2]: uri for uri in uris}
    files = [by_name[str(action["path"]).rpartition("/")[2]] for action in actions if _may_hold(action, ranges)]
    return sorted(files)


def _may_hold(action: Mapping[str, Any], ranges: OffsetRanges) -> bool:
    names = ("min.partition", "max.partition", "min.offset", "max.offset")
    bounds = [int(action[name]) for name in names if action.get(name) is not None]
    if len(bounds) < len(names):
        return True
    first, last, low, high = bounds
    return any(first <= p <= last and start <= high and low < end for p, (start, end) in ranges.items())


def archive_files(settings: Settings, topic: str, ranges: OffsetRanges, table: Snapshot | None = None) -> list[str]:
    """Return the full names of the archive's files that may have a requested record.

    Args:
        table: an open handle; None: the archive as it is now.

    Raises:
        TableDamageError: a file is missing, or differs from what was written.
    """
    table = table or Table(settings.archive(topic)).open()
    if table is None:
        return []
    files = select_files(table.actions().to_pylist(), table.uris(), ranges)
    require_sound(settings, topic, table, files)
    return files


def _in_ranges(ranges: OffsetRanges, partition: str, offset: str) -> Column:
    """Return whether a row's partition and offset are in one of the ranges."""
    at, number = F.col(offset), F.col(partition)
    inside = ((number == F.lit(p)) & (at >= F.lit(start)) & (at < F.lit(end)) for p, (start, end) in ranges.items())
    return functools.reduce(operator.or_, inside)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def check_count(counted: Mapping[int, int], ranges: OffsetRanges, what: str) -> None:
    """Compare counted records per partition with the ranges.

    Raises:
        LogGapError: a partition has more or fewer records than offsets.
    """
    wrong = {p: bounds for p, bounds in drop_empty(ranges).items() if counted.get(p, 0) != bounds[1] - bounds[0]}
    if wrong:
        counts = ", ".join(f"{counted.get(p, 0)} records in partition {p}" for p in wrong)
        message = (
            f"{what} should hold every offset of {describe(wrong)} once, but has {counts}; it is damaged; nothing "
            "was computed from it; `rivertwice admin repair` shows what can be read from Kafka again"
        )
        raise LogGapError(message)


def kafka_schema() -> T.StructType:
    """Return the schema of records in Kafka's columns."""
    fields = {field.name: field for field in _ARCHIVE.fields}
    stamp = T.StructField("timestampType", T.IntegerType())
    return T.StructType([fields.get(name, stamp) for name in KAFKA_COLUMNS])


@dataclass(frozen=True)
class ReadPlan:
    """The source of each requested record.

    Attributes:
        missing: ranges that are in neither: (partition, start, end).
        older: ranges taken from the archive's older segments, one mapping per segment.
        history: ranges taken from the topic's history in a lake.
    """

    archive: OffsetRanges
    kafka: OffsetRanges
    missing: tuple[tuple[int, int, int], ...]
    older: tuple[OffsetRanges, ...] = ()
    history: tuple[OffsetRanges, ...] = ()


def plan_read(
    wanted: OffsetRanges, archived: OffsetRanges, retained: OffsetRanges, older: Sequence[OffsetRanges] = ()
) -> ReadPlan:
    """Decide where to read: the archive has precedence, the rest comes from Kafka, so each offset is read once.

    Args:
        archived: the ranges in the archive's newest segment.
        older: the ranges in the archive's older segments; each is followed by a hole.
    """
    below, inside, above = split(drop_empty(wanted), archived)
    old_gap, old_here, between_gap = split(below, retained)
    seam_gap, new_here, new_gap = split(above, retained)
    whole = old_here.keys() & new_here.keys()  # Kafka reaches around the archive: one read instead of three
    joined = {p: (old_here[p][0], new_here[p][1]) for p in whole}
    gaps = (old_gap, between_gap, seam_gap, new_gap)
    missing = sorted((p, *bounds) for gap in gaps for p, bounds in gap.items())
    from_older, missing = _from_older(missing, older)
    return ReadPlan(
        archive={p: bounds for p, bounds in inside.items() if p not in whole},
        kafka=dict(sorted({**old_here, **new_here, **joined}.items())),
        missing=tuple(missing),
        older=tuple(from_older),
    )


def _from_older(
    missing: list[tuple[int, int, int]], older: Sequence[OffsetRanges]
) -> tuple[list[OffsetRanges], list[tuple[int, int, int]]]:
    """Return the missing ranges that older segments have, and the ranges that are still missing."""
    from_older: list[OffsetRanges] = []
    for segment in older:
        still_missing: list[tuple[int, int, int]] = []
        for partition, start, end in missing:
            below, inside, above = split({partition: (start, end)}, {partition: segment.get(partition, (start, start))})
            if inside:
                from_older.append(inside)
            still_missing += [(p, *bounds) for part in (below, above) for p, bounds in part.items()]
        missing = still_missing
    return from_older, sorted(missing)


def read_ranges(
    spark: SparkSession,
    settings: Settings,
    topic: str,
    ranges: OffsetRanges,
    *,
    count_check: bool = True,
    topic_id: str | None = None,
) -> DataFrame:
    """Return exactly the records of `ranges`, with Kafka's columns (`headers` among them).

    Archived records come from the archive, the rest from Kafka; every offset is read once.

    Args:
        ranges: half-open offset ranges by partition.
        count_check: also count the archive's records, so that a damaged archive is an error and not a smaller result.
        topic_id: id of the topic of the offsets; None: the id that Kafka reports now.

    Raises:
        LogGapError: records are in neither; the message names partition and offsets.
    """
    known_id = topic_id or kafka.topic_id(settings, topic)
    return LogRead(spark, settings, topic, [ranges], known_id, count_check=count_check).records()


def observe_read(
    settings: Settings, topic: str, ranges: OffsetRanges, topic_id: str, history: LakeHistory | None = None
) -> ReadPlan:
    """Find where the records of `ranges` can be read now; the plan's `missing` has the ranges that are nowhere.

    What Kafka has compacted away, and the archive lacks, is missing, too.

    Args:
        history: of the topic in a lake, before it is pinned; None: the pinned one.
    """
    *older, archive = archived(settings, topic, topic_id).segments or [{}]
    plan = plan_read(ranges, archive, _retained(settings, topic, topic_id, ranges, archive), older)
    gone = compacted_away(settings, topic, plan.kafka) if plan.kafka else []
    if plan.missing and (lake := history or LakeHistory.pinned(settings, topic, topic_id)) is not None:
        inside, missing = _from_older(list(plan.missing), [lake.ranges])
        plan = replace(plan, missing=tuple(missing), history=tuple(inside))
    return plan if not gone else replace(plan, missing=tuple(sorted([*plan.missing, *gone])))


class LogRead:
    """What is read of some offset ranges of one topic: files of the archive, which are sound and counted, and what only Kafka has.

    Attributes:
        settings, topic: where it is read.
        from_kafka: what Kafka gives.
        missing: ranges that are nowhere: (partition, start, end).
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        topic: str,
        scans: Sequence[OffsetRanges],
        topic_id: str,
        *,
        count_check: bool = True,
        leave_out: bool = False,
        history: LakeHistory | None = None,
    ) -> None:
        """Find where the records are.

        Args:
            scans: ranges by partition that have no offset in common.
            topic_id: id of the topic of the offsets.
            count_check: also count the archive's records, so that a damaged archive is an error and not a smaller result.
            leave_out: leave out what is missing; else that is an error.
            history: of the topic in a lake, before it is pinned; None: the pinned one.

        Raises:
            LogGapError: records are in neither Kafka nor the archive, or the archive has more or fewer than offsets.
            TableDamageError: a file is missing, or differs from what was written. One of a history may be left out.
        """
        self.settings = settings
        self.topic = topic
        self._spark = spark
        self._topic_id = topic_id
        plans = [observe_read(settings, topic, ranges, topic_id, history) for ranges in scans]
        for plan in plans:
            if plan.missing and not leave_out:
                raise _gap(topic, plan.missing)
        self.missing = [gap for plan in plans for gap in plan.missing]
        self._from_lake: list[DataFrame] = []
        if any(plan.history for plan in plans):
            lake = history or LakeHistory.pinned(settings, topic, topic_id)
            assert lake is not None, "the plan reads of it"
            for plan in plans:
                for part in plan.history:
                    self._from_lake += self._read_lake(lake, part, leave_out=leave_out)
        self.from_kafka = [plan.kafka for plan in plans if plan.kafka]
        archived = [ranges for plan in plans for ranges in (*plan.older, plan.archive) if ranges]
        self._table = Table(settings.archive(topic)).open() if archived else None
        self._actions = [] if self._table is None else self._table.actions().to_pylist()
        uris = [] if self._table is None else self._table.uris()
        self._scans = [(ranges, select_files(self._actions, uris, ranges)) for ranges in archived]
        self._uris = {_name(uri): uri for uri in sorted({uri for _, found in self._scans for uri in found})}
        if self._table is not None:
            require_sound(settings, topic, self._table, list(self._uris.values()))
        if count_check:
            for ranges, found in self._scans:
                check_count(self._counted(ranges, found), ranges, f"the archive of topic {topic}")

    def check_same_topic(self) -> None:
        """Check, after records were read from Kafka, that they belong to this topic: an id is never used again.

        Raises:
            LogGapError: the topic was deleted and created again meanwhile.
        """
        if self.from_kafka and kafka.topic_id(self.settings, self.topic) != self._topic_id:
            message = (
                f"topic {self.topic} is no longer the one with id {self._topic_id}: it was deleted and created again while it was being "
                "read, so the records may be others; nothing was concluded from them; ask again for what the archive holds"
            )
            raise LogGapError(message)

    @property
    def files(self) -> dict[str, float]:
        """Name of each of the archive's files, without its folder, to the share of its records that is asked for."""
        scans = [ranges for ranges, _ in self._scans]
        shares = {_name(str(action["path"])): _share(action, scans) for action in self._actions}
        return {name: shares[name] for name in self._uris}

    def records(self, *, without: Collection[str] = ()) -> DataFrame:
        """Return the records, with Kafka's columns; `without` names files of the archive that are left out."""
        frames = []
        for ranges, found in self._scans:
            uris = [uri for uri in found if _name(uri) not in without]
            if uris:
                rows = self._rows(uris).where(F.col("topic_id") == F.lit(self._topic_id))
                frames.append(_as_kafka(rows.where(_in_ranges(ranges, "partition", "offset"))))
        frames += [read_kafka(self._spark, self.settings, self.topic, ranges) for ranges in self.from_kafka]
        frames += self._from_lake
        if not frames:
            return self._spark.createDataFrame([], kafka_schema())
        return functools.reduce(DataFrame.unionByName, frames)

    def is_whole_without(self, names: Collection[str]) -> bool:
        """Say whether all records are in files of these names."""
        return not self.from_kafka and not self._from_lake and self._uris.keys() <= set(names)

    def whole_files(self, names: Collection[str]) -> DataFrame:
        """Return all records of some of the archive's files in a folder, with Kafka's columns, `_topic_id`, and the file's name as `_file`."""
        rows = self._rows([self._uris[name] for name in names])
        file = F.col("_metadata.file_name").alias("_file")
        return _as_kafka(rows, F.col("topic_id").alias("_topic_id"), file)

    def decoded_records(self, kept: Mapping[str, Path], read: Callable[[list[Path]], DataFrame]) -> DataFrame:
        """Return what is asked for of decoded files.

        Args:
            kept: name of a file of the archive, at least one of `files`, to the decoded one.
            read: returns the rows of decoded files.
        """
        frames = []
        for ranges, found in self._scans:
            paths = [kept[_name(uri)] for uri in found if _name(uri) in kept]
            if paths:
                rows = read(paths).where(F.col("_topic_id") == F.lit(self._topic_id))
                frames.append(rows.where(_in_ranges(ranges, "_partition", "_offset")))
        return functools.reduce(DataFrame.unionByName, frames)

    def decoded_files(self, decoder: str) -> DecodedFiles | None:
        """Return what a decoder keeps of these files; None: the archive is in an object store, where nothing is kept."""
        place = decoded_place(self.settings, self.topic)
        return None if place is None else DecodedFiles(place / decoder, self._uris.keys())

    def _read_lake(self, history: LakeHistory, ranges: OffsetRanges, *, leave_out: bool) -> list[DataFrame]:
        """Return the records of some ranges of the history; what it has lost is missing."""
        frames = []
        for partition, (low, high) in ranges.items():
            runs, lost = history.readable(low, high)
            if lost and not leave_out:
                raise history.refusal(lost)
            frames += [history.records(self._spark, *run) for run in runs]
            self.missing += [(partition, *gap) for gap in _between(runs, low, high)]
        return frames

    def _rows(self, uris: Sequence[str]) -> DataFrame:
        assert self._table is not None, "it has files"
        return TableFiles(self._table).frame(self._spark, _ARCHIVE, self.settings.home / "cache", uris=uris)

    def _counted(self, ranges: OffsetRanges, uris: Sequence[str]) -> dict[int, int]:
        if self._table is None:
            return {}
        files = TableFiles(self._table)
        if files.are_read_by_executors(self._spark):
            return _count_by_executors(self._spark, self._table, uris, self._topic_id, ranges)
        return count_archived(files.copies(uris, self.settings.home / "cache"), self._topic_id, ranges)


def _between(runs: Sequence[tuple[int, int]], low: int, high: int) -> list[tuple[int, int]]:
    """Return the offsets of [low, high) that are in none of some runs, which are in order. Pure."""
    ends = [low, *(end for _, end in runs)]
    starts = [*(start for start, _ in runs), high]
    return [(end, start) for end, start in zip(ends, starts, strict=True) if end < start]


def _as_kafka(rows: DataFrame, *more: Column) -> DataFrame:
    """Return the records among rows of the archive, with Kafka's columns."""
    records = rows.where(F.col("timestamp_type") != F.lit(ABSENT))
    stamp = F.col("timestamp_type").alias("timestampType")
    return records.select(*(stamp if name == "timestampType" else F.col(name) for name in KAFKA_COLUMNS), *more)


def _share(action: Mapping[str, Any], scans: Sequence[OffsetRanges]) -> float:
    """Return which share of a file's records is asked for, by the bounds that Delta keeps; 1 if it keeps none. Pure."""
    names = ("min.partition", "max.partition", "min.offset", "max.offset", "num_records")
    bounds = [int(action[name]) for name in names if action.get(name) is not None]
    if len(bounds) < len(names) or not bounds[-1]:
        return 1.0
    first, last, low, high, rows = bounds
    asked = sum(
        max(0, min(end, high + 1) - max(start, low))
        for ranges in scans
        for p, (start, end) in ranges.items()
        if first <= p <= last
    )
    return min(asked, rows) / rows


def _count_by_executors(
    spark: SparkSession, table: Snapshot, uris: Sequence[str], topic_id: str, ranges: OffsetRanges
) -> dict[int, int]:
    """Return what `count_archived` returns, counted where the files are read."""

    def counts(rows: pa.Table) -> pa.Table:
        counted = count_rows(rows, topic_id, ranges)
        return pa.table({"partition": [*counted], "rows": [*counted.values()]}, schema=to_arrow_schema(_COUNTS))

    files = TableFiles(table)
    pieces = files.scan(spark, _COUNTS, counts, files=files.named(uris), columns=COUNTED.names)
    sums = pieces.groupBy("partition").agg(F.sum("rows").alias("rows")).toArrow()
    return {row["partition"]: row["rows"] for row in sums.to_pylist()}


def _retained(
    settings: Settings, topic: str, topic_id: str, wanted: OffsetRanges, archived: OffsetRanges
) -> OffsetRanges:
    """Return Kafka's ranges of the topic; empty if the archive suffices, or if the topic now has another id."""
    if count(intersect(wanted, archived)) == count(wanted) or kafka.topic_id(settings, topic) != topic_id:
        return {}
    begin, end = kafka.begin_offsets(settings, topic), kafka.end_offsets(settings, topic)
    return {partition: (begin[partition], end[partition]) for partition in end}


def _gap(topic: str, missing: Iterable[tuple[int, int, int]]) -> LogGapError:
    shown = ", ".join(f"partition {partition} [{start}, {end})" for partition, start, end in missing)
    message = (
        f"topic {topic}: {shown} is in neither Kafka nor the archive, and results over it would be wrong; run the archive "
        "more often than Kafka's retention deletes, or ask for a range that is still there"
    )
    return LogGapError(message)


def read_kafka(spark: SparkSession, settings: Settings, topic: str, ranges: OffsetRanges) -> DataFrame:
    """Return the records of `ranges` from Kafka alone; Spark fails if one of them was deleted meanwhile."""
    wanted = drop_empty(ranges)
    sets = TopicSets.load(settings, [topic])
    starts = sets.to_kafka({topic: {str(partition): start for partition, (start, _) in wanted.items()}})
    ends = sets.to_kafka({topic: {str(partition): end for partition, (_, end) in wanted.items()}})
    records = (
        spark.read.format("kafka")
        .options(**range_options(settings))
        .option("assign", json.dumps({name: sorted(map(int, places)) for name, places in starts.items()}))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .option("failOnDataLoss", "true")
        .option("includeHeaders", "true")
        .load()
    )
    return numbered_columns(records, sets).select(*KAFKA_COLUMNS)


def numbered_columns(records: DataFrame, sets: TopicSets) -> DataFrame:
    """Return records of Kafka with the patterns instead of their topics, and the numbers that the partitions have there."""
    topic, partition = F.col("topic"), F.col("partition")
    place = F.concat_ws("/", "topic", "partition")  # no topic has a / in its name
    for pattern, joined in sets.items():
        numbers = [
            F.lit(value) for part, number in joined.numbers.items() for value in ("/".join(map(str, part)), number)
        ]
        is_of_it = F.col("topic").isin(*joined.topic_ids)
        partition = F.when(is_of_it, F.element_at(F.create_map(*numbers), place)).otherwise(partition)
        topic = F.when(is_of_it, F.lit(pattern)).otherwise(topic)
    return records.withColumns({"topic": topic, "partition": partition}) if sets else records
