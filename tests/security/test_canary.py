"""Secrets of the environment reach no file, no log, no argv, no object of the store, no message of an error."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import boto3
import psutil
import pytest
from moto.server import ThreadedMotoServer

from homes.savepoint import NOW, make_home
from rivertwice.core.errors import RivertwiceError
from rivertwice.savepoint.take import take_savepoint
from rivertwice.storage.places import open_store
from rivertwice.storage.table import Table
from rivertwice.stream.lease import acquire_lease

CANARIES = {
    "AWS_ACCESS_KEY_ID": "CANARYKEYID7f3a",
    "AWS_SECRET_ACCESS_KEY": "canary-secret-9c1e4b",
    "AWS_SESSION_TOKEN": "canary-token-55d0aa",
    "AIRFLOW_FERNET_KEY": "canary-fernet-1b2c3d",
    "POSTGRES_PASSWORD": "canary-password-77e1",
}
# The key id is no secret: S3 sends it in the clear with every request. The others must appear nowhere.
SECRETS = [value.encode() for name, value in CANARIES.items() if name != "AWS_ACCESS_KEY_ID"]


@pytest.fixture
def bucket(monkeypatch):
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {**CANARIES, "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", region_name="us-east-1")
    client.create_bucket(Bucket="canary")
    yield client
    server.stop()


def holding(folder) -> list[str]:
    """Return the files below `folder` that hold a secret."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path) for path in files if any(secret in path.read_bytes() for secret in SECRETS)]


def run(settings, *words: str) -> tuple[str, list[str]]:
    """Run the command line; return what it printed and every argv seen below it."""
    command = [sys.executable, "-m", "rivertwice.cli.main", *words]
    env = {**os.environ, **settings.to_env()}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seen: list[str] = []

    def watch() -> None:
        while process.poll() is None:
            try:
                family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
                seen.extend(" ".join(each.cmdline()) for each in family)
            except psutil.NoSuchProcess:
                continue
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    printed, _ = process.communicate(timeout=120)
    watcher.join()
    return printed, seen


@pytest.mark.proves("security.md#security")
def test_savepoints_records_and_leases_on_s3_hold_no_secret(bucket, tmp_path):
    made, _ = make_home(tmp_path)
    settings = replace(made, savepoint_store="s3://canary/points", leases="s3://canary/leases")
    take_savepoint(settings, "p", now=NOW)
    acquire_lease(settings.pipeline("p"), "t1", NOW).release()
    keys = [entry["Key"] for entry in bucket.list_objects_v2(Bucket="canary")["Contents"]]
    assert any(key.endswith("manifest.json") for key in keys)
    assert "leases/p/lease.json" in keys
    for key in keys:
        answer = bucket.get_object(Bucket="canary", Key=key)
        data = answer["Body"].read() + str(answer["Metadata"]).encode()
        assert not [secret for secret in SECRETS if secret in data], key
    assert holding(tmp_path) == []


@pytest.mark.proves("security.md#security")
@pytest.mark.parametrize(
    "words",
    [
        ("--debug", "savepoint", "list", "p"),
        ("--debug", "savepoint", "take", "p"),
        ("--debug", "savepoint", "prune", "p", "--yes"),
        ("status",),
        ("doctor",),
        ("--debug", "savepoint", "restore", "p", "sp-t1-3-00000000", "--yes"),
    ],
    ids=lambda words: "-".join(word for word in words if word.isalpha()),
)
def test_the_command_line_tells_no_secret_in_output_argv_or_files(bucket, tmp_path, words):
    made, _ = make_home(tmp_path)
    settings = replace(made, savepoint_store="s3://canary/points")
    printed, seen = run(settings, *words)
    assert seen
    for secret in CANARIES.values():
        assert secret not in printed
        assert not [argv for argv in seen if secret in argv]
    assert holding(tmp_path) == []


def test_an_error_of_the_store_tells_no_secret(bucket, monkeypatch, caplog):
    caplog.set_level("DEBUG", logger="rivertwice")
    for endpoint in ("http://127.0.0.1:1", os.environ["AWS_ENDPOINT_URL"]):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        for act in (lambda: open_store("s3://absent/x", answer_s=0.3), lambda: Table("s3://absent/x/table").open()):
            try:
                act()
            except RivertwiceError as error:
                text = f"{error!r} {error} {error.__cause__!r}"
                assert not [secret for secret in SECRETS if secret.decode() in text]
    assert not [secret for secret in SECRETS if secret.decode() in caplog.text]
