"""Judge a head by executors: clean rows are counted, the others are judged in groups, and few windows are left to the driver."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from rivertwice.backfill.load_plan import find_unloaded
from rivertwice.backfill.ranges import HalfOpenRange
from rivertwice.core.instants import from_ms
from rivertwice.definition.definition import Definition
from rivertwice.reconcile.copies import check_served_rows, choose_again, wrong_rows
from rivertwice.reconcile.evidence import Evidence, ServedEvidence
from rivertwice.reconcile.frames import addresses, late_by_row, values
from rivertwice.reconcile.kinds.tumbling_hopping import WindowJudge
from rivertwice.reconcile.model import (
    SERVED,
    STREAM,
    DefectFinding,
    LateRow,
    RowColumns,
    RowId,
    ServedRow,
    StreamRow,
    Values,
    Verdict,
)
from rivertwice.reconcile.recorded import row_causes
from rivertwice.reconcile.rederive import Chain
from rivertwice.reconcile.results import cause_fields
from rivertwice.reconcile.spread.compare import (
    EMITTED,
    EXPECTED,
    LATE_RECORD,
    SERVED_ROW,
    TRUTH,
    WINDOW,
    ComparedUntil,
    Numbers,
    Windows,
    compare_sides,
    count_windows,
    gather_sides,
    suspect_rows,
    windows_for_driver,
)
from rivertwice.reconcile.verdict import judge_served, judge_stream
from rivertwice.reconcile.view import HeadView, counted_publications
from rivertwice.timeline.first_load import FirstLoad
from rivertwice.timeline.served_ranges import is_inside
from rivertwice.timeline.serving import select_winners
from rivertwice.timeline.verdicts import AGREES, OPEN

# What an executor makes of rows that are not clean: verdicts and causes, by the rules that judge every row. Pure.

JUDGED = pa.schema(
    [
        ("kind", pa.string()),
        ("pair", pa.string()),
        ("window_start", pa.timestamp("us", "UTC")),
        ("window_end", pa.timestamp("us", "UTC")),
        ("key", pa.string()),
        ("verdict", pa.string()),
        ("reason", pa.string()),
        ("presence", pa.string()),
        ("late", pa.int64()),
        ("dead", pa.int64()),
        ("unexplained", pa.int64()),
        ("late_share", pa.float64()),
        ("cause", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("batch", pa.int64()),
        ("late_watermark_ms", pa.int64()),
        ("event_time", pa.timestamp("us", "UTC")),
        ("detail", pa.string()),
    ]
)
"""A verdict (`kind` is `VERDICT`), a cause of one (`CAUSE`), or what is wrong with a served row (`FINDING`)."""
VERDICT, CAUSE, FINDING = "verdict", "cause", "finding"


@dataclass(frozen=True)
class Rule:
    """What an executor must know to judge.

    Attributes:
        definition: of all rows. topic: of its only source.
        shape: how rows are addressed and compared.
        moment: up to when.
        served_index: path index of the batch that the served table shows; None: there is no such table.
        load: the first load by batch of the path, or None; unloaded: starts of those of its windows that no backfill has published.
    """

    definition: Definition
    topic: str
    shape: RowColumns
    moment: ComparedUntil
    served_index: int | None
    load: FirstLoad | None = None
    unloaded: Sequence[HalfOpenRange] = ()


def judge_group(rule: Rule) -> Callable[[pa.Table], pa.Table]:
    """Return a function of all entries of some rows (`sides.gather_sides`), to verdicts and causes (`JUDGED`)."""
    return lambda entries: _judge(rule, entries)


def _judge(rule: Rule, entries: pa.Table) -> pa.Table:
    shape = rule.shape
    by_side = {side: entries.filter(pc.equal(entries["_side"], side)) for side in _SIDES}
    truth, expected = (dict(_rows(by_side[side], shape)) for side in (TRUTH, EXPECTED))
    evidence = Evidence(
        shape=shape,
        closed_ms=rule.moment.closed_ms,
        truth=truth,
        expected=expected,
        stream=_emitted(by_side[EMITTED], shape),
        late=late_by_row(_late(by_side[LATE_RECORD], rule)),
        load=rule.load,
    )
    verdicts = judge_stream(evidence)
    served = None
    findings: list[DefectFinding] = []
    if rule.moment.served_ms is not None:
        served = ServedEvidence(_served(by_side[SERVED_ROW], shape), rule.moment.served_ms, unloaded=rule.unloaded)
        verdicts += judge_served(evidence, served)
        findings = _served_findings(rule, by_side, verdicts)
    rows = [_verdict_row(verdict) for verdict in verdicts]
    rows += [{"kind": CAUSE, **cause_fields(cause)} for cause in row_causes(verdicts, evidence, served)]
    rows += [{"kind": FINDING, "cause": each.kind, "detail": each.message, "batch": each.batch} for each in findings]
    return pa.Table.from_pylist(rows, schema=JUDGED)


_SIDES = (TRUTH, EXPECTED, EMITTED, SERVED_ROW, LATE_RECORD)


def _rows(rows: pa.Table, shape: RowColumns) -> list[tuple[RowId, Values]]:
    return list(zip(addresses(rows, shape), values(rows, shape), strict=True))


def _grouped(rows: Sequence[tuple[RowId, Any]]) -> dict[RowId, list[Any]]:
    grouped: dict[RowId, list[Any]] = defaultdict(list)
    for address, row in rows:
        grouped[address].append(row)
    return dict(grouped)


def _emitted(rows: pa.Table, shape: RowColumns) -> Mapping[RowId, Sequence[StreamRow]]:
    ordered = rows.sort_by([("_timeline", "ascending"), ("_batch", "ascending")])
    stamps = zip(*(ordered[name].to_pylist() for name in ("_timeline", "_batch", "_due")), strict=True)
    pairs = zip(_rows(ordered, shape), stamps, strict=True)
    return _grouped([(address, StreamRow(row, *stamp)) for (address, row), stamp in pairs])


def _served(rows: pa.Table, shape: RowColumns) -> Mapping[RowId, Sequence[ServedRow]]:
    stamps = zip(*(rows[name].to_pylist() for name in ("_status", "_backfill")), strict=True)
    return _grouped(
        [(address, ServedRow(row, *stamp)) for (address, row), stamp in zip(_rows(rows, shape), stamps, strict=True)]
    )


def _late(rows: pa.Table, rule: Rule) -> list[LateRow]:
    names = ("_partition", "_offset", "_batch", "_late_ms", "_event_time")
    plain = zip(*(rows[name].to_pylist() for name in names), strict=True)
    late = [LateRow(row, rule.topic, *record) for row, record in zip(addresses(rows, rule.shape), plain, strict=True)]
    return sorted(late, key=lambda record: (record.partition, record.offset, record.row))


def _served_findings(rule: Rule, by_side: Mapping[str, pa.Table], verdicts: Sequence[Verdict]) -> list[DefectFinding]:
    """Compare the served rows with those that the changelog gives; no publication serves these windows."""
    results = [*WINDOW, *rule.shape.keys, *rule.shape.columns]
    emitted = by_side[EMITTED]
    shown = emitted.filter(pc.less_equal(pc.fill_null(emitted["_index"], 1 << 30), rule.served_index))
    served_ms = rule.moment.served_ms
    assert served_ms is not None, "the caller asked"
    chosen = choose_again(
        rule.definition, shown.select([*results, "_timeline", "_batch"]), None, [], frozenset(), served_ms
    )
    served = by_side[SERVED_ROW].select(["_format", *results, "_status", "_timeline", "_batch", "_backfill"])
    return check_served_rows(served, chosen, rule.shape, *wrong_rows(verdicts))


def _verdict_row(verdict: Verdict) -> dict[str, Any]:
    return {
        "kind": VERDICT,
        "pair": verdict.pair,
        "window_start": from_ms(verdict.row.start_ms),
        "window_end": from_ms(verdict.row.end_ms),
        "key": verdict.row.key,
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "presence": verdict.presence,
        "late": verdict.late,
        "dead": verdict.dead,
        "unexplained": verdict.unexplained,
        "late_share": verdict.late_share,
    }


GROUP_ROWS = 5_000
"""So many rows that are not clean are judged in one group, about; a group's entries are in one executor's memory."""
MOST_FINDINGS = 1_000


@dataclass(frozen=True)
class Spread:
    """What executors judged.

    Attributes:
        windows: what is counted of the windows that were judged here.
        apart: starts and ends of the windows that the driver judges, in order (epoch ms).
        judged: verdicts and causes of the rows that are not clean (`judge_rows.JUDGED`), not on the driver.
        summary: of their verdicts, by pair, window, verdict and presence.
        findings: what is wrong with served rows.
        moment: up to when windows were compared.
        published: starts of the windows that a publication serves (epoch ms).
        wanted: the windows to judge by their start (epoch ms, half-open); None: all. What is counted of the others still is.
        load: the first load by batch of the path, whose windows have no verdict of the pair stream; None: there was none.
    """

    windows: Windows
    apart: Sequence[tuple[int, int]]
    judged: DataFrame
    summary: pa.Table
    findings: Sequence[DefectFinding]
    moment: ComparedUntil
    published: frozenset[int] = frozenset()
    wanted: tuple[int, int] | None = None
    load: FirstLoad | None = None

    @property
    def has_served(self) -> bool:
        """Whether what is served was judged."""
        return self.moment.served_ms is not None

    def counts(self, until_ms: int | None = None) -> Counter[tuple[str, str]]:
        """Return the rows by pair and verdict; with `until_ms` only those of windows that end at or before it (epoch ms)."""
        counts: Counter[tuple[str, str]] = Counter()
        for row in self.rows:
            if until_ms is None or row["end_ms"] <= until_ms:
                counts[row["pair"], row["verdict"]] += row["rows"]
        return counts

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A row by pair, window, verdict and presence, with how many result rows it stands for; clean ones too."""
        windows = self.windows
        if self.wanted is not None:
            low, high = self.wanted
            windows = windows.where((windows.start_ms >= low) & (windows.start_ms < high))
        rows: list[dict[str, Any]] = []
        for at in range(len(windows.start_ms)):
            clean, opened, unserved = (
                int(each[at]) for each in (windows.clean, windows.open_clean, windows.unserved_clean)
            )
            is_loaded = self.load is not None and self.load.has(int(windows.start_ms[at]))
            parts = [] if is_loaded else [(STREAM, AGREES, clean - opened), (STREAM, OPEN, opened)]
            if self.has_served:
                parts += [(SERVED, AGREES, clean - unserved), (SERVED, OPEN, unserved)]
            rows += [
                {
                    "pair": pair,
                    "start_ms": int(windows.start_ms[at]),
                    "end_ms": int(windows.end_ms[at]),
                    "verdict": verdict,
                    "presence": "both" if verdict == AGREES else "truth only",
                    "rows": count,
                    "late": 0,
                    "dead": 0,
                    "unexplained": 0,
                    "late_share": 0.0,
                }
                for pair, verdict, count in parts
                if count
            ]
        rows.extend(self.summary.to_pylist())
        return rows

    def pairs(self, until_ms: int | None = None) -> int:
        """Return how many records the emitted rows count; with `until_ms` those of windows that end at or before it."""
        return _total(self.windows.pairs, self.windows.end_ms, until_ms)

    def served_after(self, settled_ms: int) -> int:
        """Return how many rows are served of windows that end after an instant (epoch ms)."""
        served = self.windows.served
        return int(served.sum()) - _total(served, self.windows.end_ms, settled_ms)

    @property
    def dirty(self) -> int:
        """How many windows have a row in which stream, expected and truth differ."""
        return int((self.windows.dirty > 0).sum())


def _total(numbers: Numbers, end_ms: Numbers, until_ms: int | None) -> int:
    return int(numbers.sum() if until_ms is None else numbers[end_ms <= until_ms].sum())


@dataclass(frozen=True)
class WindowsApart:
    """Windows of which more must be known than their rows.

    Attributes:
        among: returns, of the (start, end) of all windows, the starts of those that are in doubt or blamed.
        starts: of windows that what dead letters should have been belongs to.
    """

    among: Callable[[AbstractSet[tuple[int, int]]], AbstractSet[int]]
    starts: frozenset[int] = frozenset()


def spread(
    spark: SparkSession,
    view: HeadView,
    judge: WindowJudge,
    chain: Chain,
    marks: DataFrame,
    shape: RowColumns,
    special: WindowsApart,
    wanted: tuple[int, int] | None = None,
) -> Spread:
    """Judge what a view with handles shows, all but the windows that need more than their rows.

    Args:
        spark: the session.
        view: the head; its tables are read by executors.
        judge: of its only definition.
        chain: re-derived watermarks.
        marks: the path's batches (`sides.batch_numbers`).
        shape: how rows are addressed and compared.
        special: names the windows that are left to the driver in any case.
        wanted: the windows to judge by their start (epoch ms, half-open); None: all.
    """
    assert view.handles is not None, "they are what it reads"
    moment, served_index = _moment(view, chain)
    sides = gather_sides(spark, view, view.handles, judge, marks, shape, with_served=served_index is not None)
    sides = sides.persist(StorageLevel.MEMORY_AND_DISK)
    compared = compare_sides(sides, shape, moment, view.load).persist(StorageLevel.MEMORY_AND_DISK)
    windows = count_windows(compared)
    counted = [] if served_index is None else counted_publications(view)
    winners = select_winners(windows.start_ms, counted, view.semantics)
    older = [entry.seq for entry in counted if entry.semantics != view.newest.semantics]
    unloaded = () if view.load is None else find_unloaded(view.load, counted, view.semantics)
    waits = is_inside(windows.start_ms, list(unloaded))
    apart = windows_for_driver(windows, _is_special(windows, special), np.where(waits, -1, winners), older)
    starts = pa.table({"_start_ms": pa.array(np.unique(windows.start_ms[apart]), pa.int64())})
    groups = max(1, int(windows.others[~apart].sum()) // GROUP_ROWS)
    start_ms = F.unix_millis("window_start")
    judged_rows = compared if wanted is None else compared.where((start_ms >= wanted[0]) & (start_ms < wanted[1]))
    others = suspect_rows(sides, judged_rows, shape, spark.createDataFrame(starts), groups)
    rule = Rule(view.newest.definition, view.topics[0], shape, moment, served_index, view.load, unloaded)
    schema = from_arrow_schema(JUDGED)
    judged = others.groupBy("_group").applyInArrow(judge_group(rule), schema).persist(StorageLevel.MEMORY_AND_DISK)
    summary = _summary(judged)
    sides.unpersist()
    compared.unpersist()
    chosen = sorted(
        {(int(start), int(end)) for start, end in zip(windows.start_ms[apart], windows.end_ms[apart], strict=True)}
    )
    published = frozenset(windows.start_ms[(winners >= 0) & ~apart].tolist())
    return Spread(
        windows.where(~apart), chosen, judged, summary, _findings(judged), moment, published, wanted, view.load
    )


def _moment(view: HeadView, chain: Chain) -> tuple[ComparedUntil, int | None]:
    closed_ms = view.newest.definition.window.closed_ms
    stamp = view.served_stamp
    if view.handles is None or view.handles.served is None or stamp is None:
        return ComparedUntil(closed_ms(chain.closed_ms), None), None
    index = view.index.get((stamp.timeline, stamp.batch))
    served_ms = None if index is None else closed_ms(chain.batch[index])
    return ComparedUntil(closed_ms(chain.closed_ms), served_ms), index


def _is_special(windows: Windows, special: WindowsApart) -> npt.NDArray[np.bool_]:
    pairs = set(zip(windows.start_ms.tolist(), windows.end_ms.tolist(), strict=True))
    named = {*special.among(pairs), *special.starts}
    return np.isin(windows.start_ms, np.array(sorted(named), dtype=np.int64))


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
