"""The gate of a DAG run reads the reconcile that its own run stored, whatever others store meanwhile."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.reconcile.results import Stamp, store_run
from rivertwice.tasks.definitions import DagFacts
from rivertwice.tasks.jobs import SparkJob

pytestmark = pytest.mark.airflow

P = "flight_delays"
DEFECT = {"severity": "critical", "kind": "defect", "message": "3 rows of the pair stream are DEFECT"}


class Run:
    """A run of `reconcile__P` as Airflow hands it to its tasks."""

    def __init__(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        from rivertwice.airflow.dags import reconcile_dag

        for name, value in settings.to_env().items():
            monkeypatch.setenv(name, value)
        self.settings = settings
        definition = load_definition(settings.definitions / P)
        self.dag = reconcile_dag(settings, DagFacts.of(definition))
        self.context: dict[str, Any] = {
            "dag_run": SimpleNamespace(dag_id=self.dag.dag_id, run_id="manual__2026-11-25T02:00:00+00:00", conf={}),
            "params": {"start": None, "end": None},
            "ti": SimpleNamespace(try_number=1, get_dr_count=lambda **_: 0),
        }
        monkeypatch.setattr("rivertwice.airflow.work.get_current_context", lambda: self.context)

    def compare(self, *, attempt: int, minute: int, alerts: list[dict[str, str]]) -> str:
        """Do what the task `compare` does, but for Spark: store a reconcile under the name its job is given."""
        self.context["ti"].try_number = attempt
        task: Any = self.dag.get_task("compare")
        job = SparkJob(P, task.job, ["--pipeline", P])  # as `validate` hands on
        arguments = job.named(self.context["dag_run"].run_id, attempt)
        run = str(arguments[arguments.index("--run") + 1])
        store(self.settings, run, minute, alerts)
        return run

    def gate(self) -> dict[str, Any]:
        """Do what the task `gate` does."""
        result: dict[str, Any] = self.dag.get_task("gate").python_callable(P)  # type: ignore[attr-defined]
        return result


def store(settings: Settings, run: str, minute: int, alerts: list[dict[str, str]]) -> None:
    now = utc_now() + timedelta(minutes=minute)
    gate = {"passed": not alerts, "alerts": alerts, "suites": []}
    summary = {"counts": {}, "balance": {}, "late_by_partition": {}, "gate": gate, "duration_s": 1.0}
    store_run(settings.pipeline(P), Stamp(run, P, now, "t1", 7, "b", 1, {}), [], [], summary)


@pytest.fixture
def run(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(settings, monkeypatch)


def test_a_newer_reconcile_of_somebody_else_does_not_open_the_gate(run: Run) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    own = run.compare(attempt=1, minute=0, alerts=[DEFECT])
    store(run.settings, "rc-by-hand", 1, [])  # `rivertwice reconcile`, ended between `compare` and `gate`
    with pytest.raises(AirflowFailException, match=f"reconcile {own} of {P}: defect: 3 rows"):
        run.gate()


def test_a_newer_reconcile_of_somebody_else_does_not_shut_the_gate(run: Run) -> None:
    own = run.compare(attempt=1, minute=0, alerts=[])
    store(run.settings, "rc-by-hand", 1, [DEFECT])
    assert run.gate()["run"] == own


def test_a_cleared_task_compares_again_and_the_gate_reads_the_newest(run: Run) -> None:
    run.compare(attempt=1, minute=0, alerts=[DEFECT])
    again = run.compare(attempt=2, minute=1, alerts=[])
    assert run.gate()["run"] == again


def test_a_run_that_stored_no_reconcile_fails_and_names_what_to_do(run: Run) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    store(run.settings, "rc-by-hand", 0, [])
    with pytest.raises(AirflowFailException, match=r"manual__2026.*its job succeeded.*clear that task"):
        run.gate()
