"""A full disk: the agent reports it once, continues without what it could not write, and reports when space is back.

A message about a full disk needs room on that disk. So a small file is kept in reserve; it is deleted for that message, and
made again when there is space.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from rivertwice.agent.act import page, page_over, record_event
from rivertwice.agent.observe import RESERVE, has_room
from rivertwice.core import Deadline, Settings, to_iso, utc_now

LOG = logging.getLogger(__name__)
KIND = "disk_full"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_full(error: OSError) -> bool:
    """Say whether an error means that the disk, or a quota on it, is full. Pure."""
    return error.errno in _FULL


def largest_on_disk(home: Path, patience_s: float = 2.0) -> str:
    """Return the three largest things on the disk of a home with their bytes: its files and folders, and what is not in it.

    Args:
        patience_s: counting ends then, so that a home with very many files does not stop the agent; what was counted is returned.
    """
    deadline, device = Deadline.after(patience_s), home.stat().st_dev
    taken = {entry.name: _taken(entry, device, deadline) for entry in os.scandir(home)}
    if not deadline.is_over():
        taken["outside of the home"] = shutil.disk_usage(home).used - sum(taken.values())
    largest = sorted(taken.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in largest if size >= 1e6)


def _taken(entry: os.DirEntry[str], device: int, deadline: Deadline) -> int:
    size = 0
    with suppress(OSError):  # it was deleted meanwhile
        seen = entry.stat(follow_symlinks=False)
        if seen.st_dev != device or deadline.is_over():
            return 0
        size = seen.st_blocks * 512
        if entry.is_dir(follow_symlinks=False):
            size += sum(_taken(each, device, deadline) for each in os.scandir(entry.path))
    return size


class DiskWatch:
    """What the agent knows of its home's disk."""

    def __init__(self, settings: Settings) -> None:
        """Begin with a disk that has room."""
        self._settings = settings
        self._since: datetime | None = None

    @property
    def reserve(self) -> Path:
        """The file that is deleted to make room for a message."""
        return self._settings.home / "agent" / "reserve"

    def keep_reserve(self) -> None:
        """Make the reserve, if there is room for it."""
        try:
            if self.reserve.exists() and self.reserve.stat().st_size >= RESERVE:
                return
            with self.reserve.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, RESERVE)
        except OSError as error:
            self.reserve.unlink(missing_ok=True)
            LOG.warning("no %s bytes could be kept in reserve for a message about a full disk: %s", RESERVE, error)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Keep a full disk from ending the thread that runs the block."""
        try:
            yield
        except OSError as error:
            self.failed(error, utc_now())

    def failed(self, error: OSError, now: datetime) -> None:
        """Note that something could not be written; a full disk is paged once while it lasts.

        Raises:
            OSError: it is another error.
        """
        if not is_full(error):
            raise error
        if self._since is None:
            self._since = now
            LOG.error("the disk of %s is full: %s; what is not written now is tried again", self._settings.home, error)
            self.reserve.unlink(missing_ok=True)
            self._tell(now)

    def _tell(self, now: datetime) -> None:
        since = now if self._since is None else self._since
        largest = largest_on_disk(self._settings.home)
        message = (
            f"the disk of {self._settings.home} is full since {to_iso(since)}: drivers that cannot write end with class disk, nothing new is "
            f"served, and nothing that is committed is lost; free space (the largest on it: {largest}; `rivertwice admin upkeep NAME`); the agent "
            "continues by itself"
        )
        page(self._settings, KIND, None, message, now, details={"largest": largest})

    def wrote(self, now: datetime) -> None:
        """Note that there is room: report it if the disk was full, and keep a reserve again.

        Raises:
            OSError: there is no room after all.
        """
        room = has_room(self._settings.home)
        if self._since is None and room:  # an earlier agent may have reported it
            page_over(self._settings, {KIND}, None, f"the disk of {self._settings.home} has room", now)
        if self._since is not None and room:
            message = f"the disk of {self._settings.home} has room again; it was full from {to_iso(self._since)} on"
            record_event(self._settings, f"{KIND}_over", None, message, now)
            page_over(self._settings, {KIND}, None, message, now)
            LOG.info("%s", message)
            self._since = None
            self.keep_reserve()
