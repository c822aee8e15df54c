"""The installed wheel in somebody's own Airflow: one file in a DAG folder of theirs, connections in place of variables, lineage.

Airflow's environment holds neither Kafka's address and login nor those of S3. The agent has an environment of its own.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from contracts.lineage_schema import dataset_findings, findings
from homes.project import REPOSITORY
from lab.faults.s3_server import S3Server, s3_server, why_not
from rivertwice.agent.launch import start_agent, stop_agent
from rivertwice.airflow.airflow_api import AirflowClient
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.engine.warm import stop_engine
from rivertwice.local.broker import BrokerInfo
from rivertwice.reconcile.results import newest_reconcile
from rivertwice.savepoint.catalogue import list_savepoints
from rivertwice.storage.s3 import s3_client
from rivertwice.timeline.intent import write_intent
from running.waiting import wait_for
from running.warm_spark import small_jobs
from servers.airflow import PIPELINE, run_dag
from servers.own_airflow import ONE_FILE, OwnAirflow, install_wheel, own_airflow
from servers.secure_kafka import CORE, PASSWORD, USER, SecureListeners, create_user
from streams.flights import StreamedRun

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.kafka, pytest.mark.faults]
VERBS = ("backfill", "care", "operate", "reconcile")
WAITING = "after_reconcile"
FIRST, SECOND = "2013-06-30", "2013-07-01"
BUCKET = "river"


@dataclass(frozen=True)
class World:
    """A running Airflow of somebody's own over a pipeline's home.

    Attributes:
        settings: of the agent.
        airflow: the server.
        client: of its API.
        s3: where savepoints lie.
        lineage: file with the events of OpenLineage.
    """

    settings: Settings
    airflow: OwnAirflow
    client: AirflowClient
    s3: S3Server
    lineage: Path

    def run(self, verb: str, conf: dict[str, object] | None = None) -> str:
        return run_dag(self.client, f"{verb}__{PIPELINE}", conf, timeout=900)


def connections(listeners: SecureListeners, s3: S3Server) -> dict[str, dict[str, Any]]:
    """Return the connections that somebody makes, as `airflow connections import` reads them."""
    kafka = {
        "bootstrap.servers": f"127.0.0.1:{listeners.tls}",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(listeners.folder / "ca.pem"),
        "ssl.certificate.location": str(listeners.folder / "client.pem"),
        "ssl.key.location": str(listeners.folder / "client.pem"),
        "group.id": "airflow",
    }
    aws = {"endpoint_url": s3.endpoint, "region_name": "us-east-1"}
    return {
        "spark_default": {"conn_type": "spark", "host": "local[2]"},
        "kafka_of_flights": {"conn_type": "kafka", "extra": json.dumps(kafka)},
        "savepoints": {"conn_type": "aws", "login": s3.access_key, "password": s3.secret_key, "extra": json.dumps(aws)},
    }


@pytest.fixture(scope="module")
def world(
    streamed_two_days: StreamedRun,
    tmp_path_factory: pytest.TempPathFactory,
    broker: BrokerInfo,
    listeners: SecureListeners,
) -> Iterator[World]:
    create_user(broker.bootstrap)
    folder = tmp_path_factory.mktemp("own")
    reason = why_not(REPOSITORY / ".build", folder / "s3")
    if reason is not None:
        pytest.skip(reason)
    shutil.copytree(streamed_two_days.settings.project, folder / "project", symlinks=True)
    settings = replace(streamed_two_days.settings, project=folder / "project", home=folder / "home")
    shutil.copytree(streamed_two_days.home.root, settings.pipeline(PIPELINE).root)
    write_intent(settings.pipeline(PIPELINE), "stopped", "test", utc_now())
    lineage = folder / "lineage.jsonl"
    variables = {
        "RIVERTWICE_PROJECT": str(settings.project),
        "RIVERTWICE_HOME": str(settings.home),
        "RIVERTWICE_SPARK_MASTER": "local[2]",  # that of the connection, so that short jobs run in the warm engine
        "RIVERTWICE_SAVEPOINTS": f"s3://{BUCKET}/savepoints",
        "RIVERTWICE_KAFKA_CONN_ID": "kafka_of_flights",
        "RIVERTWICE_AWS_CONN_ID": "savepoints",
        "SPARK_SUBMIT_OPTS": small_jobs(),
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps({"type": "file", "log_file_path": str(lineage), "append": True}),
        "AIRFLOW__OPENLINEAGE__NAMESPACE": "tests",
    }
    with s3_server(REPOSITORY / ".build", folder / "s3") as s3:
        client_of(s3).create_bucket(Bucket=BUCKET)
        with own_airflow(folder / "airflow", install_wheel(folder), variables) as airflow:
            (airflow.dags / "rivertwice.py").write_text(ONE_FILE)
            shutil.copy(REPOSITORY / "examples" / "dags" / "after_reconcile.py", airflow.dags)
            start_agent(settings)
            try:
                client = airflow.start()
                file = airflow.folder / "connections.json"
                file.write_text(json.dumps(connections(listeners, s3)))
                airflow.command("connections", "import", str(file))
                file.unlink()
                client.ensure_pool("spark_batch", 1, "of the tests")
                client.wait_for_dags({*(f"{verb}__{PIPELINE}" for verb in VERBS), WAITING}, timeout=180)
                yield World(settings, airflow, client, s3, lineage)
            finally:
                airflow.stop()
                stop_engine(settings)
                stop_agent(settings)


def client_of(s3: S3Server) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.env().items():
            patch.setenv(name, value)
        return s3_client()


def test_one_file_of_three_lines_is_all_that_their_dag_folder_needs(world: World) -> None:
    assert len(ONE_FILE.splitlines()) == 3
    assert world.client.import_errors() == []
    assert world.client.dag_ids() == {*(f"{verb}__{PIPELINE}" for verb in VERBS), WAITING}


def test_airflow_lists_the_provider_its_links_and_its_notifiers(world: World) -> None:
    from rivertwice import __version__

    providers = json.loads(world.airflow.command("providers", "list", "--output", "json"))
    assert {"rivertwice": __version__} == {
        p["package_name"]: p["version"] for p in providers if p["package_name"] == "rivertwice"
    }
    links = world.airflow.command("providers", "links", "--output", "json")
    assert "rivertwice.airflow.operators.ReportLink" in links
    assert "rivertwice.airflow.alerts.AlertNotifier" in world.airflow.command(
        "providers", "notifications", "--output", "json"
    )


def test_the_page_comes_with_the_package_and_once(world: World) -> None:
    plugins = world.airflow.get("/api/v2/plugins")["plugins"]
    (own,) = [plugin for plugin in plugins if plugin["name"] == "rivertwice"]
    assert "rivertwice" in own["source"]
    errors = world.airflow.get("/api/v2/plugins/importErrors")["import_errors"]
    of_the_clone = (
        "rivertwice==0.1.0: EntryPoint("  # the tests' environment has the clone's metadata beside the wheel's
    )
    assert [each for each in errors if not each["source"].startswith(of_the_clone)] == []
    assert len(errors) <= 1
    assert httpx.get(f"{world.airflow.url}/rivertwice/", trust_env=False, timeout=60).status_code == 200
    (pipeline,) = world.airflow.get("/rivertwice/api/overview")["pipelines"]
    assert pipeline["name"] == PIPELINE


def test_a_job_logs_in_to_kafka_by_the_connection(world: World) -> None:
    world.run("care", {"act": "archive"})
    assert list((world.settings.home / "archive").rglob("*.parquet"))


def test_a_task_writes_to_s3_by_the_connection(world: World) -> None:
    run = world.run("care", {"prove": False, "reason": "by a connection"})
    taken = world.client.xcom(f"care__{PIPELINE}", run, "report")["savepoint"]
    found = client_of(world.s3).list_objects_v2(Bucket=BUCKET, Prefix=f"savepoints/{PIPELINE}/")
    assert [each["Key"] for each in found["Contents"] if taken in each["Key"]]
    assert list_savepoints(world.settings.pipeline(PIPELINE)) == []  # none beside it, on this host


def days(world: World) -> list[tuple[str, str]]:
    """Return for each run of the waiting DAG that ended well, oldest first, its partition and the reconcile that it was told."""
    runs = world.airflow.get(f"/api/v2/dags/{WAITING}/dagRuns", limit=100, order_by="id")["dag_runs"]
    ended = [run for run in runs if run["state"] == "success"]
    used = [world.client.xcom(WAITING, run["dag_run_id"], "use_day") for run in ended]
    assert [run["partition_key"] for run in ended] == [each["day"] for each in used]
    return [(each["day"], each["reconcile"]) for each in used]


def announced(world: World) -> list[dict[str, Any]]:
    """Return the events of the reconciled days, oldest first."""
    assets = world.airflow.get("/api/v2/assets", name_pattern=f"reconciled.{PIPELINE}")["assets"]
    (asset,) = [each for each in assets if each["name"] == f"reconciled.{PIPELINE}"]
    events = world.airflow.get("/api/v2/assets/events", asset_id=asset["id"], limit=100, order_by="timestamp")
    return list(events["asset_events"])


@dataclass(frozen=True)
class Story:
    """Reconciles and a backfill of one day, one after the other: what each of them left.

    Attributes:
        first, last: the reports of the first reconcile, and of the one after the backfill.
        days: after each of the five runs, what the waiting DAG has used.
        events: likewise, the events of the asset.
    """

    first: dict[str, Any]
    last: dict[str, Any]
    days: list[list[tuple[str, str]]]
    events: list[list[dict[str, Any]]]


@pytest.fixture(scope="module")
def story(world: World) -> Story:
    home = world.settings.pipeline(PIPELINE)
    seen: list[list[tuple[str, str]]] = []
    events: list[list[dict[str, Any]]] = []

    def look(expected: int) -> None:
        wait_for(f"{expected} runs of the waiting DAG", lambda: len(days(world)) >= expected, 180)
        seen.append(days(world))
        events.append(announced(world))

    one_day: dict[str, object] = {
        "scope": "range",
        "start": f"{FIRST}T00:00:00Z",
        "end": f"{SECOND}T00:00:00Z",
        "reason": "one day",
    }
    world.run("reconcile")
    first = newest_reconcile(home)
    look(2)
    world.run("reconcile")
    look(2)
    world.run("backfill", one_day)
    look(2)
    world.run("reconcile")
    last = newest_reconcile(home)
    look(3)
    world.run("reconcile")
    look(3)
    return Story(first, last, seen, events)


def test_a_downstream_dag_runs_once_a_day_and_again_for_a_corrected_day(story: Story) -> None:
    assert story.first["counts"]["served"]["LATE"] > 0
    assert sorted(story.days[0]) == [(FIRST, story.first["run"]), (SECOND, story.first["run"])]
    whole = {"from": f"{FIRST}T00:00:00Z", "to": "2013-07-02T00:00:00Z"}
    assert [event["extra"]["range"] for event in story.events[0]] == [whole, whole]
    assert sorted(event["partition_key"] for event in story.events[0]) == [FIRST, SECOND]
    assert [len(each) for each in story.days] == [2, 2, 2, 3, 3]
    assert [len(each) for each in story.events[:3]] == [2, 2, 2]
    assert story.days[3][-1] == (FIRST, story.last["run"])
    event = story.events[3][-1]
    assert event["partition_key"] == FIRST
    assert event["extra"]["range"] == {"from": f"{FIRST}T00:00:00Z", "to": f"{SECOND}T00:00:00Z"}


@pytest.mark.usefixtures("story")
def test_a_task_links_to_its_pipeline_and_to_its_report(world: World) -> None:
    dag = f"reconcile__{PIPELINE}"
    run = next(run for run in reversed(world.client.runs(dag)) if world.client.state(dag, run) == "success")
    links = world.airflow.get(f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/compare/links")["extra_links"]
    page = f"{world.airflow.url}/rivertwice/?pipeline={PIPELINE}"
    stored = world.client.xcom(dag, run, "gate")["run"]
    assert links["rivertwice: pipeline"] == page
    assert links["rivertwice: report"] == f"{page}&run={stored}"
    asked = {name: value[0] for name, value in parse_qs(urlsplit(links["rivertwice: report"]).query).items()}
    report = world.airflow.get(f"/rivertwice/api/p/{PIPELINE}/report", run=asked["run"])
    assert (report["kind"], report["run"], report["passed"]) == ("reconcile", stored, True)
    address = f"{world.airflow.url}/rivertwice/api/p/{PIPELINE}/report"
    assert httpx.get(address, params=asked, trust_env=False, timeout=60).status_code == 401
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        world.airflow.get(f"/rivertwice/api/p/{PIPELINE}/report", run="rc-000000000000-1")

    dag = f"backfill__{PIPELINE}"
    run = next(run for run in world.client.runs(dag) if world.client.state(dag, run) == "success")
    links = world.airflow.get(f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/compute/links")["extra_links"]
    asked = {name: value[0] for name, value in parse_qs(urlsplit(links["rivertwice: report"]).query).items()}
    report = world.airflow.get(f"/rivertwice/api/p/{PIPELINE}/report", run=asked["run"])
    assert report["kind"] == "backfill"
    assert "one day" in report["lines"][0]


@pytest.mark.usefixtures("story")
def test_lineage_of_a_reconcile_follows_openlineages_schema(world: World) -> None:
    events = [json.loads(line) for line in world.lineage.read_text().splitlines() if line.strip()]
    own = [
        each
        for each in events
        if each["job"]["name"] == f"reconcile__{PIPELINE}.compare" and each["eventType"] == "COMPLETE"
    ]
    assert own
    event = own[-1]
    assert findings(event, "OpenLineage", "RunEvent") == []
    topic, served = event["inputs"]
    (output,) = event["outputs"]
    assert [each for dataset in (topic, served, output) for each in dataset_findings(dataset)] == []
    assert topic["namespace"].startswith("kafka://127.0.0.1:")
    assert topic["name"] == "two-days"
    assert (output["namespace"], output["name"]) == ("file", str(world.settings.pipeline(PIPELINE).public_served))
    assert {field["name"]: field["type"] for field in output["facets"]["schema"]["fields"]}[
        "window_start"
    ] == "timestamp"
    assertions = served["inputFacets"]["dataQualityAssertions"]["assertions"]
    counts = newest_reconcile(world.settings.pipeline(PIPELINE))["counts"]
    actual = {each["name"]: each["actual"] for each in assertions if "actual" in each}
    assert actual["no row of stream is LATE"] == str(counts["stream"]["LATE"])
    assert actual["every record is explained"] == "0"


@pytest.mark.usefixtures("story")
def test_no_secret_is_in_airflows_database_or_in_any_file(world: World) -> None:
    """Connections are encrypted; XCom, rendered fields and logs of tasks and jobs have none; nor has what rivertwice stores."""
    secrets = (CORE, world.s3.secret_key)
    with sqlite3.connect(f"file:{world.airflow.folder / 'airflow.db'}?mode=ro", uri=True) as database:
        dump = "\n".join(database.iterdump())
    assert "spark_jobs" in dump
    assert "kafka_of_flights" in dump
    assert not [secret for secret in secrets if secret in dump]
    folders = (world.airflow.folder, world.settings.home, world.lineage.parent / "lineage.jsonl")
    files = [path for folder in folders for path in (folder.rglob("*") if folder.is_dir() else [folder])]
    files = [path for path in files if path.is_file() and not path.is_symlink()]
    assert any("attempt=" in path.name for path in files)
    holding = [str(path) for path in files if any(secret.encode() in content(path) for secret in secrets)]
    assert holding == []


def content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
