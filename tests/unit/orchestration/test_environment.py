"""What the embedded Airflow is told, and what a Spark job's end means."""

from __future__ import annotations

import os
from configparser import ConfigParser
from dataclasses import replace
from pathlib import Path

import pytest

from rivertwice.config import Settings
from rivertwice.orchestration.environment import (
    Secrets,
    airflow_options,
    render_config,
    service_environment,
    spark_environment,
)
from rivertwice.orchestration.outcomes import find_refusal
from rivertwice.setup.java import find_java

SECRETS = Secrets("pass%word", "jwt", "secret", "fernet=")


def test_the_configuration_reads_back_as_it_was_meant(settings: Settings) -> None:
    parser = ConfigParser()
    parser.read_string(render_config(airflow_options(settings, 8123, SECRETS)))
    assert parser["api"]["base_url"] == "http://127.0.0.1:8123"
    assert parser["api"]["host"] == "127.0.0.1"
    assert parser["core"]["execution_api_server_url"] == "http://127.0.0.1:8123/execution/"
    assert parser["core"]["dags_folder"] == str(settings.project / "dags")
    assert parser["core"]["fernet_key"] == "fernet="


def test_percent_signs_survive_interpolation(tmp_path: Path) -> None:
    odd = Settings(project=tmp_path / "100%", home=tmp_path / "home")
    parser = ConfigParser()
    parser.read_string(render_config(airflow_options(odd, 1, SECRETS)))
    assert parser["core"]["dags_folder"].endswith("100%/dags")


def test_a_callers_airflow_variables_do_not_reach_the_services(settings: Settings) -> None:
    inherited = {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "postgresql://elsewhere",
        "AIRFLOW_HOME": "/elsewhere",
        "PATH": "/bin",
    }
    env = service_environment(settings, inherited)
    assert "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN" not in env
    assert env["AIRFLOW_HOME"] == str(settings.home / "airflow")
    assert env["AIRFLOW_CONN_SPARK_DEFAULT"] == '{"conn_type": "spark", "host": "local[2]"}'
    assert env["RIVERTWICE_HOME"] == str(settings.home)


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
    assert find_refusal(text) == refusal
