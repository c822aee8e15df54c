"""Users' suites with Spark: the engine for many rows, and reconciles through the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from homes.backfill import make_home
from homes.ledger import NOW
from homes.quality import HOUR, between, expect, serve, write_suite
from homes.sessions import make_session_home
from rivertwice.cli.main import cli
from rivertwice.core.settings import Settings
from rivertwice.quality.windows import judge_windows
from rivertwice.reconcile.results import newest_reconcile
from rivertwice.tasks.reports import report_gate
from rivertwice.tasks.run import TaskRun
from rivertwice.timeline.served import rebuild_served
from simulated.sessions import World

pytestmark = pytest.mark.spark
Command = Callable[..., Result]


def test_spark_and_pandas_find_the_same(spark: SparkSession, tmp_path: Path) -> None:
    settings, home, bundle = make_home(tmp_path)
    serve(home, (0, "a", 5), (1, "a", 5), (1, "b", 50), (2, "a", 500))
    write_suite(
        settings,
        "windows",
        between(max_value=49),
        between("warning", column="_rows_in_window", max_value=1),
        expect("expect_column_mean_to_be_between", "info", column="n", max_value=10),
        expect("expect_compound_columns_to_be_unique", column_list=["window_start", "k"]),
        expect("expect_column_values_to_be_in_set", column="k", value_set=["a", "b"]),
        expect(
            "expect_column_values_to_be_between",
            column="n",
            max_value=5,
            row_condition={"column": {"name": "k"}, "operator": "==", "parameter": "b", "type": "comparison"},
            condition_parser="great_expectations",
        ),
    )
    checks = [
        judge_windows(settings, home, bundle.definition, lambda: spark, None, f"r{cells}", NOW, most_cells=cells)
        for cells in (0, 1_000)
    ]
    found: list[Any] = [check for check in checks if check is not None]
    assert [check.judged.engine for check in found] == ["spark", "pandas"]
    by_spark, by_pandas = (check.judgements for check in found)
    assert [each.state for each in by_spark] == ["failed", "failed", "failed", "passed", "passed", "failed"]
    assert [(each.state, each.unexpected, each.observed) for each in by_spark] == [
        (each.state, each.unexpected, each.observed) for each in by_pandas
    ]
    keys = [
        [sorted((row["k"], row["n"]) for row in each.examples if "n" in row) for each in by]
        for by in (by_spark, by_pandas)
    ]
    assert keys[0] == keys[1]
    assert [each.failing for each in by_spark] == [each.failing for each in by_pandas]
    assert by_spark[0].failing == ((HOUR, 3 * HOUR),)


@pytest.fixture
def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return what calls the command line in this process and in the warm session."""
    monkeypatch.setattr("rivertwice.engine.session.spark_session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)

    def call(settings: Settings, *arguments: str) -> Result:
        where = ["--output", "json", "--project", str(settings.project), "--home", str(settings.home)]
        return CliRunner().invoke(cli, [*where, *arguments])

    return call


def test_a_reconcile_fails_for_bad_data_and_is_sealed_all_the_same(command: Command, tmp_path: Path) -> None:
    world = World()
    for batch in ([("a", 0, 7), ("b", 100, 1)], [("a", 9_000, 1)], [("a", 30_000, 1)], [("b", 60_000, 1)]):
        world.commit(batch)
    settings, home, bundle = make_session_home(tmp_path, world)
    rebuild_served(home, bundle.definition)
    count = bundle.definition.count_column
    write_suite(
        settings,
        "windows",
        between(column=str(count), max_value=0),
        between("warning", column=str(count), min_value=100),
        between("info", column="_rows_in_window", min_value=100),
    )
    bad = command(settings, "reconcile", "p")
    report = json.loads(bad.stdout)
    assert bad.exit_code == 3, bad.output
    alerts = [(each["severity"], each["kind"]) for each in report["gate"]["alerts"]]
    assert alerts == [("critical", "quality"), ("warning", "quality")]
    assert report["counts"]["served"]["DEFECT"] == 0
    quality = json.loads(command(settings, "quality", "p", "--failing").stdout)["rows"]
    assert [each["severity"] for each in quality] == ["critical", "warning", "info"]

    # Nothing is new: the seal holds, no Spark job runs, and the data are bad still.
    again = command(settings, "reconcile", "p")
    assert again.exit_code == 3, again.output
    assert "nothing new since the seal" in again.stderr
    assert [(each["severity"], each["kind"]) for each in json.loads(again.stdout)["gate"]["alerts"]] == alerts

    # One alert, of the worst severity, which is over once the expectation is accepted.
    newest = newest_reconcile(home)
    assert newest is not None
    report_gate(settings, TaskRun("reconcile__p", "run", "gate", NOW), "p", newest, whole=True)
    listed = json.loads(command(settings, "alerts").stdout)
    assert [(each["kind"], each["severity"]) for each in listed["firing"]] == [("quality", "critical")]
    (critical,) = [each["expectation"] for each in quality if each["severity"] == "critical"]
    accepted = command(settings, "quality", "p", "--accept", critical, "--reason", "a test of the counter")
    assert accepted.exit_code == 0, accepted.output
    passed = command(settings, "reconcile", "p")
    assert passed.exit_code == 0, passed.output
    newest = newest_reconcile(home)
    assert newest is not None
    report_gate(settings, TaskRun("reconcile__p", "run", "gate", NOW), "p", newest, whole=True)
    listed = json.loads(command(settings, "alerts").stdout)
    assert [(each["kind"], each["severity"]) for each in listed["firing"]] == [("quality", "warning")]


@pytest.mark.proves("howto-quality.md#write-a-suite")
def test_a_suite_with_a_mistake_fails_the_gate_and_its_windows_are_judged_once_it_is_corrected(
    command: Command, tmp_path: Path
) -> None:
    world = World()
    for batch in ([("a", 0, 7), ("b", 100, 1)], [("a", 9_000, 1)], [("a", 30_000, 1)], [("b", 60_000, 1)]):
        world.commit(batch)
    settings, home, bundle = make_session_home(tmp_path, world)
    rebuild_served(home, bundle.definition)
    count = str(bundle.definition.count_column)
    write_suite(settings, "windows", between(column=count, max_value=0), between(column=count, max_value=2**53 + 1))
    for _ in range(2):
        mistaken = command(settings, "reconcile", "p")
        assert mistaken.exit_code == 3, mistaken.output
        report = json.loads(mistaken.stdout)
        assert report["counts"]["stream"]["AGREES"]
        assert report["counts"]["stream"]["DEFECT"] == 0
        (alert,) = report["gate"]["alerts"]
        assert (alert["severity"], alert["kind"]) == ("critical", "quality")
        assert "windows.json, expectation 2 of 2: `max_value` has 9007199254740993" in alert["message"]
        assert "nothing new since the seal" not in mistaken.stderr

    write_suite(settings, "windows", between(column=count, max_value=0))
    judged = command(settings, "reconcile", "p")
    assert judged.exit_code == 3, judged.output
    (alert,) = json.loads(judged.stdout)["gate"]["alerts"]
    assert "rows are not so" in alert["message"]

    write_suite(settings, "windows").write_text("{")
    unread = command(settings, "reconcile", "p")  # nothing is new since the seal
    assert unread.exit_code == 3, unread.output
    (alert,) = json.loads(unread.stdout)["gate"]["alerts"]
    assert "windows.json is not valid JSON" in alert["message"]
