"""Keep what was computed from Delta tables while these are as they were: for a process that looks again and again.

Opening a table reads its log; an agent that does so at every look spends more on an idle pipeline than on anything else. A table on
a disk shows by one listing of its log whether somebody committed since, so a look at an unchanged one opens nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from rivertwice.core import Place
from rivertwice.storage.table_log import LogFingerprint

T = TypeVar("T")


def marks_of(tables: Sequence[Place]) -> tuple[LogFingerprint, ...] | None:
    """Return the mark of each table; None if one has none, as in an object store, where it would cost an opening."""
    marks = tuple(LogFingerprint.of(table) for table in tables if isinstance(table, Path))
    own = tuple(mark for mark in marks if mark is not None)
    return own if len(own) == len(tables) else None


class Remembered(Generic[T]):
    """Values by key, each with the marks of the tables that it was computed from; threads may share it.

    A value must depend on its key and these tables alone, and must not be changed.
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
