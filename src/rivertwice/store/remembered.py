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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from rivertwice.config import Place
from rivertwice.store.delta_handle import open_table
from rivertwice.store.delta_log import LOG

_COMMIT = re.compile(r"^(\d{20})\.json$")
_CHECKPOINT = re.compile(r"^\d{20}\.checkpoint\b.*\.parquet$")
_DIGITS = 20
T = TypeVar("T")


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


@dataclass(frozen=True)
class Mark:
    """What a table's log is made of now: it differs after every commit, and after a log was put back, torn or mended.

    Attributes:
        changed: when an entry was last added, replaced or removed.
        newest: the newest commit, -1 if there is none.
        read: name, time, size and inode of the last checkpoint and of the entries since: what opening the table would read.
    """

    changed: int = 0
    newest: int = -1
    read: frozenset[tuple[str, int, int, int]] = frozenset()

    def follows(self, earlier: Mark) -> bool:
        """Say whether the log is an earlier one with further commits, and nothing else was done to it."""
        return earlier.read <= self.read and len(self.read - earlier.read) == self.newest - earlier.newest


def mark_of(table: Place) -> Mark | None:
    """Return a table's mark now; None on S3, where it would cost an opening."""
    if not isinstance(table, Path):
        return None
    log = table / LOG
    try:
        changed, names = log.stat().st_mtime_ns, os.listdir(log)
        commits = {int(name[:_DIGITS]): name for name in names if _COMMIT.match(name)}
        checkpoints = {int(name[:_DIGITS]): name for name in names if _CHECKPOINT.match(name)}
        covered, newest = max(checkpoints, default=-1), max(commits, default=-1)
        read = {name for version, name in commits.items() if version > covered or version == newest}
        if checkpoints:
            read.add(checkpoints[covered])
        return Mark(changed, newest, frozenset(_status_of(f"{log}/{name}", name) for name in read))
    except FileNotFoundError:  # no table, or one that is replaced at this moment
        return None if log.exists() else Mark()


def _status_of(path: str, name: str) -> tuple[str, int, int, int]:
    status = os.stat(path)
    return name, status.st_mtime_ns, status.st_size, status.st_ino


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
