"""Keep what was computed from Delta tables while these are as they were: for a process that looks again and again.

Opening a table reads its log; an agent that does so at every look spends more on an idle pipeline than on anything else. A table on
a disk shows by one listing of its log whether somebody committed since, so a look at an unchanged one opens nothing.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from rivertwice.config import Place
from rivertwice.store.delta_handle import open_table
from rivertwice.store.delta_log import LOG

_COMMIT = re.compile(r"^(\d{20})\.json$")
_CHECKPOINT = re.compile(r"^\d{20}\.checkpoint\b.*\.parquet$")
_DIGITS = 20
T = TypeVar("T")
Mark = tuple[int, ...]


def newest_commit(table: Place) -> int:
    """Return the newest commit in a Delta log, -1 if there is none. Costs one directory listing, on S3 one opening."""
    if not isinstance(table, Path):
        opened = open_table(table)
        return -1 if opened is None else int(opened.version())
    try:
        names = [entry.name for entry in (table / LOG).iterdir()]
    except FileNotFoundError:
        return -1
    return max((int(matched.group(1)) for matched in map(_COMMIT.match, names) if matched), default=-1)


def mark_of(table: Place) -> Mark | None:
    """Return what differs after every commit, and after a log was put back, torn or mended; None on S3, where it costs an opening.

    It has the time at which an entry was last added, replaced or removed, and time, size and inode of the log's last checkpoint and of
    the entries since: what opening the table would read.
    """
    if not isinstance(table, Path):
        return None
    log = table / LOG
    try:
        changed, names = log.stat().st_mtime_ns, os.listdir(log)
        commits = {int(name[:_DIGITS]): name for name in names if _COMMIT.match(name)}
        checkpoints = {int(name[:_DIGITS]): name for name in names if _CHECKPOINT.match(name)}
        covered, newest = max(checkpoints, default=-1), max(commits, default=-1)
        read = {name for version, name in commits.items() if version > covered or version == newest}
        marks = [changed, newest]
        for name in sorted(read | {checkpoints[covered]} if checkpoints else read):
            status = os.stat(f"{log}/{name}")
            marks += (status.st_mtime_ns, status.st_size, status.st_ino)
    except FileNotFoundError:  # no table, or one that is replaced at this moment
        return None if log.exists() else ()
    return tuple(marks)


def marks_of(tables: Sequence[Place]) -> tuple[Mark, ...] | None:
    """Return the mark of each table; None if one has none."""
    marks = tuple(mark for mark in map(mark_of, tables) if mark is not None)
    return marks if len(marks) == len(tables) else None


class Remembered(Generic[T]):
    """Values by key, each with the marks of the tables that it was computed from; threads may share it.

    A value must depend on its key and these tables alone, and nobody may change it.
    """

    def __init__(self, most: int) -> None:
        """Remember nothing yet.

        Args:
            most: how many values are held; those that were not asked for the longest are dropped.
        """
        self._most = most
        self._lock = threading.Lock()
        self._held: OrderedDict[Hashable, tuple[Any, T]] = OrderedDict()

    def get(self, key: Hashable, tables: Sequence[Place], compute: Callable[[], T]) -> T:
        """Return the value of a key; it is computed if it is not held, or one of the tables is not what it was."""
        marks = marks_of(tables)  # before the value: a commit in between makes the next look compute it again
        if marks is None:
            return compute()
        with self._lock:
            held = self._held.get(key)
            if held is not None and held[0] == marks:
                self._held.move_to_end(key)
                return held[1]
        value = compute()
        with self._lock:
            self._held[key] = (marks, value)
            self._held.move_to_end(key)
            while len(self._held) > self._most:
                self._held.popitem(last=False)
        return value
