"""The environment of a Spark job, and what its end means."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from homes.project import REPOSITORY
from rivertwice.core.settings import Settings
from rivertwice.engine.java import find_java
from rivertwice.tasks.environment import spark_environment
from rivertwice.tasks.jobs import SparkJob


def test_spark_finds_this_interpreter_first_and_the_java_that_set_up_found(settings: Settings) -> None:
    env = spark_environment(settings, {"PATH": os.environ["PATH"]})
    java = find_java(settings.build, {"PATH": os.environ["PATH"]})
    assert Path(env["PYSPARK_PYTHON"]).parent == Path(env["PATH"].split(":")[0])
    assert java is not None
    assert env["JAVA_HOME"] == str(java.home)
    assert spark_environment(settings, {"PATH": env["PATH"]})["PATH"] == env["PATH"]


def test_a_job_listens_on_loopback_only_where_its_executors_live_in_it(settings: Settings) -> None:
    assert spark_environment(settings, {})["SPARK_LOCAL_IP"] == "127.0.0.1"
    cluster = replace(settings, spark_master="spark://spark-master:7077")
    assert "SPARK_LOCAL_IP" not in spark_environment(cluster, {})


@pytest.mark.proves("services.md#let-the-agent-do-the-work")
def test_a_job_at_the_agent_has_the_logins_of_the_agent(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = tmp_path / "spark-submit"
    submit.write_text("#!/bin/sh\necho key $AWS_SECRET_ACCESS_KEY, home $RIVERTWICE_HOME\n")
    submit.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-agent")
    cluster = replace(settings, project=REPOSITORY, spark_master="spark://spark-master:7077")
    ended = SparkJob("flight_delays", "prove", ["--pipeline", "flight_delays"]).run(cluster)
    assert (ended.code, ended.end.strip()) == (0, f"key of-the-agent, home {settings.home}")


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        (
            "Cannot execute: x. Error code is: 1.\nLast spark-submit output:\nlog_gap: flights-2 has a hole",
            "log_gap: flights-2 has a hole",
        ),
        (
            "Error code is: 1.\n2026-11-21 12:00:00,1 ERROR audit: 3 rows differ\nShutdownHookManager",
            "audit: 3 rows differ",
        ),
        ("Error code is: 2.\nusage: x\nrefused: the range is empty", "refused: the range is empty"),
        ("Error code is: 1.\nlost_race: somebody published", None),
        ("Error code is: 1.\nservice: the broker does not answer", None),
        ("Error code is: 137.\nKilled", None),
        ("Error code is: 1.\njava.lang.OutOfMemoryError: Java heap space", None),
    ],
)
def test_only_what_no_retry_can_cure_fails_a_job_at_once(text: str, refusal: str | None) -> None:
    assert SparkJob.find_refusal(text) == refusal
