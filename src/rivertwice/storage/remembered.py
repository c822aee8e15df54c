"""Keep what was computed from Delta tables while these are as they were: for a process that looks again and again.

Opening a table reads its log; an agent that does so at every look spends more on an idle pipeline than on anything else. A table on
a disk shows by one listing of its log whether somebody committed since, so a look at an unchanged one opens nothing.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from deltalake.exceptions import DeltaError

from rivertwice.core.homes import Place
from rivertwice.storage.delta_handle import Table, open_table
from rivertwice.storage.delta_log import LOG, entry_path

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
class LogFingerprint:
    """What a table's log is made of now: it differs after every commit, and after a log was put back, torn or mended.

    Attributes:
        changed: when an entry was last added, replaced or removed.
        newest: the newest commit, -1 if there is none.
        read: name, time, size and inode of the last checkpoint and of the entries since: what opening the table would read.
    """

    changed: int = 0
    newest: int = -1
    read: frozenset[tuple[str, int, int, int]] = frozenset()

    def follows(self, earlier: LogFingerprint) -> bool:
        """Say whether the log is an earlier one with further commits, and nothing else was done to it."""
        return earlier.read <= self.read and len(self.read - earlier.read) == self.newest - earlier.newest


def mark_of(table: Place) -> LogFingerprint | None:
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
        return LogFingerprint(changed, newest, frozenset(_status_of(f"{log}/{name}", name) for name in read))
    except FileNotFoundError:  # no table, or one that is replaced at this moment
        return None if log.exists() else LogFingerprint()


def _status_of(path: str, name: str) -> tuple[str, int, int, int]:
    status = os.stat(path)
    return name, status.st_mtime_ns, status.st_size, status.st_ino


def marks_of(tables: Sequence[Place]) -> tuple[LogFingerprint, ...] | None:
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


# A table's handle that is kept between commits and brought up to date, not opened again.
#
# Opening reads all log entries since the last checkpoint of the log, each time. A writer that commits every second would spend more on
# that than on its rows. But a handle that is brought up to date again and again holds what it learned in ever more pieces, and each commit
# reads all of them. So it is renewed where the log has a new checkpoint, from which it is whole again (delta-rs 1.6: `bench/commits.py`).

CHECKPOINT_EVERY = 20
"""Commits between two checkpoints of a table's log, and between two renewals of a kept handle."""


class KeptTable:
    """A table to which one thread appends again and again; `delta.append` takes it as `kept`.

    On S3 nothing is kept: a handle has the credentials with which it was opened, and they may be renewed.

    Attributes:
        place: the table's place.
    """

    def __init__(self, place: Place) -> None:
        """Keep no handle yet; the table need not exist."""
        self.place = place
        self._table: Table | None = None
        self._opened_at = -1  # version

    def current(self) -> Table | None:
        """Return a handle of the table's newest version, None if the table does not exist."""
        if self._table is None or self._is_due(self._table) or not is_brought_up_to_date(self.place, self._table):
            self._table = open_table(self.place)
            self._opened_at = -1 if self._table is None else int(self._table.version())
        table = self._table
        if not isinstance(self.place, Path):
            self.forget()
        return table

    def _is_due(self, table: Table) -> bool:
        """Say whether a checkpoint was made since the handle was opened; the checkpoint is of the last commit of each twenty."""
        return (int(table.version()) + 1) // CHECKPOINT_EVERY > (self._opened_at + 1) // CHECKPOINT_EVERY

    def keep(self, table: Table) -> None:
        """Keep the handle with which a commit was made: it is at the commit's version."""
        if isinstance(self.place, Path):
            self._table = table

    def forget(self) -> None:
        """Open the table again at its next use; after a commit that failed, its handle may know a part of it."""
        self._table = None

    def applied_version(self, app: str) -> int | None:
        """Return the newest version `app` committed to the table, or None."""
        table = self.current()
        return None if table is None else table.transaction_version(app)


def is_brought_up_to_date(place: Place, table: Table) -> bool:
    """Bring a handle to its table's newest version; return whether that could be done, else the table is to be opened."""
    # Without its own entry the handle may be of a table that was put back from a backup, or of one that upkeep shortened.
    if not entry_path(Path(str(place)), int(table.version())).exists():
        return False
    try:
        table.update_incremental()
    except (DeltaError, OSError):
        return False  # opening it says what is wrong, with the remedy
    return True


# Handles for readers: each is lent to one reader at a time, and brought up to date instead of being opened again.
#
# Opening a table reads all entries since its log's last checkpoint, up to a hundred. A handle that was used before needs only those
# that came since, and none if the log is what it was. If anything else was done to the log, the table is opened.

_MOST = 32

_LOCK = threading.Lock()
_HELD: OrderedDict[str, tuple[LogFingerprint, Table]] = OrderedDict()


@contextmanager
def borrow_table(path: Place) -> Iterator[Table | None]:
    """Give a handle of a table's newest version for the block, None without a table; nobody else has it meanwhile.

    After a block that fails the handle is not used again. On S3 none is kept: a handle has the credentials with which it was opened.
    """
    mark = mark_of(path)  # before the handle: a commit in between makes the next reader bring it up to date
    with _LOCK:
        before, table = _HELD.pop(str(path), (None, None))
    if table is not None and before is not None and mark != before:
        is_usable = mark is not None and mark.follows(before) and is_brought_up_to_date(path, table)
        table = table if is_usable else None
    if table is None:
        table = open_table(path)
    yield table
    if table is not None and mark is not None:
        with _LOCK:
            _HELD[str(path)] = (mark, table)
            while len(_HELD) > _MOST:
                _HELD.popitem(last=False)
