"""A real S3 server for tests and fault runs: versitygw on a folder, on loopback, with credentials of its own."""

from __future__ import annotations

import os
import secrets
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.faults.children import end
from lab.faults.versitygw import versitygw_binary
from rivertwice.core.errors import ServiceError
from rivertwice.core.ports import held_ports

_START_S = 20.0


@dataclass(frozen=True)
class S3Server:
    """A running server.

    Attributes:
        endpoint: its address, `http://127.0.0.1:PORT`.
        access_key: root user's name.
        secret_key: root user's secret, made for this run.
        objects: folder in which it keeps buckets as folders, and objects as files.
        pid: pid of its process.
    """

    endpoint: str
    access_key: str
    secret_key: str
    objects: Path
    pid: int

    def env(self, endpoint: str | None = None) -> dict[str, str]:
        """Return the variables by which boto3 and delta-rs find it, or a proxy in front of it at `endpoint`."""
        return {
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def address(self, bucket: str, path: str) -> str:
        """Return the address of a place there."""
        return f"s3://{bucket}/{path}"

    def create_bucket(self, name: str) -> None:
        """Create a bucket."""
        (self.objects / name).mkdir()


def keeps_attributes(folder: Path) -> bool:
    """Say whether files in `folder` can carry extended attributes, where versitygw keeps ETags and metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".xattr-{secrets.token_hex(4)}"
    probe.touch()
    try:
        os.setxattr(probe, "user.rivertwice", b"1")
    except OSError:
        return False
    finally:
        probe.unlink()
    return True


def why_not(build: Path, folder: Path) -> str | None:
    """Return why the server cannot run here, or None if it can."""
    if versitygw_binary(build) is None:
        return "versitygw is not built: `make setup-dev` builds it where Go is installed"
    if not keeps_attributes(folder):
        return f"versitygw needs extended attributes, and the file system of {folder} has none"
    return None


@contextmanager
def s3_server(build: Path, folder: Path) -> Iterator[S3Server]:
    """Run a server on the new or old content of `folder` and end it afterwards.

    Raises:
        ServiceError: it cannot run here, or did not answer in time.
    """
    reason = why_not(build, folder)
    binary = versitygw_binary(build)
    if reason is not None or binary is None:
        raise ServiceError(reason or "versitygw is not built")
    objects, versions = folder / "objects", folder / "versions"
    objects.mkdir(parents=True, exist_ok=True)
    versions.mkdir(parents=True, exist_ok=True)
    access, secret = "rivertwice-test", secrets.token_hex(16)
    env = {**os.environ, "ROOT_ACCESS_KEY": access, "ROOT_SECRET_KEY": secret}
    posix = ("posix", "--versioning-dir", str(versions), str(objects))
    with held_ports(1) as (port,):
        command = [str(binary), "--port", f"127.0.0.1:{port}", "--health", "/health", "--quiet", *posix]
        with (folder / "server.log").open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
        server = S3Server(f"http://127.0.0.1:{port}", access, secret, objects, process.pid)
        try:
            _wait_until_healthy(server.endpoint, process, folder / "server.log")
            yield server
        finally:
            end(process)


def _wait_until_healthy(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{endpoint}/health", timeout=1):  # noqa: S310 (loopback, http)
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    message = (
        f"versitygw did not answer at {endpoint} within {_START_S:.0f} s: {log.read_text(errors='replace')[-500:]}"
    )
    raise ServiceError(message)
