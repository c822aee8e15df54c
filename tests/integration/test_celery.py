"""A reconcile through Celery: a real worker that listens to the pipeline's queue alone, a real Redis, PostgreSQL for Airflow."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from homes.project import edit_yaml
from lab.faults import postgres
from rivertwice.airflow.airflow_api import AirflowClient
from rivertwice.core.instants import utc_now
from rivertwice.definition.airflow_section import Schedules
from rivertwice.reconcile.results import newest_reconcile
from rivertwice.tasks.names import is_reconcile_of
from rivertwice.timeline.intent import write_intent
from running.waiting import wait_for
from running.warm_spark import run_command_warm, small_jobs
from servers import redis
from servers.airflow import PIPELINE, await_success
from servers.own_airflow import ONE_FILE, OwnAirflow, install_wheel, own_airflow
from streams.flights import StreamedRun

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.faults,
    pytest.mark.skipif(redis.missing() is not None, reason=str(redis.missing())),
    pytest.mark.skipif(postgres.missing() is not None, reason=str(postgres.missing())),
]
DAG = f"reconcile__{PIPELINE}"
QUEUE = "rivers"
THROUGH_CELERY = """
SELECT task_instance.task_id, celery_taskmeta.status
FROM task_instance JOIN celery_taskmeta ON celery_taskmeta.task_id = task_instance.external_executor_id
WHERE task_instance.run_id = %s
"""
"""The tasks of a run whose result a Celery worker stored."""


@pytest.fixture
def own(streamed_two_days: StreamedRun, tmp_path: Path) -> Iterator[tuple[OwnAirflow, AirflowClient, str]]:
    """An Airflow with a Celery worker, its client, and where its database is; the pipeline's tasks go to a queue of their own."""
    shutil.copytree(streamed_two_days.settings.project, tmp_path / "project", symlinks=True)
    settings = replace(streamed_two_days.settings, project=tmp_path / "project", home=tmp_path / "home")
    shutil.copytree(streamed_two_days.home.root, settings.pipeline(PIPELINE).root)
    write_intent(settings.pipeline(PIPELINE), "stopped", "test", utc_now())
    run_command_warm(settings, "admin", "rebuild", PIPELINE)
    own_settings = {"queue": QUEUE, "schedules": dict.fromkeys(Schedules.model_fields, "none")}
    edit_yaml(settings.definitions / PIPELINE, lambda document: document.update(airflow=own_settings))
    with ExitStack() as held:
        database = held.enter_context(postgres.postgres_server())
        folder = dict(part.split("=", 1) for part in database.split())
        address = f"postgresql+psycopg://{folder['user']}@/{folder['dbname']}?host={folder['host']}"
        broker = held.enter_context(redis.redis_server(tmp_path))
        variables = {
            **settings.to_env(),
            "SPARK_SUBMIT_OPTS": small_jobs(),
            "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[2]"}',
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": address,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": address,
            "AIRFLOW__CELERY__BROKER_URL": f"{broker}/0",
            "AIRFLOW__CELERY__RESULT_BACKEND": f"db+{address}",
        }
        airflow = held.enter_context(own_airflow(tmp_path / "airflow", install_wheel(tmp_path), variables))
        (airflow.dags / "rivertwice.py").write_text(ONE_FILE)
        worker = ("celery", "worker", "--queues", QUEUE, "--concurrency", "2", "--skip-serve-logs")
        client = airflow.start(more=[worker])
        client.ensure_pool("spark_batch", 1, "of the tests")
        client.wait_for_dags({DAG}, timeout=180)
        yield airflow, client, database


def test_a_reconcile_runs_through_a_celery_worker_and_waits_without_one(
    own: tuple[OwnAirflow, AirflowClient, str], tmp_path: Path, streamed_two_days: StreamedRun
) -> None:
    airflow, client, database = own
    run = client.trigger(DAG, {})
    await_success(client, DAG, run, 600)
    tasks = airflow.get(f"/api/v2/dags/{DAG}/dagRuns/{run}/taskInstances")["task_instances"]
    assert {task["queue"] for task in tasks} == {QUEUE}
    assert {task["task_id"]: task["state"] for task in tasks} == {
        "validate": "success", "compare": "success", "gate": "success", "announce": "success", "announce_days": "success",
        "repair": "success", "repair_wanted": "success",
    }  # fmt: skip
    settings = replace(streamed_two_days.settings, project=tmp_path / "project", home=tmp_path / "home")
    found = newest_reconcile(settings.pipeline(PIPELINE))
    assert is_reconcile_of(run, found["run"])
    assert found["balance"]["total"]["unexplained"] == 0

    def through_celery() -> bool:
        """A worker notes the end of a task a moment after Airflow knows it."""
        with psycopg.connect(database) as connection:
            noted = connection.execute(THROUGH_CELERY, [run]).fetchall()
        return sorted(noted) == sorted((task["task_id"], "SUCCESS") for task in tasks)

    wait_for("Celery's own record of the tasks", through_celery, 60, every=0.5)

    worker = airflow.started["celery"]
    worker.terminate()
    wait_for("the end of the worker", lambda: worker.poll() is not None, 60)
    run = client.trigger(DAG, {})
    wait_for("a queued task", lambda: any(task.state == "queued" for task in client.tasks(DAG, run)), 60, every=0.5)
    assert not [task for task in client.tasks(DAG, run) if task.state in ("running", "success")]
