"""An Airflow on another host, without Spark, Java, the project and the home: its tasks ask the agent, over TLS and with a token.

Its processes live in a network of their own, where the project, the home and Java's folder are empty, and they cannot import what the
extra `airflow-thin` does not bring. Kafka listens on the agent's host alone, so whatever reads it ran there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from homes.project import REPOSITORY, edit_yaml
from rivertwice.agent.alert_store import alerts_of
from rivertwice.agent.launch import start_agent, stop_agent
from rivertwice.airflow.airflow_api import AirflowClient
from rivertwice.cli.main import cli
from rivertwice.core.errors import RequestError
from rivertwice.core.instants import utc_now
from rivertwice.core.ports import held_ports
from rivertwice.core.settings import Settings
from rivertwice.engine.warm import stop_engine
from rivertwice.reconcile.results import newest_reconcile
from rivertwice.savepoint.catalogue import list_savepoints
from rivertwice.timeline import publications_of
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.sequence import read_sequence
from running.waiting import wait_for
from running.warm_spark import small_jobs
from servers.airflow import PIPELINE, run_dag
from servers.other_host import HERE, THERE, OtherHost, other_host, why_not
from servers.own_airflow import ONE_FILE, OwnAirflow, install_wheel, own_airflow
from servers.secure_kafka import make_files
from streams.flights import StreamedRun

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.kafka, pytest.mark.faults]
ABSENT = (
    "pyspark", "py4j", "deltalake", "pyarrow", "pandas", "numpy", "great_expectations", "confluent_kafka", "boto3", "avro",
    "prometheus_client", "airflow.providers.apache.spark.operators", "airflow.providers.apache.spark.hooks",
)  # fmt: skip
BLOCK = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if any(name == each or name.startswith(each + ".") for each in {ABSENT!r}):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


@dataclass(frozen=True)
class World:
    """An Airflow on another host, and the agent's settings here."""

    settings: Settings
    airflow: OwnAirflow
    client: AirflowClient
    host: OtherHost

    def run(self, verb: str, conf: dict[str, object] | None = None) -> str:
        return run_dag(self.client, f"{verb}__{PIPELINE}", conf, timeout=600)


@pytest.fixture(scope="module")
def world(streamed_two_days: StreamedRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("thin")
    shutil.copytree(streamed_two_days.settings.project, folder / "project", symlinks=True)
    often = {"schedules": {"archive": "2 minutes", "rotate": "none"}}  # a watch begins at a tick
    edit_yaml(folder / "project" / "pipelines" / PIPELINE, lambda document: document.update(airflow=often))
    files = make_files(folder / "certificates", HERE)
    installed = install_wheel(folder)
    (installed / "sitecustomize.py").write_text(BLOCK)
    settings = replace(
        streamed_two_days.settings,
        project=folder / "project",
        home=folder / "home",
        listen_certificate=files / "server.pem",
    )
    shutil.copytree(streamed_two_days.home.root, settings.pipeline(PIPELINE).root)
    write_intent(settings.pipeline(PIPELINE), "stopped", "test", utc_now())
    java = [path for path in (REPOSITORY / ".build" / "jvm", Path("/usr/lib/jvm")) if path.is_dir()]
    hidden = [settings.project, settings.home, *java]
    with other_host("rtthin", hidden) as host, held_ports(1) as (port,), pytest.MonkeyPatch.context() as patch:
        settings = replace(settings, listen=(HERE, port))
        variables = {
            "RIVERTWICE_AGENT": f"https://{HERE}:{port}",
            "RIVERTWICE_AGENT_TOKEN": token(settings),
            "RIVERTWICE_AGENT_CA": str(files / "ca.pem"),
            "RIVERTWICE_PROJECT": str(settings.project),
            "RIVERTWICE_HOME": str(settings.home),
        }
        with own_airflow(folder / "airflow", installed, variables, THERE, host.inside) as airflow:
            for name in ("JAVA_HOME", "SPARK_SUBMIT_OPTS", "RIVERTWICE_DOWNLOADS"):
                airflow.env.pop(name, None)
            (airflow.dags / "rivertwice.py").write_text(ONE_FILE)
            patch.setenv("SPARK_SUBMIT_OPTS", small_jobs())
            start_agent(settings)
            try:
                client = airflow.start()
                client.ensure_pool("spark_batch", 1, "of the tests")
                client.wait_for_dags({f"reconcile__{PIPELINE}"}, timeout=180)
                yield World(settings, airflow, client, host)
            finally:
                airflow.stop()
                stop_engine(settings)
                stop_agent(settings)


def token(settings: Settings) -> str:
    options = ["--project", str(settings.project), "--home", str(settings.home), "--output", "json"]
    done = CliRunner().invoke(cli, [*options, "agent", "token", "there", "--pipelines", PIPELINE])
    assert done.exit_code == 0, done.output
    return str(json.loads(done.stdout)["token"])


def test_that_host_has_neither_java_nor_spark_nor_the_home(world: World) -> None:
    assert world.host.run("sh", "-c", "command -v java").stdout == ""
    assert [world.host.run("ls", "-A", str(each)).stdout for each in (world.settings.home, world.settings.project)] == [
        "",
        "",
    ]
    python = world.airflow.command("plugins", "--output", "json")
    assert "rivertwice" in python


@pytest.mark.proves("services.md#airflow-mwaa-composer-astronomer")
def test_its_dags_are_those_of_the_definitions_at_the_agent(world: World) -> None:
    assert world.client.import_errors() == []
    assert {name for name in world.client.dag_ids() if name.endswith(PIPELINE)} == world.client.dag_ids()
    assert len(world.client.dag_ids()) == 4


@pytest.mark.proves("services.md#airflow-mwaa-composer-astronomer")
def test_a_savepoint_is_taken_and_proved_there(world: World) -> None:
    world.run("care", {"prove": True})
    (taken,) = list_savepoints(world.settings.pipeline(PIPELINE))
    assert taken.status == "proved"


def test_the_log_is_archived_compared_and_a_range_computed_again(world: World) -> None:
    world.run("care", {"act": "archive"})
    world.run("reconcile", {"full": True})
    newest = newest_reconcile(world.settings.pipeline(PIPELINE))
    assert newest is not None
    assert newest["gate"]["passed"]
    window = {"start": "2013-06-30T10:00:00Z", "end": "2013-06-30T12:00:00Z"}
    world.run("backfill", {"scope": "range", **window, "reason": "a test from afar"})
    (published,) = publications_of(read_sequence(world.settings.pipeline(PIPELINE)))
    assert published.backfill.startswith("bf-")


def test_an_act_is_done_in_the_name_of_who_asked_and_whose_token_it_was(world: World) -> None:
    (taken,) = list_savepoints(world.settings.pipeline(PIPELINE))
    world.run("operate", {"act": "savepoint.pin", "savepoint": taken.id, "reason": "kept for the audit"})
    assert list_savepoints(world.settings.pipeline(PIPELINE))[0].pinned
    events = [json.loads(line) for line in (world.settings.home / "agent/events.jsonl").read_text().splitlines()]
    assert [each["by"] for each in events if each["kind"] == "command"][-1] == "admin (there) in Airflow"


def test_a_form_that_is_invalid_is_refused_before_a_run_begins(world: World) -> None:
    with pytest.raises(RequestError, match="the range has no end"):
        world.client.trigger(f"backfill__{PIPELINE}", {"scope": "range", "start": "2013-06-30T10:00:00Z"})


def test_the_stream_is_watched_from_there(world: World) -> None:
    dag = f"care__{PIPELINE}"

    def is_watching() -> bool:
        runs = world.airflow.get(f"/api/v2/dags/{dag}/dagRuns", limit=1, order_by="-run_after")["dag_runs"]
        tasks = world.client.tasks(dag, runs[0]["dag_run_id"]) if runs else []
        return "deferred" in {each.state for each in tasks if each.task_id == "watch"}

    wait_for("an epoch", is_watching, 120, every=1.0, seen=world.airflow.log)


@pytest.mark.proves("services.md#airflow-mwaa-composer-astronomer")
def test_a_job_goes_on_while_the_agents_server_is_killed(world: World) -> None:
    """The keeper starts another one, and the task of Airflow asks that one for what it missed."""
    dag = f"reconcile__{PIPELINE}"
    run = world.client.trigger(dag, {"full": True, "reason": "its server dies"})
    wait_for("the job to run", lambda: job_of(world, "reconcile"), 120, every=0.2, seen=world.airflow.log)
    job = job_of(world, "reconcile")
    os.kill(server_of(world), signal.SIGKILL)
    assert world.client.wait(dag, run, 400, interval=1.0) == "success", world.client.failures(dag, run, 60)
    newest = newest_reconcile(world.settings.pipeline(PIPELINE))
    assert newest is not None
    assert newest["gate"]["passed"]
    assert job is not None
    tried = [each.try_number for each in world.client.tasks(dag, run) if each.task_id == "compare"]
    assert tried == [1]


def job_of(world: World, name: str) -> psutil.Process | None:
    for folder in (world.settings.home / "agent/tasks").glob("*/*"):
        if not (folder / "process.json").exists() or (folder / "result.json").exists():
            continue
        asked: Any = json.loads((folder / "request.json").read_text())
        if (asked["kind"], asked["name"]) == ("job", name):
            return psutil.Process(json.loads((folder / "process.json").read_text())["pid"])
    return None


def server_of(world: World) -> int:
    (found,) = [
        each.pid
        for each in psutil.process_iter(["cmdline", "environ"])
        if "rivertwice.tasks.server" in (each.info["cmdline"] or [])
        and (each.info["environ"] or {}).get("RIVERTWICE_HOME") == str(world.settings.home)
    ]
    return int(found)


def test_a_refused_act_fails_its_run_there_with_the_reason_and_is_no_alert(world: World) -> None:
    dag = f"operate__{PIPELINE}"
    run = world.client.trigger(dag, {"act": "operation.abandon", "reason": "a test"})
    assert world.client.wait(dag, run, 200, interval=1.0) == "failed"
    assert "no operation of flight_delays was interrupted" in world.client.failures(dag, run, 60)
    kinds = {alert.cause.kind for alert in alerts_of(world.settings).state().alerts}
    assert "task_failed" not in kinds
    assert "late_share" in kinds  # what the reconcile that ran here found
