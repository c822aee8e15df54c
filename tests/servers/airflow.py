"""A project and a home that a real Airflow of the tests' own can run on, and what tests ask of it."""

from __future__ import annotations

import functools
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from homes.project import REPOSITORY, TO_RUN, link
from rivertwice.agent.launch import start_agent, stop_agent
from rivertwice.airflow.airflow_api import AirflowClient
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Progress, report_nothing
from rivertwice.engine.warm import stop_engine
from rivertwice.local import airflow as services
from rivertwice.local.airflow import AirflowHome, AirflowInfo, airflow_options, client, start_airflow, stop_airflow
from rivertwice.local.fork_server import ForkServer
from rivertwice.timeline.intent import write_intent
from running.shared import alone
from running.warm_spark import small_jobs
from streams.flights import StreamedRun

PIPELINE = "flight_delays"
VERBS = ("backfill", "care", "operate", "reconcile")
QUIET = {
    "dag_processor": {"min_file_process_interval": "600", "refresh_interval": "600"},  # no test changes a definition
}
"""What differs from the product's own configuration: nothing that a test waits for."""


@dataclass(frozen=True)
class World:
    """A running Airflow over a pipeline's home.

    Attributes:
        settings: its project and home.
    """

    settings: Settings

    @functools.cached_property
    def airflow(self) -> AirflowClient:
        """A client of it."""
        return client(self.settings)

    @property
    def home(self) -> PipelineHome:
        """The pipeline's home."""
        return self.settings.pipeline(PIPELINE)

    def run(self, verb: str, conf: dict[str, object] | None = None) -> str:
        """Run a verb to its good end and return the run's id."""
        return run_dag(self.airflow, f"{verb}__{PIPELINE}", conf, timeout=900)

    def states(self, verb: str, run: str) -> dict[str, str]:
        """Return the state of each task of a run."""
        return {task.task_id: task.state for task in self.airflow.tasks(f"{verb}__{PIPELINE}", run)}


def link_project(project: Path) -> None:
    """Give a project folder what Airflow and the Spark jobs need of the repository."""
    link(project, ("plugins", "spark_jobs", "pipelines", *TO_RUN))
    (project / "dags").mkdir()
    for folder in ("dags", "examples/dags"):
        for file in (REPOSITORY / folder).glob("*.py"):
            (project / "dags" / file.name).symlink_to(file)


def copy_world(run: StreamedRun, folder: Path) -> World:
    """Return a copy of a streamed run's project and home on the same topic, for an Airflow; the stream is to rest."""
    shutil.copytree(run.settings.project, folder / "project", symlinks=True)
    made = World(replace(run.settings, project=folder / "project", home=folder / "home"))
    shutil.copytree(run.home.root, made.home.root)
    link_project(made.settings.project)
    write_intent(made.home, "stopped", "test", utc_now())
    return made


@contextmanager
def agent_and_airflow(
    settings: Settings, pipeline: str = PIPELINE, users: Sequence[str] = (), verbs: Sequence[str] = VERBS
) -> Iterator[AirflowClient]:
    """Run an agent and a quiet Airflow, whose Spark jobs are small, over a home; both end with the block.

    Args:
        settings: of the home.
        pipeline: whose DAGs Airflow has to know before the block begins.
        users: further users, as `start_quiet_airflow` takes them.
        verbs: of these DAGs.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", small_jobs())
        start_agent(settings)
        try:
            start_quiet_airflow(settings, users)
            yield ready_client(settings, pipeline, verbs)
        finally:
            stop_quiet_airflow(settings)
            stop_agent(settings)


def start_quiet_airflow(
    settings: Settings,
    users: Sequence[str] = (),
    migrated: Callable[[AirflowHome, ForkServer], None] = lambda home, fork_server: None,
    **more: dict[str, str],
) -> AirflowInfo:
    """Start what does not run of an Airflow that looks at its DAG files once, and whose Spark jobs use the warm engine.

    Args:
        settings: of the home it lies in.
        users: further users, each as `name:role`, or `name:role:team`; `token_of` of `servers.cockpit` logs them in.
        migrated: is called before the first service starts, over the migrated database.
        more: options by section, which win over the product's own.
    """
    options = airflow_options

    def quiet(*arguments: Any) -> dict[str, dict[str, str]]:
        made = options(*arguments)
        made["core"]["simple_auth_manager_users"] = ",".join([made["core"]["simple_auth_manager_users"], *users])
        return {name: values | QUIET.get(name, {}) | more.get(name, {}) for name, values in made.items()}

    def migrate(home: AirflowHome, fork_server: ForkServer, progress: Progress) -> None:
        migrate_once(home, fork_server, progress)
        migrated(home, fork_server)

    with (
        mock.patch.object(services, "airflow_options", quiet),
        mock.patch.object(services, "_migrate", migrate),
        mock.patch.dict(os.environ, RIVERTWICE_ENGINE="on"),
    ):
        return start_airflow(settings, timeout=300)


def stop_quiet_airflow(settings: Settings) -> None:
    """Stop an Airflow, and the engine that its jobs may have started."""
    stop_airflow(settings)
    stop_engine(settings)


def migrate_once(
    home: AirflowHome, fork_server: ForkServer, progress: Progress, migrate: Any = services._migrate
) -> None:
    """Give a home a copy of the one database that is migrated for all tests; a migration costs 15 CPU-seconds."""
    folder = REPOSITORY / ".build" / "airflow-database" / services._airflow_version()
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder):
        if home.database.exists() or not (folder / "schema.json").exists():
            migrate(home, fork_server, progress)
        else:
            shutil.copyfile(folder / "airflow.db", home.database)
            shutil.copyfile(folder / "schema.json", home.schema_stamp)
        if not (folder / "schema.json").exists():
            with closing(sqlite3.connect(home.database)) as database:
                (folder / "airflow.db").unlink(missing_ok=True)
                database.execute("VACUUM INTO ?", [str(folder / "airflow.db")])
            shutil.copyfile(home.schema_stamp, folder / "schema.json")


def ready_client(settings: Settings, pipeline: str = PIPELINE, verbs: Sequence[str] = VERBS) -> AirflowClient:
    """Return a client of the running Airflow once it knows the DAGs of a pipeline."""
    airflow = client(settings)
    airflow.wait_for_dags({f"{verb}__{pipeline}" for verb in verbs}, timeout=180)
    return airflow


def run_dag(
    airflow: AirflowClient,
    dag_id: str,
    conf: dict[str, object] | None = None,
    timeout: float = 600,
    progress: Progress = report_nothing,
) -> str:
    """Trigger a DAG, wait for its end, and fail with the tasks' logs unless it ended well."""
    run = airflow.trigger(dag_id, conf)
    await_success(airflow, dag_id, run, timeout, progress)
    return run


def await_success(
    airflow: AirflowClient, dag_id: str, run: str, timeout: float = 600, progress: Progress = report_nothing
) -> None:
    """Wait for the end of a run, and fail with the tasks' logs unless it ended well."""
    state = airflow.wait(dag_id, run, timeout, progress=progress, interval=1.0)
    assert state == "success", airflow.failures(dag_id, run, 60)
