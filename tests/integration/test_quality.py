"""Users' suites over a real stream of flights, through the command line: blocked, corrected, published, judged again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from homes.project import REPOSITORY
from homes.quality import between, expect, write_suite
from rivertwice.cli.main import cli
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.timeline.sequence import last_seq
from rivertwice.timeline.served import export_sha256, read_served, rebuild_served
from running.warm_spark import run_command_warm
from streams.flights import PIPELINE, StreamedRun, copy_run

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
Command = Callable[..., Result]


@pytest.fixture
def settings(streamed_two_days: StreamedRun, tmp_path: Path) -> Settings:
    """A copy of two streamed days, served, in a project whose suites the test may change."""
    copy = copy_run(streamed_two_days, tmp_path)
    project = tmp_path / "project"
    shutil.copytree(copy.settings.project, project, symlinks=True)
    (project / "expectations").unlink()
    shutil.copytree(REPOSITORY / "expectations", project / "expectations")
    made = replace(copy.settings, project=project)
    rebuild(made)
    return made


def home_of(settings: Settings) -> PipelineHome:
    return settings.pipeline(PIPELINE)


def rebuild(settings: Settings) -> None:
    """Do what the agent does after a publication."""
    rebuild_served(home_of(settings), load_definition(settings.definition_folder(PIPELINE)))


@pytest.fixture
def command(settings: Settings, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return what calls the command line in this process and in the warm session."""
    monkeypatch.setattr("rivertwice.engine.session.spark_session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    for name, value in settings.to_env().items():
        monkeypatch.setenv(name, value)

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(cli, ["--output", "json", *arguments])

    return call


def results(command: Command, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(command("quality", PIPELINE, *arguments).stdout)["rows"]
    return found


def test_a_bad_correction_is_blocked_then_published(settings: Settings, command: Command) -> None:
    home = home_of(settings)
    # The suites of the repository hold on two real days of storms, but for a warning that they are.
    done = command("reconcile", PIPELINE)
    assert done.exit_code == 0, done.output
    first = results(command)
    assert {row["state"] for row in first if row["severity"] == "critical"} == {"passed"}
    served = read_served(home)
    assert served is not None
    assert {row["rows"] for row in first} == {served.num_rows}

    # A mistake is found before anything runs, with the nearest right name.
    write_suite(
        settings, "corrections", expect("expect_column_valuez_to_not_be_null", column="origin"), pipeline=PIPELINE
    )
    lint = command("lint", PIPELINE, "--without-spark")
    broken = [each["told"] for each in json.loads(lint.stdout)[0]["findings"] if each["state"] == "broken"]
    assert lint.exit_code == 3
    assert "did you mean expect_column_values_to_not_be_null?" in broken[0]

    # A critical expectation that fails keeps the correction from being published.
    before, sequence = export_sha256(home), last_seq(home)
    write_suite(
        settings,
        "corrections",
        between(column="flights", max_value=3),
        between("warning", column="delay_max", max_value=60),
        pipeline=PIPELINE,
    )
    blocked = command("backfill", "run", PIPELINE, "--yes")
    assert blocked.exit_code == 3, blocked.output
    said = json.loads(blocked.stderr.splitlines()[-1])["error"]
    assert said["reason"] == "audit"
    assert "expect_column_values_to_be_between on flights]" in said["message"]
    assert "window_start=2013-0" in said["message"]
    assert "origin=" in said["message"]
    rebuild(settings)
    assert (export_sha256(home), last_seq(home)) == (before, sequence)

    # With the suite corrected the same backfill is published; its warning is stored.
    (backfill,) = {row["run"] for row in results(command, "--subject", "corrections")}
    write_suite(
        settings,
        "corrections",
        between(column="flights", min_value=1),
        between("warning", column="delay_max", max_value=60),
        pipeline=PIPELINE,
    )
    audited = command("backfill", "run", PIPELINE, "--id", backfill, "--no-publish")
    assert (audited.exit_code, last_seq(home)) == (0, sequence)
    published = command("backfill", "run", PIPELINE, "--id", backfill, "--yes")
    assert published.exit_code == 0, published.output
    assert last_seq(home) == sequence + 1
    newest = results(command, "--subject", "corrections", "--limit", "2")
    assert {(row["severity"], row["state"]) for row in newest} == {("critical", "passed"), ("warning", "failed")}

    # The next reconcile judges the windows of the publication alone, and what fails in them fails its gate.
    rebuild(settings)
    write_suite(
        settings,
        "windows",
        between(column="flights", max_value=3),
        between("warning", column="delay_max", max_value=60),
        pipeline=PIPELINE,
    )
    failed = command("reconcile", PIPELINE)
    assert failed.exit_code == 3, failed.output
    gate = json.loads(failed.stdout)["gate"]
    assert [(each["severity"], each["kind"]) for each in gate["alerts"] if each["kind"] == "quality"] == [
        ("critical", "quality"),
        ("warning", "quality"),
    ]
    judged = results(command, "--subject", "windows", "--limit", "2")
    assert 0 < judged[0]["rows"] < served.num_rows
    status = json.loads(command("status").stdout)["pipelines"][0]["quality"]
    assert status["failing"] == {"critical": 1, "warning": 1, "info": 0}
    counted = command("query", f"SELECT count(*) AS n FROM {PIPELINE}__quality WHERE state = 'failed'")
    assert json.loads(counted.stdout)["rows"][0]["n"] >= 2

    # Its rows were exact, so it was sealed: with the suite corrected nothing is left to do.
    write_suite(settings, "windows", between(column="flights", min_value=1), pipeline=PIPELINE)
    passed = command("reconcile", PIPELINE)
    assert passed.exit_code == 0, passed.output
    assert "nothing new since the seal" in passed.stderr


KILLED_AFTER_ITS_AUDIT = """
import os, signal
from rivertwice.backfill import publish
publish.publish_backfill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
from rivertwice.cli.main import main
main()
"""


@pytest.mark.faults
def test_killed_between_audit_and_publication_the_same_is_served(settings: Settings, tmp_path: Path) -> None:
    run_command_warm(settings, "reconcile", PIPELINE)
    reference = replace(settings, home=tmp_path / "reference")
    shutil.copytree(settings.home, reference.home)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_AFTER_ITS_AUDIT, "backfill", "run", PIPELINE, "--yes"],
        env={**os.environ, **settings.to_env()},
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-3000:]
    assert last_seq(home_of(settings)) == last_seq(home_of(reference))
    for each in (settings, reference):
        run_command_warm(each, "backfill", "run", PIPELINE, "--yes")
        rebuild(each)
    assert export_sha256(home_of(settings)) == export_sha256(home_of(reference))
