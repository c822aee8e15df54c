"""compose and the Kubernetes manifest as they stand, run in boxes: each container's own command, environment, checks, mounts, names.

Slow: a broker, PostgreSQL, an S3 server, a Spark cluster, the agent and four processes of Airflow, each in namespaces of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from boxes import Box, Boxes, missing
from boxes.compose_file import compose_containers, make_secrets, manifest_containers, manifest_data
from rivertwice.airflow.airflow_api import AirflowClient
from running.deployed import Deployed
from servers.airflow import PIPELINE

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.faults,
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]
RECORDS = 500


class OfBoxes(Deployed):
    """A pipeline whose agent is in a box."""

    def __init__(self, boxes: Boxes) -> None:
        super().__init__()
        self.boxes = boxes

    @property
    def agent(self) -> Box:
        return self.boxes.boxes["agent"]

    def ask(self, *words: str) -> str:
        return self.agent.ask("rivertwice", *words, timeout=600)

    def send(self, records: int) -> None:
        """Send flights of a day by the lab's command, whose code the image lacks, from where the agent is."""
        day = ("--from", "2013-06-30", "--to", "2013-06-30", "--limit", str(records))
        self.say(
            self.agent.ask("env", "PYTHONPATH=/opt/rivertwice/src:/opt/lab", "rivertwice", "replay", "flights", *day)
        )

    def exit(self, state: str) -> dict[str, Any]:
        """Return why the driver ended, as it wrote it."""
        return dict(json.loads((self.boxes.volume(state) / "pipelines" / PIPELINE / "exit.json").read_text()))


@pytest.fixture
def make_boxes(tmp_path: Path) -> Iterator[Callable[[list[str]], Boxes]]:
    made: list[Boxes] = []

    def make(names: list[str]) -> Boxes:
        made.append(Boxes(tmp_path / "boxes", names))
        return made[-1]

    yield make
    for boxes in made:
        boxes.close()


def test_the_compose_file_runs_and_its_airflow_runs_every_verb(
    make_boxes: Callable[[list[str]], Boxes],
) -> None:
    containers = {name: each for name, each in compose_containers(make_secrets()).items() if not each.profiles}
    boxes = make_boxes(list(containers))
    here = OfBoxes(boxes)
    boxes.up(containers, here.say)
    here.send(RECORDS)
    here.timed("start", lambda: here.ask("start", PIPELINE, "--wait"))
    seen = here.until_read()
    here.say(f"streamed: {seen}")

    password = json.loads((boxes.volume("state") / "airflow" / "passwords.json").read_text())["admin"]
    url = f"http://{boxes.addresses['airflow-api']}:8080"

    def work() -> None:
        airflow = AirflowClient(url, "admin", password)
        here.by_airflow(airflow, "rotate", "archive", "reconcile", "backfill")
        states = {airflow.state(f"care__{PIPELINE}", run) for run in airflow.runs(f"care__{PIPELINE}")}
        assert "failed" not in states, states

    boxes.inside(work)
    here.proved()
    assert [each["published"] for each in here.json("backfill", "list", PIPELINE)] == [2]  # 1 is the head
    objects = {path.parts[0] for path in (each.relative_to(boxes.volume("objects") / "rivertwice") for each in
               (boxes.volume("objects") / "rivertwice").rglob("*"))}  # fmt: skip
    assert {"savepoints", "leases"} <= objects

    assert here.agent.stop() == 0, here.agent.tail()
    ended = here.exit("state")
    here.say(f"agent stopped; its driver: {ended}")
    assert ended["clean"]
    boxes.start(containers["agent"])
    boxes.healthy("agent")
    again = here.until_read()
    assert again["driver"]["epoch"] == seen["driver"]["epoch"] + 1
    here.say(f"the next agent: {again['driver']}")


def test_the_manifest_runs_and_a_stopping_pod_drains_its_drivers(
    make_boxes: Callable[[list[str]], Boxes],
) -> None:
    values = make_secrets()
    compose = compose_containers(values)
    around = {name: compose[name] for name in ("kafka", "s3", "s3-init")}  # the cluster's own, the manifest says
    names = [*around, "spark-master", *(f"spark-worker-{number}" for number in range(3)), "agent"]
    boxes = make_boxes(names)
    here = OfBoxes(boxes)
    boxes.up(around, here.say)
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
    boxes.start(main)
    boxes.healthy("agent", "readiness")
    here.send(60)
    here.timed("start", lambda: here.ask("start", PIPELINE, "--wait"))
    here.say(f"streamed: {here.until_read()}")
    for name in ("spark-master", "spark-worker-0", "agent"):
        assert boxes.passes(name, "liveness"), name
    assert here.agent.stop() == 0, here.agent.tail()
    ended = here.exit("rivertwice-state")
    here.say(f"the pod stopped; its driver: {ended}")
    assert ended["clean"]


@pytest.mark.proves("howto-deploy.md#who-holds-which-key", "security.md#security")
def test_the_platform_s_key_reaches_its_bucket_and_nothing_else(make_boxes: Callable[[list[str]], Boxes]) -> None:
    values = make_secrets()
    compose = compose_containers(values)
    boxes = make_boxes(["s3", "s3-init"])
    boxes.up({name: compose[name] for name in ("s3", "s3-init")}, OfBoxes(boxes).say)
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
