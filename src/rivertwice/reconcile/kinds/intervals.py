"""The late rule of intervals: lateness is as in hopping windows, and the transform runs once over all pairs in time.

An interval's rows are made only of the records of its window and of the tables' versions that were known when it closed. So
the stream must have emitted the result of the same SELECT over the (record, window) pairs that were not late, each window
joined with the versions that the batch which closed it, or an earlier batch, had read. It is not determined which late
record or version changed which row: a row that differs is LATE by all of them, a row that is the same agrees.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.definition import Definition
from rivertwice.engine import all_versions, compute_interval_rows, interval_views, late_versions, window_closes
from rivertwice.reconcile.evidence import Evidence, IntervalEvidence
from rivertwice.reconcile.frames import addresses
from rivertwice.reconcile.gaps import GAP_INDEX, LostRecordEffects
from rivertwice.reconcile.kinds.fixed_windows import FixedWindows
from rivertwice.reconcile.kinds.judge import closed_pairs
from rivertwice.reconcile.kinds.read_rows import is_below, is_read, without_barred
from rivertwice.reconcile.kinds.tumbling_hopping import WindowJudge
from rivertwice.reconcile.model import AmendedRow, LateRow, PairCount, RowColumns, RowId
from rivertwice.reconcile.rederive import Chain, Ranges

_NO_KEYS = RowColumns((), ())


class IntervalJudge(FixedWindows):
    """The accepted rows of a path's sources, each pair of a stream's record and a window late or in time."""

    def __init__(
        self,
        spark: SparkSession,
        definition: Definition,
        rows: Mapping[str, DataFrame],
        chain: Chain,
        amended: Mapping[str, DataFrame],
        barred: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Take accepted rows by view, with `_index`, `_late_ms` and `_group`, watermarks, and what dead letters should have been."""
        self._spark = spark
        self._definition = definition
        self._chain = chain
        self._streams = {
            view: WindowJudge(spark, definition, rows[view], view, amended.get(view), barred=barred)
            for view in definition.streams
        }
        self._versions = {view: rows[view] for view in definition.tables}
        self._truths: dict[str, pa.Table] = {}

    def truth(self, definition: Definition) -> pa.Table:
        """Return the batch result over all accepted rows."""
        text = definition.transform_sql
        if text not in self._truths:
            pairs = {view: rule.all_pairs for view, rule in self._streams.items()}
            self._truths[text] = self._result(definition, pairs, self._versions)
        return self._truths[text]

    def expected(self, definition: Definition) -> pa.Table:
        """Return what the stream must emit in the end: the result over the pairs it read and did not drop."""
        pairs = {view: rule.all_pairs.where(~F.col("_late") & is_read()) for view, rule in self._streams.items()}
        versions = {view: rows.where(is_read()) for view, rows in self._versions.items()}
        return self._result(definition, pairs, versions, self._closes if versions else None)

    def is_due(self, row: RowId, index: int, chain: Chain, ranges: Sequence[Ranges]) -> bool:
        """Say whether the watermark of a batch closed a row's window."""
        del ranges
        return chain.closes(index, row.end_ms)

    def find_incomparable(self, shape: RowColumns, rows: Iterable[RowId], definitions: int) -> dict[int, str]:
        """Return the windows in which several rows have the same keys."""
        del rows, definitions
        counted = Counter(addresses(self.truth(self._definition), shape))
        return {
            row.start_ms: f"the transform yields {count} rows with the keys {row.key}, so they cannot be told apart; add a key"
            for row, count in counted.items()
            if count > 1
        }

    def evidence(self, common: Evidence, batches: Sequence[int]) -> Evidence:
        """Return the evidence whose late records explain whole windows."""
        del batches
        return common.of_kind(IntervalEvidence)

    def count_emitted(
        self, evidence: Evidence, pairs: Sequence[PairCount], unread: LostRecordEffects, closed_ms: int
    ) -> int:
        """Return all pairs of closed windows: rows do not count what they are made of."""
        del evidence, unread
        return sum(pair.rows for pair in closed_pairs(pairs, closed_ms))

    def truth_as_of(
        self, as_of: Mapping[str, Mapping[int, int]], amendments: int, windows_end_ms: Iterable[int]
    ) -> pa.Table:
        """Return the batch result over what counted at a moment, for these windows only."""
        ends = list(windows_end_ms)
        pairs = {view: rule.pairs_as_of(as_of, amendments, ends) for view, rule in self._streams.items()}
        versions = {
            view: rows.where(is_below(as_of.get(self._definition.sources[view].topic, {})))
            for view, rows in self._versions.items()
        }
        return self._result(self._definition, pairs, versions)

    def late_rows(self, shape: RowColumns, batches: Sequence[int]) -> list[LateRow]:
        """Return every late pair by the record's address; it belongs to no single row of its window.

        A version is late for the windows that it was valid in, or would have been, and that were closed by a batch before
        the one that read it.
        """
        late = [row for rule in self._streams.values() for row in rule.late_rows(_NO_KEYS, batches)]
        for view in self._versions:
            late += self._late_versions(view, batches)
        return sorted(late, key=lambda row: (row.topic, row.partition, row.offset, row.row))

    def rows_in_time_since(
        self,
        as_of: Mapping[str, Mapping[int, int]],
        windows_end_ms: Iterable[int],
        shape: RowColumns,
        batches: Sequence[int],
    ) -> list[LateRow]:
        """Return the pairs that came in time, of records that did not count at a moment; they belong to no single row."""
        del shape
        ends = list(windows_end_ms)
        return [
            row for rule in self._streams.values() for row in rule.rows_in_time_since(as_of, ends, _NO_KEYS, batches)
        ]

    def amended_rows(self, shape: RowColumns) -> list[AmendedRow]:
        """Return every (record, window) pair that a dead letter should have been in; it belongs to no single row."""
        del shape
        return [row for rule in self._streams.values() for row in rule.amended_rows(_NO_KEYS)]

    def pairs(self, group: int | None = None) -> list[PairCount]:
        """Return the pairs of the streams' records, counted by partition, window and lateness; versions make none."""
        return [pair for rule in self._streams.values() for pair in rule.pairs(group)]

    def windows_with_skipped_records(self) -> set[int]:
        """Return the starts (epoch ms) of the windows that records belong to which no batch read, but the archive has."""
        starts = set().union(*(rule.windows_with_skipped_records() for rule in self._streams.values()))
        return starts.union(*(self._seeing(view, {GAP_INDEX}).get(GAP_INDEX, set()) for view in self._versions))

    def touched(self, indexes: Iterable[int]) -> dict[int, set[int]]:
        """Return path index to the starts (epoch ms) of the windows its rows touch; a version touches those it is valid in."""
        wanted = set(indexes)
        by_index: dict[int, set[int]] = defaultdict(set)
        parts = [rule.touched(wanted) for rule in self._streams.values()]
        for part in [*parts, *(self._seeing(view, wanted) for view in self._versions if wanted)]:
            for index, starts in part.items():
                by_index[index] |= starts
        return dict(by_index)

    def groups(self) -> dict[int, set[int]]:
        """Return window start (epoch ms) to the numbers of the definitions whose batches touched it."""
        by_start: dict[int, set[int]] = defaultdict(set)
        for rule in self._streams.values():
            for start, groups in rule.groups().items():
                by_start[start] |= groups
        return dict(by_start)

    def _result(
        self,
        definition: Definition,
        pairs: Mapping[str, DataFrame],
        versions: Mapping[str, DataFrame],
        closes: DataFrame | None = None,
    ) -> pa.Table:
        pairs = {
            view: without_barred(rows, definition.sources[view].event_time, self._streams[view].barred)
            for view, rows in pairs.items()
        }
        return compute_interval_rows(
            self._spark, definition, interval_views(definition, pairs, versions, closes)
        ).toArrow()

    @functools.cached_property
    def _closes(self) -> DataFrame:
        """Return every window of the path with `_close`: the path index of the batch that closed it, ALL if none did."""
        all_ends: set[int] = set()
        for rule in self._streams.values():
            ends = rule.all_pairs.select(F.unix_micros("_window_end").alias("us")).distinct().toArrow()
            all_ends |= set(ends["us"].to_pylist())
        return window_closes(self._spark, self._definition, all_ends, self._chain.batch)

    def _seen(self, view: str, rows: DataFrame) -> DataFrame:
        """Return what every window would see of a table, deletes included, if it saw all of `rows`."""
        return all_versions(self._definition, view, rows, self._closes)

    def _seeing(self, view: str, indexes: set[int]) -> dict[int, set[int]]:
        start = F.unix_millis(self._definition.window.start_column).alias("start")
        visible = self._seen(view, self._versions[view]).where(F.col("_index").isin(list(indexes)))
        by_index: dict[int, set[int]] = defaultdict(set)
        for row in visible.select("_index", start).distinct().toArrow().to_pylist():
            by_index[row["_index"]].add(row["start"])
        return dict(by_index)

    def _late_versions(self, view: str, batches: Sequence[int]) -> list[LateRow]:
        source = self._definition.sources[view]
        late = late_versions(self._definition, view, self._versions[view], self._closes)
        table = late.select(
            F.col(self._definition.window.start_column).alias("window_start"),
            F.col(self._definition.window.end_column).alias("window_end"),
            "_partition",
            "_offset",
            "_index",
            F.col(source.event_time).alias("_event_time"),
        ).toArrow()
        columns = ("_partition", "_offset", "_index", "_event_time")
        plain = zip(*(table.column(name).to_pylist() for name in columns), strict=True)
        return [
            LateRow(row, source.topic, partition, offset, batches[index], self._chain.late[index], event_time)
            for row, (partition, offset, index, event_time) in zip(addresses(table, _NO_KEYS), plain, strict=True)
        ]
