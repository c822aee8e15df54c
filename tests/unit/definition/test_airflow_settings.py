"""`airflow` of a definition: what its DAGs get, and that it changes no meaning."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from homes.project import FLIGHTS, edit_yaml, write_definition
from rivertwice.definition.airflow_section import AirflowSettings, Schedules, SparkResources
from rivertwice.definition.bundle import build_bundle, load_bundle_definition
from rivertwice.definition.definition import load_definition
from rivertwice.definition.fingerprint import fingerprint_of

EVERYTHING = {
    "schedules": {"reconcile": "30 minutes", "archive": "none", "backfill": "@daily", "rotate": "*/30 * * * *"},
    "retries": 5,
    "retry_delay": "2 minutes",
    "pool": "flights",
    "queue": "big",
    "owner": "team-flights",
    "tags": ["flights", "hourly"],
    "spark": {
        "conn_id": "spark_prod",
        "driver_memory": "4g",
        "executor_memory": "2g",
        "total_executor_cores": 8,
        "conf": {"spark.task.maxFailures": "8"},
    },
}


def test_schedules_and_resources_are_in_no_fingerprint(tmp_path: Path) -> None:
    before = fingerprint_of(load_definition(write_definition(tmp_path / "a" / "flight_delays", FLIGHTS)))
    folder = write_definition(tmp_path / "b" / "flight_delays", FLIGHTS)
    edit_yaml(folder, lambda document: document.update(airflow=EVERYTHING))
    changed = load_definition(folder)
    assert changed.airflow.retries == 5
    assert fingerprint_of(changed) == before
    assert before.changes_to(fingerprint_of(changed)) == []


def test_a_definition_without_the_section_runs_as_before() -> None:
    own = load_definition(FLIGHTS).airflow
    assert own == AirflowSettings()
    assert (own.retries, own.retry_delay, own.pool, own.owner) == (2, timedelta(seconds=5), "spark_batch", "rivertwice")
    assert own.schedules == Schedules()
    assert own.spark.confs == {"spark.driver.memory": "2g"}


def test_resources_become_settings_of_spark() -> None:
    assert AirflowSettings.model_validate(EVERYTHING).spark.confs == {
        "spark.driver.memory": "4g",
        "spark.executor.memory": "2g",
        "spark.cores.max": "8",
        "spark.task.maxFailures": "8",
    }


@pytest.mark.parametrize("text", ["0 0 29 2 *", "*/5 8-18 * * MON-FRI", "1 minute", "2 days", "@hourly", "none"])
def test_a_schedule_is_taken(text: str) -> None:
    assert Schedules(reconcile=text).reconcile == text


@pytest.mark.parametrize(
    "text", ["", "* * * *", "* * * * * *", "@reboot", "60 * * * *", "0 0 30 2 *", "1 ms", "a b c d e"]
)
def test_a_schedule_that_airflow_could_not_follow_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        Schedules(reconcile=text)


@pytest.mark.parametrize(
    "part", [{"tags": [""]}, {"tags": ["x" * 101]}, {"pool": "a b"}, {"retries": -1}, {"queue": ""}]
)
def test_what_airflow_refuses_is_no_definition(part: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        AirflowSettings.model_validate(part)


def test_a_bundle_keeps_the_section(tmp_path: Path) -> None:
    folder = write_definition(tmp_path / "flight_delays", FLIGHTS)
    edit_yaml(folder, lambda document: document.update(airflow=EVERYTHING))
    bundle = build_bundle(folder)
    bundle.save(tmp_path / "bundles")
    assert load_bundle_definition(tmp_path / "bundles", bundle.id).airflow == load_definition(folder).airflow


def test_resources_alone_are_those_of_a_job() -> None:
    assert SparkResources(conf={"spark.eventLog.enabled": "true"}).confs["spark.eventLog.enabled"] == "true"
