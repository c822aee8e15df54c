"""What truth, stream and served table hold of each row, in one frame: the input of a run that executors judge.

Every row of the frame is one side's entry of one address: what is true, what the stream had to emit, what it emitted, what is
served, what a publication computed, or a late record of it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from rivertwice.pipeline.definition import Definition
from rivertwice.reconcile.kinds.tumbling_hopping import WindowJudge
from rivertwice.reconcile.model import RowColumns
from rivertwice.reconcile.rederive import Chain
from rivertwice.reconcile.view import Handles, HeadView, counted_publications
from rivertwice.store.delta_scan import scan
from rivertwice.timeline.served_rows import is_on_path
from rivertwice.timeline.serving import Publication, select_winners, to_epoch_ms

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
    definition, tables = view.newest.definition, view.home.tables
    names = [*WINDOW, *shape.keys, *shape.columns]
    truth = judge.truth_frame(definition)
    results = StructType([_nullable(truth.schema[name]) for name in names])
    sides = [_side(truth, TRUTH, results), _side(judge.expected_frame(definition), EXPECTED, results)]
    if handles.changelog is not None:
        on_path = is_on_path(handles.path)
        schema = _with(results, "_timeline string, _batch bigint")
        emitted = scan(spark, tables.changelog, handles.changelog, schema, lambda rows: rows.filter(on_path))
        sides.append(_side(_with_index(emitted, marks, definition), EMITTED, results))
    if handles.served is not None and with_served:
        publications = counted_publications(view)
        schema = _with(
            results, "_format int, _status string, _timeline string, _batch bigint, _backfill string, _winner bigint"
        )
        winners = functools.partial(_with_winner, publications=publications, semantics=view.semantics)
        sides.append(_side(scan(spark, tables.served, handles.served, schema, winners), SERVED_ROW, results))
        if publications and handles.corrections is not None:
            schema = _with(results, "_backfill string, _winner bigint")
            chosen = functools.partial(_winning, publications=publications, semantics=view.semantics)
            sides.append(
                _side(scan(spark, tables.corrections, handles.corrections, schema, chosen), CORRECTION, results)
            )
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
