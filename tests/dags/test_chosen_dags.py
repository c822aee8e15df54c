"""A definition says which DAGs it has, and whether they begin paused."""

from __future__ import annotations

from pathlib import Path

import pytest

from homes.project import FLIGHTS, make_project
from rivertwice.airflow.factory import all_dags, dags_of
from rivertwice.core.settings import Settings
from rivertwice.definition.airflow_section import DAG_VERBS, AirflowSettings
from rivertwice.definition.definition import load_definition
from rivertwice.tasks.definitions import DagFacts

DEFINITION = load_definition(FLIGHTS)


def with_dags(own: AirflowSettings) -> dict[str, object]:
    definition = DEFINITION.model_copy(update={"airflow": own})
    return {dag.dag_id: dag for dag in dags_of(Settings(Path("/p"), Path("/h")), DagFacts.of(definition))}


def test_without_a_word_a_pipeline_has_all_of_them(tmp_path: Path) -> None:
    made = make_project(tmp_path, {"flight_delays": FLIGHTS})
    assert sorted(all_dags(made)) == sorted(f"{verb}__flight_delays" for verb in DAG_VERBS)


@pytest.mark.parametrize("paused", [True, False, None])
def test_those_that_are_named_are_made_and_begin_as_it_says(paused: bool | None) -> None:
    found = with_dags(AirflowSettings(dags=["reconcile", "backfill"], paused=paused))
    assert sorted(found) == ["backfill__flight_delays", "reconcile__flight_delays"]
    assert {dag.is_paused_upon_creation for dag in found.values()} == {paused}  # type: ignore[attr-defined]


def test_a_reconcile_starts_no_repair_that_the_pipeline_has_not() -> None:
    whole, alone = (with_dags(AirflowSettings(dags=each)) for each in (["reconcile", "repair"], ["reconcile"]))
    tasks = [{task.task_id for task in made["reconcile__flight_delays"].tasks} for made in (whole, alone)]  # type: ignore[attr-defined]
    assert tasks[0] - tasks[1] == {"repair", "repair_wanted"}
