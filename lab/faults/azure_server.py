"""A real Azure server for tests: Azurite's Blob service, on loopback, with an account of its own. Only tests need it.

npm installs it (`lab.faults.servers`) and checks each package against the SHA-512 of `azurite/package-lock.json`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

from lab.faults.children import end
from rivertwice.core.errors import ServiceError
from rivertwice.core.locks import lock
from rivertwice.core.ports import held_ports

_PACKAGES = Path(__file__).parent / "azurite"
VERSION: str = json.loads((_PACKAGES / "package.json").read_text())["dependencies"]["azurite"]
_NODE = 20
NO_NPM = f"azurite {VERSION} is not installed, for this machine has no npm or no Node {_NODE}; `make setup-dev` installs it where there is one"
_START_S = 30.0
_PATIENCE_S = 600
_API = "2021-08-06"


def azurite_program(build: Path) -> Path | None:
    """Return the installed server, or None.

    Not below 3.36: those ignore `startFrom` of a listing, by which delta-rs 1.6.6 finds the newest commit ("Invalid table version").
    """
    program = build / "azurite" / VERSION / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    return program if program.exists() and _has_node() else None


def _has_node() -> bool:
    """Say whether there is a Node that runs it: 22 by its own word, and 20 as seen."""
    node = shutil.which("node")
    if node is None:
        return False
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    return int(said.strip().removeprefix("v").partition(".")[0] or 0) >= _NODE


def install_azurite(build: Path) -> str:
    """Install the server unless it is there; return a text about it. Never an error: tests skip without it."""
    npm, folder = shutil.which("npm"), build / "azurite" / VERSION
    with lock(folder.with_suffix(".lock")):
        if azurite_program(build) is not None:
            return f"azurite {VERSION}, there"
        if npm is None or not _has_node():
            return NO_NPM
        made = folder.with_name(f".{VERSION}.tmp")
        shutil.rmtree(made, ignore_errors=True)
        shutil.copytree(_PACKAGES, made)
        command = [npm, "ci", "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund"]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                cwd=made,
                timeout=_PATIENCE_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"azurite {VERSION} could not be installed ({error}); the tests that need it skip"
        if done.returncode != 0:
            return (
                f"azurite {VERSION} could not be installed ({done.stderr.strip()[-300:]}); the tests that need it skip"
            )
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
        return f"azurite {VERSION}, installed"


@dataclass(frozen=True)
class AzureServer:
    """A running server.

    Attributes:
        endpoint: its address with the account, `http://127.0.0.1:PORT/ACCOUNT`.
        key: of the account, made for this run.
    """

    endpoint: str
    account: str
    key: str

    def env(self, endpoint: str | None = None) -> dict[str, str]:
        """Return the variables by which obstore and delta-rs find it, or a proxy in front of it at `endpoint`."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": self.account,
            "AZURE_STORAGE_ACCOUNT_KEY": self.key,
            "AZURE_STORAGE_ENDPOINT": f"{endpoint}/{self.account}" if endpoint else self.endpoint,
        }

    def address(self, container: str, path: str) -> str:
        """Return the address of a place there."""
        return f"abfss://{container}@{self.account}.dfs.core.windows.net/{path}"

    def create_bucket(self, name: str) -> None:
        """Create a container, which is what others call a bucket; one that is there stays."""
        date = formatdate(usegmt=True)
        path = f"/{self.account}/{self.account}/{name}"
        signed = "\n".join(["PUT", *[""] * 11, f"x-ms-date:{date}", f"x-ms-version:{_API}", path, "restype:container"])
        digest = hmac.new(base64.b64decode(self.key), signed.encode(), hashlib.sha256).digest()
        login = f"SharedKey {self.account}:{base64.b64encode(digest).decode()}"
        headers = {"x-ms-date": date, "x-ms-version": _API, "Authorization": login}
        request = urllib.request.Request(f"{self.endpoint}/{name}?restype=container", method="PUT", headers=headers)  # noqa: S310 (loopback)
        try:
            urllib.request.urlopen(request, timeout=10).close()  # noqa: S310 (loopback, http)
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise


@contextmanager
def azure_server(build: Path, folder: Path) -> Iterator[AzureServer]:
    """Run a server, which keeps all in memory, and end it afterwards.

    Raises:
        ServiceError: it is not installed, or did not answer in time.
    """
    program, node = azurite_program(build), shutil.which("node")
    if program is None or node is None:
        message = "azurite is not installed: `make setup-dev` installs it where npm is"
        raise ServiceError(message)
    folder.mkdir(parents=True, exist_ok=True)
    account, key = "rivertwice", base64.b64encode(secrets.token_bytes(32)).decode()
    env = {**os.environ, "AZURITE_ACCOUNTS": f"{account}:{key}"}
    said = folder / "server.log"
    with held_ports(1) as (port,):
        options = ["--silent", "--disableTelemetry", "--skipApiVersionCheck", "--inMemoryPersistence"]
        command = [node, str(program), "--blobHost", "127.0.0.1", "--blobPort", str(port), *options]
        with said.open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=folder)
        try:
            _wait_until_listening(said, process)
            yield AzureServer(f"http://127.0.0.1:{port}/{account}", account, key)
        finally:
            end(process)


def _wait_until_listening(said: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        if "successfully listens" in said.read_text(errors="replace"):
            return
        time.sleep(0.05)
    message = f"azurite did not listen within {_START_S:.0f} s: {said.read_text(errors='replace')[-500:]}"
    raise ServiceError(message)
