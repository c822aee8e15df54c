"""What must be true according to the log: the Spark side of a reconcile. The log is read once and kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from rivertwice.config import Settings
from rivertwice.log import kafka
from rivertwice.log.records import check_same_topic, observe_read, read_plan
from rivertwice.pipeline.compile import accepted, compile_batch, included, with_window_end
from rivertwice.pipeline.decode import decode
from rivertwice.pipeline.definition import Definition
from rivertwice.reconcile.balance import PairCount
from rivertwice.reconcile.frames import addresses
from rivertwice.reconcile.gaps import GAP_INDEX, Jump
from rivertwice.reconcile.model import LateRow, Shape
from rivertwice.reconcile.rederive import BatchCounts, Chain, Ranges

_HEAVY = ("_key", "_value", "_headers")
_NEVER = -(1 << 50)  # a watermark that nothing is late by


class DerivedLog:
    """The decoded log up to a batch, each record tagged with the path index of the batch that read it.

    Use as a context manager: the cached records are released at its end.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        definition: Definition,
        ranges: Sequence[Ranges],
        topic_id: str | None = None,
        jumps: Sequence[Jump] = (),
    ) -> None:
        """Plan the reading of `ranges`, one entry per batch of the path, contiguous but for `jumps`.

        What neither Kafka nor the archive has is left out and named in `missing`; what an accepted gap jumped over and
        the archive has is read, and belongs to the truth.
        """
        self._spark = spark
        self._definition = definition
        _, self._source = definition.source
        self._settings = settings
        spanned = [*ranges, *(jump.gap.ranges for jump in jumps)]
        self._topic_id = topic_id or kafka.topic_id(settings, self._source.topic)
        self._plan = observe_read(settings, self._source.topic, _span(spanned), self._topic_id)
        self.missing = self._plan.missing
        raw = read_plan(spark, settings, self._source.topic, self._plan, self._topic_id)
        decoded = decode(raw, self._source).drop(*_HEAVY)
        self._tagged = tag_batches(decoded, batch_marks(spark, ranges, jumps)).persist(StorageLevel.MEMORY_AND_DISK)
        self._rows: DataFrame | None = None

    def __enter__(self) -> DerivedLog:
        """Return the log."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release the cached records."""
        self._tagged.unpersist()

    def counts(self) -> dict[tuple[int, int], BatchCounts]:
        """Return (path index, partition) to what the log holds there.

        Raises:
            LogGapError: the topic was created anew while it was read.
        """
        fine = F.col("_reason").isNull()
        event_ms = F.when(fine, F.unix_millis(self._source.event_time))
        table = (
            self._tagged.where(F.col("_index") != GAP_INDEX)
            .groupBy("_index", "_partition")
            .agg(
                F.count(F.lit(1)).alias("read"),
                F.count("_reason").alias("bad"),
                F.min(event_ms).alias("low"),
                F.max(event_ms).alias("high"),
            )
            .toArrow()
        )
        check_same_topic(self._settings, self._source.topic, self._topic_id, self._plan)
        return {
            (row["_index"], row["_partition"]): BatchCounts(
                row["read"], row["bad"], row["read"] - row["bad"], row["low"], row["high"]
            )
            for row in table.to_pylist()
        }

    def dead(self) -> list[tuple[int, int, int, str]]:
        """Return (path index, partition, offset, reason) of every record that decode rejects."""
        bad = self._tagged.where(F.col("_reason").isNotNull() & (F.col("_index") != GAP_INDEX))
        table = bad.select("_index", "_partition", "_offset", "_reason").toArrow()
        return [tuple(row.values()) for row in table.to_pylist()]

    def apply_chain(self, chain: Chain, groups: Sequence[int]) -> None:
        """Give every accepted row its batch's late watermark, its window and whether it was late.

        Args:
            chain: re-derived watermarks by path index.
            groups: number of the definition that ran, by path index.
        """
        marks = pa.table(
            {
                "_index": pa.array([GAP_INDEX, *range(len(chain.late))], pa.int32()),
                "_late_ms": pa.array([_NEVER, *chain.late], pa.int64()),
                "_group": pa.array([groups[-1], *groups], pa.int32()),
            }
        )
        watermarks = F.broadcast(self._spark.createDataFrame(marks))
        rows = accepted(self._tagged, self._source).join(watermarks, "_index")
        ended = with_window_end(rows, self._definition)
        late = F.unix_micros("_window_end") <= F.col("_late_ms") * 1000
        self._rows = ended.withColumn("_late", late)

    @property
    def rows(self) -> DataFrame:
        """The accepted rows with `_index`, `_late_ms`, `_group`, `_window_end` and `_late`."""
        assert self._rows is not None, "apply_chain comes first"
        return self._rows

    def truth(self, definition: Definition) -> pa.Table:
        """Return the batch result over all accepted rows."""
        return compile_batch(self._spark, definition, self.rows).toArrow()

    def expected(self, definition: Definition) -> pa.Table:
        """Return the batch result over the rows that were not late: what the stream must emit in the end."""
        read = self.rows.where(~F.col("_late") & (F.col("_index") != GAP_INDEX))
        return compile_batch(self._spark, definition, read).toArrow()

    def truth_as_of(self, ends: Mapping[int, int], windows_end_ms: Iterable[int]) -> pa.Table:
        """Return the batch result over the rows below `ends` (partition to offset), for the given windows only."""
        return compile_batch(self._spark, self._definition, self._below(ends, windows_end_ms)).toArrow()

    def _below(self, ends: Mapping[int, int], windows_end_ms: Iterable[int]) -> DataFrame:
        below = F.lit(False)
        for partition, end in ends.items():
            below = below | ((F.col("_partition") == partition) & (F.col("_offset") < end))
        wanted = pa.table({"_end_ms": pa.array(sorted(set(windows_end_ms)), pa.int64())})
        keys = F.broadcast(self._spark.createDataFrame(wanted))
        rows = self.rows.where(below).withColumn("_end_ms", F.unix_millis("_window_end"))
        return rows.join(keys, "_end_ms", "left_semi")

    def late_rows(self, shape: Shape, batches: Sequence[int]) -> list[LateRow]:
        """Return every late row by address. `batches` gives the batch number of each path index.

        A key that is computed by the transform is no column of its rows; such a row stays without an explanation.
        """
        rows = included(self._spark, self._definition, self.rows).where("_late")
        size_us = int(self._definition.window.size.total_seconds() * 1_000_000)
        start = F.timestamp_micros(F.unix_micros("_window_end") - size_us)
        keys = [name for name in shape.keys if name in rows.columns]
        table = rows.select(
            start.alias("window_start"),
            F.col("_window_end").alias("window_end"),
            *keys,
            *(F.lit(None).cast("string").alias(name) for name in shape.keys if name not in keys),
            "_partition",
            "_offset",
            "_index",
            "_late_ms",
            F.col(self._source.event_time).alias("_event_time"),
        ).toArrow()
        columns = ("_partition", "_offset", "_index", "_late_ms", "_event_time")
        plain = zip(*(table.column(name).to_pylist() for name in columns), strict=True)
        found = [
            LateRow(row, self._source.topic, partition, offset, batches[index], late_ms, event_time)
            for row, (partition, offset, index, late_ms, event_time) in zip(addresses(table, shape), plain, strict=True)
        ]
        return sorted(found, key=lambda one: (one.partition, one.offset))

    def pairs(self) -> list[PairCount]:
        """Return the records that passed the row filter, counted by partition, window and lateness."""
        rows = included(self._spark, self._definition, self.rows.where(F.col("_index") != GAP_INDEX))
        end_ms = F.unix_millis("_window_end").alias("end_ms")
        table = rows.groupBy("_partition", end_ms, "_late").agg(F.count(F.lit(1)).alias("rows")).toArrow()
        return [PairCount(row["_partition"], row["end_ms"], row["_late"], row["rows"]) for row in table.to_pylist()]

    def filled(self) -> set[int]:
        """Return the starts (epoch ms) of the windows that records belong to which no batch read, but the archive has."""
        skipped = self.rows.where(F.col("_index") == GAP_INDEX)
        return self._starts("_index", included(self._spark, self._definition, skipped)).get(GAP_INDEX, set())

    def touched(self, indexes: Iterable[int]) -> dict[int, set[int]]:
        """Return path index to the starts (epoch ms) of the windows that its rows touch."""
        wanted = sorted(set(indexes))
        if not wanted:
            return {}
        keys = F.broadcast(self._spark.createDataFrame(pa.table({"_index": pa.array(wanted, pa.int32())})))
        return self._starts(
            "_index", included(self._spark, self._definition, self.rows).join(keys, "_index", "left_semi")
        )

    def groups(self) -> dict[int, set[int]]:
        """Return window start (epoch ms) to the numbers of the definitions whose batches touched it."""
        by_group = self._starts("_group", included(self._spark, self._definition, self.rows))
        found: dict[int, set[int]] = {}
        for group, starts in by_group.items():
            for start in starts:
                found.setdefault(start, set()).add(group)
        return found

    def _starts(self, column: str, rows: DataFrame) -> dict[int, set[int]]:
        size_ms = int(self._definition.window.size.total_seconds() * 1000)
        start = (F.unix_millis("_window_end") - size_ms).alias("start")
        found: dict[int, set[int]] = {}
        for row in rows.select(column, start).distinct().toArrow().to_pylist():
            found.setdefault(row[column], set()).add(row["start"])
        return found


def tag_batches(records: DataFrame, marks: DataFrame) -> DataFrame:
    """Return `records` with `_index`: the newest mark at or below each record's offset in its partition.

    Args:
        records: `_partition`, `_offset` and anything else.
        marks: `_partition`, `_offset`, `_index`: where each batch begins; contiguous ranges need no ends.
    """
    both = records.withColumn("_record", F.lit(1)).unionByName(
        marks.withColumn("_record", F.lit(0)), allowMissingColumns=True
    )
    before = Window.partitionBy("_partition").orderBy("_offset", "_record")
    tagged = both.withColumn("_index", F.last("_index", ignorenulls=True).over(before))
    return tagged.where("_record = 1").drop("_record")


def batch_marks(spark: SparkSession, ranges: Sequence[Ranges], jumps: Sequence[Jump] = ()) -> DataFrame:
    """Return where each batch begins: `_partition`, `_offset` and its path index; empty ranges begin nothing.

    Where a gap begins that no batch read, GAP_INDEX begins.
    """
    found = [
        (partition, start, index)
        for index, batch in enumerate(ranges)
        for partition, (start, end) in batch.items()
        if start < end
    ]
    found += [(p, start, GAP_INDEX) for jump in jumps for p, (start, _) in jump.gap.ranges.items()]
    table = pa.table(
        {
            "_partition": pa.array([mark[0] for mark in found], pa.int32()),
            "_offset": pa.array([mark[1] for mark in found], pa.int64()),
            "_index": pa.array([mark[2] for mark in found], pa.int32()),
        }
    )
    return spark.createDataFrame(table)


def _span(ranges: Sequence[Ranges]) -> Ranges:
    span: Ranges = {}
    for batch in ranges:
        for partition, (start, end) in batch.items():
            low, high = span.get(partition, (start, end))
            span[partition] = (min(low, start), max(high, end))
    return span
