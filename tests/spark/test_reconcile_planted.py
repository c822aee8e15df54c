"""Planted wrong on copies of a real run: DEFECT (or NOT_COMPARABLE: mixed) on exactly the right windows, none elsewhere."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lab.tests.oracle.flights_oracle import HOUR_MS, Record, consume, expect, read_batches
from rivertwice.core.instants import TimeRange, from_ms, to_ms, utc_now
from rivertwice.definition.bundle import build_bundle
from rivertwice.reconcile.model import RowId
from rivertwice.reconcile.report import ReconcileReport
from rivertwice.reconcile.results import cause_rows, newest_reconcile, verdict_rows
from rivertwice.reconcile.run import reconcile
from rivertwice.storage.table import Table
from rivertwice.timeline.ledger import LedgerRow, from_table, to_table
from rivertwice.timeline.lineage import path_ledger
from streams.flights import StreamedRun, copy_run

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
Judge = Callable[[StreamedRun], ReconcileReport]


@pytest.fixture(scope="module")
def judge(spark: SparkSession) -> Judge:
    return lambda run: reconcile(spark, run.settings, run.pipeline, full=True, now=utc_now(), progress=lambda _: None)


@pytest.fixture(scope="module")
def clean(judge: Judge, streamed_two_days: StreamedRun, tmp_path_factory: pytest.TempPathFactory) -> ReconcileReport:
    return judge(copy_run(streamed_two_days, tmp_path_factory.mktemp("clean")))


@pytest.fixture(scope="module")
def records(streamed_two_days: StreamedRun) -> list[Record]:
    return consume(str(streamed_two_days.settings.bootstrap), streamed_two_days.topic)


@pytest.fixture
def copy(streamed_two_days: StreamedRun, tmp_path: Path) -> StreamedRun:
    return copy_run(streamed_two_days, tmp_path)


def stream(report: ReconcileReport) -> dict[RowId, str]:
    return {one.row: one.verdict for one in report.verdicts if one.pair == "stream"}


def changed(report: ReconcileReport, clean: ReconcileReport) -> dict[RowId, str]:
    before = stream(clean)
    return {row: verdict for row, verdict in stream(report).items() if before.get(row) != verdict}


def starts(rows: dict[RowId, str]) -> set[int]:
    return {row.start_ms for row in rows}


def windows_of(report: ReconcileReport) -> Iterator[tuple[int, int]]:
    return iter({one.row[:2] for one in report.verdicts if one.pair == "stream"})


def rewrite(path: Path | str, change: Callable[[list[dict[str, Any]]], None]) -> None:
    table = Table(path).read()
    assert table is not None
    rows = table.to_pylist()
    change(rows)
    Table(path).overwrite(pa.Table.from_pylist(rows, schema=table.schema))


def rewrite_ledger(run: StreamedRun, change: Callable[[LedgerRow], LedgerRow]) -> None:
    path = run.home.tables.ledger
    table = Table(path).read()
    assert table is not None
    Table(path).overwrite(to_table([change(row) for row in from_table(table)]))


def victims(rows: list[dict[str, Any]], places: Sequence[int]) -> list[dict[str, Any]]:
    return [dict(rows[place]) for place in places]


def row_id(row: dict[str, Any]) -> RowId:
    return RowId(to_ms(row["window_start"]), to_ms(row["window_end"]), json.dumps({"origin": row["origin"]}))


def test_changelog_rows_that_were_tampered_with_are_the_only_defects(
    judge: Judge, copy: StreamedRun, clean: ReconcileReport
) -> None:
    touched: list[dict[str, Any]] = []

    def tamper(rows: list[dict[str, Any]]) -> None:
        touched.extend(victims(rows, (10, 40, 70, 100)))
        altered, deleted, doubled, moved_on = (rows[place] for place in (10, 40, 70, 100))
        altered["delay_max"] = 1 + (altered["delay_max"] or 0)
        moved_on["_batch"] += 1
        rows += [dict(doubled), {**rows[20], "origin": "XXX"}]
        touched.append(rows[-1])
        rows.remove(deleted)

    rewrite(copy.home.tables.changelog, tamper)
    report = judge(copy)
    wanted = [row_id(row) for row in touched]
    assert len(set(wanted)) == 5
    assert changed(report, clean) == dict.fromkeys(wanted, "DEFECT")
    assert not report.gate.passed
    assert "defect" in {alert.kind for alert in report.gate.alerts}
    causes = cause_rows(copy.home, report.run)
    assert sorted(c["key"] for c in causes if c["cause"] == "unexplained" and c["pair"] == "stream") == sorted(
        row.key for row in wanted
    )
    assert {finding.kind for finding in report.findings} == {"changelog"}
    invented = next(one for one in report.verdicts if one.row == wanted[-1])
    assert invented.presence == "stream only"
    run = newest_reconcile(copy.home)
    assert run is not None
    assert run["run"] == report.run
    assert run["gate"]["passed"] is False
    stored = [v for v in verdict_rows(copy.home, report.run) if v["pair"] == "stream"]
    assert sum(v["verdict"] == "DEFECT" for v in stored) == 5


def forget_commits(run: StreamedRun) -> None:
    """Write the changelog again, without its commits: as it is when Delta has cleaned its log up, after six hours."""
    path = run.home.tables.changelog
    table = Table(path).read()
    assert table is not None
    shutil.rmtree(path)
    Table(path).append(table)


def other_bundle(run: StreamedRun, folder: Path) -> str:
    """Save a bundle whose transform counts flights over 14 minutes late instead of 15; return its id."""
    source = run.settings.definitions / run.pipeline
    target = folder / run.pipeline
    target.mkdir()
    for path in source.glob("*.*"):
        text = path.read_text()
        (target / path.name).write_text(text.replace("dep_delay > 15", "dep_delay > 14"))
    bundle = build_bundle(target)
    bundle.save(run.home.bundles)
    return bundle.id


def windows_with_fifteen(run: StreamedRun, records: list[Record]) -> set[tuple[int, str]]:
    """Return closed windows that hold an emitted flight exactly 15 minutes late: there the two transforms differ."""
    batches = read_batches(run.home.tables.ledger, run.topic)
    late = expect(records, batches).late
    return {
        (one.flight["event_ms"] // HOUR_MS * HOUR_MS, one.flight["origin"])
        for one in records
        if one.flight is not None and one.flight["dep_delay"] == 15 and (one.partition, one.offset) not in late
        if one.flight["event_ms"] // HOUR_MS * HOUR_MS + HOUR_MS <= batches[-1].watermark_ms
    }


@pytest.mark.proves("guarantees.md#what-everything-needs")
def test_a_transform_changed_secretly_is_a_defect_where_results_differ(
    judge: Judge, copy: StreamedRun, clean: ReconcileReport, records: list[Record], tmp_path: Path
) -> None:
    expected = windows_with_fifteen(copy, records)
    wrong = other_bundle(copy, tmp_path)
    forget_commits(copy)
    rewrite_ledger(copy, lambda row: replace(row, bundle=wrong))
    found = changed(judge(copy), clean)
    assert {(row.start_ms, json.loads(row.key)["origin"]) for row in found} == expected
    assert set(found.values()) == {"DEFECT"}
    assert expected


def touched_by(run: StreamedRun, records: list[Record], batch: int) -> set[int]:
    """Return the starts of the windows that a batch's records belong to, from the raw log."""
    batches = read_batches(run.home.tables.ledger, run.topic)
    ends, before = batches[batch].ends, batches[batch - 1].ends
    return {
        one.flight["event_ms"] // HOUR_MS * HOUR_MS
        for one in records
        if one.flight is not None and before[one.partition] <= one.offset < ends[one.partition]
    }


@pytest.mark.proves("architecture.md#the-laws")
def test_windows_of_two_definitions_are_mixed_and_others_have_their_own(
    judge: Judge, copy: StreamedRun, clean: ReconcileReport, records: list[Record], tmp_path: Path
) -> None:
    batches = read_batches(copy.home.tables.ledger, copy.topic)
    first = len(batches) // 2
    fifteen = {start for start, _ in windows_with_fifteen(copy, records)}
    before = set().union(*(touched_by(copy, records, number) for number in range(1, first))) | touched_by_first(
        batches[0].ends, records
    )
    after = set().union(*(touched_by(copy, records, number) for number in range(first, len(batches))))
    emitted_after = {start for start, end in windows_of(clean) if end > batches[first - 1].watermark_ms}
    emitted_before = {start for start, end in windows_of(clean) if end <= batches[first - 1].watermark_ms}
    mixed = (before & after) | (before & {s for s in emitted_after if s + HOUR_MS <= batches[-1].watermark_ms})
    mixed |= after & emitted_before
    wrong = other_bundle(copy, tmp_path)
    forget_commits(copy)
    rewrite_ledger(copy, lambda row: replace(row, bundle=wrong) if row.batch >= first else row)
    found = changed(judge(copy), clean)
    assert {row.start_ms for row, verdict in found.items() if verdict == "NOT_COMPARABLE"} == mixed
    defects = {row.start_ms for row, verdict in found.items() if verdict == "DEFECT"}
    assert defects == fifteen & (after - mixed)
    assert mixed
    assert defects


def touched_by_first(ends: dict[int, int], records: list[Record]) -> set[int]:
    return {
        one.flight["event_ms"] // HOUR_MS * HOUR_MS
        for one in records
        if one.flight is not None and one.offset < ends[one.partition]
    }


SHIFTS_MS = (2 * HOUR_MS, -2 * HOUR_MS, 1)
FIELDS: dict[str, Callable[[LedgerRow], LedgerRow]] = {
    "read": lambda row: replace(row, read=row.read + 1),
    "max_event_ms": lambda row: replace(row, max_event_ms=(row.max_event_ms or 0) + HOUR_MS),
    "end_offsets": lambda row: replace(row, end_offsets=moved(row.end_offsets)),
    "start_offsets": lambda row: replace(row, start_offsets=moved(row.start_offsets)),
}


def moved(offsets: Any) -> dict[str, dict[str, int]]:
    return {topic: {p: o + (p == "0") for p, o in parts.items()} for topic, parts in offsets.items()}


@pytest.mark.proves("guarantees.md#verdicts")
def test_an_altered_ledger_is_a_defect_and_a_forged_letter_unbalances(
    judge: Judge, copy: StreamedRun, clean: ReconcileReport, records: list[Record]
) -> None:
    """Three watermarks and four counts or ranges, each of a batch of its own, far from the others; and one dead letter."""
    batches = read_batches(copy.home.tables.ledger, copy.topic)
    known = set(windows_of(clean))

    def closes(n: int) -> bool:
        return any(batches[n - 1].watermark_ms < end <= batches[n].watermark_ms for _, end in known)

    share = len(batches) // 8
    spans = [range(n * share, (n + 1) * share - 3) for n in range(1, 8)]
    moving = [next(n for n in span if closes(n)) for span in (spans[1], spans[3], spans[5])]
    counted = dict(zip((spans[0][1], spans[2][1], spans[4][1], spans[6][1]), FIELDS.items(), strict=True))
    recorded = {n: batches[n].watermark_ms + shift for n, shift in zip(moving, SHIFTS_MS, strict=True)}

    def plant(row: LedgerRow) -> LedgerRow:
        if row.batch in recorded:
            return replace(row, batch_watermark_ms=recorded[row.batch])
        return counted[row.batch][1](row) if row.batch in counted else row

    rewrite_ledger(copy, plant)
    (topic,) = path_ledger(copy.home)[0].end_offsets
    forged = {"_timeline": "t1", "_batch": 3, "topic": topic, "partition": 1, "offset": 2, "reason": "json"}
    forged |= {"cluster_id": "c", "topic_id": "id", "record_time": utc_now()}
    Table(copy.home.tables.dead_letters).append(pa.Table.from_pylist([forged]))
    report = judge(copy)

    blamed: dict[int, set[int]] = {}
    for number, watermark in recorded.items():
        low, high = batches[number - 1].watermark_ms, max(batches[number].watermark_ms, watermark)
        blamed[number] = {start for start, end in known if low < end <= high} | touched_by(copy, records, number + 1)
    for number in counted:
        blamed[number] = touched_by(copy, records, number)
    defects = [one for one in report.verdicts if one.pair == "stream" and one.verdict == "DEFECT"]
    assert {one.row.start_ms for one in defects} == set().union(*blamed.values())
    assert all(v == "DEFECT" for v in changed(report, clean).values())
    assert all([cause for cause, _ in one.defects] == ["ledger"] for one in defects)
    assert all(any(f"batch {n}:" in one.ledger for n in blamed if one.row.start_ms in blamed[n]) for one in defects)
    ledger = [(f.batch, f.message) for f in report.findings if f.kind == "ledger"]
    assert sorted(batch for batch, _ in ledger if batch is not None) == sorted(blamed)
    assert all(counted[n][0] in message for n, message in ledger if n in counted)
    assert all("batch_watermark_ms" in message for n, message in ledger if n in recorded)
    dead = [(f.partition, f.offset) for f in report.findings if f.kind == "dead_letters"]
    assert dead == [(1, 2)]
    assert report.total.unexplained == -1
    assert {alert.kind for alert in report.gate.alerts if alert.severity == "critical"} >= {"finding", "balance"}


def test_a_range_limits_which_windows_are_judged_but_not_what_is_rederived(
    spark: SparkSession, copy: StreamedRun, clean: ReconcileReport
) -> None:
    day = TimeRange.parse("2013-06-30T12:00:00Z", "2013-06-30T18:00:00Z")
    report = reconcile(spark, copy.settings, copy.pipeline, range=day, now=utc_now(), progress=lambda _: None)
    assert {day.contains(from_ms(one.row.start_ms)) for one in report.verdicts} == {True}
    assert stream(report).items() <= stream(clean).items()
    assert report.total == clean.total
