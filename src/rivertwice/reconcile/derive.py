"""What must be true according to the log: the Spark side of a reconcile. The log is read once and kept."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from rivertwice.config import Settings
from rivertwice.log import kafka
from rivertwice.log.records import check_same_topic, observe_read, read_plan
from rivertwice.pipeline.compile import accepted
from rivertwice.pipeline.decode import decode
from rivertwice.pipeline.definition import Definition
from rivertwice.reconcile.gaps import GAP_INDEX, Jump
from rivertwice.reconcile.late_rule import LateRule, with_watermarks
from rivertwice.reconcile.rederive import BatchCounts, Chain, Ranges
from rivertwice.reconcile.rules import late_rule

_HEAVY = ("_key", "_value", "_headers")


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

    def judged_by(self, chain: Chain, groups: Sequence[int]) -> LateRule:
        """Return the accepted rows under the late rule of the definition's windows.

        Args:
            chain: re-derived watermarks by path index.
            groups: number of the definition that ran, by path index.
        """
        rows = with_watermarks(self._spark, accepted(self._tagged, self._source), chain, groups)
        return late_rule(self._spark, self._definition, rows, chain)


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
