"""Judge a view whose tables are too large for the driver: executors judge the rows, the driver a few windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from rivertwice.core.homes import Place
from rivertwice.core.instants import from_ms
from rivertwice.log.addresses import Part
from rivertwice.reconcile.assess import (
    RederivedLedger,
    find_served_differences,
    gather_evidence,
    gather_served,
    pairs_by_own,
)
from rivertwice.reconcile.columns import Contents, check_dead_columns, check_late_columns
from rivertwice.reconcile.copies import check_publications
from rivertwice.reconcile.derive import DerivedLog
from rivertwice.reconcile.gaps import LostRecordEffects, gaps_of, with_filled
from rivertwice.reconcile.judged import JudgedHead
from rivertwice.reconcile.kinds.tumbling_hopping import WindowJudge
from rivertwice.reconcile.model import DefectFinding, LateRow, RowColumns, RowId
from rivertwice.reconcile.observe import read_tables
from rivertwice.reconcile.recorded import (
    Emitted,
    RecordedDeadLetter,
    check_dead_letters,
    check_emitted,
    check_late_rows,
    count_by_batch,
)
from rivertwice.reconcile.rederive import blame_windows, select_touching
from rivertwice.reconcile.seals.scope import join_nearest
from rivertwice.reconcile.spread.compare import batch_numbers
from rivertwice.reconcile.spread.spread import WindowsApart, spread
from rivertwice.reconcile.verdict import judge_served, judge_stream
from rivertwice.reconcile.view import Handles, HeadView, shape_of
from rivertwice.storage import delta
from rivertwice.storage.spark_scan import scan
from rivertwice.timeline.digest import add_digests
from rivertwice.timeline.served_rows import is_on_path

# Dead letters and kept late rows, compared by Spark with what the log requires; only what differs comes to the driver.
#
# Then the same functions name what is wrong that compare everything in a small run.

MOST_NAMED = 10_000
"""So many differing rows are named one by one; one more finding counts the rest."""
_ORIGIN = "cluster_id string, topic_id string"
_DEAD = f"_timeline string, _batch bigint, topic string, partition int, offset bigint, reason string, record_time timestamp, {_ORIGIN}"
_LATE = (
    "_timeline string, _batch bigint, topic string, partition int, offset bigint, window_start timestamp, window_end timestamp, "
    f"event_time timestamp, late_watermark timestamp, record_time timestamp, fields string, {_ORIGIN}"
)
_DEAD_PLACE = ("_index", "topic", "partition", "offset")
_LATE_PLACE = ("_index", "topic", "partition", "offset", "window_start")


@dataclass(frozen=True)
class SideFindings:
    """What comparing a side table gave.

    Attributes:
        findings: what is wrong with it.
        recorded: rows of committed batches by partition.
    """

    findings: Sequence[DefectFinding]
    recorded: Mapping[Part, int]


def compare_dead(
    spark: SparkSession, view: HeadView, required: DataFrame, numbers: DataFrame, table: delta.Table | None
) -> SideFindings:
    """Compare the recorded dead letters with those that the log requires.

    Args:
        spark: the session.
        view: the head, without its tables.
        required: `_index`, `partition`, `offset`, `reason`, `record_time` of each dead letter.
        numbers: the path's batches (`sides.batch_numbers`).
        table: the recorded ones; None: there is no such table.
    """
    topic = view.topics[0]
    wanted = _with_origin(spark, view, required, numbers, topic)
    stored = _stored(spark, view.home.tables.dead_letters, table, _DEAD, numbers)
    counted = stored.groupBy("topic", "partition").agg(F.count(F.lit(1)).alias("rows")).toArrow().to_pylist()
    names = ("reason", "record_time", "cluster_id", "topic_id")
    differing, count = _differing(wanted, stored, _DEAD_PLACE, names)
    wanted_rows, stored_rows = _rows_at(wanted, differing, _DEAD_PLACE), _rows_at(stored, differing, _DEAD_PLACE)
    derived: list[RecordedDeadLetter] = [
        (row["_index"], Part(topic, row["partition"]), row["offset"], row["reason"]) for row in wanted_rows.to_pylist()
    ]
    contents = Contents(
        dead={
            (Part(topic, row["partition"]), row["offset"]): {"record_time": row["record_time"]}
            for row in wanted_rows.to_pylist()
        }
    )
    part = replace(view, dead=stored_rows)
    findings = [
        *check_dead_letters(part, derived)[0],
        *check_dead_columns(part, contents),
        *_more(count, "dead_letters"),
    ]
    return SideFindings(findings, {Part(row["topic"], row["partition"]): row["rows"] for row in counted})


def compare_late(
    spark: SparkSession,
    view: HeadView,
    judge: WindowJudge,
    shape: RowColumns,
    numbers: DataFrame,
    table: delta.Table | None,
) -> list[DefectFinding]:
    """Compare the kept late rows with those that the log requires; nothing if the definition keeps none."""
    definition = view.newest.definition
    if not definition.late.keeps_rows:
        return []
    topic, source = view.topics[0], definition.source[1]
    fields = F.to_json(F.struct(*source.schema_), {"ignoreNullFields": "false"}).alias("fields")
    late = judge.late_frame(shape, (F.col("_record_time").alias("record_time"), fields))
    required = late.select(
        "_index",
        F.col("_partition").alias("partition"),
        F.col("_offset").alias("offset"),
        "window_start",
        "window_end",
        F.col("_event_time").alias("event_time"),
        F.timestamp_millis("_late_ms").alias("late_watermark"),
        "record_time",
        "fields",
    )
    wanted = _with_origin(spark, view, required, numbers, topic)
    stored = _stored(spark, view.home.tables.late_rows, table, _LATE, numbers)
    names = ("window_end", "event_time", "late_watermark", "record_time", "fields", "cluster_id", "topic_id")
    differing, count = _differing(wanted, stored, _LATE_PLACE, names)
    wanted_rows, stored_rows = _rows_at(wanted, differing, _LATE_PLACE), _rows_at(stored, differing, _LATE_PLACE)
    derived = [_late_row(view, topic, row) for row in wanted_rows.to_pylist()]
    contents = Contents(
        late={
            (Part(topic, row["partition"]), row["offset"]): {name: row[name] for name in ("record_time", "fields")}
            for row in wanted_rows.to_pylist()
        }
    )
    part = replace(view, late=stored_rows)
    findings = [*check_late_rows(part, derived), *check_late_columns(part, derived, contents)]
    return [*findings, *_more(count, "late_rows")]


def _late_row(view: HeadView, topic: str, row: Mapping[str, Any]) -> LateRow:
    start, end, watermark = (
        round(row[name].timestamp() * 1000) for name in ("window_start", "window_end", "late_watermark")
    )
    batch = view.rows[row["_index"]].batch
    return LateRow(RowId(start, end, ""), topic, row["partition"], row["offset"], batch, watermark, row["event_time"])


def _with_origin(spark: SparkSession, view: HeadView, required: DataFrame, numbers: DataFrame, topic: str) -> DataFrame:
    """Return rows with their batch, their topic, and the ids that the batch's timeline recorded."""
    lines = view.copies.timelines
    ids = pa.table(
        {
            "_path_timeline": pa.array(lines, pa.string()),
            "cluster_id": pa.array([line.cluster_id for line in lines.values()], pa.string()),
            "topic_id": pa.array([line.topic_ids.get(topic) for line in lines.values()], pa.string()),
        }
    )
    named = numbers.join(F.broadcast(spark.createDataFrame(ids)), "_path_timeline", "left").select(
        "_index",
        F.col("_path_timeline").alias("_timeline"),
        F.col("_number").alias("_batch"),
        F.lit(topic).alias("topic"),
        "cluster_id",
        "topic_id",
    )
    return required.join(F.broadcast(named), "_index")


def _stored(spark: SparkSession, place: Place, table: delta.Table | None, ddl: str, numbers: DataFrame) -> DataFrame:
    """Return the rows of committed batches of the path, with `_index`."""
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType), "it names columns"
    if table is None:
        return numbers.limit(0).select("_index", *(F.lit(None).cast(each.dataType).alias(each.name) for each in schema))
    rows = scan(spark, place, table, schema, _unchanged)
    same = (rows["_timeline"] == numbers["_path_timeline"]) & (rows["_batch"] == numbers["_number"])
    numbered = rows.join(F.broadcast(numbers.select("_path_timeline", "_number", "_index")), same)
    return numbered.select("_index", *schema.names)


def _unchanged(rows: pa.Table) -> pa.Table:
    return rows


def _differing(
    wanted: DataFrame, stored: DataFrame, place: Sequence[str], names: Sequence[str]
) -> tuple[DataFrame, int]:
    """Return up to `MOST_NAMED` places at which the two are not one equal row each, and how many there are."""
    hashed = F.xxhash64(*names, *(F.col(name).isNull().cast("int") for name in names)).alias("_hash")
    sides = [frame.select(*place, hashed, F.lit(side).alias("_of")) for frame, side in ((wanted, 0), (stored, 1))]
    grouped = sides[0].unionByName(sides[1]).groupBy(*place)
    counts = grouped.agg(_count(0), _count(1), F.min("_hash").alias("_low"), F.max("_hash").alias("_high"))
    unlike = counts.where("n0 <> 1 OR n1 <> 1 OR _low <> _high").select(*place)
    count = unlike.count()
    return unlike.orderBy(*place).limit(MOST_NAMED), count


def _count(side: int) -> Column:
    return F.count(F.when(F.col("_of") == side, 1)).alias(f"n{side}")


def _rows_at(rows: DataFrame, places: DataFrame, place: Sequence[str]) -> pa.Table:
    return rows.join(F.broadcast(places), list(place), "left_semi").toArrow()


def _more(count: int, kind: str) -> list[DefectFinding]:
    if count <= MOST_NAMED:
        return []
    return [DefectFinding(kind, f"{count - MOST_NAMED} more rows of {kind} differ from what the log requires")]


Done = Callable[[str, str], None]
"""Is called at the end of a phase with its name and a detail."""
_MOST_RANGES = 64
_COUNTED = "_timeline string, _batch bigint, rows bigint, digest string"


def judge_large(
    spark: SparkSession,
    view: HeadView,
    log: DerivedLog,
    derived: RederivedLedger,
    done: Done,
    wanted: tuple[int, int] | None = None,
) -> JudgedHead:
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
    special = WindowsApart(partial(_windows_in_doubt, view, derived, judge, doubts), amended)
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
    return JudgedHead(
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
    derived: RederivedLedger,
    judge: WindowJudge,
    doubts: LostRecordEffects,
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
