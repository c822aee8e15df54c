"""A stream over a broker that asks for a login, with its savepoints on S3: the secrets reach no argv, log, file or object."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import boto3
import psutil
import pytest
from moto.server import ThreadedMotoServer

from lab.faults.lab import PIPELINE, Lab
from rivertwice.agent.launch import start_agent
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.local.broker import BrokerInfo
from rivertwice.savepoint.take import take_savepoint
from rivertwice.timeline.intent import Heartbeat, write_intent
from servers.secure_kafka import CORE, ENV, SecureListeners, create_user

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

S3 = {
    "AWS_ACCESS_KEY_ID": "CANARYKEYID7f3a",
    "AWS_SECRET_ACCESS_KEY": "canary-secret-9c1e4b",
    "AWS_SESSION_TOKEN": "canary-token-55d0aa",
}
SECRETS = [CORE, S3["AWS_SECRET_ACCESS_KEY"], S3["AWS_SESSION_TOKEN"]]


class Watch(threading.Thread):
    """Collects the argv of every process that knows the home: agent, drivers, their JVMs, whatever those start."""

    def __init__(self, home: Path) -> None:
        super().__init__(daemon=True)
        self._home = str(home)
        self.over = threading.Event()
        self.seen: set[str] = set()

    def run(self) -> None:
        """Look again and again until told to stop."""
        while not self.over.wait(0.2):
            for process in psutil.process_iter():
                try:
                    if process.environ().get("RIVERTWICE_HOME") == self._home:
                        self.seen.add("\0".join(process.cmdline()))
                except psutil.Error:
                    continue


@pytest.fixture
def lab(
    kafka_settings: Settings,
    broker: BrokerInfo,
    listeners: SecureListeners,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[Lab]:
    """A run of lab_sums whose processes log in over TLS and keep savepoints on S3; the oracle uses the open listener."""
    create_user(broker.bootstrap)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {**ENV, **S3, "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="canary")
    made = Lab(kafka_settings, tmp_path / "lab", 1)
    yield made
    made.close()
    server.stop()


@pytest.mark.proves("security.md#security")
@pytest.mark.faults
def test_a_driver_streams_over_a_login_and_leaves_no_secret(lab: Lab, listeners: SecureListeners) -> None:
    lab.produce(lab.next_plan(records=200))
    opened = lab.settings
    opened = replace(opened, savepoint_store="s3://canary/points", leases="s3://canary/leases")
    settings = listeners.settings(opened)
    watch = Watch(settings.home)
    watch.start()
    lab.settings = settings
    home = settings.pipeline(PIPELINE)
    write_intent(home, "running", "test", utc_now())
    start_agent(settings)

    def read_all() -> bool:
        beat = Heartbeat.load(home)
        return beat is not None and beat.lag == 0 and beat.batch is not None

    def stopped() -> bool:
        beat = Heartbeat.load(home)
        return beat is not None and beat.state == "stopped"

    lab.until(read_all, 180, "the stream's coming to the end of the log")
    take_savepoint(settings, PIPELINE, now=utc_now())
    write_intent(home, "stopped", "test", utc_now())
    lab.until(stopped, 60, "the drain")
    lab.until(lambda: not home.drain.exists(), 60, "the agent's taking its drain marker away")
    lab.stop_agent()

    lab.settings = opened  # the listener that asks for nothing, for the producer and the oracle
    lab.produce(lab.next_plan(records=200))
    lab.settings = listeners.plain_settings(opened)
    lab.run_to_end()  # the same checkpoint goes on over another listener, the password from a file
    lab.settings = opened
    watch.over.set()
    watch.join()
    judged = lab.judge()
    assert (judged.lost, judged.duplicated, judged.wrong, judged.unexplained) == (0, 0, 0, 0)
    assert judged.records == lab.produced

    for part in ("rivertwice.agent.agent", "rivertwice.stream.driver", "org.apache.spark.deploy.SparkSubmit"):
        assert any(part in argv for argv in watch.seen), part
    assert not [argv for argv in watch.seen if any(secret in argv for secret in SECRETS)]

    files = {path.relative_to(lab.folder) for path in lab.folder.rglob("*") if path.is_file() and not path.is_symlink()}
    names = {path.name for path in files}
    assert names >= {"heartbeat.json", "exit.json", "driver.log", "log", "events.jsonl", "timeline.json"}
    assert [str(path) for path in files if holds_secret((lab.folder / path).read_bytes())] == []

    client = boto3.client("s3", region_name="us-east-1")
    keys = [entry["Key"] for entry in client.list_objects_v2(Bucket="canary")["Contents"]]
    assert any(key.endswith("manifest.json") for key in keys)
    assert any(key.endswith("lease.json") for key in keys)
    for key in keys:
        answer = client.get_object(Bucket="canary", Key=key)
        assert not holds_secret(answer["Body"].read() + json.dumps(answer["Metadata"]).encode()), key


def holds_secret(data: bytes) -> bool:
    return any(secret.encode() in data for secret in SECRETS)


def test_the_search_itself_finds_a_secret_in_an_argv_and_in_bytes(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    watch.start()
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)", CORE],
        env={**os.environ, "RIVERTWICE_HOME": str(tmp_path)},
    )
    try:
        while not any(CORE in argv for argv in set(watch.seen)) and child.poll() is None:
            watch.over.wait(0.05)
        assert any(CORE in argv for argv in watch.seen)
    finally:
        child.kill()
        child.wait()
        watch.over.set()
    assert holds_secret(f'{{"a": "{SECRETS[1]}"}}'.encode())
