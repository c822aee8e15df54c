"""A server of Google Cloud Storage for tests: fake-gcs-server behind `lab.faults.gcs_front`, on loopback. Only tests need it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.faults.children import end
from lab.faults.go_program import GoProgram
from rivertwice.core.errors import ServiceError
from rivertwice.core.ports import held_ports

PROGRAM = GoProgram("fake-gcs-server", "1.56.1", "github.com/fsouza/fake-gcs-server")
_START_S = 20.0


@dataclass(frozen=True)
class GcsServer:
    """A running server.

    Attributes:
        endpoint: the address of its front, `http://127.0.0.1:PORT`.
    """

    endpoint: str

    def env(self, endpoint: str | None = None) -> dict[str, str]:
        """Return the variable by which Google's clients and ours find it, or a proxy in front of it at `endpoint`."""
        return {"STORAGE_EMULATOR_HOST": endpoint or self.endpoint}

    def address(self, bucket: str, path: str) -> str:
        """Return the address of a place there."""
        return f"gs://{bucket}/{path}"

    def create_bucket(self, name: str) -> None:
        """Create a bucket."""
        url, headers = f"{self.endpoint}/storage/v1/b?project=tests", {"Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps({"name": name}).encode(), headers)  # noqa: S310 (loopback, http)
        urllib.request.urlopen(request, timeout=10).close()  # noqa: S310 (loopback, http)


@contextmanager
def gcs_server(build: Path, folder: Path) -> Iterator[GcsServer]:
    """Run a server, which keeps all in memory, and end it afterwards.

    Raises:
        ServiceError: it is not built, or did not answer in time.
    """
    binary = PROGRAM.binary(build)
    if binary is None:
        raise ServiceError(PROGRAM.no_go)
    folder.mkdir(parents=True, exist_ok=True)
    with held_ports(1) as (port,):
        address = f"127.0.0.1:{port}"
        options = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", address]
        command = [str(binary), *options, "-backend", "memory", "-log-level", "warn"]
        with (folder / "server.log").open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            _wait_until_healthy(f"http://{address}", process, folder / "server.log")
            with _front(f"http://{address}", folder / "front.log") as endpoint:
                yield GcsServer(endpoint)
        finally:
            end(process)


@contextmanager
def _front(target: str, said: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "lab.faults.gcs_front", target]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with said.open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=env)
    try:
        endpoint = (process.stdout or sys.stdin.buffer).readline().decode().strip()
        if not endpoint:
            message = f"the front of fake-gcs-server ended: {said.read_text(errors='replace')[-500:]}"
            raise ServiceError(message)
        yield endpoint
    finally:
        end(process)


def _wait_until_healthy(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{endpoint}/_internal/healthcheck", timeout=1):  # noqa: S310 (loopback, http)
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    message = f"fake-gcs-server did not answer at {endpoint} within {_START_S:.0f} s: {log.read_text(errors='replace')[-500:]}"
    raise ServiceError(message)
