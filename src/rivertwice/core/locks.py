"""Locks of files: one process of a host has a lock, and the system frees it when that process ends.

Three ways to take a lock: `lock` waits, `lock_if_free` reports whether it was free, `lock_or_refuse` raises. `open_locked` is for
a process that keeps a lock for its life. Lock files are empty, and they are not deleted.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TextIO

from rivertwice.core.waits import Deadline

PATIENCE_S = 0.05
"""How long to try a lock without waiting for its holder: `is_locked` itself holds a lock for a moment."""

_POLL_S = 0.01
_KERNEL_LOCKS = Path("/proc/locks")


def try_lock(file: IO[Any] | int, patience_s: float = PATIENCE_S) -> bool:
    """Take the lock of an open file; return False if another process still has it after `patience_s`."""
    return Deadline.after(patience_s).wait_until(lambda: _take(file), every=_POLL_S)


def is_locked(path: Path) -> bool:
    """Say whether some process holds the lock of a file."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def lock(path: Path, *, mode: int = 0o666) -> Iterator[None]:
    """Hold the lock of a file or of a folder; wait for another process that has it."""
    handle = _open(path, mode)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def lock_if_free(path: Path, *, patience_s: float = PATIENCE_S, mode: int = 0o666) -> Iterator[bool]:
    """Hold the lock of a file if no other process has it; yield whether it is held."""
    handle = _open(path, mode)
    try:
        yield try_lock(handle, patience_s)
    finally:
        os.close(handle)


@contextmanager
def lock_or_refuse(path: Path, refuse: Callable[[str], Exception]) -> Iterator[None]:
    """Hold the lock of a file.

    Args:
        refuse: makes the error from the holder's name, if another process has the lock.
    """
    with lock_if_free(path) as is_held:
        if not is_held:
            raise refuse(holder(path))
        yield


def open_locked(path: Path) -> TextIO | None:
    """Return the open file with its lock; closing the file frees it. None if another process has the lock."""
    file: TextIO = os.fdopen(_open(path, 0o666), "w")
    if try_lock(file):
        return file
    file.close()
    return None


def holder(path: Path) -> str:
    """Name the process that holds the lock of a file, if the system reports it."""
    try:
        inode = str(path.stat().st_ino)
        rows = [row.split() for row in _KERNEL_LOCKS.read_text().splitlines()]
    except OSError:
        return "another process"
    pids = [row[4] for row in rows if row[1] == "FLOCK" and row[5].rpartition(":")[2] == inode]
    return f"process {pids[0]}" if len(pids) == 1 and int(pids[0]) > 0 else "another process"


def _take(file: IO[Any] | int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: Path, mode: int) -> int:
    if path.is_dir():
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
