"""Seals: what a run that starts at one says of every row is what a run over everything says; nothing new costs no Spark job."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from homes.windows import WindowHome
from lab.faults.reconcile_runs import stored_run
from rivertwice.cli.main import cli
from rivertwice.core.errors import TableDamageError
from rivertwice.core.instants import from_ms, to_iso, utc_now
from rivertwice.core.settings import Settings
from rivertwice.engine.session import FEW_RECORDS, with_confs
from rivertwice.reconcile.gate import FOREIGN_WRITE
from rivertwice.reconcile.report import ReconcileReport
from rivertwice.reconcile.results import newest_reconcile, verdict_rows
from rivertwice.reconcile.run import reconcile
from rivertwice.reconcile.unchanged import reconcile_unchanged
from rivertwice.timeline.served import rebuild_served
from simulated.windows import SIZE, START, World, random_batches

pytestmark = pytest.mark.spark
HISTORIES = int(os.environ.get("RIVERTWICE_HISTORIES", "2"))


def run(spark: SparkSession, settings: Settings, *, full: bool = False) -> ReconcileReport:
    return reconcile(spark, settings, "p", full=full, now=utc_now(), progress=lambda _: None)


def stored(settings: Settings, report: ReconcileReport) -> dict[str, Any]:
    """Return all that readers see of a run, without what differs between any two runs."""
    home = settings.pipeline("p")
    newest = newest_reconcile(home)
    assert newest is not None
    assert newest["run"] == report.run
    return stored_run(home, report.run)


def full_copy(spark: SparkSession, made: WindowHome, folder: Path) -> dict[str, Any]:
    """Return what a run over everything says, on a copy of the home."""
    shutil.copytree(made.settings.home, folder)
    settings = replace(made.settings, home=folder)
    return stored(settings, run(spark, settings, full=True))


def history(seed: int, step: int = SIZE, batches: int = 40) -> tuple[random.Random, World]:
    chance = random.Random(seed)
    world = World(step)
    for batch in random_batches(chance, batches):
        world.commit(batch)
    return chance, world


@pytest.mark.proves("architecture.md#seals", "guarantees.md#verdicts")
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_an_incremental_run_says_of_every_row_what_a_full_one_says(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    chance, world = history(seed, step=chance_step(seed))
    assert world.late
    made = WindowHome(tmp_path / "home", world)
    made.commit(6)
    modes = []
    for number in range(6):
        if chance.random() < 0.8:
            rebuild_served(made.home, made.bundle.definition)
        report = run(spark, made.settings)
        modes.append("full" if report.increment is None else "again" if report.increment.ranges else "increment")
        assert stored(made.settings, report) == full_copy(spark, made, tmp_path / f"copy{number}"), report.why
        if chance.random() < 0.2:
            made.fork()
        if chance.random() < 0.3:
            low = world.emitted[chance.randrange(len(world.emitted) // 2)][1].start_ms
            made.publish(low, low + 3 * SIZE, finds=chance.random() < 0.7)
        made.commit(chance.randint(1, 8))
    assert {"increment", "again"} & set(modes), modes


def chance_step(seed: int) -> int:
    return SIZE // 2 if seed % 2 else SIZE


@pytest.mark.core
def test_nothing_new_is_a_run_without_spark(spark: SparkSession, tmp_path: Path) -> None:
    _, world = history(7)
    made = WindowHome(tmp_path / "home", world)
    made.commit(20)
    rebuild_served(made.home, made.bundle.definition)
    assert reconcile_unchanged(made.settings, "p", now=utc_now()) is None
    first = run(spark, made.settings)
    assert first.sealed
    assert first.increment is None
    before = stored(made.settings, first)
    again = reconcile_unchanged(made.settings, "p", now=utc_now(), progress=lambda _: None)
    assert again is not None
    assert again.run != first.run
    assert stored(made.settings, again) == before
    require_light_run(made.settings)
    made.commit(1)
    assert reconcile_unchanged(made.settings, "p", now=utc_now()) is None


def require_light_run(settings: Settings) -> None:
    """Reconcile by the command line in a process of its own, which imports neither Great Expectations nor scipy."""
    program = """
import sys
from rivertwice.cli.main import cli
try:
    cli(sys.argv[1:])
except SystemExit as end:
    assert end.code in (0, 3), end.code
assert not {"great_expectations", "scipy"} & set(sys.modules)
"""
    command = [
        sys.executable,
        "-c",
        program,
        "--project",
        str(settings.project),
        "--home",
        str(settings.home),
        "reconcile",
        "p",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "nothing new" in done.stdout + done.stderr


def made_and_sealed(spark: SparkSession, folder: Path, seed: int, batches: int) -> WindowHome:
    made = WindowHome(folder / "home", history(seed)[1])
    made.commit(batches)
    rebuild_served(made.home, made.bundle.definition)
    assert run(spark, made.settings).sealed
    return made


def test_a_small_increment_is_interpreted_and_settings_are_put_back(spark: SparkSession, tmp_path: Path) -> None:
    made = made_and_sealed(spark, tmp_path, 3, 20)
    made.commit(2)
    seen = []

    def confs() -> dict[str, str]:
        return {key: spark.conf.get(key, None) for key in FEW_RECORDS}

    compiled = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.codegen.wholeStage": "true",
        "spark.sql.codegen.factoryMode": "FALLBACK",
    }
    with with_confs(spark, compiled):  # the session of the tests is interpreted anyway
        report = reconcile(
            spark, made.settings, "p", now=utc_now(), progress=lambda line: seen.append((line.split(": ")[1], confs()))
        )
        assert confs() == compiled
    assert report.increment is not None
    interpreted = [phase for phase, set_then in seen if set_then == FEW_RECORDS]
    assert interpreted == ["re-derive", "recompute", "account"]


def alter_settled_row(made: WindowHome, by: int = 1) -> None:
    """Write one settled row of the changelog in place, as a person with a SQL tool does; by 0 it stays the same."""
    first = made.world.emitted[0][1]
    where = f"k = '{first.key}' AND window_start = arrow_cast({first.start_ms * 1000}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
    metrics = DeltaTable(str(made.home.tables.changelog)).update({"total": f"total + {by}"}, predicate=where)
    assert metrics["num_updated_rows"] == 1


@pytest.mark.proves("guarantees.md#what-everything-needs")
def test_an_ordinary_run_names_the_settled_row_of_a_foreign_write(spark: SparkSession, tmp_path: Path) -> None:
    made = made_and_sealed(spark, tmp_path, 11, 20)
    alter_settled_row(made)
    for batches in (0, 2):
        made.commit(batches)
        assert reconcile_unchanged(made.settings, "p", now=utc_now()) is None
        report = run(spark, made.settings)
        assert report.increment is None
        assert report.why.startswith("another program made version ")
        assert not report.gate.passed
        assert not report.sealed
        kinds = {(alert.kind, alert.pair) for alert in report.gate.alerts}
        assert ("defect", "stream") in kinds
        assert (FOREIGN_WRITE, "") not in kinds
        wrong = [verdict.row for verdict in report.verdicts if verdict.pair == "stream" and verdict.verdict == "DEFECT"]
        assert [row.start_ms for row in wrong] == [made.world.emitted[0][1].start_ms]


def test_a_foreign_write_that_changes_nothing_warns_once_and_is_sealed(spark: SparkSession, tmp_path: Path) -> None:
    made = made_and_sealed(spark, tmp_path, 11, 20)
    alter_settled_row(made, by=0)
    lines: list[str] = []
    report = reconcile(spark, made.settings, "p", now=utc_now(), progress=lines.append)
    assert report.increment is None
    assert report.sealed
    made_by = "another program made version "
    assert lines[0].startswith(f"reconcile: look: {made_by}")
    newest = newest_reconcile(made.home)
    assert newest is not None
    assert newest["gate"]["reason"].startswith(made_by)
    warned = [alert["message"] for alert in newest["gate"]["alerts"] if alert["kind"] == FOREIGN_WRITE]
    assert [text.startswith(made_by) for text in warned] == [True]
    again = reconcile_unchanged(made.settings, "p", now=utc_now(), progress=lambda _: None)
    assert again is not None
    newest = newest_reconcile(made.home)
    assert newest is not None
    assert newest["run"] == again.run
    assert newest["gate"]["reason"].startswith("nothing new since the seal")
    assert FOREIGN_WRITE not in {alert["kind"] for alert in newest["gate"]["alerts"]}
    made.commit(2)
    report = run(spark, made.settings)
    assert report.increment is not None
    assert FOREIGN_WRITE not in {alert.kind for alert in report.gate.alerts}


@pytest.mark.proves("guarantees.md#verdicts")
def test_a_ledger_row_changed_behind_a_seal_is_found_by_a_full_run(spark: SparkSession, tmp_path: Path) -> None:
    made = made_and_sealed(spark, tmp_path, 12, 12)
    DeltaTable(str(made.home.tables.ledger)).update({"epoch": "2"}, predicate="batch >= 3")
    commits = DeltaTable(str(made.home.tables.changelog))
    commits.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    report = run(spark, made.settings, full=True)
    assert "seal" in {finding.kind for finding in report.findings}


def test_after_a_kill_before_the_seal_a_run_starts_at_the_one_before(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = made_and_sealed(spark, tmp_path, 13, 10)
    made.commit(5)
    with monkeypatch.context() as patched:
        patched.setattr("rivertwice.reconcile.run.store_seal", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(spark, made.settings)
    made.commit(5)
    report = run(spark, made.settings)
    assert report.increment is not None
    assert stored(made.settings, report) == full_copy(spark, made, tmp_path / "copy")


def test_row_of_a_late_record_far_back_is_late_and_no_old_record_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """The first window is long settled when a record for it comes: it is judged by that record, without the window's others."""
    world = World()
    for second in range(0, 300, 2):
        world.commit([(0, "a", START + second * 1000, 1), (1, "b", START + second * 1000, 2)])
    world.commit([(0, "a", START + 1000, 5), (1, "c", START + 1000, 5)])
    world.commit([])
    made = WindowHome(tmp_path / "home", world)
    made.commit(149)
    rebuild_served(made.home, made.bundle.definition)
    assert run(spark, made.settings).sealed
    made.commit(3)
    lines: list[str] = []
    report = reconcile(spark, made.settings, "p", now=utc_now(), progress=lines.append)
    assert report.increment is not None
    assert re_derived(lines) < 40, lines
    late = {(verdict.pair, verdict.row.key): verdict.reason for verdict in report.verdicts if verdict.verdict == "LATE"}
    assert late["stream", '{"k": "a"}'] == "1 of 6 records came after the window closed"
    assert late["served", '{"k": "c"}'] == "1 of 1 records came too late"
    assert stored(made.settings, report) == full_copy(spark, made, tmp_path / "copy")


def backfilled(folder: Path) -> WindowHome:
    """Six large batches: each has records of ten windows, and late ones of all before; nothing is published yet."""
    world = World()
    for number in range(6):
        first = START + number * 10 * SIZE
        batch = [(step % 2, "ab"[step // 2 % 2], first + step * SIZE // 5, 1) for step in range(50)]
        world.commit([*batch, *((0, "c", START + earlier * 10 * SIZE, 7) for earlier in range(number))])
    made = WindowHome(folder / "home", world)
    made.commit(6)
    rebuild_served(made.home, made.bundle.definition)
    return made


def re_derived(lines: list[str]) -> int:
    return next(int(line.split(": ")[2].split(" ")[0]) for line in lines if "re-derive" in line)


@pytest.mark.parametrize("finds", [True, False])
def test_after_a_backfill_the_records_of_its_windows_are_read(spark: SparkSession, tmp_path: Path, finds: bool) -> None:
    """Where the backfill says nothing of offsets, all batches that may have such a record are read."""
    made = backfilled(tmp_path)
    assert run(spark, made.settings).sealed
    for place in (0, 25, 40):
        made.publish(START + place * SIZE, START + (place + 1) * SIZE, finds=finds)
    rebuild_served(made.home, made.bundle.definition)
    lines: list[str] = []
    report = reconcile(spark, made.settings, "p", now=utc_now(), progress=lines.append)
    assert report.sealed
    assert report.increment is not None
    assert len(report.increment.ranges) == 3
    whole = sum(len(batch) for batch in made.world.batches[4:])  # with windows that are not settled
    late = 3  # of the first window, in other batches
    assert re_derived(lines) == (whole + 5 + 5 + late if finds else sum(map(len, made.world.batches)))
    assert stored(made.settings, report) == full_copy(spark, made, tmp_path / "copy")


def test_many_scattered_windows_are_judged_and_no_window_between(spark: SparkSession, tmp_path: Path) -> None:
    world = World()
    for second in range(0, 1000, 2):
        world.commit([(0, "a", START + second * 1000, 1), (1, "b", START + second * 1000, 2)])
    made = WindowHome(tmp_path / "home", world)
    made.commit(500)
    rebuild_served(made.home, made.bundle.definition)
    assert run(spark, made.settings).sealed
    places = range(1, 96, 2)
    for place in places:
        made.publish(START + place * SIZE, START + (place + 1) * SIZE)
    rebuild_served(made.home, made.bundle.definition)
    lines: list[str] = []
    report = reconcile(spark, made.settings, "p", now=utc_now(), progress=lines.append)
    assert report.increment is not None
    assert len(report.increment.ranges) == len(places)
    assert re_derived(lines) < 10 * len(places) + 40
    assert stored(made.settings, report) == full_copy(spark, made, tmp_path / "copy")


@pytest.mark.parametrize("finds", [True, False])
def test_a_wrong_row_that_a_backfill_published_is_found_without_the_rest(
    spark: SparkSession, tmp_path: Path, finds: bool
) -> None:
    made = backfilled(tmp_path)
    assert run(spark, made.settings).sealed
    made.publish(START + 25 * SIZE, START + 26 * SIZE, finds=finds, wrong=1)
    rebuild_served(made.home, made.bundle.definition)
    report = run(spark, made.settings)
    assert report.increment is not None
    assert not report.gate.passed
    assert not report.sealed
    wrong = [(verdict.pair, verdict.row.start_ms) for verdict in report.verdicts if verdict.verdict == "DEFECT"]
    assert wrong == [("served", START + 25 * SIZE)]


def test_an_altered_record_is_found_in_a_window_that_is_judged_and_elsewhere_by_a_full_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = backfilled(tmp_path)
    assert run(spark, made.settings).sealed
    archive = DeltaTable(str(made.settings.archive("events")))
    altered = [made.world.batches[2][26], made.world.batches[4][3]]  # of the windows 25 and 40
    for one in altered:
        value = json.dumps({"k": one.key, "at": to_iso(from_ms(one.at_ms)), "v": 99})
        where = f"partition = {one.partition} AND offset = {one.offset}"
        assert archive.update({"value": f"CAST('{value}' AS BYTEA)"}, predicate=where)["num_updated_rows"] == 1
    made.publish(START + 25 * SIZE, START + 26 * SIZE)
    rebuild_served(made.home, made.bundle.definition)

    def defects(report: ReconcileReport) -> set[tuple[str, int]]:
        return {(each.pair, each.row.start_ms) for each in report.verdicts if each.verdict == "DEFECT"}

    near, far = START + 25 * SIZE, START + 40 * SIZE
    report = run(spark, made.settings)
    assert report.increment is not None
    assert defects(report) == {("stream", near), ("served", near)}
    assert defects(run(spark, made.settings, full=True)) == {
        (p, at) for p in ("stream", "served") for at in (near, far)
    }


def test_the_command_starts_no_spark_if_nothing_is_new(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = made_and_sealed(spark, tmp_path, 14, 10)

    def refuse(*_: object, **__: object) -> SparkSession:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("rivertwice.engine.session.spark_session", refuse)
    where = ["--output", "json", "--project", str(made.settings.project), "--home", str(made.settings.home)]
    done = CliRunner().invoke(cli, [*where, "reconcile", "p"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["gate"]["passed"]
    shown = CliRunner().invoke(cli, [*where, "verdicts", "p", "--limit", "1000"])
    assert json.loads(shown.stdout)["total"] == len(verdict_rows(made.home, json.loads(done.stdout)["run"])) > 0
    refused = CliRunner().invoke(
        cli, [*where, "reconcile", "p", "--full", "--from", "2020-01-01", "--to", "2020-01-02"]
    )
    assert refused.exit_code == 1
    assert "leave one of them out" in refused.output


def test_a_lost_file_of_rows_that_are_not_read_again_is_named(spark: SparkSession, tmp_path: Path) -> None:
    made = made_and_sealed(spark, tmp_path, 15, 10)
    next(Path(str(made.home.tables.changelog)).rglob("*.parquet")).unlink()
    with pytest.raises(TableDamageError, match="rivertwice admin repair p"):
        reconcile_unchanged(made.settings, "p", now=utc_now())
    made.commit(1)
    with pytest.raises(TableDamageError, match="changelog"):
        run(spark, made.settings)
