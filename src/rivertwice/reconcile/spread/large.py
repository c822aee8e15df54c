"""Judge a view whose tables are too large for the driver: executors judge the rows, the driver a few windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from rivertwice.instants import from_ms
from rivertwice.reconcile.assess import (
    Derived,
    find_served_differences,
    gather_evidence,
    gather_served,
)
from rivertwice.reconcile.copies import check_publications
from rivertwice.reconcile.definition_versions import pairs_by_own
from rivertwice.reconcile.derive import DerivedLog
from rivertwice.reconcile.gaps import Doubts, gaps_of, with_filled
from rivertwice.reconcile.judged import Judged
from rivertwice.reconcile.kinds.tumbling_hopping import WindowJudge
from rivertwice.reconcile.observe import read_tables
from rivertwice.reconcile.recorded import Emitted, check_emitted, count_by_batch
from rivertwice.reconcile.rederive import blame_windows, select_touching
from rivertwice.reconcile.seals.scope import join_nearest
from rivertwice.reconcile.spread.side_tables import compare_dead, compare_late
from rivertwice.reconcile.spread.sides import batch_numbers
from rivertwice.reconcile.spread.spread import Special, spread
from rivertwice.reconcile.verdict import judge_served, judge_stream
from rivertwice.reconcile.view import Handles, HeadView, shape_of
from rivertwice.store.delta_scan import scan
from rivertwice.timeline.digest import add_digests
from rivertwice.timeline.served_rows import is_on_path

Done = Callable[[str, str], None]
"""Is called at the end of a phase with its name and a detail."""
_MOST_RANGES = 64
_COUNTED = "_timeline string, _batch bigint, rows bigint, digest string"


def judge_large(
    spark: SparkSession,
    view: HeadView,
    log: DerivedLog,
    derived: Derived,
    done: Done,
    wanted: tuple[int, int] | None = None,
) -> Judged:
    """Return what the log says of all windows; the view has handles instead of tables.

    Rows of one definition are judged by executors (`spread`). The driver judges the windows that executors cannot: those in
    doubt or blamed for a defect of the ledger, those that amendments belong to, and published ones that serve anything but
    the present truth.
    """
    handles = view.handles
    assert handles is not None, "they are what it reads"
    definition, shape = view.newest.definition, shape_of(view.newest.definition)
    judge = log.judged_by(derived.chain, view.groups, view.cures)
    assert isinstance(judge, WindowJudge), "rows of no other kind are independent of each other"
    numbers = batch_numbers(spark, view, derived.chain)
    doubts = judge.widen(derived.doubts)
    gaps = gaps_of(view.jumps)
    if gaps:
        doubts = with_filled(doubts, gaps, judge.windows_with_skipped_records())
    amended = frozenset(row.row.start_ms for row in judge.amended_rows(shape))
    special = Special(partial(_windows_in_doubt, view, derived, judge, doubts), amended)
    rows = spread(spark, view, judge, derived.chain, numbers, shape, special, wanted)
    done("recompute", f"{len(rows.windows.start_ms)} windows by executors, {len(rows.apart)} by the driver")
    dead_rows = _required_dead(log, definition.source[0], numbers, view.topics[0])
    dead_rows = dead_rows.persist(StorageLevel.MEMORY_AND_DISK)
    required = dead_rows.select("_index", "partition", "offset", "reason", "record_time")
    dead = compare_dead(spark, view, required, numbers, handles.dead)
    late_findings = compare_late(spark, view, judge, shape, numbers, handles.late)
    pairs = pairs_by_own({view.groups[-1]: judge})
    emitted = _count_emitted(spark, view, handles)
    done("account", f"{sum(dead.recorded.values())} dead letters, {len(pairs)} counts")
    apart = _narrowed(view, rows.apart)
    narrow = judge.within([end for _, end in rows.apart])
    evidence, late = gather_evidence(apart, derived, {view.groups[-1]: narrow})
    served = gather_served(apart, evidence, derived.chain, narrow, late)
    verdicts = judge_stream(evidence) + ([] if served is None else judge_served(evidence, served))
    findings = [*derived.findings, *view.contradicted]
    findings += [*dead.findings, *late_findings, *check_emitted(view, emitted), *rows.findings]
    findings += [
        *check_publications(view.publications, view.copies.plans),
        *find_served_differences(apart, shape, derived.chain, verdicts),
    ]
    return Judged(
        derived=derived,
        judge=judge,
        evidence=evidence,
        served=served,
        verdicts=verdicts,
        findings=findings,
        late=late,
        touched={},
        dead=(),
        dead_counts=dead.recorded,
        pairs=pairs,
        without_output=None,
        can_increment=judge.can_increment(shape),
        spread=rows,
        dead_rows=dead_rows,
    )


def _windows_in_doubt(
    view: HeadView,
    derived: Derived,
    judge: WindowJudge,
    doubts: Doubts,
    windows: AbstractSet[tuple[int, int]],
) -> set[int]:
    """Return the starts of the windows that lost records or a defect of the ledger may concern."""
    doubted = {start for start, end in windows if doubts.of(start, end) is not None or doubts.caveat(start)}
    if derived.defects:
        touched: Mapping[int, set[int]] = judge.touched(select_touching(derived.defects))
        blamed = blame_windows(derived.defects, derived.chain, windows, lambda index: touched.get(index, ()))
        doubted |= blamed.keys()
    return doubted


def _required_dead(log: DerivedLog, view: str, numbers: DataFrame, topic: str) -> DataFrame:
    """Return the dead letters that the log requires, with the batch that read each."""
    bad = log.tagged[view].where(F.col("_reason").isNotNull() & (F.col("_index") >= 0))
    return bad.join(F.broadcast(numbers), "_index").select(
        "_index",
        F.lit(topic).alias("topic"),
        F.col("_partition").alias("partition"),
        F.col("_offset").alias("offset"),
        F.col("_number").alias("batch"),
        F.col("_reason").alias("reason"),
        F.col("_record_time").alias("record_time"),
    )


def _count_emitted(spark: SparkSession, view: HeadView, handles: Handles) -> Emitted:
    """Return what the changelog has of each batch; executors compute the digests."""
    if handles.changelog is None:
        return {}
    names = view.newest.definition.result_columns
    schema = StructType.fromDDL(_COUNTED)
    assert isinstance(schema, StructType), "it names columns"
    on_path = is_on_path(handles.path)

    def counted(rows: pa.Table) -> pa.Table:
        found = count_by_batch(rows.filter(on_path), names)
        stamps = [(*stamp, *numbers) for stamp, numbers in found.items()]
        return pa.table(dict(zip(schema.names, zip(*stamps, strict=True) if stamps else [()] * 4, strict=True)))

    parts: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for row in scan(spark, view.home.tables.changelog, handles.changelog, schema, counted).toArrow().to_pylist():
        parts.setdefault((row["_timeline"], row["_batch"]), []).append((row["rows"], row["digest"]))
    return {
        stamp: (sum(rows for rows, _ in found), add_digests(digest for _, digest in found))
        for stamp, found in parts.items()
    }


def _narrowed(view: HeadView, windows: Sequence[tuple[int, int]]) -> HeadView:
    """Return the view with the tables' rows of some windows (start, end in epoch ms), and of no other."""
    starts = [start for start, _ in windows]
    ranges = join_nearest([(start, start + 1) for start in starts], _MOST_RANGES) or [(0, 1)]
    near = read_tables(view, ranges)
    wanted = pa.array([from_ms(start) for start in starts], pa.timestamp("us", "UTC"))

    def only(rows: pa.Table | None) -> pa.Table | None:
        return None if rows is None else rows.filter(pc.is_in(rows["window_start"], wanted))

    return replace(near, stream=only(near.stream), served=only(near.served), corrections=only(near.corrections))
