"""What an executor makes of rows that are not clean: verdicts and causes, by the rules that judge every row. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.backfill.ranges import HalfOpenRange
from rivertwice.instants import from_ms
from rivertwice.pipeline.definition import Definition
from rivertwice.reconcile.causes import row_causes
from rivertwice.reconcile.copies import check_served_rows, choose_again, wrong_rows
from rivertwice.reconcile.evidence.evidence import Evidence, ServedEvidence
from rivertwice.reconcile.frames import addresses, late_by_row, values
from rivertwice.reconcile.model import (
    Finding,
    LateRow,
    RowColumns,
    RowId,
    ServedRow,
    StreamRow,
    Values,
    Verdict,
)
from rivertwice.reconcile.results import cause_fields
from rivertwice.reconcile.spread.compare import Moment
from rivertwice.reconcile.spread.sides import EMITTED, EXPECTED, LATE_RECORD, SERVED_ROW, TRUTH, WINDOW
from rivertwice.reconcile.verdict import judge_served, judge_stream
from rivertwice.timeline.first_load import FirstLoad

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
    moment: Moment
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
    findings: list[Finding] = []
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


def _served_findings(rule: Rule, by_side: Mapping[str, pa.Table], verdicts: Sequence[Verdict]) -> list[Finding]:
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
