"""Versions of table sources: the changes that each batch read from a topic, stored as rows that are joined with windows.

A batch's versions are written before its results, under a separate transaction. They count once the batch is in the
ledger. A window sees the versions of the batches on the path up to the batch that closes it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.core import PipelineHome, Settings
from rivertwice.definition import Definition
from rivertwice.engine import accepted, current_versions, decode_view, rows_schema
from rivertwice.log import OffsetRanges, Parts, drop_empty, of_topic, parts_of, read_ranges
from rivertwice.storage import Table, TableFiles
from rivertwice.stream.pieces import read_pieces
from rivertwice.stream.result_rows import DriverContext
from rivertwice.stream.side import SideTable, stamps
from rivertwice.timeline import BatchCounts, Segment, path_of

FORMAT = 1
METADATA_KEY = "versions"
AT = ("_partition", "_offset")


def write_versions(
    spark: SparkSession, settings: Settings, context: DriverContext, batch: int, ranges: Parts
) -> dict[str, BatchCounts]:
    """Write the versions that a batch read, once, and return its counts for each table's topic.

    Raises:
        RangeMismatchError: an earlier attempt at the batch left versions of another range.
    """
    return {
        source.topic: _write(spark, settings, context, batch, view, ranges)
        for view, source in context.definition.tables.items()
    }


def _write(
    spark: SparkSession, settings: Settings, context: DriverContext, batch: int, view: str, ranges: Parts
) -> BatchCounts:
    source, line = context.definition.sources[view], context.timeline
    own_ranges = drop_empty(of_topic(ranges, source.topic))
    parts = parts_of(source.topic, own_ranges)
    place = context.home.tables.versions(view)
    table = SideTable(place, METADATA_KEY, f"{context.app}/versions", "versions")
    is_written = table.is_written(batch, parts)
    if not own_ranges:
        return BatchCounts()
    raw = read_ranges(spark, settings, source.topic, own_ranges, topic_id=line.topic_ids[source.topic])
    decoded = decode_view(context.definition, view, raw).persist()
    try:
        rows = accepted(decoded, source).select(
            *stamps(FORMAT, line, batch),
            *source.schema_,
            *source.marks,
            "_partition",
            "_offset",
            "_record_time",
        )
        taken = rows.count()
        bad = decoded.where(F.col("_reason").isNotNull()).count()
        if not is_written:
            texts = [name for name, kind in source.schema_.items() if kind == "string"]
            pieces = read_pieces(lambda part: _within(rows, part), own_ranges, texts, rows=taken, at=AT)
            table.write_pieces(batch, parts, pieces, ("_timeline", *AT), even_none=True)
    finally:
        decoded.unpersist()
    return BatchCounts(read=taken + bad, bad=bad, accepted=taken)


def _within(rows: DataFrame, ranges: OffsetRanges) -> DataFrame:
    inside = [
        (F.col(AT[0]) == number) & F.col(AT[1]).between(first, end - 1) for number, (first, end) in ranges.items()
    ]
    return rows.where(functools.reduce(operator.or_, inside))


@dataclass(frozen=True)
class _Held:
    """The versions of a view that windows which start at `since_us` or later may see, of the batches on the path up to `batch`."""

    batch: int
    since_us: int
    rows: DataFrame


def _is_of(spark: SparkSession, rows: DataFrame) -> bool:
    """Say whether rows are of this session: a statement over views of two sessions does not find all of them."""
    is_same: bool = rows.sparkSession._jsparkSession == spark._jsparkSession
    return is_same


class KnownVersions:
    """The versions on a timeline's path, as of any of its batches; an `interval_rows.VersionsAt`.

    From one batch that closes windows to the next, executors hold the versions that the windows of then and later ones may see: the
    newest of each row of the table, and those that ended since. So a batch reads what the batches since have stored, and no version
    twice. The first batch of a query, which has a new session, reads all; so does one that comes before the last, or closes
    windows from before its own.
    """

    def __init__(self, settings: Settings, home: PipelineHome, definition: Definition, timeline: str) -> None:
        """Take where the tables are, and the timeline."""
        self._settings, self._home, self._definition, self._timeline = settings, home, definition, timeline
        self._held: dict[str, _Held] = {}

    def __call__(self, spark: SparkSession, batch: int, since_us: int | None) -> Mapping[str, DataFrame]:
        """Return view to the versions known when `batch` runs, for windows that start at `since_us` or later."""
        path = path_of(self._home, self._timeline) if self._definition.tables else []
        return {view: self._known(spark, view, path, batch, since_us) for view in self._definition.tables}

    def _known(
        self, spark: SparkSession, view: str, path: Sequence[Segment], batch: int, since_us: int | None
    ) -> DataFrame:
        if since_us is None:  # no window is there to see a version
            return self._read(spark, view, path, batch, batch).withColumn("_index", F.lit(0))
        held = self._held.get(view)
        if held is None or batch < held.batch or since_us < held.since_us or not _is_of(spark, held.rows):
            rows = self._read(spark, view, path, -1, batch)
        else:
            rows = held.rows.unionByName(self._read(spark, view, path, held.batch, batch))
        # The checkpoint cuts the plan, which would grow with each batch. If executors lose it, the batch fails, and the next driver reads all.
        kept = current_versions(self._definition, view, rows, since_us).localCheckpoint()
        self._held[view] = _Held(batch, since_us, kept)
        return kept.withColumn("_index", F.lit(0))

    def _read(self, spark: SparkSession, view: str, path: Sequence[Segment], after: int, batch: int) -> DataFrame:
        """Return the versions that the path's batches after `after` up to `batch` have read."""
        place, cache = self._home.tables.versions(view), self._settings.home / "cache"
        table = Table(place).open() if after < batch else None
        source = self._definition.sources[view]
        empty = spark.createDataFrame([], f"{rows_schema(source)}, _timeline string, _batch bigint")
        uris = [] if table is None else table.uris_above("_batch", after)
        rows = empty if table is None or not uris else TableFiles(table).frame(spark, empty.schema, cache, uris=uris)
        inside = [
            (F.col("_timeline") == segment.timeline)
            & F.col("_batch").between(segment.first, batch if segment.last is None else min(segment.last, batch))
            for segment in path
        ]
        read_rows = rows.where((F.col("_batch") > after) & functools.reduce(operator.or_, inside))
        return read_rows.drop("_timeline", "_batch")
