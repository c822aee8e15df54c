"""The stores of the contract: a local folder, moto, versitygw where it is built, Azurite and fake-gcs-server where they are installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest

from homes.project import REPOSITORY
from lab.faults.azure_server import AzureServer, azure_server, azurite_program
from lab.faults.gcs_server import PROGRAM as FAKE_GCS
from lab.faults.gcs_server import GcsServer, gcs_server
from lab.faults.s3_server import s3_server, why_not
from rivertwice.core.settings import Settings
from running.waiting import wait_for

BUCKET = "rivertwice"
MOTO_KEY = "moto"
S3_SERVERS = ["moto", "versitygw"]
CLOUDS = ["azurite", "fake_gcs"]
PLACES = ["local", *S3_SERVERS, *CLOUDS]


@dataclass(frozen=True)
class World:
    """An S3 server that runs, with one bucket; boto3 and delta-rs find it by `env`."""

    env: dict[str, str]

    @property
    def client(self):
        return boto3.client("s3", endpoint_url=self.env["AWS_ENDPOINT_URL"], **self.keys)

    @property
    def keys(self) -> dict[str, str]:
        return {
            "aws_access_key_id": self.env["AWS_ACCESS_KEY_ID"],
            "aws_secret_access_key": self.env["AWS_SECRET_ACCESS_KEY"],
            "region_name": "us-east-1",
        }


@pytest.fixture(scope="session")
def moto_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """moto in a process of its own: delta-rs reads a log without letting other Python threads run."""
    said = tmp_path_factory.mktemp("moto") / "server.log"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with said.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    keys = {"AWS_ACCESS_KEY_ID": MOTO_KEY, "AWS_SECRET_ACCESS_KEY": "test"}
    try:
        world = World({"AWS_ENDPOINT_URL": _address_in(said, process), "AWS_REGION": "us-east-1", **keys})
        world.client.create_bucket(Bucket=BUCKET)
        yield world
    finally:
        process.terminate()
        process.wait(20)


def _address_in(said: Path, process: subprocess.Popen) -> str:
    """Wait until moto says where it listens, which it does once it is bound."""

    def address() -> re.Match[str] | None:
        shown = re.search(r"Running on (http://127\.0\.0\.1:\d+)", said.read_text())
        assert shown or process.poll() is None, f"moto ended: {said.read_text()}"
        return shown

    return wait_for("the start of moto", address, 60, every=0.05, seen=said.read_text)[1]


@pytest.fixture(scope="session")
def versitygw_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("versitygw")
    build = Settings(project=REPOSITORY, home=folder).build
    reason = why_not(build, folder)
    if reason is not None:
        pytest.skip(reason)
    with s3_server(build, folder) as server:
        world = World(server.env())
        world.client.create_bucket(Bucket=BUCKET)
        yield world


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    folder = tmp_path_factory.mktemp("azurite")
    build = Settings(project=REPOSITORY, home=folder).build
    if azurite_program(build) is None:
        pytest.skip("azurite is not installed: `make setup-dev` installs it where npm is")
    with azure_server(build, folder) as server:
        server.create_bucket(BUCKET)
        yield server


@pytest.fixture(scope="session")
def fake_gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """A program that decides races, behind a front that only translates (`lab.faults.gcs_front`)."""
    folder = tmp_path_factory.mktemp("fake_gcs")
    build = Settings(project=REPOSITORY, home=folder).build
    if FAKE_GCS.binary(build) is None:
        pytest.skip("fake-gcs-server is not built: `make setup-dev` builds it where Go is installed")
    with gcs_server(build, folder) as server:
        server.create_bucket(BUCKET)
        yield server


def _enter(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    _set(world.env, monkeypatch)
    return world


def _set(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(params=S3_SERVERS)
def s3_world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    """An S3 server, with this process's environment pointing at it."""
    return _enter(request.getfixturevalue(f"{request.param}_world"), monkeypatch)


@pytest.fixture
def best_s3(request: pytest.FixtureRequest, tmp_path, monkeypatch: pytest.MonkeyPatch) -> World:
    """versitygw where it is built, else moto: for what takes long and does not depend on the server."""
    build = Settings(project=REPOSITORY, home=tmp_path).build
    name = "moto" if why_not(build, tmp_path / "probe") else "versitygw"
    return _enter(request.getfixturevalue(f"{name}_world"), monkeypatch)


def _address(request: pytest.FixtureRequest, tmp_path, monkeypatch: pytest.MonkeyPatch, kind: str) -> str:
    if kind == "local":
        return str(tmp_path / "place")
    if kind in CLOUDS:
        server = request.getfixturevalue(kind)
        _set(server.env(), monkeypatch)
        return server.address(BUCKET, uuid.uuid4().hex[:12])
    if kind == "best":
        request.getfixturevalue("best_s3")
    else:
        _enter(request.getfixturevalue(f"{kind}_world"), monkeypatch)
    return f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}"


@pytest.fixture(params=PLACES)
def store_place(request: pytest.FixtureRequest, tmp_path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder or an address that nobody else uses, on every store."""
    return _address(request, tmp_path, monkeypatch, request.param)


@pytest.fixture(params=["local", "best", *CLOUDS, pytest.param("moto", marks=pytest.mark.faults)])
def place(request: pytest.FixtureRequest, tmp_path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same for what takes longer: a folder, the best S3 there is, Azure, Google; moto as well among the slow tests."""
    return _address(request, tmp_path, monkeypatch, request.param)


@pytest.fixture
def on_moto() -> bool:
    """Whether the test runs on moto, which loses races; ask for it after the place."""
    return os.environ.get("AWS_ACCESS_KEY_ID") == MOTO_KEY


@pytest.fixture
def racers() -> Callable:
    """Start `count` threads at once and return what each returned."""
    import threading
    from concurrent.futures import ThreadPoolExecutor

    def race(count: int, act: Callable[[int], object]) -> list:
        gate = threading.Barrier(count)

        def run(number: int):
            gate.wait()
            return act(number)

        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(run, range(count)))

    return race
