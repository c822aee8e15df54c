"""Logs that other processes write into: opened so that only their owner reads them, and kept small while they are written.

A driver and its JVM hold the log open for weeks, and cannot be told to open another file. So a log that has grown is
copied to `NAME.1` and cut to nothing; its writers append, so they go on at its new end. What is written in the very
instant between the last look and the cut is lost, as with logrotate's `copytruncate`; nothing is derived from logs that
is kept nowhere else.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO

LOG_LIMIT = 20_000_000  # bytes
LOGS_KEPT = 3
_LOOKS = 10
_PART = 1 << 20


def open_log(path: Path) -> IO[bytes]:
    """Open a log for appending, readable by its owner only; one that is too large is rotated first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):  # a log that cannot be rotated now keeps nobody from starting; the agent tries it again
        rotate_log(path)
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.fchmod(handle, 0o600)  # one of an earlier version is open to all
    return os.fdopen(handle, "ab", buffering=0)


def append_line(path: Path, line: bytes) -> None:
    """Append a line, whole or not at all; lines of several processes never mix.

    On a disk that is all but full the system writes a part and says so. A part is taken back: the next line would be joined to it, and both
    could not be read. Where it cannot be, for another process has appended meanwhile, the next line begins on one of its own.

    Args:
        path: of the file; only its owner may read it.
        line: with its end.

    Raises:
        OSError: there was no room for it; the file is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(handle).st_size
        whole = line if not size or os.pread(handle, 1, size - 1) == b"\n" else b"\n" + line
        written = os.write(handle, whole)  # one write
        if written < len(whole):
            end = os.lseek(handle, 0, os.SEEK_CUR)
            if os.fstat(handle).st_size == end:
                os.ftruncate(handle, end - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(handle)


def rotate_log(path: Path, limit: int = LOG_LIMIT, kept: int = LOGS_KEPT) -> bool:
    """Copy a log of more than `limit` bytes to `NAME.1` and cut it; the oldest of `kept` copies goes. Return whether it was.

    Raises:
        OSError: the disk has no room for the copy; the log is as it was.
    """
    try:
        if path.stat().st_size <= limit:
            return False
    except FileNotFoundError:
        return False
    copy = path.with_name(f".{path.name}.rotating")
    path.with_name(f"{path.name}.{kept}").unlink(missing_ok=True)  # first: its room may be needed
    try:
        with path.open("r+b") as log, open(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as target:
            shutil.copyfileobj(log, target, _PART)
            for _ in range(_LOOKS):  # what came meanwhile; a flood is not followed for ever
                part = log.read(_PART)
                if not part:
                    break
                target.write(part)
            target.flush()
            log.truncate(0)
    except OSError:
        copy.unlink(missing_ok=True)
        raise
    for number in range(kept - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number + 1}"))
    copy.replace(path.with_name(f"{path.name}.1"))
    return True


def read_tail(path: Path, size: int) -> bytes:
    """Return the last `size` bytes of a log, also those that were rotated away from before its end."""
    tail = _last(path, size)
    if len(tail) < size:
        tail = _last(path.with_name(f"{path.name}.1"), size - len(tail)) + tail
    return tail


def _last(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read(size)
    except FileNotFoundError:
        return b""
