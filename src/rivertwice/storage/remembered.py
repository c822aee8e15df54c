"""Keep what was computed from Delta tables while these are as they were: for a process that looks again and again.

Opening a table reads its log; an agent that does so at every look spends more on an idle pipeline than on anything else. A table on
a disk shows by one listing of its log whether somebody committed since, so a look at an unchanged one opens nothing.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from rivertwice.core import Place
from rivertwice.storage.table_log import LOG, LogFingerprint

T = TypeVar("T")


GLANCE_S = 60.0
SETTLED_NS = 1_000_000_000
"""A folder that changed within the last second may change again without another time, so it is listed."""


def marks_of(tables: Sequence[Place]) -> tuple[LogFingerprint, ...] | None:
    """Return the mark of each table; None if one has none, as in an object store, where it would cost an opening."""
    look = _glance_at if getattr(_GLANCING, "on", False) else LogFingerprint.of
    marks = tuple(look(table) for table in tables if isinstance(table, Path))
    own = tuple(mark for mark in marks if mark is not None)
    return own if len(own) == len(tables) else None


def _glance_at(table: Path) -> LogFingerprint | None:
    """Return the mark of a table; a log whose folder has the time that it had is listed once a minute, because a listing costs most."""
    place = str(table)
    try:
        changed = os.stat(f"{place}/{LOG}").st_mtime_ns
    except FileNotFoundError:
        return LogFingerprint.of(table)
    listed_at, mark = _LISTED.get(place, (0.0, None))
    if mark is not None and mark.changed == changed and time.monotonic() - listed_at < GLANCE_S:
        return mark
    mark = LogFingerprint.of(table)
    if mark is not None and time.time_ns() - mark.changed > SETTLED_NS:
        _LISTED[place] = (time.monotonic(), mark)
    return mark


_GLANCING = threading.local()
_LISTED: dict[str, tuple[float, LogFingerprint]] = {}


class Remembered(Generic[T]):
    """Values by key, each with the marks of the tables that it was computed from; threads may share it.

    A value must depend on its key and these tables alone, and must not be changed.
    """

    def __init__(self, most: int = 256) -> None:
        """Remember nothing yet.

        Args:
            most: how many values are held, by default one for each of 256 pipelines: an overview looks at all in turn; those that were not asked for the longest are dropped.
        """
        self._most = most
        self._lock = threading.Lock()
        self._held: OrderedDict[Hashable, tuple[Any, T]] = OrderedDict()

    @staticmethod
    @contextmanager
    def glance() -> Iterator[None]:
        """Look at tables of this thread for a page: a commit is seen at once, an entry that was mended or torn in place within a minute."""
        before, _GLANCING.on = getattr(_GLANCING, "on", False), True
        try:
            yield
        finally:
            _GLANCING.on = before

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
