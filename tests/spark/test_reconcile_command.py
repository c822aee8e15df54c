"""`rivertwice reconcile` on a home whose log lies in the archive: exit codes, rewritten archives, sessions that are open."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from homes.project import link
from homes.sessions import extend_with_dead, make_session_home
from rivertwice.cli.main import cli
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import EPOCH, utc_now
from rivertwice.core.plain import to_plain
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import Bundle
from rivertwice.read.overview import describe_summary
from rivertwice.read.trouble import describe_correctness
from rivertwice.storage.table import Table
from rivertwice.timeline.served import rebuild_served
from simulated.sessions import World

pytestmark = pytest.mark.spark
Made = tuple[Settings, PipelineHome, Bundle, World]
Command = Callable[..., Result]

# Gap 1 s, delay 2 s. The session [0, 1000) is emitted; [1200, 3800) is open when the record at 600 comes at watermark
# 1700: it ends at 1600, so it is dropped, and only with it the two are one.
JOINED_BY_A_DROPPED_RECORD = [
    [("a", 0, 1), ("a", 1200, 1)],
    [("a", 2000, 1), ("a", 2800, 1), ("b", 3700, 1)],
    [("b", 3701, 1)],
    [("a", 600, 1), ("b", 3702, 1)],
]


@pytest.fixture
def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return what calls the command line in this process and in the warm session."""
    monkeypatch.setattr("rivertwice.engine.session.spark_session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)

    def call(settings: Settings, *arguments: str) -> Result:
        where = ["--output", "json", "--project", str(settings.project), "--home", str(settings.home)]
        return CliRunner().invoke(cli, [*where, *arguments])

    return call


@pytest.fixture
def made(tmp_path: Path, request: pytest.FixtureRequest) -> Made:
    world = World()
    for batch in [*JOINED_BY_A_DROPPED_RECORD, *getattr(request, "param", [])]:
        world.commit(batch)
    assert world.dropped == 1
    settings, home, bundle = make_session_home(tmp_path, world)
    link(settings.project, ("expectations",))
    rebuild_served(home, bundle.definition)
    return settings, home, bundle, world


def test_a_dropped_record_that_joins_open_and_emitted_sessions_is_no_alarm(command: Command, made: Made) -> None:
    settings = made[0]
    done = command(settings, "reconcile", "p")
    assert done.exit_code == 0, done.output
    report: dict[str, Any] = json.loads(done.stdout)
    assert [one for one in report["gate"]["alerts"] if one["severity"] == "critical"] == []
    assert report["counts"]["stream"] == {"AGREES": 0, "LATE": 1, "OPEN": 3, "DEFECT": 0, "NOT_COMPARABLE": 0}
    assert report["counts"]["served"]["DEFECT"] == 0


def test_findings_alone_are_exit_code_3(command: Command, made: Made) -> None:
    settings, home, _, _ = made
    forged = {"_timeline": "t1", "_batch": 1, "topic": "flights", "partition": 0, "offset": 2, "reason": "json"}
    forged |= {"cluster_id": "c", "topic_id": "id", "record_time": EPOCH}
    Table(home.tables.dead_letters).append(pa.Table.from_pylist([forged]))
    done = command(settings, "reconcile", "p")
    report = json.loads(done.stdout)
    assert done.exit_code == 3
    assert {one["DEFECT"] for one in report["counts"].values()} == {0}
    assert {one["kind"] for one in report["gate"]["alerts"] if one["severity"] == "critical"} >= {"finding", "balance"}


@pytest.mark.proves("howto-quality.md#dead-letters", "howto-correct.md#the-gate", "guarantees.md#dead-letters")
def test_a_producer_that_renamed_a_field_is_said_by_the_gate_by_status_and_by_the_page(
    command: Command, made: Made
) -> None:
    settings, home, bundle, world = made
    extend_with_dead(settings, home, bundle, world, 200)
    said = (
        "100 % of the newest records cannot be decoded or break a rule (limit 1 %): 100 of the newest 100: missing (k); "
        "they have customer, which the definition does not name"
    )
    for mode in ("everything", "nothing new"):
        report = json.loads(command(settings, "reconcile", "p").stdout)
        assert report["gate"]["passed"], (mode, report["gate"])
        assert [one["message"] for one in report["gate"]["alerts"] if one["kind"] == "dead_share"] == [said], mode
    (shown,) = json.loads(command(settings, "status").stdout)["pipelines"]
    sentences = [shown["now"]["text"], *(each["text"] for each in shown["now"]["others"])]
    assert [said in sentence and "`rivertwice dead list p`" in sentence for sentence in sentences].count(True) == 1
    assert said in str(to_plain(describe_summary(settings, bundle.definition, utc_now()))["now"])
    assert said in str(to_plain(describe_correctness(settings, "p"))["run"]["gate"]["alerts"])

    done = command(settings, "dead", "discard", "p", "--kind", "missing", "--reason", "known")
    assert done.exit_code == 0, done.output
    report = json.loads(command(settings, "reconcile", "p").stdout)
    assert "dead_share" not in [one["kind"] for one in report["gate"]["alerts"]]
    assert said not in command(settings, "status").stdout


@pytest.mark.proves("guarantees.md#verdicts")
def test_what_a_run_by_hand_finds_reaches_people_and_so_does_its_end(command: Command, made: Made) -> None:
    settings, home, _, _ = made
    told = settings.project / "told.jsonl"
    (settings.project / "alerts.yaml").write_text(f"routes: {{ops: {{to: file, path: {told}}}}}\nsettle: 0 s\n")
    forged = {"_timeline": "t1", "_batch": 1, "topic": "flights", "partition": 0, "offset": 2, "reason": "json"}
    forged |= {"cluster_id": "c", "topic_id": "id", "record_time": EPOCH}
    before = Table(home.tables.dead_letters).read()
    Table(home.tables.dead_letters).append(pa.Table.from_pylist([forged]))
    assert command(settings, "reconcile", "p").exit_code == 3
    shown = json.loads(command(settings, "alerts").stdout)
    firing = {one["kind"]: one for one in shown["firing"]}
    assert {"finding", "balance"} <= set(firing)
    assert {tuple(one["told"]) for one in firing.values()} == {("ops",)}
    assert command(settings, "alerts", "--check").exit_code == 3
    run = json.loads(command(settings, "verdicts", "p").stdout)["run"]
    assert {(one["by"], one["run"]) for one in firing.values()} == {("command", run)}

    ranged = command(settings, "reconcile", "p", "--from", "1970-01-01T00:00:00Z", "--to", "1970-01-01T00:00:01Z")
    assert ranged.exit_code == 3
    if before is None:
        shutil.rmtree(home.tables.dead_letters)
    else:
        Table(home.tables.dead_letters).overwrite(before)
    assert command(settings, "reconcile", "p").exit_code == 0
    still = json.loads(command(settings, "alerts").stdout)["firing"]
    assert [one["kind"] for one in still] == ["late_share"]  # of the record that was dropped
    statuses = [(line["kind"], line["status"]) for line in map(json.loads, told.read_text().splitlines())]
    assert {("finding", "firing"), ("finding", "resolved"), ("balance", "resolved")} <= set(statuses)


def test_an_archive_that_delta_rs_rewrote_is_read_as_before(command: Command, made: Made) -> None:
    settings = made[0]
    before = json.loads(command(settings, "reconcile", "p").stdout)
    archive = DeltaTable(str(settings.archive("flights")))
    archive.update({"cluster_id": "'c'"})  # the same rows in a new file
    (file,) = archive.file_uris()
    assert {pa.string_view(), pa.binary_view()} <= set(pq.ParquetFile(file).schema_arrow.types)
    done = command(settings, "reconcile", "p")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["counts"] == before["counts"]


@pytest.mark.parametrize("made", [[[("b", 20_000, 1)], [("b", 20_001, 1)]]], ids=["closed"], indirect=True)
def test_fix_corrects_what_late_records_left_and_says_so_once(
    command: Command, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rivertwice.backfill.observe._in_kafka", lambda *_: {})  # the archive has all
    settings, home, _, _ = made
    never = command(settings, "fix", "p", "--dry-run")
    assert (never.exit_code, "never reconciled" in never.output) == (1, True), never.output
    assert command(settings, "fix", "p").exit_code == 1  # nobody is there to answer, and --yes is not given
    assert "LATE" in command(settings, "verdicts", "p", "--pair", "served").stdout
    entries = len(Table(home.tables.sequence).read())
    shown = command(settings, "fix", "p", "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert len(Table(home.tables.sequence).read()) == entries
    fixed = command(settings, "fix", "p", "--yes")
    assert fixed.exit_code == 0, fixed.output
    done = json.loads(fixed.stdout)
    assert done["before"]["counts"]["served"]["LATE"] > 0 == done["after"]["counts"]["served"]["LATE"]
    assert done["backfill"]["sequence"] == entries + 1
    again = json.loads(command(settings, "fix", "p", "--yes").stdout)
    assert (again["backfill"], again["before"]) == (None, again["after"])
    assert len(Table(home.tables.sequence).read()) == entries + 1


def test_what_closes_open_windows_is_said(command: Command, made: Made) -> None:
    settings = made[0]
    assert json.loads(command(settings, "reconcile", "p").stdout)["counts"]["stream"]["OPEN"] > 0
    where = ["--project", str(settings.project), "--home", str(settings.home)]
    text = CliRunner().invoke(cli, [*where, "reconcile", "p"]).output
    assert "OPEN: windows that end after the watermark, which is the newest event time read before less 2 s" in text
    assert "it is at 1970-01-01T00:00:01.701" in text
