"""The lease on a pipeline's stream: one driver at a time, each with a higher epoch.

Held by `flock`, so the system itself releases it when the process dies. The epoch is one file per start, created by
link (put-if-absent) and never removed.
"""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TextIO

import psutil

from rivertwice.config import PipelineHome
from rivertwice.errors import LeaseLostError
from rivertwice.instants import to_iso
from rivertwice.store.files import put_json_if_absent, read_json, replace_json

FORMAT = 1


@dataclass(frozen=True)
class Owner:
    """Who holds the lease. `started` values are the processes' creation times, so that a reused pid is seen."""

    epoch: int
    pid: int
    pid_started: float
    timeline: str
    jvm_pid: int | None = None
    jvm_started: float | None = None


def is_alive(pid: int | None, started: float | None) -> bool:
    """Say whether the very process (pid and creation time) still runs; a zombie does not count."""
    if pid is None or started is None:
        return False
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def read_owner(home: PipelineHome) -> Owner | None:
    """Return the last recorded owner, alive or not."""
    data = read_json(home.lease / "owner.json")
    if data is None:
        return None
    return Owner(**{key: value for key, value in data.items() if key not in {"format", "started_at"}})


def lease_owner(home: PipelineHome) -> Owner | None:
    """Return the owner if its process still lives, else None."""
    owner = read_owner(home)
    return owner if owner is not None and is_alive(owner.pid, owner.pid_started) else None


class Lease:
    """A held lease; lives as long as the process or until `release`."""

    def __init__(self, home: PipelineHome, lock: TextIO, owner: Owner, started_at: datetime) -> None:
        self._home = home
        self._lock = lock
        self._started_at = started_at
        self.owner = owner

    @property
    def epoch(self) -> int:
        """Number of this start."""
        return self.owner.epoch

    def record_jvm(self, pid: int) -> None:
        """Record the JVM this driver started, so that a successor can wait until it is gone."""
        started = psutil.Process(pid).create_time()
        self.owner = Owner(**{**asdict(self.owner), "jvm_pid": pid, "jvm_started": started})
        self._write()

    def check(self) -> None:
        """Raise LeaseLostError if a later epoch has started."""
        newest = _last_epoch(self._home)
        if newest != self.owner.epoch:
            message = (
                f"epoch {newest} of {self._home.root.name} has started, this driver is epoch {self.owner.epoch}: it no "
                "longer owns the stream and stops without writing"
            )
            raise LeaseLostError(message)

    def release(self) -> None:
        """Give the lease up."""
        self._lock.close()

    def _write(self) -> None:
        record = {"format": FORMAT, **asdict(self.owner), "started_at": to_iso(self._started_at)}
        replace_json(self._home.lease / "owner.json", record)


def _last_epoch(home: PipelineHome) -> int:
    return max((int(file.stem) for file in (home.lease / "epochs").glob("*.json")), default=0)


def acquire_lease(home: PipelineHome, timeline: str, now: datetime) -> Lease:
    """Take the lease and raise the epoch by one.

    A driver that was killed may leave its JVM for a moment; the successor waits until it is gone, and ends it if it
    does not go by itself, before anything is written.

    Raises:
        LeaseLostError: another process holds the lease.
    """
    home.lease.mkdir(parents=True, exist_ok=True)
    lock = (home.lease / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        owner = read_owner(home)
        who = "another process" if owner is None else f"process {owner.pid} (epoch {owner.epoch})"
        message = f"{who} owns the stream of {home.root.name}; this start ends here; stop the other one first"
        raise LeaseLostError(message) from None
    _wait_for_jvm(read_owner(home))
    epoch = _last_epoch(home) + 1
    while not put_json_if_absent(home.lease / "epochs" / f"{epoch:08d}.json", {"format": FORMAT, "at": to_iso(now)}):
        epoch += 1
    process = psutil.Process(os.getpid())
    lease = Lease(home, lock, Owner(epoch, process.pid, process.create_time(), timeline), now)
    lease._write()
    return lease


def _wait_for_jvm(owner: Owner | None, patience_s: float = 10.0) -> None:
    if owner is None:
        return
    deadline = time.monotonic() + patience_s
    while is_alive(owner.jvm_pid, owner.jvm_started):
        if time.monotonic() > deadline and owner.jvm_pid is not None:
            psutil.Process(owner.jvm_pid).kill()
        time.sleep(0.05)
