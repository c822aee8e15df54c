"""Records of the archive as a frame of Spark: the files that may hold them, counted and read where the executors are."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from rivertwice.config import Place, Settings
from rivertwice.errors import LogGapError
from rivertwice.log.addresses import OffsetRanges, describe, drop_empty
from rivertwice.log.archive_sums import require_sound
from rivertwice.log.archive_table import ABSENT, COUNTED, count_archived, count_rows
from rivertwice.store.delta import Table, open_table
from rivertwice.store.delta_scan import scan
from rivertwice.store.fetched import local_files
from rivertwice.store.spark_files import files_of, read_by_executors, read_files

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
    """Return the files that may have a wanted record, by the bounds that Delta keeps for each.

    Args:
        actions: one mapping per file with `path`, `min.partition`, `max.partition`, `min.offset`, `max.offset`.
        uris: full names of the same files; they end with `path`.
        ranges: wanted offsets. A file without bounds is kept.
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


def archive_files(settings: Settings, topic: str, ranges: OffsetRanges, table: Table | None = None) -> list[str]:
    """Return the full names of the archive's files that may have a wanted record.

    Args:
        settings: location of the archive.
        topic: the archive's topic.
        ranges: wanted offsets.
        table: an open handle; None: the archive as it is now.

    Raises:
        TableDamageError: a file is missing, or differs from what was written.
    """
    table = table or open_table(settings.archive(topic))
    if table is None:
        return []
    files = select_files(pa.table(table.get_add_actions(flatten=True)).to_pylist(), table.file_uris(), ranges)
    require_sound(settings, topic, table, files)
    return files


def read_archive(
    spark: SparkSession, settings: Settings, topic: str, ranges: OffsetRanges, topic_id: str, *, count_check: bool
) -> DataFrame:
    """Return the records of `ranges` from the archive, with Kafka's columns.

    Raises:
        LogGapError: the archive has more or fewer records than offsets; only with `count_check`.
        TableDamageError: a file is missing, or differs from what was written.
    """
    place, cache = settings.archive(topic), settings.home / "cache"
    table = open_table(place)
    uris = [] if table is None else archive_files(settings, topic, ranges, table)
    if count_check:
        if table is not None and read_by_executors(spark, place):
            counted = _count_by_executors(spark, place, table, uris, topic_id, ranges)
        else:
            counted = count_archived(local_files(uris, cache), topic_id, ranges)
        check_count(counted, ranges, f"the archive of topic {topic}")
    if table is None or not uris:
        return spark.createDataFrame([], kafka_schema())
    rows = read_files(spark, place, table, _ARCHIVE, cache, uris=uris)
    in_ranges = functools.reduce(operator.or_, (_in_range(p, *bounds) for p, bounds in ranges.items()))
    is_record = F.col("timestamp_type") != F.lit(ABSENT)
    records = rows.where((F.col("topic_id") == F.lit(topic_id)) & in_ranges & is_record)
    return records.withColumnRenamed("timestamp_type", "timestampType").select(*KAFKA_COLUMNS)


def _count_by_executors(
    spark: SparkSession, place: Place, table: Table, uris: Sequence[str], topic_id: str, ranges: OffsetRanges
) -> dict[int, int]:
    """Return what `count_archived` returns, counted where the files are read."""

    def counts(rows: pa.Table) -> pa.Table:
        counted = count_rows(rows, topic_id, ranges)
        return pa.table({"partition": [*counted], "rows": [*counted.values()]}, schema=to_arrow_schema(_COUNTS))

    files = files_of(table, uris)
    pieces = scan(spark, place, table, _COUNTS, counts, files=files, columns=COUNTED.names)
    sums = pieces.groupBy("partition").agg(F.sum("rows").alias("rows")).toArrow()
    return {row["partition"]: row["rows"] for row in sums.to_pylist()}


def _in_range(partition: int, start: int, end: int) -> Column:
    offset = F.col("offset")
    return (F.col("partition") == F.lit(partition)) & (offset >= F.lit(start)) & (offset < F.lit(end))


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
            "was computed from it; `rivertwice repair` shows what can be read from Kafka again"
        )
        raise LogGapError(message)


def kafka_schema() -> T.StructType:
    """Return the schema of records in Kafka's columns."""
    fields = {field.name: field for field in _ARCHIVE.fields}
    stamp = T.StructField("timestampType", T.IntegerType())
    return T.StructType([fields.get(name, stamp) for name in KAFKA_COLUMNS])
