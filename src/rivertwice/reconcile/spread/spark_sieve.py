"""Judge a view whose tables are too large for the driver: executors judge the rows, the driver a few windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from rivertwice.backfill import find_unloaded
from rivertwice.core import Place, Row, from_ms
from rivertwice.definition import Source
from rivertwice.log import Part
from rivertwice.reconcile.assess import (
    RederivedLedger,
)
from rivertwice.reconcile.derive import DerivedLog
from rivertwice.reconcile.gaps import LostRecordEffects, gaps_of, with_filled
from rivertwice.reconcile.kinds.tumbling_hopping import WindowJudge
from rivertwice.reconcile.model import DefectFinding, LateRow, RowColumns, RowId
from rivertwice.reconcile.observe import read_tables
from rivertwice.reconcile.recorded import (
    Contents,
    Emitted,
    count_by_batch,
)
from rivertwice.reconcile.rederive import Chain, blame_windows, select_touching
from rivertwice.reconcile.seals.scope import join_nearest
from rivertwice.reconcile.sieve import SideTables, Sieve, Split, check_side_tables
from rivertwice.reconcile.spread.compare import (
    ComparedUntil,
    batch_numbers,
    compare_sides,
    count_windows,
    gather_sides,
    suspect_rows,
    windows_for_driver,
)
from rivertwice.reconcile.spread.spread import FINDING, JUDGED, VERDICT, Rule, Spread, judge_group
from rivertwice.reconcile.view import Handles, HeadView, counted_publications, shape_of
from rivertwice.storage import Snapshot, TableFiles
from rivertwice.timeline import add_digests, is_inside, is_on_path, select_winners

# Dead letters and kept late rows, compared by Spark with what the log requires; only what differs comes to the driver.
#
# Then the same functions name what is wrong that compare everything in a small run.

GROUP_ROWS = 5_000
"""So many rows that are not clean are judged in one group, about; a group's entries are in one executor's memory."""
MOST_FINDINGS = 1_000
MOST_NAMED = 10_000
"""So many differing rows are named one by one; one more finding counts the rest."""


@dataclass(frozen=True)
class SideTable:
    """How a side table is compared.

    Attributes:
        name: of its findings. ddl: its columns.
        place: columns that address a row. compared: the others that are compared.
    """

    name: str
    ddl: str
    place: Sequence[str]
    compared: Sequence[str]


_ORIGIN = "cluster_id string, topic_id string"
DEAD = SideTable(
    "dead_letters",
    "_timeline string, _batch bigint, topic string, partition int, offset bigint, reason string, record_time timestamp, "
    + _ORIGIN,
    ("_index", "topic", "partition", "offset"),
    ("reason", "record_time", "cluster_id", "topic_id"),
)
LATE = SideTable(
    "late_rows",
    "_timeline string, _batch bigint, topic string, partition int, offset bigint, window_start timestamp, window_end timestamp, "
    f"event_time timestamp, late_watermark timestamp, record_time timestamp, fields string, {_ORIGIN}",
    ("_index", "topic", "partition", "offset", "window_start"),
    ("window_end", "event_time", "late_watermark", "record_time", "fields", "cluster_id", "topic_id"),
)


def required_late(judge: WindowJudge, shape: RowColumns, source: Source) -> DataFrame:
    """Return the late rows that must be kept."""
    fields = F.to_json(F.struct(*source.schema_), {"ignoreNullFields": "false"}).alias("fields")
    return judge.late_frame(shape, (F.col("_record_time").alias("record_time"), fields)).select(
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


_MOST_RANGES = 64
_COUNTED = "_timeline string, _batch bigint, rows bigint, digest string"


class SparkSieve(Sieve):
    """Lets executors judge the rows of a view whose tables are too large for the driver (`spread`).

    All rows are of one definition. The driver judges the windows that executors cannot: those in doubt or blamed for a defect of
    the ledger, those that amendments belong to, and published ones that serve anything but the present truth.
    """

    def __init__(
        self,
        spark: SparkSession,
        view: HeadView,
        log: DerivedLog,
        derived: RederivedLedger,
        wanted: tuple[int, int] | None = None,
    ) -> None:
        """Take a view with handles; of windows that start outside `wanted` (epoch ms, half-open), nothing is judged."""
        super().__init__(spark, view, log, derived)
        assert view.handles is not None, "they are what it reads"
        assert isinstance(self.judge, WindowJudge), "rows of no other kind are independent of each other"
        self._handles, self._windows, self._wanted = view.handles, self.judge, wanted
        self._numbers = batch_numbers(spark, view, derived.chain)
        dead = _required_dead(log, view.newest.definition.source[0], self._numbers, view.topics[0])
        self._dead = dead.persist(StorageLevel.MEMORY_AND_DISK)

    def split(self) -> Split:
        """Let executors judge, and read the rows of the windows that they left out."""
        view, judge, shape = self._view, self._windows, shape_of(self._view.newest.definition)
        doubts = judge.widen(self._derived.doubts)
        gaps = gaps_of(view.jumps)
        if gaps:
            doubts = with_filled(doubts, gaps, judge.windows_with_skipped_records())
        amended = {row.row.start_ms for row in judge.amended_rows(shape)}
        sieved = self._judge(shape, lambda windows: self._in_doubt(doubts, windows) | amended)
        narrow = judge.within([end for _, end in sieved.apart])
        return Split(_narrowed(view, sieved.apart), {view.groups[-1]: narrow}, sieved, sieved.findings)

    def _judge(self, shape: RowColumns, special: Callable[[set[tuple[int, int]]], set[int]]) -> Spread:
        """Judge all windows but those that need more than their rows; `special` says which of them do in any case."""
        view, spark = self._view, self._spark
        moment, served_index = _moment(view, self._derived.chain)
        sides = gather_sides(
            spark, view, self._handles, self._windows, self._numbers, shape, with_served=served_index is not None
        ).persist(StorageLevel.MEMORY_AND_DISK)
        every = compare_sides(sides, shape, moment, view.load).persist(StorageLevel.MEMORY_AND_DISK)
        windows = count_windows(every)
        counted = [] if served_index is None else counted_publications(view)
        winners = select_winners(windows.start_ms, counted, view.semantics)
        older = [entry.seq for entry in counted if entry.semantics != view.newest.semantics]
        unloaded = () if view.load is None else find_unloaded(view.load, counted, view.semantics)
        waits = is_inside(windows.start_ms, list(unloaded))
        pairs = list(zip(windows.start_ms.tolist(), windows.end_ms.tolist(), strict=True))
        is_special = np.isin(windows.start_ms, np.array(sorted(special(set(pairs))), dtype=np.int64))
        apart = windows_for_driver(windows, is_special, np.where(waits, -1, winners), older)
        starts = pa.table({"_start_ms": pa.array(np.unique(windows.start_ms[apart]), pa.int64())})
        groups = max(1, int(windows.others[~apart].sum()) // GROUP_ROWS)
        start_ms, wanted = F.unix_millis("window_start"), self._wanted
        asked = every if wanted is None else every.where((start_ms >= wanted[0]) & (start_ms < wanted[1]))
        others = suspect_rows(sides, asked, shape, spark.createDataFrame(starts), groups)
        rule = Rule(view.newest.definition, view.topics[0], shape, moment, served_index, view.load, unloaded)
        judged = others.groupBy("_group").applyInArrow(judge_group(rule), from_arrow_schema(JUDGED))
        judged = judged.persist(StorageLevel.MEMORY_AND_DISK)
        summary, findings = _summary(judged), _findings(judged)
        sides.unpersist()
        every.unpersist()
        chosen = sorted({pair for pair, is_apart in zip(pairs, apart.tolist(), strict=True) if is_apart})
        published = frozenset(windows.start_ms[(winners >= 0) & ~apart].tolist())
        return Spread(windows.where(~apart), chosen, judged, summary, findings, self._dead, rule, published, wanted)

    def _in_doubt(self, doubts: LostRecordEffects, windows: AbstractSet[tuple[int, int]]) -> set[int]:
        """Return the starts of the windows that lost records or a defect of the ledger may concern."""
        doubted = {start for start, end in windows if doubts.of(start, end) is not None or doubts.caveat(start)}
        defects = self._derived.defects
        if defects:
            touched: Mapping[int, set[int]] = self.judge.touched(select_touching(defects))
            blamed = blame_windows(defects, self._derived.chain, windows, lambda index: touched.get(index, ()))
            doubted |= blamed.keys()
        return doubted

    def check_sides(self, late: Sequence[LateRow]) -> SideTables:
        """Compare by Spark; only what differs comes to the driver, so the dead letters do not, nor do all late records."""
        view, topic, definition = self._view, self._view.topics[0], self._view.newest.definition
        required = self._dead.select("_index", "partition", "offset", "reason", "record_time")
        stored = self._stored(view.home.tables.dead_letters, self._handles.dead, DEAD)
        counted = stored.groupBy("topic", "partition").agg(F.count(F.lit(1)).alias("rows")).toArrow().to_pylist()
        dead_rows, kept_dead, more = self._differing(DEAD, required, stored)
        late_rows: list[Row] = []
        kept_late = None
        if definition.late.keeps_rows:
            required = required_late(self._windows, shape_of(definition), definition.source[1])
            stored = self._stored(view.home.tables.late_rows, self._handles.late, LATE)
            late_rows, kept_late, more_late = self._differing(LATE, required, stored)
            more += more_late

        def contents(rows: Sequence[Mapping[str, Any]], *names: str) -> dict[tuple[Part, int], Row]:
            return {(Part(topic, row["partition"]), row["offset"]): {n: row[n] for n in names} for row in rows}

        found = check_side_tables(
            replace(view, dead=kept_dead, late=kept_late),
            [(row["_index"], Part(topic, row["partition"]), row["offset"], row["reason"]) for row in dead_rows],
            [_late_row(view, topic, row) for row in late_rows],
            Contents(contents(late_rows, "record_time", "fields"), contents(dead_rows, "record_time")),
        )
        recorded = {Part(row["topic"], row["partition"]): row["rows"] for row in counted}
        return SideTables([*found.findings, *more], (), recorded)

    def _stored(self, place: Place, table: Snapshot | None, side: SideTable) -> DataFrame:
        """Return the rows of committed batches of the path, with `_index`."""
        numbers = self._numbers
        schema = StructType.fromDDL(side.ddl)
        assert isinstance(schema, StructType), "it names columns"
        if table is None:
            empty = (F.lit(None).cast(each.dataType).alias(each.name) for each in schema)
            return numbers.limit(0).select("_index", *empty)
        rows = TableFiles(table).scan(self._spark, schema, lambda found: found)
        same = (rows["_timeline"] == numbers["_path_timeline"]) & (rows["_batch"] == numbers["_number"])
        numbered = rows.join(F.broadcast(numbers.select("_path_timeline", "_number", "_index")), same)
        return numbered.select("_index", *schema.names)

    def _differing(
        self, side: SideTable, required: DataFrame, stored: DataFrame
    ) -> tuple[list[Row], pa.Table, list[DefectFinding]]:
        """Return what is required and what is stored at the first places where the two are not one equal row each."""
        wanted = _with_origin(self._spark, self._view, required, self._numbers, self._view.topics[0])
        place, names = side.place, side.compared
        hashed = F.xxhash64(*names, *(F.col(name).isNull().cast("int") for name in names)).alias("_hash")
        both = [frame.select(*place, hashed, F.lit(of).alias("_of")) for of, frame in enumerate((wanted, stored))]
        counts = [F.count(F.when(F.col("_of") == of, 1)).alias(f"n{of}") for of in (0, 1)]
        grouped = both[0].unionByName(both[1]).groupBy(*place)
        compared = grouped.agg(*counts, F.min("_hash").alias("_low"), F.max("_hash").alias("_high"))
        unlike = compared.where("n0 <> 1 OR n1 <> 1 OR _low <> _high").select(*place)
        count = unlike.count()
        named = F.broadcast(unlike.orderBy(*place).limit(MOST_NAMED))
        rows = [frame.join(named, list(place), "left_semi").toArrow() for frame in (wanted, stored)]
        text = f"{count - MOST_NAMED} more rows of {side.name} differ from what the log requires"
        return rows[0].to_pylist(), rows[1], [DefectFinding(side.name, text)] if count > MOST_NAMED else []

    def emitted(self) -> Emitted:
        """Let executors compute the digests of the changelog's batches."""
        return _count_emitted(self._spark, self._view, self._handles)


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
    for row in TableFiles(handles.changelog).scan(spark, schema, counted).toArrow().to_pylist():
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


def _moment(view: HeadView, chain: Chain) -> tuple[ComparedUntil, int | None]:
    closed_ms = view.newest.definition.window.closed_ms
    stamp = view.served_stamp
    if view.handles is None or view.handles.served is None or stamp is None:
        return ComparedUntil(closed_ms(chain.closed_ms), None), None
    index = view.index.get((stamp.timeline, stamp.batch))
    served_ms = None if index is None else closed_ms(chain.batch[index])
    return ComparedUntil(closed_ms(chain.closed_ms), served_ms), index


def _summary(judged: DataFrame) -> pa.Table:
    start, end = F.unix_millis("window_start").alias("start_ms"), F.unix_millis("window_end").alias("end_ms")
    return (
        judged.where(F.col("kind") == VERDICT)
        .groupBy("pair", start, end, "verdict", "presence")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            *(F.sum(name).alias(name) for name in ("late", "dead", "unexplained")),
            F.max("late_share").alias("late_share"),
        )
        .toArrow()
    )


def _findings(judged: DataFrame) -> list[DefectFinding]:
    found = judged.where(F.col("kind") == FINDING)
    rows = found.orderBy("window_start", "key", "detail").limit(MOST_FINDINGS + 1).toArrow().to_pylist()
    findings = [DefectFinding(row["cause"], row["detail"], row["batch"]) for row in rows[:MOST_FINDINGS]]
    if len(rows) > MOST_FINDINGS:
        more = found.count() - MOST_FINDINGS
        findings.append(DefectFinding("served", f"{more} more served rows are not what changelog and corrections give"))
    return findings
