"""Planted wrong on copies of a real run: DEFECT (or NOT_COMPARABLE: mixed) on exactly the right windows, none elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from oracle.flights_oracle import HOUR_MS, Record, consume, expect, read_batches
from rivertwice.instants import TimeRange, from_ms, to_ms, utc_now
from rivertwice.pipeline.bundle import build_bundle, save_bundle
from rivertwice.reconcile.model import RowId, Verdict
from rivertwice.reconcile.results import cause_rows, newest_reconcile, verdict_rows
from rivertwice.reconcile.run import ReconcileReport, reconcile
from rivertwice.store import delta
from rivertwice.timeline.ledger import LedgerRow, from_table, read_ledger, to_table
from rivertwice.timeline.lineage import path_ledger
from streamed_run import StreamedRun, copy_run

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
Judge = Callable[[StreamedRun], ReconcileReport]


@pytest.fixture(scope="module")
def judge(spark: SparkSession) -> Judge:
    return lambda run: reconcile(spark, run.settings, run.pipeline, now=utc_now(), progress=lambda _: None)


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


def rewrite(path: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    table = delta.read(path)
    assert table is not None
    rows = table.to_pylist()
    change(rows)
    delta.overwrite(path, pa.Table.from_pylist(rows, schema=table.schema))


def rewrite_ledger(run: StreamedRun, change: Callable[[LedgerRow], LedgerRow]) -> None:
    path = run.home.tables.ledger
    table = delta.read(path)
    assert table is not None
    delta.overwrite(path, to_table([change(row) for row in from_table(table)]))


def alter(rows: list[dict[str, Any]]) -> None:
    rows[40]["delay_max"] = 1 + (rows[40]["delay_max"] or 0)


def delete(rows: list[dict[str, Any]]) -> None:
    del rows[40]


def duplicate(rows: list[dict[str, Any]]) -> None:
    rows.append(rows[40])


def move(rows: list[dict[str, Any]]) -> None:
    rows[40]["_batch"] += 1


@pytest.mark.parametrize("change", [alter, delete, duplicate, move])
def test_a_changelog_row_that_was_tampered_with_is_the_only_defect(
    change: Callable[[list[dict[str, Any]]], None], judge: Judge, copy: StreamedRun, clean: ReconcileReport
) -> None:
    victim: dict[str, Any] = {}

    def tamper(rows: list[dict[str, Any]]) -> None:
        victim.update(rows[40])
        change(rows)

    rewrite(copy.home.tables.changelog, tamper)
    report = judge(copy)
    row = RowId(to_ms(victim["window_start"]), to_ms(victim["window_end"]), json.dumps({"origin": victim["origin"]}))
    assert changed(report, clean) == {row: "DEFECT"}
    assert not report.gate.passed
    assert "defect" in {alert.kind for alert in report.gate.alerts}
    causes = cause_rows(copy.home, report.run)
    assert [c["key"] for c in causes if c["cause"] == "unexplained"] == [row.key]
    assert {finding.kind for finding in report.findings} == {"changelog"}
    run = newest_reconcile(copy.home)
    assert run is not None
    assert run["run"] == report.run
    assert run["gate"]["passed"] is False
    assert sum(v["verdict"] == "DEFECT" for v in verdict_rows(copy.home, report.run)) == 1


def test_an_added_changelog_row_is_the_only_defect(judge: Judge, copy: StreamedRun, clean: ReconcileReport) -> None:
    def add(rows: list[dict[str, Any]]) -> None:
        rows.append({**rows[40], "origin": "XXX"})

    rewrite(copy.home.tables.changelog, add)
    report = judge(copy)
    found = {one.row: one for one in report.verdicts if one.verdict == "DEFECT"}
    assert [json.loads(row.key) for row in found] == [{"origin": "XXX"}]
    assert [one.presence for one in found.values()] == ["stream only"]
    assert changed(report, clean) == dict.fromkeys(found, "DEFECT")
    assert report.total.unexplained < 0


def other_bundle(run: StreamedRun, folder: Path) -> str:
    """Save a bundle whose transform counts flights over 14 minutes late instead of 15; return its id."""
    source = run.settings.definitions / run.pipeline
    target = folder / run.pipeline
    target.mkdir()
    for path in source.glob("*.*"):
        text = path.read_text()
        (target / path.name).write_text(text.replace("dep_delay > 15", "dep_delay > 14"))
    bundle = build_bundle(target)
    save_bundle(bundle, run.home.bundles)
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


def test_a_transform_changed_behind_the_fingerprints_back_is_a_defect_exactly_where_results_differ(
    judge: Judge, copy: StreamedRun, clean: ReconcileReport, records: list[Record], tmp_path: Path
) -> None:
    expected = windows_with_fifteen(copy, records)
    wrong = other_bundle(copy, tmp_path)
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


def test_windows_of_two_definitions_are_mixed_and_the_others_are_judged_by_their_own(
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


@pytest.mark.parametrize("shift_ms", [2 * HOUR_MS, -2 * HOUR_MS, 1])
def test_an_altered_watermark_is_a_defect_where_its_batch_closed_or_the_next_one_touched(
    shift_ms: int, judge: Judge, copy: StreamedRun, clean: ReconcileReport, records: list[Record]
) -> None:
    batches = read_batches(copy.home.tables.ledger, copy.topic)
    known = set(windows_of(clean))
    number = next(
        n
        for n in range(len(batches) // 2, len(batches) - 1)
        if any(batches[n - 1].watermark_ms < end <= batches[n].watermark_ms for _, end in known)
    )
    recorded = batches[number].watermark_ms + shift_ms
    rewrite_ledger(copy, lambda row: replace(row, batch_watermark_ms=recorded) if row.batch == number else row)
    low, high = batches[number - 1].watermark_ms, max(batches[number].watermark_ms, recorded)
    closed = {start for start, end in known if low < end <= high}
    report = judge(copy)
    blamed = {one.row.start_ms for one in report.verdicts if one.pair == "stream" and one.verdict == "DEFECT"}
    assert blamed == closed | touched_by(copy, records, number + 1)
    assert all(v == "DEFECT" for v in changed(report, clean).values())
    assert [(f.kind, f.batch) for f in report.findings] == [("ledger", number)]


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("read", lambda row: replace(row, read=row.read + 1)),
        ("max_event_ms", lambda row: replace(row, max_event_ms=(row.max_event_ms or 0) + HOUR_MS)),
        ("end_offsets", lambda row: replace(row, end_offsets=moved(row.end_offsets))),
        ("start_offsets", lambda row: replace(row, start_offsets=moved(row.start_offsets))),
    ],
)
def test_an_altered_count_or_range_is_a_defect_where_its_batch_touched(
    field: str,
    change: Callable[[LedgerRow], LedgerRow],
    judge: Judge,
    copy: StreamedRun,
    records: list[Record],
) -> None:
    number = len(read_ledger(copy.home)) // 2
    expected = touched_by(copy, records, number)
    rewrite_ledger(copy, lambda row: change(row) if row.batch == number else row)
    report = judge(copy)
    defects: list[Verdict] = [one for one in report.verdicts if one.verdict == "DEFECT"]
    assert {one.row.start_ms for one in defects} == expected
    assert all(field in one.reason for one in defects)


def moved(offsets: Any) -> dict[str, dict[str, int]]:
    return {topic: {p: o + (p == "0") for p, o in parts.items()} for topic, parts in offsets.items()}


def test_a_forged_dead_letter_is_a_finding_and_breaks_the_balance(
    judge: Judge, copy: StreamedRun, clean: ReconcileReport
) -> None:
    (topic,) = path_ledger(copy.home)[0].end_offsets
    forged = {"_timeline": "t1", "_batch": 3, "topic": topic, "partition": 1, "offset": 2, "reason": "json"}
    delta.append(copy.home.tables.dead_letters, pa.Table.from_pylist([forged]))
    report = judge(copy)
    assert changed(report, clean) == {}
    assert [(f.kind, f.partition, f.offset) for f in report.findings] == [("dead_letters", 1, 2)]
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
