"""One Airflow over the two stormy days: what each verb does. Its services and forms: `test_airflow_services.py`."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import yaml

from rivertwice.agent.launch import start_agent, stop_agent
from rivertwice.backfill.store import load_backfill_plan
from rivertwice.core.instants import iso_of_ms, utc_now
from rivertwice.local.airflow import airflow_home, airflow_info
from rivertwice.local.broker import BrokerInfo
from rivertwice.reconcile.results import newest_reconcile
from rivertwice.savepoint.catalogue import load_savepoint
from rivertwice.tasks.names import is_reconcile_of
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.sequence import read_sequence
from rivertwice.timeline.served import export_sha256
from rivertwice.timeline.served_stamp import read_served_stamp, serving_by_stamp
from rivertwice.versions.serve import read_switches
from running.waiting import wait_for
from running.warm_spark import small_jobs
from servers.airflow import (
    PIPELINE,
    World,
    await_success,
    link_project,
    ready_client,
    run_dag,
    start_quiet_airflow,
    stop_quiet_airflow,
)
from servers.airflow_versions import BESIDE, SWITCH, begin_beside, switch
from servers.browser import log_in
from servers.cockpit import data_of
from servers.secure_kafka import CORE, ENV, SecureListeners, create_user
from streams.flights import StreamedRun

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.kafka]
CANARIES = {"AWS_SECRET_ACCESS_KEY": "canary-secret-2b8d", **ENV}
WAITING = "after_reconcile"
DAYS = ["2013-06-30", "2013-07-01"]
"""The days of the log that are complete."""

MEANT: dict[str, tuple[str, dict[str, object]]] = {
    "proved": ("care", {"reason": "before the storm"}),
    "not proved": ("care", {"prove": False}),
    "archived": ("care", {"act": "archive"}),
    "compared": ("reconcile", {}),
}
"""Runs that need nothing of each other: they are started at once, and tests wait for theirs."""


@pytest.fixture(scope="module")
def environment() -> Iterator[None]:
    """Secrets in the environment that Airflow, the agent and all their children inherit; and options of small jobs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", small_jobs())
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
    """Airflow and an agent over a copy of the streamed days, and a version beside; the agent keeps what both serve, both streams rest.

    Whoever asks Kafka logs in, over TLS.
    """
    create_user(broker.bootstrap)
    folder = tmp_path_factory.mktemp("airflow")
    shutil.copytree(streamed_two_days.settings.project, folder / "project", symlinks=True)
    definition = folder / "project" / "pipelines" / PIPELINE / "pipeline.yaml"
    said = yaml.safe_load(definition.read_text())
    said["airflow"]["schedules"]["backfill"] = "45 2 * * *"  # Airflow's own Backfill is for a schedule's ticks
    definition.write_text(yaml.safe_dump(said, sort_keys=False))
    settings = replace(listeners.settings(streamed_two_days.settings), project=folder / "project", home=folder / "home")
    shutil.copytree(streamed_two_days.home.root, settings.pipeline(PIPELINE).root)
    link_project(settings.project)
    write_intent(settings.pipeline(PIPELINE), "stopped", "test", utc_now())
    begin_beside(settings, folder / "driver.log")
    start_agent(settings)
    try:
        start_quiet_airflow(settings)
        ready_client(settings)
        yield World(settings)
    finally:
        stop_quiet_airflow(settings)
        stop_agent(settings)


@pytest.fixture(scope="module")
def begun(world: World) -> dict[str, str]:
    """Start the runs that need nothing of each other; return their ids by what was asked."""
    return {name: world.airflow.trigger(f"{dag}__{PIPELINE}", conf) for name, (dag, conf) in MEANT.items()}


def ended_well(world: World, begun: dict[str, str], name: str) -> str:
    """Return the id of a run that was begun, once it has ended well."""
    await_success(world.airflow, f"{MEANT[name][0]}__{PIPELINE}", begun[name], 900)
    return begun[name]


def test_the_cockpit_shows_the_pipeline_and_its_version_beside(world: World) -> None:
    rows = data_of(world.settings, "overview")["pipelines"]
    assert [(row["name"], row.get("error")) for row in rows] == [(PIPELINE, None)]
    for name in (PIPELINE, BESIDE):
        assert data_of(world.settings, f"p/{name}/summary")["name"] == name


def test_a_rotation_takes_a_savepoint_and_proves_it(world: World, begun: dict[str, str]) -> None:
    run = ended_well(world, begun, "proved")
    report = world.airflow.xcom(f"care__{PIPELINE}", run, "report")
    savepoint = load_savepoint(world.home, report["savepoint"])  # a scheduled rotation may have taken others
    assert (savepoint.status, report["status"]) == ("proved", "proved")
    assert savepoint.manifest.reason == "before the storm"


def days_used(world: World) -> list[str]:
    """Return the day of each run that has ended of a DAG that waits for reconciled days."""
    runs = [run for run in world.airflow.runs(WAITING) if world.airflow.state(WAITING, run) == "success"]
    return [world.airflow.xcom(WAITING, run, "use_day")["day"] for run in runs]


def counts(world: World, pair: str) -> dict[str, int]:
    run = newest_reconcile(world.home)
    assert run is not None
    return dict(run["counts"][pair])


def test_windows_that_lost_flights_are_found_repaired_and_agree_afterwards(world: World, begun: dict[str, str]) -> None:
    run = ended_well(world, begun, "compared")
    stored = world.airflow.xcom(f"reconcile__{PIPELINE}", run, "gate")["run"]
    assert is_reconcile_of(run, stored)
    before = counts(world, "served")
    assert before["LATE"] > 0
    wait_for("the runs for both days", lambda: sorted(days_used(world)) == DAYS, 180)
    assert before.get("DEFECT", 0) == before.get("NOT_COMPARABLE", 0) == 0
    alerts = [json.loads(line) for line in (world.settings.home / "alerts.jsonl").read_text().splitlines()]
    assert "late_share" in {alert["kind"] for alert in alerts}

    dry = world.run("backfill", {"scope": "stale", "dry_run": True})
    states = world.states("backfill", dry)
    assert (states.pop("plan"), set(states.values())) == ("success", {"skipped"})
    assert [entry.kind for entry in read_sequence(world.home)] == ["head"]

    world.run("backfill", {"scope": "stale", "reason": "the storm"})
    newest = read_sequence(world.home)[-1]
    stamp = read_served_stamp(world.home)
    assert newest.kind == "publication"
    assert stamp is not None
    assert stamp.sequence == newest.seq

    world.run("reconcile")
    assert counts(world, "served").get("LATE", 0) == 0
    assert counts(world, "stream")["LATE"] == before["LATE"]
    wait_for("the runs for the days that changed", lambda: sorted(days_used(world)) == sorted(DAYS * 2), 180)

    again = world.run("backfill", {"scope": "stale"})
    assert world.states("backfill", again)["compute"] == "skipped"
    assert read_sequence(world.home)[-1] == newest
    world.run("reconcile")
    assert sorted(days_used(world)) == sorted(DAYS * 2)


@pytest.mark.proves("howto-airflow.md#airflows-own-backfill")
def test_airflows_own_backfill_computes_the_days_of_its_range_again(world: World, begun: dict[str, str]) -> None:
    ended_well(world, begun, "compared")
    info, dag = airflow_info(world.settings), f"backfill__{PIPELINE}"
    asked: dict[str, object] = {"dag_id": dag, "from_date": "2013-06-30T00:00:00Z", "to_date": "2013-07-01T23:59:59Z"}
    asked |= {"reprocess_behavior": "none", "max_active_runs": 2, "dag_run_conf": {"reason": "asked of Airflow"}}
    login = {"Authorization": f"Bearer {log_in(info)}"}
    before = len(read_sequence(world.home))
    answer = httpx.post(f"{info.url}/api/v2/backfills", headers=login, json=asked, trust_env=False, timeout=60)
    assert answer.status_code == 200, answer.text

    def ended() -> bool:
        url = f"{info.url}/api/v2/backfills/{answer.json()['id']}"
        return bool(httpx.get(url, headers=login, trust_env=False, timeout=60).json()["completed_at"])

    wait_for("Airflow's backfill", ended, 900)
    runs = [run for run in world.airflow.runs(dag) if run.startswith("backfill__")]
    assert [world.airflow.state(dag, run) for run in runs] == ["success"] * 2
    published = read_sequence(world.home)[before:]
    plans = [load_backfill_plan(world.home, entry.payload["backfill"]) for entry in published]
    days = [{iso_of_ms(at)[:10] for at in (plan.ranges[0][0], plan.ranges[-1][1] - 1)} for plan in plans]
    assert sorted(days, key=min) == [{"2013-06-30"}, {"2013-07-01"}]
    assert {plan.reason for plan in plans} == {"asked of Airflow"}
    world.run("reconcile")
    assert counts(world, "served").get("LATE", 0) == counts(world, "served").get("DEFECT", 0) == 0


def test_a_version_serves_once_it_is_proved_and_a_person_approves(world: World, begun: dict[str, str]) -> None:
    ended_well(world, begun, "compared")
    unproved = world.airflow.trigger(SWITCH, {"act": "version.serve"})
    assert world.airflow.wait(SWITCH, unproved, 300) == "failed"
    assert f"no reconcile has proved what {BESIDE} serves" in world.airflow.failures(SWITCH, unproved)
    states = world.states("operate", unproved)
    assert (states["compare"], states["gate"], states["serve"]) == ("success", "failed", "upstream_failed")
    alerts = [json.loads(line) for line in (world.settings.home / "alerts.jsonl").read_text().splitlines()]
    assert [alert["kind"] for alert in alerts if alert.get("run") == unproved] == ["task_failed"]

    run_dag(world.airflow, f"reconcile__{PIPELINE}.v2")
    before = export_sha256(world.home)
    body = switch(world, {"reason": "delays were too small"}, "Approve")
    assert "| as declared |" in body
    assert "delays were too small" in body
    assert serving_by_stamp(world.home) == BESIDE
    record = read_switches(world.home)[-1]
    assert (record["by"], record["reason"]) == ("admin in Airflow", "delays were too small")
    counted = record["compared"]["counts"]
    assert counted["declared"] > 0
    assert counted["equal"] + counted["declared"] + counted["late"] == counted["new_rows"]

    assert "is not compared" in switch(world, {"version": PIPELINE}, "Reject")
    assert serving_by_stamp(world.home) == BESIDE
    switch(world, {"version": PIPELINE, "reason": "too early"}, "Approve")
    assert serving_by_stamp(world.home) == PIPELINE
    assert export_sha256(world.home) == before


def test_a_rotation_without_proof_skips_only_the_proof(world: World, begun: dict[str, str]) -> None:
    assert world.states("care", ended_well(world, begun, "not proved")) == {
        "take": "success", "proof_wanted": "success", "prove": "skipped", "prune": "success", "report": "success",
        "watch": "skipped", "check": "skipped", "extend": "skipped",
    }  # fmt: skip


def test_the_archive_is_extended(world: World, begun: dict[str, str]) -> None:
    states = world.states("care", ended_well(world, begun, "archived"))
    assert {task for task, state in states.items() if state == "success"} == {"check", "extend"}
    assert (world.settings.home / "archive").is_dir()


@pytest.mark.proves("security.md#security")
def test_no_secret_is_in_airflows_database_or_in_a_file_of_the_home(world: World) -> None:
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
