"""The stream over the stormy days equals the oracle window by window, and its late flights are the oracle's."""

from __future__ import annotations

import sys

import pytest
from pyspark.sql import SparkSession

from lab.flights.data import flights_csv
from lab.tests.oracle.flights_oracle import (
    Expected,
    Record,
    aggregate,
    consume,
    expect,
    frame,
    mean_delay,
    read_batches,
    read_changelog,
    read_csv,
)
from rivertwice.core.instants import utc_now
from rivertwice.reconcile.report import ReconcileReport
from rivertwice.reconcile.run import reconcile
from streams.flights import StreamedRun, copy_run

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.fixture(scope="module")
def records(streamed_two_days: StreamedRun) -> list[Record]:
    return consume(str(streamed_two_days.settings.bootstrap), streamed_two_days.topic)


@pytest.fixture(scope="module")
def expected(streamed_two_days: StreamedRun, records: list[Record]) -> Expected:
    return expect(records, read_batches(streamed_two_days.home.tables.ledger, streamed_two_days.topic))


@pytest.fixture(scope="module")
def report(
    streamed_two_days: StreamedRun, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> ReconcileReport:
    copy = copy_run(streamed_two_days, tmp_path_factory.mktemp("judged"))
    return reconcile(spark, copy.settings, copy.pipeline, full=True, now=utc_now())


def test_the_log_holds_the_flights_of_the_file(streamed_two_days: StreamedRun, records: list[Record]) -> None:
    truth = aggregate(read_csv(flights_csv(streamed_two_days.settings), ("2013-06-30", "2013-07-01")))
    assert len(records) == 1_884
    assert aggregate(frame(records)) == truth


def test_the_stream_equals_the_oracle_window_by_window(
    streamed_two_days: StreamedRun, expected: Expected, records: list[Record], capsys: pytest.CaptureFixture[str]
) -> None:
    stream = read_changelog(streamed_two_days.home.tables.changelog)
    assert {window: [row] for window, row in expected.closed.items()} == stream
    assert len(expected.late) >= 100
    truth = aggregate(frame(records))
    closed = {window: row for window, row in truth.items() if window not in expected.open}
    with capsys.disabled():
        sys.stdout.write(
            f"\ntwo days: {len(records)} flights, {len(expected.closed)} rows emitted and {len(expected.open)} open, 0 differ; "
            f"{len(expected.late)} flights late; mean delay of the closed windows {mean_delay(expected.closed.values()):.1f} "
            f"in the stream, {mean_delay(closed.values()):.1f} in truth\n"
        )


@pytest.mark.proves("howto-watch.md#figures", "guarantees.md#late-rows")
def test_the_late_flights_are_the_same_set_by_address(report: ReconcileReport, expected: Expected) -> None:
    assert {(one.partition, one.offset) for one in report.late} == set(expected.late)
    assert len(report.late) == len(expected.late)


@pytest.mark.proves("README.md#rivertwice")
def test_nothing_is_unexplained(report: ReconcileReport) -> None:
    counts = report.counts["stream"]
    assert report.total.unexplained == 0
    assert [one.unexplained for one in report.partitions.values()] == [0] * 4
    assert sum(one.unexplained for one in report.verdicts) == 0
    assert report.findings == []
    assert counts["DEFECT"] == counts["NOT_COMPARABLE"] == 0
    assert report.gate.passed
    assert {alert.kind for alert in report.gate.alerts} == {"late_share", "suite"}


def test_at_least_nine_in_ten_windows_are_closed(report: ReconcileReport) -> None:
    counts = report.counts["stream"]
    assert counts["OPEN"] <= 0.1 * sum(counts.values())
