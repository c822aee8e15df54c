"""A real Redis server of a test's own, on loopback, in memory."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from rivertwice.core.ports import held_ports
from running.waiting import wait_for


def missing() -> str | None:
    """Return why no server can be started here, or None."""
    return (
        None
        if shutil.which("redis-server")
        else "no Redis here (redis-server); on Debian: apt-get install redis-server"
    )


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Run a server whose files lie in `folder` and give its address, without a database's number."""
    with held_ports(1) as (port,):
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder)]
        with (folder / "redis.log").open("wb") as log:
            process = subprocess.Popen(["redis-server", *options], stdout=log, stderr=log)
        try:
            wait_for("Redis", lambda: answers(port), 30)
            yield f"redis://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


def answers(port: int) -> bool:
    with redis.Redis(port=port, socket_timeout=5) as client:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False
