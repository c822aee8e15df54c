"""A definition says which DAGs it has, and whether they begin paused."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from airflow.sdk.definitions._internal.dag_parsing_context import _airflow_parsing_context_manager

from homes.project import FLIGHTS, edit_yaml, make_project
from rivertwice.airflow.factory import all_dags, dags_of, every_dag
from rivertwice.core.errors import ConfigError
from rivertwice.core.settings import Settings
from rivertwice.definition.airflow_section import DAG_VERBS, AirflowSettings
from rivertwice.definition.definition import load_definition
from rivertwice.definition.model import Definition
from rivertwice.tasks.definitions import DagFacts, find_definition

DEFINITION = load_definition(FLIGHTS)
WEEK = "report__week"
"""The DAG that is of all pipelines."""


def with_dags(own: AirflowSettings) -> dict[str, object]:
    definition = DEFINITION.model_copy(update={"airflow": own})
    return {dag.dag_id: dag for dag in dags_of(Settings(Path("/p"), Path("/h")), DagFacts.of(definition))}


def test_without_a_word_a_pipeline_has_all_of_them(tmp_path: Path) -> None:
    made = make_project(tmp_path, {"flight_delays": FLIGHTS})
    assert set(all_dags(made)) == {WEEK, *(f"{verb}__flight_delays" for verb in DAG_VERBS if verb != "stream")}


@pytest.mark.proves("howto-airflow.md#streams-by-schedule")
@pytest.mark.parametrize(
    ("stream", "timetable"),
    [
        ({"schedule": "5 * * * *"}, "CronTriggerTimetable"),
        ({"schedule": "20 minutes"}, "DeltaTriggerTimetable"),
        ({"schedule": "none"}, "NullTimetable"),
        ({"assets": ["landing", "s3://bucket/landing"]}, "AssetTriggeredTimetable"),
        ({"schedule": "5 * * * *", "assets": ["landing"]}, "AssetOrTimeSchedule"),
    ],
)
def test_a_stream_by_schedule_has_a_dag_that_runs_it(tmp_path: Path, stream: dict[str, object], timetable: str) -> None:
    made = make_project(tmp_path, {"flight_delays": FLIGHTS})
    edit_yaml(
        made.definitions / "flight_delays", lambda document: document.update(stream={"mode": "scheduled", **stream})
    )
    dag = all_dags(made)["stream__flight_delays"]
    assert type(dag.timetable).__name__ == timetable
    assert {task.task_id: task.downstream_task_ids for task in dag.tasks} == {
        "ask": {"run", "report"},
        "run": {"report"},
        "report": set(),
    }
    assert dag.max_active_runs == 1


@pytest.mark.parametrize("paused", [True, False, None])
def test_those_that_are_named_are_made_and_begin_as_it_says(paused: bool | None) -> None:
    found = with_dags(AirflowSettings(dags=["reconcile", "backfill"], paused=paused))
    assert sorted(found) == ["backfill__flight_delays", "reconcile__flight_delays"]
    assert {dag.is_paused_upon_creation for dag in found.values()} == {paused}  # type: ignore[attr-defined]


def test_a_reconcile_starts_no_repair_that_the_pipeline_has_not() -> None:
    whole, alone = (with_dags(AirflowSettings(dags=each)) for each in (["reconcile", "backfill"], ["reconcile"]))
    tasks = [{task.task_id for task in made["reconcile__flight_delays"].tasks} for made in (whole, alone)]  # type: ignore[attr-defined]
    assert tasks[0] - tasks[1] == {"repair", "repair_wanted"}


def test_the_projects_file_says_it_for_every_pipeline_that_does_not(tmp_path: Path) -> None:
    made = make_project(tmp_path, {"flight_delays": FLIGHTS})
    own = made.definitions / "flight_delays"
    edit_yaml(own, lambda document: document.update(airflow={"spark": {"driver_memory": "3g"}, "paused": False}))
    spark = "spark: {driver_memory: 4g, conf: {spark.task.cpus: '2'}}"
    made.project_file.write_text(
        f"airflow: {{dags: [reconcile, operate], paused: true, retry_delay: 1 minute, {spark}}}\n"
    )
    found = find_definition(made, "flight_delays").airflow
    assert (found.dags, found.paused, found.retry_delay) == (["reconcile", "operate"], False, timedelta(minutes=1))
    assert found.spark.confs == {"spark.driver.memory": "3g", "spark.task.cpus": "2"}
    assert sorted(all_dags(made)) == ["operate__flight_delays", "reconcile__flight_delays", WEEK]


def test_a_mistake_in_the_projects_file_is_named_with_its_place(tmp_path: Path) -> None:
    made = make_project(tmp_path, {"flight_delays": FLIGHTS})
    made.project_file.write_text("airflow: {spark: {driver_memory: lots}}\n")
    with pytest.raises(ConfigError, match=r"rivertwice.yaml: airflow.spark.driver_memory: String should match"):
        find_definition(made, "flight_delays")
    assert list(all_dags(made)) == [WEEK]  # as with a definition that is refused, and `require_definitions` shows why


def test_a_worker_that_starts_a_task_makes_its_dag_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow reads the whole file for each task that it starts; with a hundred pipelines that was seconds of CPU each."""
    made = make_project(tmp_path, dict.fromkeys(("flight_delays", "other"), FLIGHTS))
    for name, value in made.to_env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("rivertwice.tasks.definitions.load_definition", loaded := Loaded())
    with _airflow_parsing_context_manager(dag_id="reconcile__flight_delays", task_id="gate"):
        found = all_dags(made)
        assert list(found) == ["reconcile__flight_delays"]
        assert loaded.names == ["flight_delays"]
        assert [dag.dag_id for verb in ("reconcile", "backfill") for dag in every_dag(verb)] == [
            "reconcile__flight_delays"
        ]
        assert found["backfill__flight_delays"].dag_id == "backfill__flight_delays"  # a file may change one by its id
        with pytest.raises(KeyError):
            found["backfill__nowhere"]
    with _airflow_parsing_context_manager(dag_id="mine", task_id="gate"):
        assert len(all_dags(made)) == len(DAG_VERBS)


class Loaded:
    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, folder: Path) -> Definition:
        self.names.append(folder.name)
        return load_definition(folder)
