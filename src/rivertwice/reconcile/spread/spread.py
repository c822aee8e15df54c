"""Judge a head by executors: clean rows are counted, the others are judged in groups and stored, and few windows are left to the driver."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from rivertwice.backfill import HalfOpenRange
from rivertwice.core import PipelineHome, Row, from_ms
from rivertwice.definition import Definition
from rivertwice.reconcile.copies import check_served_rows, choose_again, wrong_rows
from rivertwice.reconcile.evidence import Evidence, ServedEvidence
from rivertwice.reconcile.frames import addresses, late_by_row, values
from rivertwice.reconcile.model import (
    SERVED,
    STREAM,
    DefectFinding,
    LateRow,
    RowColumns,
    RowId,
    RowVerdict,
    ServedRow,
    StreamRow,
    Values,
)
from rivertwice.reconcile.recorded import row_causes
from rivertwice.reconcile.results import (
    CAUSES,
    FORMAT,
    VERDICTS,
    Stamp,
    StoredVerdict,
    Written,
    cause_fields,
    verdict_stamps,
)
from rivertwice.reconcile.sieve import Sieved
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
)
from rivertwice.reconcile.verdict import NOT_LOADED, judge_served, judge_stream, published_reason
from rivertwice.storage import Table
from rivertwice.timeline import FirstLoad, Verdict

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


def _served_findings(
    rule: Rule, by_side: Mapping[str, pa.Table], verdicts: Sequence[RowVerdict]
) -> list[DefectFinding]:
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


def _verdict_row(verdict: RowVerdict) -> Row:
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


@dataclass(frozen=True)
class Spread(Sieved):
    """What executors judged.

    Attributes:
        apart: starts and ends of the windows that the driver judges, in order (epoch ms).
        judged: verdicts and causes of the rows that are not clean (`judge_rows.JUDGED`), not on the driver.
        summary: of their verdicts, by pair, window, verdict and presence.
        dead: `topic`, `partition`, `offset`, `batch`, `reason` of each dead letter that the log requires.
        published: starts of the windows that a publication serves (epoch ms).
        wanted: the windows to judge by their start (epoch ms, half-open); None: all. What is counted of the others still is.
    """

    windows: Windows
    apart: Sequence[tuple[int, int]]
    judged: DataFrame
    summary: pa.Table
    findings: Sequence[DefectFinding]
    dead: DataFrame
    rule: Rule
    published: frozenset[int] = frozenset()
    wanted: tuple[int, int] | None = None

    @property
    def text(self) -> str:
        """What was judged, in words."""
        return f"{len(self.windows.start_ms)} windows by executors, {len(self.apart)} by the driver"

    def counts(self, until_ms: int | None = None) -> Counter[tuple[str, str]]:
        """Count the clean rows and those that were judged."""
        counts: Counter[tuple[str, str]] = Counter()
        for row in self.rows:
            if until_ms is None or row["end_ms"] <= until_ms:
                counts[row["pair"], row["verdict"]] += row["rows"]
        return counts

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """A row by pair, window, verdict and presence, with how many result rows it stands for; clean ones too."""
        return self._rows

    @cached_property
    def _rows(self) -> list[Row]:
        windows = self.windows
        if self.wanted is not None:
            low, high = self.wanted
            windows = windows.where((windows.start_ms >= low) & (windows.start_ms < high))
        rows: list[dict[str, Any]] = []
        load = self.rule.load  # whose windows have no verdict of the pair stream
        for at in range(len(windows.start_ms)):
            clean, opened, unserved = (
                int(each[at]) for each in (windows.clean, windows.open_clean, windows.unserved_clean)
            )
            is_loaded = load is not None and load.has(int(windows.start_ms[at]))
            parts = [] if is_loaded else [(STREAM, Verdict.AGREES, clean - opened), (STREAM, Verdict.OPEN, opened)]
            if self.rule.moment.served_ms is not None:
                parts += [(SERVED, Verdict.AGREES, clean - unserved), (SERVED, Verdict.OPEN, unserved)]
            rows += [
                {
                    "pair": pair,
                    "start_ms": int(windows.start_ms[at]),
                    "end_ms": int(windows.end_ms[at]),
                    "verdict": verdict,
                    "presence": "both" if verdict == Verdict.AGREES else "truth only",
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
        """Count what the changelog has of the windows."""
        return _total(self.windows.pairs, self.windows.end_ms, until_ms)

    def served_after(self, settled_ms: int) -> int:
        """Count what the served table has of the windows."""
        served = self.windows.served
        return int(served.sum()) - _total(served, self.windows.end_ms, settled_ms)

    @property
    def dirty(self) -> int:
        """How many windows have a dirty row (`compare_sides`)."""
        return int((self.windows.dirty > 0).sum())

    def stored(self) -> list[StoredVerdict]:
        """Return one verdict for each pair and window with rows that agree or are open."""
        counts: Counter[tuple[str, int, int, str]] = Counter()
        for row in self.rows:
            if row["verdict"] in (Verdict.AGREES, Verdict.OPEN):
                counts[row["pair"], row["start_ms"], row["end_ms"], row["verdict"]] += row["rows"]
        return [
            StoredVerdict(pair, start, end, None, verdict, self._reason(pair, start, end, verdict), rows=count)
            for (pair, start, end, verdict), count in counts.items()
        ]

    def _reason(self, pair: str, start_ms: int, end_ms: int, verdict: str) -> str:
        if verdict == Verdict.AGREES:
            is_published = pair == SERVED and start_ms in self.published
            return published_reason(self.rule.load, start_ms) if is_published else ""
        if pair == STREAM or end_ms > self.rule.moment.closed_ms:
            return "the window is not closed yet"
        is_served = self.rule.moment.served_ms is not None and end_ms <= self.rule.moment.served_ms
        return NOT_LOADED if is_served else "the window is not served yet"

    def write(self, home: PipelineHome, stamp: Stamp) -> Written:
        """Let executors write the other verdicts, their causes, and the dead letters as causes."""
        stamps = {**verdict_stamps(stamp), "rows": 1}
        verdicts = self.judged.where((F.col("kind") == VERDICT) & ~F.col("verdict").isin(Verdict.AGREES, Verdict.OPEN))
        written = Table(home.tables.verdicts).write_files(
            verdicts, VERDICTS, lambda found: _stamped(found, VERDICTS, stamps)
        )
        own = {"_format": FORMAT, "run": stamp.run}
        dead = self.dead.withColumns({"pair": F.lit(STREAM), "cause": F.lit("dead"), "detail": F.col("reason")})
        names = ("pair", "cause", "topic", "partition", "offset", "batch", "detail")
        causes = self.judged.where(F.col("kind") == CAUSE).unionByName(dead.select(*names), allowMissingColumns=True)
        return Written(
            written, Table(home.tables.causes).write_files(causes, CAUSES, lambda found: _stamped(found, CAUSES, own))
        )

    def release(self) -> None:
        """Release the verdicts and the dead letters."""
        self.judged.unpersist()
        self.dead.unpersist()


def _stamped(rows: pa.Table, schema: pa.Schema, stamps: Mapping[str, Any]) -> pa.Table:
    """Return rows with all columns of a schema: the stamps, what the rows have, and null."""
    columns = []
    for field in schema:
        if field.name in stamps:
            columns.append(pa.repeat(pa.scalar(stamps[field.name], field.type), rows.num_rows))
        elif field.name in rows.column_names:
            columns.append(rows[field.name].cast(field.type))
        else:
            columns.append(pa.nulls(rows.num_rows, field.type))
    return pa.table(columns, schema=schema)


def _total(numbers: Numbers, end_ms: Numbers, until_ms: int | None) -> int:
    return int(numbers.sum() if until_ms is None else numbers[end_ms <= until_ms].sum())
