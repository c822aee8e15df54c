"""The lease on a pipeline's stream: one driver at a time, each with a higher epoch.

It has two parts. The first is a `flock` in the home, which the operating system releases when the process dies: it decides
among the processes of one host. The second is the claim of an epoch. In the home that is one file per start, created by link
(put-if-absent) and never removed. If more than one host may run the pipeline (`RIVERTWICE_LEASES`, or `RIVERTWICE_SHARED`), it
is one object of a store, renewed while the driver lives (`storage.leases`). With a store the lock comes first: its holder
knows that an earlier holder of the same home is dead, and need not wait.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TextIO

import psutil

from rivertwice.core import (
    Deadline,
    LeaseLostError,
    LostRaceError,
    PipelineHome,
    Started,
    is_alive,
    may_live,
    open_locked,
    own_start,
    parse_iso,
    started_of,
    to_iso,
    utc_now,
)
from rivertwice.engine import end_member
from rivertwice.storage import (
    StoreClaim,
    Terms,
    Watch,
    describe_copy,
    home_id,
    open_store,
    put_json_if_absent,
    read_json,
    replace_json,
    take_claim,
)

FORMAT = 1


@dataclass(frozen=True)
class Owner:
    """The holder of the lease.

    Attributes:
        pid, pid_started: its process; jvm_pid, jvm_started: the JVM that it uses.
        group: folder of the host that this JVM belongs to (`stream.group`); None: it is the process's own.
        started_at: when it took the lease, by its clock; for information only.
    """

    epoch: int
    pid: int
    pid_started: Started
    timeline: str
    jvm_pid: int | None = None
    jvm_started: Started | None = None
    started_at: datetime | None = None
    group: str | None = None


def lock_file(home: PipelineHome) -> Path:
    """Return the file that the driver of this home keeps locked while it lives."""
    return home.lease / "lock"


def read_owner(home: PipelineHome) -> Owner | None:
    """Return the last recorded owner, alive or not."""
    data = read_json(home.lease / "owner.json")
    if data is None:
        return None
    values = {key: value for key, value in data.items() if key != "format"}
    return Owner(**{**values, "started_at": parse_iso(at) if (at := data.get("started_at")) else None})


def lease_owner(home: PipelineHome) -> Owner | None:
    """Return the owner if its process still lives, else None; if the record cannot be judged on this host, the lock decides."""
    owner = read_owner(home)
    if owner is None or not is_alive(owner.pid, owner.pid_started, lock=lock_file(home)):
        return None
    return owner


class LeaseClaim(Protocol):
    """An epoch that is held."""

    @property
    def epoch(self) -> int:
        """Number of this start."""
        ...

    def check(self) -> None:
        """Raise LeaseLostError if another process holds the lease, or may hold it by now."""
        ...

    def release(self) -> None:
        """Give the epoch up; it is never used again."""
        ...


class FolderClaim:
    """An epoch as a file of the home. It needs no renewal: the operating system keeps the lock beside it."""

    def __init__(self, home: PipelineHome, epoch: int) -> None:
        self._home = home
        self._epoch = epoch

    @property
    def epoch(self) -> int:
        """Number of this start."""
        return self._epoch

    def check(self) -> None:
        """Raise LeaseLostError if a later epoch has started in this home."""
        newest = last_epoch(self._home)
        if newest != self._epoch:
            message = (
                f"epoch {newest} of {self._home.root.name} has started, this driver is epoch {self._epoch}: it no "
                "longer owns the stream and stops without writing"
            )
            raise LeaseLostError(message)

    def release(self) -> None:
        """Do nothing: the lock is released instead."""


class Lease:
    """A held lease; lives as long as the process or until `release`."""

    def __init__(self, home: PipelineHome, lock: TextIO, owner: Owner, claim: LeaseClaim | None = None) -> None:
        self._home = home
        self._lock = lock
        self._claim = claim or FolderClaim(home, owner.epoch)
        self.owner = owner

    @property
    def epoch(self) -> int:
        """Number of this start."""
        return self.owner.epoch

    def record_jvm(self, pid: int, group: str | None) -> None:
        """Record the JVM that this driver uses, so that a successor can wait until it has ended, or has ended this driver's query."""
        self.owner = replace(self.owner, jvm_pid=pid, jvm_started=started_of(pid), group=group)
        self._write()

    def check(self) -> None:
        """Raise LeaseLostError if a later epoch has started, or may have started by now."""
        self._claim.check()

    def release(self) -> None:
        """Give the lease up, the epoch first: another process of this home may start only when the lock is free."""
        self._claim.release()
        self._lock.close()

    def _write(self) -> None:
        at = self.owner.started_at
        record = {"format": FORMAT, **asdict(self.owner), "started_at": None if at is None else to_iso(at)}
        if self.owner.group is None:
            del record["group"]  # an earlier version reads this, too
        replace_json(self._home.lease / "owner.json", record)


def last_epoch(home: PipelineHome) -> int:
    """Return the newest epoch that this home has seen, 0 if none."""
    return max((int(file.stem) for file in (home.lease / "epochs").glob("*.json")), default=0)


def acquire_lease(home: PipelineHome, timeline: str, now: datetime, *, terms: Terms | None = None) -> Lease:
    """Take the lease and raise the epoch by one.

    A driver that was killed may leave its JVM for a moment. The successor waits until the JVM has ended, and kills it if it
    does not end by itself, before anything is written. A JVM that other drivers use stays, if its host says that the query has ended.

    Args:
        home: the pipeline's home; its `lease_place` is where epochs are claimed.
        timeline: the head, for information only.
        terms: for a lease in a store; None takes the usual ones.

    Raises:
        LeaseLostError: another process holds the lease.
    """
    lock = _take_lock(home)
    try:
        _wait_for_jvm(home)
        claim = _claim_in_home(home, now) if home.lease_place is None else _claim_in_store(home, timeline, now, terms)
    except BaseException:
        lock.close()
        raise
    lease = Lease(home, lock, Owner(claim.epoch, os.getpid(), own_start(), timeline, started_at=now), claim)
    lease._write()
    return lease


@contextmanager
def hold_lease(home: PipelineHome, now: datetime) -> Iterator[Callable[[], None]]:
    """Hold the lease without being a driver: no driver can start meanwhile, on any host, and none is recorded.

    Yields:
        a function that raises LeaseLostError if another host took the lease over, or may have done so by now; to be called before
        each write.

    Raises:
        LeaseLostError: another process holds the lease.
    """
    lock = _take_lock(home)
    try:
        _wait_for_jvm(home)
        if home.lease_place is None:
            yield lambda: None
            return
        claim = _claim_in_store(home, "", now, None)
        try:
            yield claim.check
        finally:
            claim.release()
    finally:
        lock.close()


def _take_lock(home: PipelineHome) -> TextIO:
    lock = open_locked(lock_file(home))
    if lock is None:
        owner = read_owner(home)
        holder = "another process" if owner is None else f"epoch {owner.epoch} (process {owner.pid} on this host)"
        message = f"{holder} owns the stream of {home.root.name}; this start ends here; stop the other one first"
        raise LeaseLostError(message)
    return lock


def describe_copied_home(home: PipelineHome) -> str | None:
    """Return a warning if the home was copied and no store keeps the copies' drivers apart, else None."""
    return None if home.lease_place is not None else describe_copy(home.lease)


def require_no_other_host(home: PipelineHome) -> None:
    """Wait until no other host can hold the lease: it was released, or was not renewed within its term.

    Raises:
        LeaseLostError: another host's driver renews it.
    """
    if home.lease_place is None:
        return
    store = open_store(home.lease_place, answer_s=Terms().renew_s)
    watch = Watch(store, home=home_id(home.lease))
    while not watch.look().take:
        if watch.changes > 0:
            message = (
                f"a driver on another host, {watch.held.holder if watch.held else 'unknown'}, renews the lease of {home.root.name} in {store}; stop it there "
                "(`rivertwice stop`), or stop that host, then run this again"
            )
            raise LeaseLostError(message)
        time.sleep(Terms().renew_s / 2)


def _claim_in_home(home: PipelineHome, now: datetime) -> FolderClaim:
    home_id(home.lease)  # stores the home's id, so that a copy of it can be distinguished
    epoch = last_epoch(home) + 1
    while not put_json_if_absent(home.lease / "epochs" / f"{epoch:08d}.json", {"format": FORMAT, "at": to_iso(now)}):
        epoch += 1
    return FolderClaim(home, epoch)


def _claim_in_store(home: PipelineHome, timeline: str, now: datetime, terms: Terms | None) -> StoreClaim:
    terms = terms or Terms()
    by = {"host": platform.node(), "pid": os.getpid(), "timeline": timeline}
    claim = take_claim(
        open_store(home.lease_place or home.lease, answer_s=terms.renew_s),
        home=home_id(home.lease),
        by=by,
        floor=last_epoch(home),
        terms=terms,
        now=utc_now,
    )
    put_json_if_absent(home.lease / "epochs" / f"{claim.epoch:08d}.json", {"format": FORMAT, "at": to_iso(now)})
    claim.start()
    return claim


def _wait_for_jvm(home: PipelineHome, patience_s: float = 10.0) -> None:
    owner = read_owner(home)
    if owner is None or not is_alive(owner.jvm_pid, owner.jvm_started):
        return
    deadline = Deadline.after(patience_s)
    if owner.group is not None and end_member(owner.group, home.root.name, patience_s):
        return
    while is_alive(owner.jvm_pid, owner.jvm_started):
        if deadline.is_over() and owner.jvm_pid is not None:
            psutil.Process(owner.jvm_pid).kill()
        time.sleep(0.05)


# Keep drivers of a pipeline away while an operation changes the data that they depend on.

AT_REST_FORMAT = 1


def marker_of(by: str, now: datetime) -> dict[str, Any]:
    """Return the drain marker of an operation; it holds while this process lives."""
    return {"format": AT_REST_FORMAT, "by": by, "at": to_iso(now), "pid": os.getpid(), "pid_started": own_start()}


@contextmanager
def at_rest(home: PipelineHome, by: str, now: datetime, *, running: str) -> Iterator[Callable[[], None]]:
    """Keep drivers away for the block: the agent sees the marker, and every other process is refused by the held lease.

    Args:
        by: the operation that holds the stream, for people who read the marker.
        running: what a running driver means for the operation, for the message.

    Yields:
        a function that raises LeaseLostError if another host may have taken the lease over; to be called before each write.

    Raises:
        LostRaceError: another operation keeps the stream at rest.
        LeaseLostError: a driver runs, on this host or on another.
    """
    name = home.root.name
    marker = marker_of(by, now)
    existing = read_json(home.drain) or {}
    # A marker whose writer died does not count.
    if "pid" in existing and may_live(existing["pid"], existing["pid_started"]):
        message = (
            f"another operation keeps the stream of {name} at rest ({home.drain} exists); try again when it is done"
        )
        raise LostRaceError(message)
    replace_json(home.drain, marker)
    try:
        owner = lease_owner(home)
        if owner is not None:
            message = f"a driver of {name} runs (pid {owner.pid}), so {running}; `rivertwice stop {name} --wait` first"
            raise LeaseLostError(message)
        with _held(home, now, running) as check:
            yield check
    finally:
        if (
            read_json(home.drain) == marker
        ):  # of two that began at the same moment, the one that was refused leaves the other's
            home.drain.unlink(missing_ok=True)


@contextmanager
def _held(home: PipelineHome, now: datetime, running: str) -> Iterator[Callable[[], None]]:
    with ExitStack() as stack:
        try:
            check = stack.enter_context(hold_lease(home, now))
        except LeaseLostError as error:
            message = f"{error}; so {running}; `rivertwice stop {home.root.name} --wait` where its driver runs"
            raise LeaseLostError(message) from error
        yield check
