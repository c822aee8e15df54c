"""compose and the Kubernetes manifest as they stand, run in boxes: each container's own command, environment, checks, mounts, names.

Slow: a broker, PostgreSQL, an S3 server, a Spark cluster, the agent and four processes of Airflow, each in namespaces of its own.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from boxes import Box, Boxes, missing
from boxes.compose_file import compose_containers, manifest_containers, manifest_data, required_variables
from rivertwice.airflow.airflow_api import AirflowClient
from running.waiting import wait_for
from servers.airflow import PIPELINE, VERBS, run_dag

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.faults,
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]
RECORDS = 500


def say(line: str) -> None:
    sys.stderr.write(f"[{time.strftime('%T')}] {line}\n")


def make_secrets() -> dict[str, str]:
    made = {name: secrets.token_hex(16) for name in required_variables()}
    return made | {"AIRFLOW_FERNET_KEY": urlsafe_b64encode(secrets.token_bytes(32)).decode()}


@pytest.fixture
def make_boxes(tmp_path: Path) -> Iterator[Callable[[list[str]], Boxes]]:
    made: list[Boxes] = []

    def make(names: list[str]) -> Boxes:
        made.append(Boxes(tmp_path / "boxes", names))
        return made[-1]

    yield make
    for boxes in made:
        boxes.close()


def send_flights(agent: Box, records: int) -> None:
    """Send flights of a day by the lab's command, whose code the image lacks, from where the agent is."""
    day = ("--from", "2013-06-30", "--to", "2013-06-30", "--limit", str(records))
    say(agent.ask("env", "PYTHONPATH=/opt/rivertwice/src:/opt/lab", "rivertwice", "replay", "flights", *day))


def status(agent: Box) -> dict[str, Any]:
    found = json.loads(agent.ask("rivertwice", "--output", "json", "status"))
    return next(dict(each) for each in found["pipelines"] if each["name"] == PIPELINE)


def until_streamed(agent: Box, timeout: float = 900.0) -> dict[str, Any]:
    """Wait until the stream has read all that there is."""

    def streamed() -> dict[str, Any] | None:
        shown = status(agent)
        return shown if shown["state"] in ("running", "idle") and shown["lag"] == 0 else None

    return wait_for("the stream", streamed, timeout, every=5, seen=lambda: f"{status(agent)}\n{agent.tail()}")


def drained(boxes: Boxes, state: str) -> dict[str, Any]:
    """Return why the driver ended, as it wrote it."""
    return dict(json.loads((boxes.volume(state) / "pipelines" / PIPELINE / "exit.json").read_text()))


def test_the_compose_file_runs_and_its_airflow_runs_every_verb(
    make_boxes: Callable[[list[str]], Boxes],
) -> None:
    containers = {name: each for name, each in compose_containers(make_secrets()).items() if not each.profiles}
    boxes = make_boxes(list(containers))
    boxes.up(containers, say)
    agent = boxes.boxes["agent"]
    send_flights(agent, RECORDS)
    say(agent.ask("rivertwice", "start", PIPELINE, "--wait", timeout=300))
    seen = until_streamed(agent)
    say(f"streamed: {seen}")

    password = json.loads((boxes.volume("state") / "airflow" / "passwords.json").read_text())["admin"]
    url = f"http://{boxes.addresses['airflow-api']}:8080"

    def work() -> None:
        airflow = AirflowClient(url, "admin", password)
        airflow.wait_for_dags({f"{verb}__{PIPELINE}" for verb in VERBS}, timeout=300)
        asked: dict[str, object] = {
            "scope": "range",
            "start": "2013-06-30T12:00:00Z",
            "end": "2013-06-30T14:00:00Z",
            "reason": "by compose",
        }
        archive: dict[str, object] = {"act": "archive"}
        for verb, conf in (("care", None), ("care", archive), ("reconcile", None), ("backfill", asked)):
            run_dag(airflow, f"{verb}__{PIPELINE}", conf, timeout=900)
            say(f"{verb} {conf or ''}: success")
        states = {airflow.state(f"care__{PIPELINE}", run) for run in airflow.runs(f"care__{PIPELINE}")}
        assert "failed" not in states, states
        assert states, "nobody supervised"

    boxes.inside(work)
    savepoints = json.loads(agent.ask("rivertwice", "--output", "json", "savepoint", "list", PIPELINE))
    assert "proved" in json.dumps(savepoints), savepoints
    backfills = json.loads(agent.ask("rivertwice", "--output", "json", "backfill", "list", PIPELINE))
    say(f"backfills: {backfills}")
    assert [each["published"] for each in backfills] == [2]  # entry 1 of the sequence is the head
    verdicts = agent.ask("rivertwice", "verdicts", PIPELINE)
    say(verdicts)
    objects = {path.parts[0] for path in (each.relative_to(boxes.volume("objects") / "rivertwice") for each in
               (boxes.volume("objects") / "rivertwice").rglob("*"))}  # fmt: skip
    assert {"savepoints", "leases"} <= objects

    assert agent.stop() == 0, agent.tail()
    ended = drained(boxes, "state")
    say(f"agent stopped; its driver: {ended}")
    assert ended["clean"]
    boxes.start(containers["agent"])
    boxes.healthy("agent")
    again = until_streamed(boxes.boxes["agent"])
    assert again["driver"]["epoch"] == seen["driver"]["epoch"] + 1
    say(f"the next agent: {again['driver']}")


def test_the_manifest_runs_and_a_stopping_pod_drains_its_drivers(
    make_boxes: Callable[[list[str]], Boxes],
) -> None:
    values = make_secrets()
    compose = compose_containers(values)
    around = {name: compose[name] for name in ("kafka", "s3", "s3-init")}  # the cluster's own, the manifest says
    names = [*around, "spark-master", *(f"spark-worker-{number}" for number in range(3)), "agent"]
    boxes = make_boxes(names)
    boxes.up(around, say)
    boxes.completed("s3-init")
    keys = {"AWS_ACCESS_KEY_ID": values["S3_ACCESS_KEY"], "AWS_SECRET_ACCESS_KEY": values["S3_SECRET_KEY"]}
    secret = {"rivertwice-s3": {**keys, "AWS_ENDPOINT_URL": "http://s3:7070"}}
    root = ("--access", values["S3_ROOT_ACCESS_KEY"], "--secret", values["S3_ROOT_SECRET_KEY"])
    bucket = ("create-bucket", "--bucket", "bucket", "--owner", values["S3_ACCESS_KEY"])
    boxes.boxes["s3"].ask("versitygw", "admin", *root, "--endpoint-url", "http://s3:7070", *bucket)

    addresses = {**boxes.addresses, "spark-worker": boxes.addresses["spark-worker-0"]}
    pods = manifest_containers(secret, addresses)
    for config in ("spark-conf", "alert-routes"):
        for name, text in manifest_data("ConfigMap", config).items():
            (boxes.volume(f"configmap/{config}") / name).write_text(text)
    boxes.start(pods["spark-master"][1])
    boxes.healthy("spark-master", "readiness")
    for number in range(pods["spark-worker"][2]):
        own = {**addresses, "spark-worker": boxes.addresses[f"spark-worker-{number}"]}
        boxes.start(manifest_containers(secret, own)["spark-worker"][1], f"spark-worker-{number}")
    for number in range(pods["spark-worker"][2]):
        boxes.healthy(f"spark-worker-{number}", "readiness")
    initial, main, _ = pods["agent"]
    for container in initial:
        boxes.start(container, "agent")
        boxes.completed("agent")
    agent = boxes.start(main)
    boxes.healthy("agent", "readiness")
    send_flights(agent, 60)
    say(agent.ask("rivertwice", "start", PIPELINE, "--wait", timeout=300))
    say(f"streamed: {until_streamed(agent)}")
    for name in ("spark-master", "spark-worker-0", "agent"):
        assert boxes.passes(name, "liveness"), name
    assert agent.stop() == 0, agent.tail()
    ended = drained(boxes, "rivertwice-state")
    say(f"the pod stopped; its driver: {ended}")
    assert ended["clean"]


@pytest.mark.proves("howto-deploy.md#who-holds-which-key", "security.md#security")
def test_the_platform_s_key_reaches_its_bucket_and_nothing_else(make_boxes: Callable[[list[str]], Boxes]) -> None:
    values = make_secrets()
    compose = compose_containers(values)
    boxes = make_boxes(["s3", "s3-init"])
    boxes.up({name: compose[name] for name in ("s3", "s3-init")}, say)
    boxes.completed("s3-init")
    key, secret = values["S3_ACCESS_KEY"], values["S3_SECRET_KEY"]

    def work() -> None:
        place = {"endpoint_url": f"http://{boxes.addresses['s3']}:7070", "region_name": "us-east-1"}
        client = boto3.client("s3", aws_access_key_id=key, aws_secret_access_key=secret, **place)
        client.put_object(Bucket="rivertwice", Key="a", Body=b"x")
        assert client.get_object(Bucket="rivertwice", Key="a")["Body"].read() == b"x"
        with pytest.raises(ClientError, match="AccessDenied"):
            client.create_bucket(Bucket="another")
        assert [one["Name"] for one in client.list_buckets()["Buckets"]] == ["rivertwice"]

    boxes.inside(work)
    admin = ("versitygw", "admin", "--endpoint-url", "http://s3:7070", "--access")
    root = (values["S3_ROOT_ACCESS_KEY"], "--secret", values["S3_ROOT_SECRET_KEY"])
    for verb in (("list-users",), ("create-user", "--access", "other", "--secret", "x" * 20, "--role", "admin")):
        asked = boxes.boxes["s3"].run(*admin, key, "--secret", secret, *verb)
        assert asked.returncode != 0, asked.stdout
        assert "AccessDenied" in asked.stdout + asked.stderr
    assert "other" not in boxes.boxes["s3"].ask(*admin, *root, "list-users")
