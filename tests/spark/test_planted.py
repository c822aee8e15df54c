"""Twenty kinds of change on a tumbling pipeline with a publication: each is found, alone and with all others, none blamed beside."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from histories.planted import PLANTS, WINDOW, World, blamed_beside, copies, decoded
from lab.faults.events import EventPlan
from lab.faults.lab import PIPELINE, Lab
from rivertwice.agent.served import rebuild
from rivertwice.backfill.audit import audit_backfill
from rivertwice.backfill.compute import compute_backfill
from rivertwice.backfill.model import BackfillRequest
from rivertwice.backfill.prepare import make_plan
from rivertwice.backfill.publish import publish_backfill
from rivertwice.backfill.store import save_plan
from rivertwice.core.instants import EPOCH, TimeRange, parse_iso, to_iso, utc_now
from rivertwice.core.settings import Settings
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.archive import extend_archive
from rivertwice.reconcile import observe
from rivertwice.reconcile.report import ReconcileReport
from rivertwice.reconcile.results import cause_rows, verdict_rows
from rivertwice.reconcile.run import reconcile
from rivertwice.storage.table import Table
from rivertwice.timeline.ledger import read_ledger
from running.tiers import in_turn

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@dataclass(frozen=True)
class Made:
    """A finished run, and what of it can be planted on."""

    lab: Lab
    windows: list[str]
    published: list[str]
    touched: dict[int, frozenset[str]]

    def copy(self, folder: Path) -> World:
        settings = copies(self.lab.settings, folder, self.lab.topic)
        return World(
            settings, self.lab.topic, self.windows, self.published, lambda batch: self.touched.get(batch, frozenset())
        )


def judge(spark: SparkSession, settings: Settings) -> ReconcileReport:
    return reconcile(spark, settings, PIPELINE, full=True, now=utc_now(), progress=lambda _: None)


def window_of(at: str) -> str:
    instant = parse_iso(at)
    return to_iso(instant - (instant - EPOCH) % WINDOW)


def touched_by_batches(lab: Lab) -> dict[int, frozenset[str]]:
    """Return the starts of the windows that each batch's records belong to, from the archive's bytes."""
    table = Table(lab.settings.archive(lab.topic)).read()
    assert table is not None
    starts: dict[tuple[int, int], str] = {}
    for row in table.to_pylist():
        fields = decoded(row["value"])
        if fields is not None:
            starts[row["partition"], row["offset"]] = window_of(fields["at"])
    return {
        row.batch: frozenset(
            starts[partition, offset]
            for partition, (low, high) in row.ranges(lab.topic).items()
            for offset in range(low, high)
            if (partition, offset) in starts
        )
        for row in read_ledger(lab.home)
    }


@pytest.fixture(scope="module")
def made(
    spark: SparkSession, project: Path, broker: BrokerInfo, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Made]:
    folder = tmp_path_factory.mktemp("planted")
    settings = Settings(project=project, home=folder / "home", bootstrap=broker.bootstrap, spark_master="local[2]")
    lab = Lab(settings, folder / "run", 7)
    file = lab.settings.definitions / PIPELINE / "pipeline.yaml"
    file.write_text(file.read_text().replace("policy: drop", "policy: side_output"))
    lab.produce(EventPlan(seed=7, poison_share=0.01))
    lab.run_to_end()
    extend_archive(None, lab.settings, lab.topic)
    rebuild(lab.settings, PIPELINE)
    touched = touched_by_batches(lab)
    served = Table(lab.home.tables.served).read()
    assert served is not None
    starts = sorted({to_iso(start) for start in served["window_start"].to_pylist()})
    half = starts[len(starts) // 2 : -3]
    plan = make_plan(
        lab.settings,
        BackfillRequest(PIPELINE, TimeRange(parse_iso(half[0]), parse_iso(half[-1]) + WINDOW), "planted"),
        lambda: spark,
    )
    plan = save_plan(lab.home, plan)
    compute_backfill(spark, lab.settings, plan)
    audit_backfill(lab.settings, plan)
    publish_backfill(lab.settings, plan)
    rebuild(lab.settings, PIPELINE)
    stream = starts[2 : len(starts) // 2]
    assert len(stream) >= 10
    assert len(half) >= 6
    yield Made(lab, stream[-9:], half, touched)
    lab.close()


@pytest.mark.core
def test_the_untouched_run_passes(spark: SparkSession, made: Made, tmp_path: Path) -> None:
    report = judge(spark, made.copy(tmp_path).settings)
    assert [alert for alert in report.gate.alerts if alert.severity == "critical"] == []
    assert report.counts["stream"]["LATE"] > 0
    assert {one.reason for one in report.verdicts if one.pair == "served"} >= {"published"}


@pytest.mark.core
@pytest.mark.proves("README.md#rivertwice", "guarantees.md#verdicts")
def test_twenty_changes_in_one_run_are_all_found_and_nothing_else(
    spark: SparkSession, made: Made, tmp_path: Path
) -> None:
    assert len(PLANTS) == 20
    world = made.copy(tmp_path)
    marks = {name: plant(world) for name, plant in PLANTS.items()}
    report = judge(spark, world.settings)
    missed = {name: lost for name, one in marks.items() if (lost := one.missed(report))}
    assert missed == {}
    assert list(blamed_beside(report, list(marks.values()))) == []
    assert not report.gate.passed
    ledger = set().union(*(one.ledger for one in marks.values()))
    rows = set().union(*(one.rows for one in marks.values()))
    both = [one for one in report.verdicts if [cause for cause, _ in one.defects] == ["ledger", "unexplained"]]
    assert both or not ledger & rows
    agreeing = [one for one in report.verdicts if one.verdict in ("AGREES", "LATE")]
    assert agreeing, "not all windows were touched"


def said(settings: Settings, report: ReconcileReport) -> dict[str, object]:
    """Return what a run stored, without what differs between any two runs."""
    home = settings.pipeline(PIPELINE)

    def text(value: object) -> str:
        return str(value).replace(str(settings.home), "HOME")

    names = ("pair", "window_start", "key", "verdict", "reason", "late", "dead", "rows")
    causes = ("pair", "cause", "window_start", "key", "partition", "offset", "batch", "detail")
    return {
        "verdicts": sorted(tuple(map(text, (row[name] for name in names))) for row in verdict_rows(home, report.run)),
        "causes": sorted(tuple(map(text, (row[name] for name in causes))) for row in cause_rows(home, report.run)),
        "findings": sorted(text(each.message) for each in report.findings),
        "counts": report.counts,
        "total": report.total,
        "partitions": report.partitions,
        "alerts": sorted((alert.severity, text(alert.message)) for alert in report.gate.alerts),
    }


def test_executors_say_of_all_changes_what_the_driver_says(
    spark: SparkSession, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = made.copy(tmp_path / "driver")
    for plant in PLANTS.values():
        plant(world)
    others = replace(world.settings, home=tmp_path / "executors")
    shutil.copytree(world.settings.home, others.home)
    by_driver = said(world.settings, judge(spark, world.settings))
    monkeypatch.setattr(observe, "MOST_ROWS", -1)
    lines: list[str] = []
    report = reconcile(spark, others, PIPELINE, full=True, now=utc_now(), progress=lines.append)
    assert any("windows by executors" in line for line in lines), lines
    by_executors = said(others, report)
    for name, wanted in by_driver.items():
        assert by_executors[name] == wanted, name


@pytest.mark.faults
@pytest.mark.parametrize("turn", range(5))
def test_a_change_alone_is_found_and_nothing_else(spark: SparkSession, made: Made, tmp_path: Path, turn: int) -> None:
    name = in_turn(PLANTS, 5)[turn]
    world = made.copy(tmp_path)
    marks = PLANTS[name](world)
    report = judge(spark, world.settings)
    assert marks.missed(report) == []
    assert list(blamed_beside(report, [marks])) == []
    assert not report.gate.passed
    assert json.dumps(report.gate.to_json())
