"""What the processes of one test run share: the first that needs a thing makes it, the last that leaves takes it down.

Without pytest-xdist there is one process, and everything is its own.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rivertwice.local.broker import BrokerInfo


def shared_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """Return a folder that all processes of this run find under the same name."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"shared-{name}"
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep the other processes out; they wait."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def joined(folder: Path, start: Callable[[], BrokerInfo], stop: Callable[[], object]) -> Iterator[BrokerInfo]:
    """Give the broker that `start` makes or finds running, and `stop` it when no process uses it any more."""
    users = folder / "users"
    with alone(folder):
        users.mkdir(exist_ok=True)
        (users / str(os.getpid())).touch()
        found = start()
    try:
        yield found
    finally:
        with alone(folder):
            (users / str(os.getpid())).unlink()
            if not any(users.iterdir()):
                stop()
