"""Which rows agree on every side, found by Spark; and what is counted of each window.

A row is **clean** if nothing about it needs a cause: it was emitted once, by the batch that had to, just as it must have been
and as it is true; it is served once, by whom it must be; no record of it came late. Or its window is open and nothing of it was
emitted or served. Or a first load by batch left its window to backfills: then the stream need not agree with the truth, and must
only have emitted what it must of the records that it read. Sides are compared by two hashes of 64 and 32 bits over all values. Rows that a tolerance would make equal are
not clean; they are judged as any other row.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from rivertwice.definition import Definition
from rivertwice.reconcile.kinds.tumbling_hopping import WindowJudge
from rivertwice.reconcile.model import RowColumns
from rivertwice.reconcile.rederive import Chain
from rivertwice.reconcile.view import Handles, HeadView, counted_publications
from rivertwice.storage import TableFiles
from rivertwice.timeline import FORMAT, FirstLoad, Publication, is_on_path, select_winners, to_epoch_ms

# What truth, stream and served table hold of each row, in one frame: the input of a run that executors judge.
#
# Every row of the frame is one side's entry of one address: what is true, what the stream had to emit, what it emitted, what is
# served, what a publication computed, or a late record of it.

TRUTH, EXPECTED, EMITTED, SERVED_ROW, CORRECTION, LATE_RECORD = (
    "truth",
    "expected",
    "emitted",
    "served",
    "correction",
    "late",
)
WINDOW = ("window_start", "window_end")
STAMPS: Mapping[str, str] = {
    "_format": "int",
    "_status": "string",
    "_timeline": "string",
    "_batch": "bigint",
    "_backfill": "string",
    "_index": "int",
    "_due": "boolean",
    "_winner": "bigint",
    "_partition": "int",
    "_offset": "bigint",
    "_event_time": "timestamp",
    "_late_ms": "bigint",
}
"""Further columns of a side's entry; null where a side has no such.

`_index` is the path index of the batch that emitted a row, null if the ledger has none; `_due` whether that batch had to emit it;
`_winner` the number of the publication that serves the window, -1 if none does.
"""


def gather_sides(
    spark: SparkSession,
    view: HeadView,
    handles: Handles,
    judge: WindowJudge,
    marks: DataFrame,
    shape: RowColumns,
    *,
    with_served: bool,
) -> DataFrame:
    """Return all sides' entries: `_side`, the window, keys and values of a result row, and `STAMPS`.

    Values are null for a late record. `marks` are the path's batches (`batch_numbers`).
    """
    definition = view.newest.definition
    names = [*WINDOW, *shape.keys, *shape.columns]
    truth = judge.truth_frame(definition)
    results = StructType([_nullable(truth.schema[name]) for name in names])
    sides = [_side(truth, TRUTH, results), _side(judge.expected_frame(definition), EXPECTED, results)]
    if handles.changelog is not None:
        on_path = is_on_path(handles.path)
        schema = _with(results, "_timeline string, _batch bigint")
        emitted = TableFiles(handles.changelog).scan(spark, schema, lambda rows: rows.filter(on_path))
        sides.append(_side(_with_index(emitted, marks, definition), EMITTED, results))
    if handles.served is not None and with_served:
        publications = counted_publications(view)
        schema = _with(
            results, "_format int, _status string, _timeline string, _batch bigint, _backfill string, _winner bigint"
        )
        winners = functools.partial(_with_winner, publications=publications, semantics=view.semantics)
        sides.append(_side(TableFiles(handles.served).scan(spark, schema, winners), SERVED_ROW, results))
        if publications and handles.corrections is not None:
            schema = _with(results, "_backfill string, _winner bigint")
            chosen = functools.partial(_winning, publications=publications, semantics=view.semantics)
            sides.append(_side(TableFiles(handles.corrections).scan(spark, schema, chosen), CORRECTION, results))
    numbers = marks.select("_index", F.col("_number").alias("_batch"))
    late = judge.late_frame(shape).join(F.broadcast(numbers), "_index", "left").drop("_index")
    sides.append(_side(late, LATE_RECORD, results))
    return functools.reduce(DataFrame.unionByName, sides)


def batch_numbers(spark: SparkSession, view: HeadView, chain: Chain) -> DataFrame:
    """Return the path's batches: `_path_timeline`, `_number`, `_index`, and the watermarks `_late`, `_closes`."""
    rows = view.rows
    table = pa.table(
        {
            "_path_timeline": pa.array([row.timeline for row in rows], pa.string()),
            "_number": pa.array([row.batch for row in rows], pa.int64()),
            "_index": pa.array(range(len(rows)), pa.int32()),
            "_late": pa.array(chain.late, pa.int64()),
            "_closes": pa.array(chain.batch, pa.int64()),
        }
    )
    return spark.createDataFrame(table)


def _with_index(emitted: DataFrame, marks: DataFrame, definition: Definition) -> DataFrame:
    """Return emitted rows with `_index` and `_due` (`WindowJudge.is_due`)."""
    end_ms = F.unix_millis("window_end")
    due = F.lit(definition.has_updates) | ((F.col("_late") < end_ms) & (end_ms <= F.col("_closes")))
    same = (emitted["_timeline"] == marks["_path_timeline"]) & (emitted["_batch"] == marks["_number"])
    joined = emitted.join(F.broadcast(marks), same, "left")
    return joined.withColumn("_due", F.when(F.col("_index").isNotNull(), due))


def _with_winner(rows: pa.Table, publications: Sequence[Publication], semantics: frozenset[str]) -> pa.Table:
    winners = select_winners(to_epoch_ms(rows["window_start"]), publications, semantics)
    return rows.append_column("_winner", pa.array(winners, pa.int64()))


def _winning(rows: pa.Table, publications: Sequence[Publication], semantics: frozenset[str]) -> pa.Table:
    """Return the corrections that are served: those of the publication that serves their window."""
    backfill_of = {publication.seq: publication.backfill for publication in publications}
    found = _with_winner(rows, publications, semantics)
    names = [backfill_of.get(seq) for seq in found["_winner"].to_pylist()]
    wins = np.array(
        [name is not None and name == own for name, own in zip(names, rows["_backfill"].to_pylist(), strict=True)]
    )
    return found.filter(pa.array(wins.astype(bool)))


def _side(rows: DataFrame, side: str, results: StructType) -> DataFrame:
    """Return a side's entries in the common layout; a column that the side lacks is null."""
    known = set(rows.columns)
    columns: list[Column] = [F.lit(side).alias("_side")]
    columns += [_column(field.name, field.dataType, known) for field in results]
    columns += [_column(name, kind, known) for name, kind in STAMPS.items()]
    return rows.select(*columns)


def _column(name: str, kind: Any, known: set[str]) -> Column:
    return (F.col(name) if name in known else F.lit(None)).cast(kind).alias(name)


def _nullable(field: StructField) -> StructField:
    return StructField(field.name, field.dataType)


def _with(results: StructType, further: str) -> StructType:
    schema = StructType.fromDDL(further)
    assert isinstance(schema, StructType), "it names columns"
    return StructType([*results.fields, *schema.fields])


Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ComparedUntil:
    """Up to when windows are compared.

    Attributes:
        closed_ms: windows that end at or before it are closed.
        served_ms: such windows are served too; None: there is no served table that shows the path.
    """

    closed_ms: int
    served_ms: int | None


def compare_sides(
    sides: DataFrame, shape: RowColumns, moment: ComparedUntil, load: FirstLoad | None = None
) -> DataFrame:
    """Return a row for each address that any side but late records has.

    Its columns are the window, the keys, and

    - `_clean`: whether no cause is needed. `_open`: whether the window is not closed. `_unserved`: whether it is not served yet.
    - `_dirty`: whether stream, expected and truth are not the same; of a loaded window, only stream and expected count.
    - `_pairs`: the records that emitted rows count. `_served`: rows served.
    """
    keys = [F.col(name) for name in shape.keys]
    rows = sides.withColumns({"_h1": _hash(F.xxhash64, shape), "_h2": _hash(F.hash, shape), "_n": _count(shape)})
    sums = [_entries(TRUTH), _entries(EXPECTED), _entries(EMITTED), _entries(SERVED_ROW), _entries(CORRECTION)]
    sums.append(_entries(LATE_RECORD))
    values = [
        _only(side, name) for side in (TRUTH, EXPECTED, EMITTED, SERVED_ROW, CORRECTION) for name in ("_h1", "_h2")
    ]
    places = [_only(side, name) for side in (EMITTED, SERVED_ROW) for name in ("_timeline", "_batch")]
    others = [_only(EMITTED, "_due")]
    others += [_only(SERVED_ROW, name) for name in ("_format", "_status", "_backfill", "_winner")]
    others += [_only(CORRECTION, name) for name in ("_backfill", "_winner")]
    pairs = F.sum(F.when(F.col("_side") == EMITTED, F.col("_n"))).alias("_pairs")
    grouped = rows.groupBy(*WINDOW, *keys).agg(*sums, *values, *places, *others, pairs)
    some = grouped.where(" + ".join(f"n_{side}" for side in (TRUTH, EXPECTED, EMITTED, SERVED_ROW)) + " > 0")
    end_ms = F.unix_millis("window_end")
    is_open = end_ms > F.lit(moment.closed_ms)
    unserved = is_open | (end_ms > F.lit(moment.closed_ms if moment.served_ms is None else moment.served_ms))
    same = _all(_once(TRUTH), _once(EXPECTED), _once(EMITTED), _equal(TRUTH, EXPECTED), _equal(EXPECTED, EMITTED))
    is_due = F.coalesce(F.col("emitted__due"), F.lit(False))
    stream = F.when(is_open, _none(EMITTED) & _once(TRUTH)).otherwise(same & is_due)
    if load is not None:
        is_loaded = F.unix_millis("window_start").between(load.since_ms, load.before_ms - 1)
        as_it_must = _all(_once(EXPECTED), _once(EMITTED), _equal(EXPECTED, EMITTED), is_due)
        own = F.when(is_open, _none(EMITTED)).otherwise((_none(EXPECTED) & _none(EMITTED)) | as_it_must)
        stream = F.when(is_loaded, own & _once(TRUTH)).otherwise(stream)
        same = F.when(is_loaded, F.coalesce(own, F.lit(False))).otherwise(same)
    served = (
        F.lit(True) if moment.served_ms is None else F.when(unserved, _none(SERVED_ROW)).otherwise(_is_served_well())
    )
    clean = stream & served & _none(LATE_RECORD)
    return some.select(
        *WINDOW,
        *shape.keys,
        F.coalesce(clean, F.lit(False)).alias("_clean"),
        is_open.alias("_open"),
        unserved.alias("_unserved"),
        F.coalesce(~same, F.lit(True)).alias("_dirty"),
        F.coalesce("_pairs", F.lit(0)).alias("_pairs"),
        F.col("n_served").alias("_served"),
    )


def _hash(function: object, shape: RowColumns) -> Column:
    """Return a hash of all values; which of them are null is hashed too, because a null leaves the hash as it is."""
    columns = [F.col(name) for name in shape.columns]
    nulls = [F.col(name).isNull().cast("int") for name in shape.columns]
    return function(*columns, *nulls)  # type: ignore[operator, no-any-return]


def _count(shape: RowColumns) -> Column:
    return F.lit(0).cast("bigint") if shape.count_column is None else F.col(shape.count_column).cast("bigint")


def _entries(side: str) -> Column:
    return F.count(F.when(F.col("_side") == side, 1)).alias(f"n_{side}")


def _only(side: str, name: str) -> Column:
    """Return a column of a side's entry; of several entries, which are not clean in any case, the largest."""
    return F.max(F.when(F.col("_side") == side, F.col(name))).alias(f"{side}_{name}")


def _once(side: str) -> Column:
    return F.col(f"n_{side}") == 1


def _none(side: str) -> Column:
    return F.col(f"n_{side}") == 0


def _equal(first: str, second: str) -> Column:
    return _all(*(F.col(f"{first}_{name}") == F.col(f"{second}_{name}") for name in ("_h1", "_h2")))


def _is_served_well() -> Column:
    """Return whether a row is served once, equal to the truth, from the batch or the publication that serves its window."""
    by_stream = _all(
        F.col("served__winner") == -1,
        F.col("served__status") == "stream",
        F.col("served__backfill").isNull(),
        F.col("served__timeline") == F.col("emitted__timeline"),
        F.col("served__batch") == F.col("emitted__batch"),
    )
    by_publication = _all(
        F.col("served__winner") >= 0,
        F.col("served__status") == "published",
        F.col("served__timeline").isNull(),
        F.col("served__batch").isNull(),
        F.col("served__backfill") == F.col("correction__backfill"),
        _once(CORRECTION),
        _equal(CORRECTION, SERVED_ROW),
    )
    return _all(_once(SERVED_ROW), F.col("served__format") == FORMAT, _equal(SERVED_ROW, TRUTH)) & (
        by_stream | by_publication
    )


def _all(*conditions: Column) -> Column:
    result = conditions[0]
    for condition in conditions[1:]:
        result = result & condition
    return result


@dataclass(frozen=True)
class Windows:
    """What is counted of each window that any side has, in the order of their starts. One element for each window.

    Attributes:
        start_ms, end_ms: epoch ms, half-open.
        clean, open_clean, unserved_clean: clean rows; those of them whose window is open; those whose window is not served yet.
        others: rows that are not clean. dirty: rows in which stream, expected and truth differ.
        pairs: records that emitted rows count. served: rows served.
    """

    start_ms: Numbers
    end_ms: Numbers
    clean: Numbers
    open_clean: Numbers
    unserved_clean: Numbers
    others: Numbers
    dirty: Numbers
    pairs: Numbers
    served: Numbers

    def where(self, keep: npt.NDArray[np.bool_]) -> Windows:
        """Return some of the windows."""
        return Windows(*(getattr(self, name)[keep] for name in self.__dataclass_fields__))


def count_windows(compared: DataFrame) -> Windows:
    """Return what is counted of each window."""

    def rows(condition: Column) -> Column:
        return F.count(F.when(condition, 1))

    clean = F.col("_clean")
    table = (
        compared.groupBy(F.unix_millis("window_start").alias("start_ms"), F.unix_millis("window_end").alias("end_ms"))
        .agg(
            rows(clean).alias("clean"),
            rows(clean & F.col("_open")).alias("open_clean"),
            rows(clean & F.col("_unserved")).alias("unserved_clean"),
            rows(~clean).alias("others"),
            rows(F.col("_dirty")).alias("dirty"),
            F.sum("_pairs").alias("pairs"),
            F.sum("_served").alias("served"),
        )
        .toArrow()
        .sort_by([("start_ms", "ascending"), ("end_ms", "ascending")])
    )
    return Windows(*(_numbers(table[name]) for name in Windows.__dataclass_fields__))


def _numbers(column: pa.ChunkedArray) -> Numbers:
    return np.asarray(column.to_numpy(), dtype=np.int64)


def suspect_rows(sides: DataFrame, compared: DataFrame, shape: RowColumns, apart: DataFrame, groups: int) -> DataFrame:
    """Return the sides' entries of rows that are not clean, with the `_group` in which they are judged.

    Args:
        compared: what `compare_sides` made of them.
        apart: `_start_ms` of windows that are left out.
        groups: number of groups; all entries of a row are in one.
    """
    others = compared.where(~F.col("_clean")).select(
        *(F.col(name).alias(f"_of_{name}") for name in (*WINDOW, *shape.keys))
    )
    kept = others.join(F.broadcast(apart), F.unix_millis("_of_window_start") == F.col("_start_ms"), "left_anti")
    same = _all(*(F.col(name).eqNullSafe(F.col(f"_of_{name}")) for name in (*WINDOW, *shape.keys)))
    group = F.pmod(F.xxhash64(*WINDOW, *shape.keys), F.lit(groups))
    return sides.join(kept, same, "left_semi").withColumn("_group", group)


def windows_for_driver(
    windows: Windows, special: npt.NDArray[np.bool_], winners: Numbers, older: Sequence[int]
) -> npt.NDArray[np.bool_]:
    """Return which windows are judged apart from the others, all their rows at once. Pure.

    Args:
        special: those of which more must be known than their rows: in doubt, blamed, amended.
        winners: by window the publication that serves it, or -1.
        older: publications that an older definition made.
    """
    is_published = winners >= 0
    return special | (is_published & (windows.others > 0)) | np.isin(winners, np.array(list(older), dtype=np.int64))
