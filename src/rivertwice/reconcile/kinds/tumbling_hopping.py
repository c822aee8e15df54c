"""The late rule over (record, window) pairs, and what the stream must have emitted by it: tumbling and hopping windows.

A pair is late if the window had ended by the watermark of the batch **before** the one that read the record. A record of
hopping windows is late in some of its windows and in time in others, so no set of records gives what the stream emitted. But
every `passes`-th window does not overlap its like: in a **pass** every record belongs to exactly one window, as with
tumbling ones. The same transform runs over the records that were in time for their window of the pass, and of its result only
the pass's windows are used. The union over the passes is what must have been emitted. Only windows that a pair was dropped
from are computed like this; any other is taken from the truth.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.definition import Definition
from rivertwice.engine import compile_batch, included, key_columns, window_micros, with_window_end
from rivertwice.log import Part
from rivertwice.reconcile.evidence import Evidence
from rivertwice.reconcile.frames import addresses
from rivertwice.reconcile.gaps import GAP_INDEX, LostRecordEffects
from rivertwice.reconcile.kinds.fixed_windows import FixedWindows
from rivertwice.reconcile.kinds.judge import closed_pairs, count_by_rows
from rivertwice.reconcile.kinds.read_rows import (
    AMENDED_GROUP,
    as_read,
    collect_together,
    is_below,
    is_read,
    with_watermarks,
    without_barred,
)
from rivertwice.reconcile.model import AmendedRow, LateRow, PairCount, RowColumns, RowId
from rivertwice.reconcile.rederive import Chain, Ranges


def _joined(rows: DataFrame, amended: DataFrame) -> DataFrame:
    return rows.unionByName(amended.drop("_from", "_until"), allowMissingColumns=True)


def emitted_by(spark: SparkSession, definition: Definition, rows: DataFrame, late_ms: Sequence[int]) -> DataFrame:
    """Return what a stream of tumbling or hopping windows emits in the end, not computed yet.

    Args:
        spark: the session of the rows.
        definition: whose rule this is.
        rows: accepted ones, with the index of the batch that reads each (`_index`).
        late_ms: by batch, the watermark (epoch ms) by which its rows are late.
    """
    marked = with_watermarks(spark, rows, Chain(tuple(late_ms), ()), [0] * len(late_ms))
    return WindowJudge(spark, definition, marked).expected_frame(definition)


@dataclass(frozen=True)
class _Answers:
    """What `answer_together` computed, and for what question."""

    shape: RowColumns
    since: tuple[int, int]
    tables: Mapping[str, pa.Table]


class WindowJudge(FixedWindows):
    """The accepted rows of one source on a path, each pair with a window late or in time."""

    def __init__(
        self,
        spark: SparkSession,
        definition: Definition,
        rows: DataFrame,
        view: str | None = None,
        amended: DataFrame | None = None,
        own: int | None = None,
        barred: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Take accepted rows with `_index`, `_late_ms` and `_group`, and what dead letters should have been.

        Args:
            view: source that they are of; None: the only one.
            own: number of the definition if it is an older one: results are computed from what its own batches read. No other
                record belongs to a window that it alone made, and one that it would take may be what a later rule rejects.
            barred: ranges of event time (epoch ms) over which the SQL throws; no result is computed of their records.
        """
        self._spark = spark
        self._definition = definition
        self._source = definition.source[1] if view is None else definition.sources[view]
        self._size_us, self._step_us = window_micros(definition)
        self._barred = barred
        self._cures = None if amended is None else self._paired(as_read(amended), view)
        self._log = self._paired(rows, view)
        self._rows = rows if amended is None else _joined(rows, as_read(amended.where("_until IS NULL")))
        self._is_own = F.lit(True) if own is None else F.col("_group").isin(own, AMENDED_GROUP)
        self._pairs = self._log if amended is None else self._paired(self._rows, view)
        self._truths: dict[tuple[str, str | None], pa.Table] = {}
        self._answers: _Answers | None = None
        self._only: DataFrame | None = None

    def _paired(self, rows: DataFrame, view: str | None) -> DataFrame:
        late = F.unix_micros("_window_end") <= F.col("_late_ms") * 1000
        return with_window_end(rows, self._definition, view).withColumn("_late", late)

    def _computed(self, definition: Definition, rows: DataFrame) -> DataFrame:
        """Return the result over rows, not computed yet; those are left out of which none can be computed."""
        return compile_batch(self._spark, definition, without_barred(rows, self._source.event_time, self._barred))

    @property
    def barred(self) -> Sequence[tuple[int, int]]:
        """Ranges of event time (epoch ms) over which the SQL throws."""
        return self._barred

    @property
    def all_pairs(self) -> DataFrame:
        """The rows once per window that they belong to, with `_window_end` and `_late`."""
        return self._pairs

    def truth(self, definition: Definition) -> pa.Table:
        """Return the batch result over all accepted rows."""
        text = _texts(definition)
        if text not in self._truths:
            self._truths[text] = self.truth_frame(definition).toArrow()
        return self._truths[text]

    def answer_together(self, shape: RowColumns, first_index: int, settled_ms: int) -> None:
        """Compute truth, expected, late rows and `pairs_since` of the own definition in one job, for the calls that follow."""
        definition = self._definition
        frames = {
            "late": self.late_frame(shape),
            "pairs": self._pairs_frame(self._since(first_index, settled_ms)),
            "truth": self.truth_frame(definition),
        }
        if definition.window.passes == 1:
            frames["expected"] = self.expected_frame(definition)
        self._answers = _Answers(shape, (first_index, settled_ms), collect_together(frames))
        self._truths[_texts(definition)] = self._answers.tables["truth"]

    def truth_frame(self, definition: Definition) -> DataFrame:
        """Return what `truth` returns, not computed yet."""
        return self._wanted(self._computed(definition, self._rows.where(self._is_own)))

    def expected(self, definition: Definition) -> pa.Table:
        """Return what the stream must emit in the end: the result over the pairs it read and did not drop."""
        if definition.window.passes == 1:
            if self._answers is not None and _texts(definition) == _texts(self._definition):
                return self._answers.tables["expected"]
            return self.expected_frame(definition).toArrow()
        truth = self.truth(definition)
        dirty = self._dropped_from()
        if not dirty:
            return truth
        end = definition.window.end_column
        ends_us = pc.cast(truth[end], pa.timestamp("us", "UTC")).cast(pa.int64())
        clean = truth.filter(pc.invert(pc.is_in(ends_us, pa.array(dirty, pa.int64()))))
        tables = [frame.toArrow() for frame in self._by_pass(definition, self._in_time, dirty)]
        return pa.concat_tables([clean, *(table.cast(truth.schema) for table in tables)])

    def expected_frame(self, definition: Definition) -> DataFrame:
        """Return what `expected` returns, not computed yet."""
        if definition.window.passes == 1:
            return self._wanted(self._computed(definition, self._in_time))
        truth = self.truth_frame(definition)
        dirty = self._dropped_from()
        if not dirty:
            return truth
        ends = self._ends(dirty)
        clean = truth.join(ends, F.unix_micros(definition.window.end_column) == ends["_end_us"], "left_anti")
        return functools.reduce(DataFrame.unionByName, self._by_pass(definition, self._in_time, dirty), clean)

    @property
    def _in_time(self) -> DataFrame:
        return self._pairs.where(~F.col("_late") & is_read() & self._is_own)

    def within(self, ends_ms: Iterable[int]) -> WindowJudge:
        """Return the same judge, whose results and late records are of the windows with these ends (epoch ms) alone."""
        chosen = copy.copy(self)
        chosen._only = self._ends(end_ms * 1000 for end_ms in ends_ms)
        chosen._pairs = self._pairs.join(chosen._only, F.unix_micros("_window_end") == F.col("_end_us"), "left_semi")
        chosen._truths = {}
        chosen._answers = None
        return chosen

    def _wanted(self, result: DataFrame) -> DataFrame:
        if self._only is None:
            return result
        ends = self._only
        column = self._definition.window.end_column
        return result.join(ends, F.unix_micros(column) == ends["_end_us"], "left_semi")

    def updates(self, index: int) -> pa.Table:
        """Return what a stream that emits updates must emit with one batch.

        That is the result over the pairs read and not dropped up to it, for exactly the rows that its own pairs touched.
        """
        definition = self._definition
        in_time = self._pairs.where(~F.col("_late") & is_read())
        batch_pairs = in_time.where(F.col("_index") == index)
        ends = sorted(
            batch_pairs.select(F.unix_micros("_window_end").alias("us")).distinct().toArrow()["us"].to_pylist()
        )
        if not ends:
            return self._computed(definition, in_time.limit(0)).toArrow()
        touched, all_rows = (
            _united(self._by_pass(definition, rows, ends))
            for rows in (batch_pairs, in_time.where(F.col("_index") <= index))
        )
        names = [definition.window.start_column, definition.window.end_column, *definition.keys]
        touched_keys = set(zip(*(touched[name].to_pylist() for name in names), strict=True))
        keys = zip(*(all_rows[name].to_pylist() for name in names), strict=True)
        return all_rows.filter(pa.array([key in touched_keys for key in keys], pa.bool_()))

    def _by_pass(self, definition: Definition, pairs: DataFrame, ends_us: Sequence[int]) -> list[DataFrame]:
        """Return the results over `pairs`, for the windows with these ends, one for each pass."""
        end = definition.window.end_column
        results = []
        for number in sorted({self._pass_of(end_us) for end_us in ends_us}):
            pass_ends = self._ends([end_us for end_us in ends_us if self._pass_of(end_us) == number])
            rows = pairs.join(pass_ends, F.unix_micros("_window_end") == pass_ends["_end_us"], "left_semi")
            result = self._computed(definition, rows)
            results.append(result.join(pass_ends, F.unix_micros(end) == pass_ends["_end_us"], "left_semi"))
        return results

    def _dropped_from(self) -> list[int]:
        dropped = self._pairs.where(F.col("_late") | ~is_read())
        ends = dropped.select(F.unix_micros("_window_end").alias("end_us")).distinct().toArrow()
        return sorted(ends["end_us"].to_pylist())

    def _pass_of(self, end_us: int) -> int:
        return end_us % self._size_us // self._step_us

    def _ends(self, ends_us: Iterable[int]) -> DataFrame:
        table = pa.table({"_end_us": pa.array(sorted(set(ends_us)), pa.int64())})
        return F.broadcast(self._spark.createDataFrame(table))

    def is_due(self, row: RowId, index: int, chain: Chain, ranges: Sequence[Ranges]) -> bool:
        """Say whether the watermark of a batch closed a row's window; which batch has to update it, `updates` says."""
        del ranges
        return self._definition.has_updates or chain.closes(index, row.end_ms)

    def find_incomparable(self, shape: RowColumns, rows: Iterable[RowId], definitions: int) -> dict[int, str]:
        """Return no window: window and keys identify a row, and each window is made by the definitions that read it."""
        del shape, rows, definitions
        return {}

    def evidence(self, common: Evidence, batches: Sequence[int]) -> Evidence:
        """Return the evidence as it is."""
        del batches
        return common

    def count_emitted(
        self, evidence: Evidence, pairs: Sequence[PairCount], unread: LostRecordEffects, closed_ms: int
    ) -> int:
        """Return the pairs that the changelog's rows count; if a window's input is gone, only the pairs that are left."""
        size_ms = self._size_us // 1000
        return count_by_rows(evidence, unread, closed_ms) + sum(
            pair.rows
            for pair in closed_pairs(pairs, closed_ms)
            if unread.of(pair.end_ms - size_ms, pair.end_ms) is not None
        )

    def truth_as_of(
        self, as_of: Mapping[str, Mapping[int, int]], amendments: int, windows_end_ms: Iterable[int]
    ) -> pa.Table:
        """Return the batch result over what counted at a moment, for these windows only."""
        ends_ms = list(windows_end_ms)
        rows = self.pairs_as_of(as_of, amendments, ends_ms)
        if self._definition.window.passes == 1:
            return self._computed(self._definition, rows).toArrow()
        records = rows.dropDuplicates(["_partition", "_offset"])
        result = self._computed(self._definition, records)
        column = self._definition.window.end_column
        wanted = self._ends(end_ms * 1000 for end_ms in ends_ms)
        return result.join(wanted, F.unix_micros(column) == wanted["_end_us"], "left_semi").toArrow()

    def pairs_as_of(
        self, as_of: Mapping[str, Mapping[int, int]], amendments: int, windows_end_ms: Iterable[int]
    ) -> DataFrame:
        """Return the pairs of rows that counted at a moment, of the given windows only."""
        wanted = self._ends(end_ms * 1000 for end_ms in windows_end_ms)
        pairs = self._log
        if self._cures is not None:
            is_counted = (F.col("_from") <= amendments) & (F.col("_until").isNull() | (F.col("_until") > amendments))
            pairs = _joined(pairs, self._cures.where(is_counted))
        counted = pairs.where(is_below(as_of.get(self._source.topic, {})))
        return counted.join(wanted, F.unix_micros("_window_end") == wanted["_end_us"], "left_semi")

    def late_rows(self, shape: RowColumns, batches: Sequence[int]) -> list[LateRow]:
        """Return every late pair by the address of its row. `batches` gives the batch number of each path index."""
        if self._answers is not None and self._answers.shape == shape:
            return self._rows_of(self._answers.tables["late"], shape, batches)
        return self._rows_of(self.late_frame(shape).toArrow(), shape, batches)

    def _rows_of(self, table: pa.Table, shape: RowColumns, batches: Sequence[int]) -> list[LateRow]:
        late = [
            LateRow(row, self._source.topic, partition, offset, batches[index], late_ms, event_time)
            for row, (partition, offset, event_time, index, late_ms) in _addressed(table, shape, ("_index", "_late_ms"))
        ]
        return sorted(late, key=lambda row: (row.partition, row.offset, row.row))

    def rows_in_time_since(
        self,
        as_of: Mapping[str, Mapping[int, int]],
        windows_end_ms: Iterable[int],
        shape: RowColumns,
        batches: Sequence[int],
    ) -> list[LateRow]:
        """Return the pairs that came in time, of records that did not count at a moment, for these windows only."""
        wanted = self._ends(end_ms * 1000 for end_ms in windows_end_ms)
        since = self._log.where(~F.col("_late") & is_read() & ~is_below(as_of.get(self._source.topic, {})))
        pairs = since.join(wanted, F.unix_micros("_window_end") == wanted["_end_us"], "left_semi")
        rows = included(self._spark, self._definition, pairs)
        return self._rows_of(self._address_frame(rows, shape, ("_index", "_late_ms")).toArrow(), shape, batches)

    def amended_rows(self, shape: RowColumns) -> list[AmendedRow]:
        """Return every (record, window) pair that a dead letter should have been in, ended ones too."""
        if self._cures is None:
            return []
        rows = included(self._spark, self._definition, self._cures)
        amended = [
            AmendedRow(row, self._source.topic, partition, offset, event_time, first, until)
            for row, (partition, offset, event_time, first, until) in _addressed(
                self._address_frame(rows, shape, ("_from", "_until")).toArrow(), shape, ("_from", "_until")
            )
        ]
        return sorted(amended, key=lambda row: (row.first_seq, row.row))

    def late_frame(self, shape: RowColumns, further: Sequence[Column] = ()) -> DataFrame:
        """Return every late pair, not computed yet: the window, keys, `_partition`, `_offset`, `_event_time`, `_index`, `_late_ms`.

        `further` are columns of the record beside these.
        """
        rows = included(self._spark, self._definition, self._pairs).where("_late")
        return self._address_frame(rows, shape, ("_index", "_late_ms", *further))

    def _address_frame(self, rows: DataFrame, shape: RowColumns, further: Sequence[str | Column]) -> DataFrame:
        return rows.select(
            self._start.alias("window_start"),
            F.col("_window_end").alias("window_end"),
            *(self._key(name).alias(name) for name in shape.keys),
            "_partition",
            "_offset",
            F.col(self._source.event_time).alias("_event_time"),
            *further,
        )

    @property
    def _start(self) -> Column:
        return F.timestamp_micros(F.unix_micros("_window_end") - self._size_us)

    @functools.cached_property
    def _keys(self) -> Mapping[str, Column]:
        start = f"timestamp_micros(unix_micros(_window_end) - {self._size_us})"
        return key_columns(self._spark, self._definition, start, "_window_end")

    def _key(self, name: str) -> Column:
        """Return the key that the transform gives a pair's row; NULL, which explains no row, if only the whole group decides it."""
        return self._keys.get(name, F.lit(None).cast("string"))

    def pairs(self, group: int | None = None) -> list[PairCount]:
        """Return the pairs of records that passed the row filter, counted by partition, window and lateness."""
        return self._count_pairs(F.lit(True) if group is None else F.col("_group") == group)

    def can_increment(self, shape: RowColumns) -> bool:
        """Say whether rows count their records, are final, and have keys that a record decides."""
        names_rows = shape.count_column is not None and self._keys.keys() >= set(shape.keys)
        return names_rows and self._definition.window.kind.is_aligned and not self._definition.has_updates

    def pairs_since(self, first_index: int, settled_ms: int) -> list[PairCount]:
        """Return the pairs except for those that records before a path index have in settled windows."""
        if self._answers is not None and self._answers.since == (first_index, settled_ms):
            return self._pair_counts(self._answers.tables["pairs"])
        return self._count_pairs(self._since(first_index, settled_ms))

    def _since(self, first_index: int, settled_ms: int) -> Column:
        is_settled = F.unix_millis("_window_end") <= F.lit(settled_ms)
        return (F.col("_index") >= F.lit(first_index)) | ~is_settled

    def _count_pairs(self, wanted: Column) -> list[PairCount]:
        return self._pair_counts(self._pairs_frame(wanted).toArrow())

    def _pairs_frame(self, wanted: Column) -> DataFrame:
        rows = included(self._spark, self._definition, self._pairs.where(is_read() & wanted))
        end_ms = F.unix_millis("_window_end").alias("end_ms")
        return rows.groupBy("_partition", end_ms, "_late").agg(F.count(F.lit(1)).alias("rows"))

    def _pair_counts(self, table: pa.Table) -> list[PairCount]:
        return [
            PairCount(Part(self._source.topic, row["_partition"]), row["end_ms"], row["_late"], row["rows"])
            for row in table.to_pylist()
        ]

    def windows_with_skipped_records(self) -> set[int]:
        """Return the starts (epoch ms) of the windows that records belong to which no batch read, but the archive has."""
        skipped = self._pairs.where(F.col("_index") == GAP_INDEX)
        return self._starts("_index", included(self._spark, self._definition, skipped)).get(GAP_INDEX, set())

    def touched(self, indexes: Iterable[int]) -> dict[int, set[int]]:
        """Return path index to the starts (epoch ms) of the windows that its rows touch."""
        wanted = sorted(set(indexes))
        if not wanted:
            return {}
        keys = F.broadcast(self._spark.createDataFrame(pa.table({"_index": pa.array(wanted, pa.int32())})))
        rows = included(self._spark, self._definition, self._pairs)
        return self._starts("_index", rows.join(keys, "_index", "left_semi"))

    def groups(self) -> dict[int, set[int]]:
        """Return window start (epoch ms) to the numbers of the definitions whose batches touched it."""
        by_group = self._starts("_group", included(self._spark, self._definition, self._log))
        by_start: dict[int, set[int]] = {}
        for group, starts in by_group.items():
            for start in starts:
                by_start.setdefault(start, set()).add(group)
        return by_start

    def _starts(self, column: str, rows: DataFrame) -> dict[int, set[int]]:
        start = F.unix_millis(F.timestamp_micros(F.unix_micros("_window_end") - self._size_us)).alias("start")
        by_value: dict[int, set[int]] = {}
        for row in rows.select(column, start).distinct().toArrow().to_pylist():
            by_value.setdefault(row[column], set()).add(row["start"])
        return by_value


def _texts(definition: Definition) -> tuple[str, str | None]:
    """Return what a definition's results are computed by."""
    return definition.transform_sql, definition.rows_sql


def _addressed(table: pa.Table, shape: RowColumns, further: Sequence[str]) -> Iterable[tuple[RowId, tuple[Any, ...]]]:
    """Return the row of each pair, with the record's partition, offset and event time, and further columns."""
    columns = ("_partition", "_offset", "_event_time", *further)
    plain = zip(*(table.column(name).to_pylist() for name in columns), strict=True)
    return zip(addresses(table, shape), plain, strict=True)


def _united(results: Sequence[DataFrame]) -> pa.Table:
    tables = [result.toArrow() for result in results]
    return pa.concat_tables([table.cast(tables[0].schema) for table in tables])
