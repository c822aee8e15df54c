"""The rule of folds: nothing is late, and what the stream must have emitted is the same fold over the log in the ledger's order.

The order of a key's events is (batch, partition, offset), for that is how the stream read them. Of a key in one partition it is the
order of the log, however batches were cut. Of a key in several partitions another cut gives another order, and perhaps
other rows: the stream is held to the order that it had (a difference is a DEFECT), but no order is the true one, so its rows
are NOT_COMPARABLE.

A row differs from the batch run of a log that was whole only by what an accepted gap left out: from the record that no batch
read on, nothing that follows of its key can be told.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.errors import RequestError
from rivertwice.log.addresses import Part
from rivertwice.pipeline.definition import Definition
from rivertwice.pipeline.fold_run import PARTITION_SHIFT
from rivertwice.pipeline.folds import batch_fold, packed
from rivertwice.pipeline.model import RECORD
from rivertwice.pipeline.views import record_column
from rivertwice.reconcile.balance import PairCount
from rivertwice.reconcile.gaps import GAP_INDEX
from rivertwice.reconcile.late_rule import LateRule
from rivertwice.reconcile.model import LateRow, RowId, Shape
from rivertwice.reconcile.rederive import Ranges

_OFFSET = (1 << PARTITION_SHIFT) - 1


class FoldRule(LateRule):
    """The accepted rows of a path, folded key by key."""

    def __init__(self, spark: SparkSession, definition: Definition, rows: DataFrame) -> None:
        """Take accepted rows with `_index`, `_late_ms` and `_group`."""
        super().__init__(spark, definition, rows)
        self._expected: pa.Table | None = None
        self._true: pa.Table | None = None
        skipped = packed(definition, rows.where(F.col("_index") == GAP_INDEX)).select("_key").distinct().toArrow()
        self._skipped: pa.Table = skipped

    def truth(self, definition: Definition) -> pa.Table:
        """Return the batch result over all accepted rows; records that no batch read stand where they lie in the log."""
        if not self._skipped.num_rows:
            return self.expected(definition)
        if self._true is None:
            self._true = batch_fold(definition, self._rows).toArrow()
        return self._true

    def expected(self, definition: Definition) -> pa.Table:
        """Return what the stream must emit: the fold over what it read, in the order in which it did."""
        if self._expected is None:
            read = self._rows.where(F.col("_index") != GAP_INDEX)
            self._expected = batch_fold(definition, read, "_index").toArrow()
        return self._expected

    def truth_as_of(
        self, as_of: Mapping[str, Mapping[int, int]], amendments: int, windows_end_ms: Iterable[int]
    ) -> pa.Table:
        """Refuse: nothing of a fold is published.

        Raises:
            RequestError: always.
        """
        del as_of, amendments, windows_end_ms
        message = f"{self._definition.name} is a fold, which no publication can serve; remove the publication"
        raise RequestError(message)

    def late_rows(self, shape: Shape, batches: Sequence[int]) -> list[LateRow]:
        """Return nothing: no event of a fold is late."""
        del shape, batches
        return []

    def pairs(self) -> list[PairCount]:
        """Return the records that yielded a row, counted by partition."""
        records = set(self.expected(self._definition)[RECORD].to_pylist())
        counted = Counter(record >> PARTITION_SHIFT for record in records)
        return [PairCount(Part(self._source.topic, number), 0, False, rows) for number, rows in counted.items()]

    def silent(self) -> dict[Part, int]:
        """Return by part the records that were folded and yielded no row."""
        records = pa.table(
            {RECORD: pa.array(sorted(set(self.expected(self._definition)[RECORD].to_pylist())), pa.int64())}
        )
        read = self._rows.where(F.col("_index") != GAP_INDEX)
        record = record_column(F.col("_partition"), F.col("_offset"))
        quiet = read.select("_partition", record).join(self._spark.createDataFrame(records), RECORD, "left_anti")
        table = quiet.groupBy("_partition").agg(F.count(F.lit(1)).alias("rows")).toArrow()
        return {Part(self._source.topic, row["_partition"]): row["rows"] for row in table.to_pylist()}

    def apart(self) -> dict[int, str]:
        """Return record to reason, for the records of keys that lie in more than one partition."""
        keyed = packed(self._definition, self._rows)
        spread = keyed.groupBy("_key").agg(F.sort_array(F.collect_set("_partition")).alias("_parts"))
        spread = spread.where(F.size("_parts") > 1)
        table = keyed.join(spread, "_key").select(
            "_key", "_parts", record_column(F.col("_partition"), F.col("_offset"))
        )
        topic = self._source.topic
        return {
            row[
                RECORD
            ]: f"records of the key {row['_key']} lie in the partitions {', '.join(map(str, row['_parts']))} of {topic}, so "
            f"their order hangs on how batches were cut; key the topic by {', '.join(self._definition.by)}"
            for row in table.toArrow().to_pylist()
        }

    def filled(self) -> set[int]:
        """Return the starts (epoch ms) of the windows with rows of keys that have records which no batch read, but the archive has."""
        if not self._skipped.num_rows:
            return set()
        keys = F.broadcast(self._spark.createDataFrame(self._skipped))
        touched = packed(self._definition, self._pairs, "_window_end").join(keys, "_key", "left_semi")
        ends = touched.select(F.unix_millis("_window_end").alias("end_ms")).distinct().toArrow()["end_ms"].to_pylist()
        return {end_ms - self._size_us // 1000 for end_ms in ends}


def record_of(row: RowId) -> int:
    """Return the place of the record that a fold's row comes from, by the row's address."""
    return int(json.loads(row.key)[RECORD])


def is_read_by(row: RowId, topic: str, ranges: Ranges) -> bool:
    """Say whether the record of `topic` that a fold's row comes from lies in a batch's offset ranges."""
    record = record_of(row)
    start, end = ranges.get(Part(topic, record >> PARTITION_SHIFT), (0, 0))
    return start <= record & _OFFSET < end
