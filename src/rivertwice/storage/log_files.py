"""Logs that other processes write: only their owner can read them, and they are kept small while they are written.

A driver and its JVM keep the log open for weeks, and cannot change to another file. So a log that has grown is copied to
`NAME.1` and truncated to zero bytes; its writers append, so they continue at its new end. Lines that are written between
the last read and the truncation are lost, as with logrotate's `copytruncate`. All facts in logs are also stored elsewhere.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

LOGS_KEPT = 3
_LOOKS = 10
_PART = 1 << 20


class LogFile:
    """A log of another process, or one of lines that are appended whole.

    Attributes:
        path: the file; it need not exist yet. Only its owner may read it.
    """

    LIMIT = 20_000_000  # bytes

    def __init__(self, path: Path) -> None:
        """Open nothing yet."""
        self.path = path

    def open(self) -> IO[bytes]:
        """Open it for appending, readable by its owner only; if it is too large, it is rotated first."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # a log that cannot be rotated now must not prevent a start; the agent tries it again
            self.rotate()
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.fchmod(handle, 0o600)  # a log of an earlier version is readable for all
        return os.fdopen(handle, "ab", buffering=0)

    def append(self, line: bytes) -> None:
        """Append a line, completely or not at all; lines of several processes never mix.

        On an almost full disk the system may write only a part, and reports it. The part is removed again, because the next line would be
        joined to it, and both would be unreadable. If another process has appended meanwhile, the part stays, and the next line starts a new line.

        Raises:
            OSError: the disk had no space for it; the file is unchanged.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(handle).st_size
            whole = line if not size or os.pread(handle, 1, size - 1) == b"\n" else b"\n" + line
            written = os.write(handle, whole)  # one write
            if written < len(whole):
                end = os.lseek(handle, 0, os.SEEK_CUR)
                if os.fstat(handle).st_size == end:
                    os.ftruncate(handle, end - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        finally:
            os.close(handle)

    def rotate(self, limit: int = LIMIT, copies: int = LOGS_KEPT) -> bool:
        """If it has more than `limit` bytes, copy it to `NAME.1` and truncate it; keep `copies` of them. Return whether it was done.

        Raises:
            OSError: the disk has no space for the copy; the log is unchanged.
        """
        path = self.path
        try:
            if path.stat().st_size <= limit:
                return False
        except FileNotFoundError:
            return False
        copy = path.with_name(f".{path.name}.rotating")
        path.with_name(f"{path.name}.{copies}").unlink(missing_ok=True)  # first: its space may be needed
        try:
            with (
                path.open("r+b") as log,
                open(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as target,
            ):
                shutil.copyfileobj(log, target, _PART)
                for _ in range(_LOOKS):  # lines that came meanwhile; limited, in case they never stop
                    part = log.read(_PART)
                    if not part:
                        break
                    target.write(part)
                target.flush()
                log.truncate(0)
        except OSError:
            copy.unlink(missing_ok=True)
            raise
        for number in range(copies - 1, 0, -1):
            older = path.with_name(f"{path.name}.{number}")
            if older.exists():
                older.replace(path.with_name(f"{path.name}.{number + 1}"))
        copy.replace(path.with_name(f"{path.name}.1"))
        return True

    def tail(self, size: int) -> bytes:
        """Return the last `size` bytes, also those that were rotated to `NAME.1`."""
        tail = _last(self.path, size)
        if len(tail) < size:
            tail = _last(self._rotated, size - len(tail)) + tail
        return tail

    def follow(self, position: int, wait: Callable[[], bool]) -> Iterator[bytes]:
        """Yield what is appended from a position on, also after it was rotated, removed or made again.

        Args:
            position: byte to begin at.
            wait: called when nothing new is there; the end is reached once it returns False.
        """
        path, older = self.path, self._rotated
        known = _inode(older)
        while True:
            size = path.stat().st_size if path.exists() else 0
            if size < position:
                if _inode(older) != known:  # copied and truncated: what was not read yet is at the end of the copy
                    known = _inode(older)
                    yield from _parts(older, position)
                position = 0
            for part in _parts(path, position):
                position += len(part)
                yield part
            if not wait():
                return

    @property
    def _rotated(self) -> Path:
        return self.path.with_name(f"{self.path.name}.1")


def _last(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read(size)
    except FileNotFoundError:
        return b""


def _inode(path: Path) -> int | None:
    return path.stat().st_ino if path.exists() else None


def _parts(path: Path, position: int) -> Iterator[bytes]:
    with suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(position)
        while part := file.read(_PART):
            yield part
