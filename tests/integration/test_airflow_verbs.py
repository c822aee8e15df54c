"""The verbs through a real Airflow, over the two stormy days: rotate and prove, archive, reconcile, backfill, reconcile again."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from airflow_world import PIPELINE, link_project, ready_client, run_dag
from rivertwice.config import PipelineHome, Settings
from rivertwice.instants import utc_now
from rivertwice.log.broker import BrokerInfo
from rivertwice.orchestration.environment import airflow_home
from rivertwice.orchestration.rest import AirflowClient
from rivertwice.orchestration.run_names import is_reconcile_of
from rivertwice.orchestration.services import start_airflow, stop_airflow
from rivertwice.reconcile.results import newest_reconcile
from rivertwice.savepoint.catalogue import load_savepoint
from rivertwice.supervise.launch import start_agent, stop_agent
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.sequence import read_sequence
from rivertwice.timeline.served import served_stamp
from secure_kafka import CORE, ENV, SecureListeners, create_user
from streamed_run import StreamedRun

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.kafka]


@dataclass(frozen=True)
class World:
    settings: Settings
    airflow: AirflowClient

    @property
    def home(self) -> PipelineHome:
        return self.settings.pipeline(PIPELINE)

    def run(self, verb: str, conf: dict[str, object] | None = None) -> str:
        return run_dag(self.airflow, f"{verb}__{PIPELINE}", conf, timeout=900)


CANARIES = {"AWS_SECRET_ACCESS_KEY": "canary-secret-2b8d", **ENV}


@pytest.fixture(scope="module")
def environment() -> Iterator[None]:
    """Secrets in the environment that Airflow, the agent and all their children inherit."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CANARIES.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def world(
    streamed_two_days: StreamedRun,
    tmp_path_factory: pytest.TempPathFactory,
    broker: BrokerInfo,
    listeners: SecureListeners,
    environment: None,
) -> Iterator[World]:
    """Airflow and an agent over a copy of the streamed days; the agent keeps `served`, the stream itself stays at rest.

    Whoever asks Kafka logs in, over TLS.
    """
    create_user(broker.bootstrap)
    settings = replace(listeners.settings(streamed_two_days.settings), home=tmp_path_factory.mktemp("verbs") / "home")
    shutil.copytree(streamed_two_days.home.root, settings.pipeline(PIPELINE).root)
    link_project(settings.project)
    write_intent(settings.pipeline(PIPELINE), "stopped", "test", utc_now())
    start_agent(settings)
    try:
        start_airflow(settings, timeout=300)
        yield World(settings, ready_client(settings))
    finally:
        stop_airflow(settings)
        stop_agent(settings)


def counts(world: World, pair: str) -> dict[str, int]:
    run = newest_reconcile(world.home)
    assert run is not None
    return dict(run["counts"][pair])


def test_a_rotation_takes_a_savepoint_and_proves_it(world: World) -> None:
    run = world.run("rotate", {"reason": "before the storm"})
    report = world.airflow.xcom(f"rotate__{PIPELINE}", run, "report")
    savepoint = load_savepoint(world.home, report["savepoint"])  # a scheduled rotation may have taken others
    assert (savepoint.status, report["status"]) == ("proved", "proved")
    assert savepoint.manifest.reason == "before the storm"


def test_a_rotation_without_proof_skips_only_the_proof(world: World) -> None:
    run = world.run("rotate", {"prove": False})
    states = {task.task_id: task.state for task in world.airflow.tasks(f"rotate__{PIPELINE}", run)}
    assert states == {
        "take": "success", "proof_wanted": "success", "prove": "skipped", "prune": "success", "report": "success",
    }  # fmt: skip


def test_the_archive_is_extended(world: World) -> None:
    world.run("archive")
    assert (world.settings.home / "archive").is_dir()


def test_windows_that_lost_flights_are_found_repaired_and_agree_afterwards(world: World) -> None:
    run = world.run("reconcile")
    stored = world.airflow.xcom(f"reconcile__{PIPELINE}", run, "gate")["run"]
    assert is_reconcile_of(run, stored)
    before = counts(world, "served")
    assert before["LATE"] > 0
    assert before.get("DEFECT", 0) == before.get("NOT_COMPARABLE", 0) == 0
    alerts = [json.loads(line) for line in (world.settings.home / "alerts.jsonl").read_text().splitlines()]
    assert "late_share" in {alert["kind"] for alert in alerts}

    dry = world.run("backfill", {"scope": "wanting", "dry_run": True})
    states = {task.task_id: task.state for task in world.airflow.tasks(f"backfill__{PIPELINE}", dry)}
    assert states == {"plan": "success", "compute": "skipped", "publish": "skipped", "await_served": "skipped"}
    assert [entry.kind for entry in read_sequence(world.home)] == ["head"]

    world.run("backfill", {"scope": "wanting", "reason": "the storm"})
    newest = read_sequence(world.home)[-1]
    stamp = served_stamp(world.home)
    assert newest.kind == "publication"
    assert stamp is not None
    assert stamp.sequence == newest.seq

    world.run("reconcile")
    assert counts(world, "served").get("LATE", 0) == 0
    assert counts(world, "stream")["LATE"] == before["LATE"]

    again = world.run("backfill", {"scope": "wanting"})
    assert {task.task_id: task.state for task in world.airflow.tasks(f"backfill__{PIPELINE}", again)}[
        "compute"
    ] == "skipped"
    assert read_sequence(world.home)[-1] == newest


def test_no_secret_of_the_environment_is_in_airflow_s_database_or_in_any_file_of_the_home(world: World) -> None:
    """XCom, rendered fields, task instances, runs; logs of Airflow, the agent and the Spark jobs; what the jobs wrote."""
    secrets = (CORE, CANARIES["AWS_SECRET_ACCESS_KEY"])
    with sqlite3.connect(f"file:{airflow_home(world.settings).database}?mode=ro", uri=True) as database:
        for table in ("xcom", "rendered_task_instance_fields", "task_instance", "dag_run", "serialized_dag"):
            assert database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] > 0, table
        dump = "\n".join(database.iterdump())
    assert "river twice" in dump or "spark_jobs" in dump  # the search reads what was submitted
    assert not [secret for secret in secrets if secret in dump]
    files = [path for path in world.settings.home.rglob("*") if path.is_file() and not path.is_symlink()]
    assert any(path.parts[-1].startswith("attempt=") for path in files)
    holding = [str(path) for path in files if any(secret.encode() in content(path) for secret in secrets)]
    assert holding == []


def content(path: Path) -> bytes:
    """Return what a file holds; nothing of one that is gone: the agent replaces its heartbeat by a temporary file meanwhile."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
