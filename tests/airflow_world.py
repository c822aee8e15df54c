"""A project and a home that a real Airflow of the tests' own can run on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rivertwice.config import Settings
from rivertwice.orchestration.rest import AirflowClient
from rivertwice.orchestration.services import client
from streamed_run import REPOSITORY

PIPELINE = "flight_delays"
VERBS = ("archive", "backfill", "reconcile", "rotate", "supervise")


def link_project(project: Path) -> None:
    """Give a project folder what Airflow and the Spark jobs need of the repository."""
    project.mkdir(parents=True, exist_ok=True)
    for name in ("dags", "plugins", "spark_jobs", "expectations", "pipelines", ".build"):
        if not (project / name).exists() and (REPOSITORY / name).exists():
            (project / name).symlink_to(REPOSITORY / name)


def with_own_home(settings: Settings, home: Path) -> Settings:
    """Return settings with another home."""
    return replace(settings, home=home)


def ready_client(settings: Settings) -> AirflowClient:
    """Return a client of the running Airflow once it knows every DAG."""
    airflow = client(settings)
    airflow.wait_for_dags({f"{verb}__{PIPELINE}" for verb in VERBS}, timeout=180)
    return airflow


def run_dag(airflow: AirflowClient, dag_id: str, conf: dict[str, object] | None = None, timeout: float = 600) -> str:
    """Trigger a DAG, wait for its end, and fail with the tasks' logs unless it ended well."""
    run = airflow.trigger(dag_id, conf)
    state = airflow.wait(dag_id, run, timeout)
    assert state == "success", airflow.failures(dag_id, run, 60)
    return run
