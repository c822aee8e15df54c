"""Keep Delta tables small: merge their small files, and remove what no commit within the tables' own retention names.

How long old commits and removed files stay is a property of each table, written when it is created
(`delta.logRetentionDuration`, `delta.deletedFileRetentionDuration`). Old commits go when a writer makes a checkpoint
of the log; nothing that a commit within the retention names is ever removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake.exceptions import CommitFailedError

from rivertwice.config import Place
from rivertwice.errors import LostRaceError
from rivertwice.store.delta import LOG_RETENTION, REMOVED_RETENTION, RETENTION, open_table
from rivertwice.store.delta_log import sync_commit
from rivertwice.store.delta_place import name_of
from rivertwice.store.orphans import live_files, remove_files, unnamed_files

SMALL_BYTES = 16_000_000
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}


@dataclass(frozen=True)
class TableShape:
    """How a table lies on disk.

    Attributes:
        files: live data files.
        small_in_one_partition: the most small files (below 16 MB) that one partition has.
        removed_kept: how long removed files stay.
    """

    files: int
    small_in_one_partition: int
    removed_kept: timedelta


def retention(log: timedelta, removed: timedelta) -> dict[str, str]:
    """Return the table properties that keep old commits and removed files for so long."""
    return {
        LOG_RETENTION: f"interval {int(log.total_seconds())} seconds",
        REMOVED_RETENTION: f"interval {int(removed.total_seconds())} seconds",
    }


def parse_interval(text: str, default: timedelta) -> timedelta:
    """Return the length of Delta's `interval N units`; the default for an absent or strange one."""
    words = text.lower().split()
    if len(words) != 3 or words[0] != "interval" or not words[1].isdigit() or words[2].rstrip("s") not in _UNITS:
        return default
    return timedelta(seconds=int(words[1]) * _UNITS[words[2].rstrip("s")])


def shape_of(path: Place) -> TableShape | None:
    """Return a table's shape, or None if it does not exist."""
    table = open_table(path)
    if table is None:
        return None
    actions = pa.table(table.get_add_actions(flatten=True))
    partitions = [name for name in actions.column_names if name.startswith("partition.")]
    sizes = actions["size_bytes"].to_pylist()
    keys: list[Any] = list(zip(*(actions[name].to_pylist() for name in partitions), strict=True)) or [()] * len(sizes)
    small = Counter(key for key, size in zip(keys, sizes, strict=True) if size < SMALL_BYTES)
    kept = table.metadata().configuration.get(REMOVED_RETENTION) or ""
    return TableShape(
        files=len(sizes),
        small_in_one_partition=max(small.values(), default=0),
        removed_kept=parse_interval(kept, timedelta(days=7)),
    )


def compact(path: Place) -> int:
    """Merge a table's small files in one commit and return how many went; rows and transactions stay the same.

    Raises:
        LostRaceError: another writer removed one of the files first; nothing changed.
    """
    table = open_table(path)
    if table is None:
        return 0
    try:
        found: dict[str, Any] = table.optimize.compact()
    except CommitFailedError as error:
        message = f"{name_of(path)} changed while its small files were merged ({error}); nothing was merged; it is tried again"
        raise LostRaceError(message) from error
    _sync(path)  # what it replaced is swept later, and must not be all that a power loss leaves
    return int(found["numFilesRemoved"])


def _sync(path: Place) -> None:
    fresh = open_table(path) if isinstance(path, Path) else None
    if fresh is not None:
        sync_commit(Path(path), int(fresh.version()))


def sweep(path: Place) -> int:
    """Delete the data files that no commit within the table's retention names, drop old commits, write a checkpoint.

    In this order: only commits that the checkpoint of an earlier sweep covers are dropped, so a reader that listed the
    log a moment ago still finds every file it wants to read.

    Returns:
        how many data files were deleted.

    Raises:
        LostRaceError: another writer replaced rows meanwhile; what was deleted was named by nothing, the rest waits.
    """
    table = open_table(path)
    if table is None:
        return 0
    try:
        gone = table.vacuum(dry_run=False, enforce_retention_duration=False)  # None hours: the table's own property
    except CommitFailedError as error:  # a vacuum commits what it did, and loses that race to an overwrite (ran)
        message = f"{name_of(path)} changed while it was swept ({error}); it is tried again"
        raise LostRaceError(message) from error
    table.cleanup_metadata()
    fresh = open_table(path)
    if fresh is not None:
        fresh.create_checkpoint()
        _sync(path)
    return len(gone)


def set_retention(path: Place, log: timedelta, removed: timedelta) -> bool:
    """Write other retention properties into a table at rest; return False if it has them already.

    A change of properties conflicts with an append at the same moment, so nothing may write meanwhile.
    """
    table = open_table(path)
    if table is None:
        return False
    wanted = retention(log, removed)
    have = table.metadata().configuration
    if all(have.get(key) == value for key, value in wanted.items()):
        return False
    table.alter.set_table_properties(wanted)
    return True


def purge(path: Place) -> int:
    """Delete at once, of a table at rest, everything that its newest version does not name, and the log that tells of it.

    Sweeping leaves removed files and old commits for the table's retention, so that whoever reads or resumes finds them; here
    they must go, for they hold what may be kept no longer. Nothing may read the table meanwhile.

    A file that no commit names may be left by an append that was killed, or be about to be committed. So: list them; change a
    property, at which whoever opened the table before fails to commit (ran), and a file that was listed was written by such a one;
    look which of them were committed before that; delete the others.

    Returns:
        how many data files were deleted.
    """
    table = open_table(path)
    if table is None:
        return 0
    before = _kept_properties(table.metadata().configuration)
    _sync(path)
    unnamed = unnamed_files(path, live_files(table))
    table.alter.set_table_properties(_fence(table.metadata().configuration))
    fresh = open_table(path)
    assert fresh is not None, "the table was there"
    gone = fresh.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    fresh.create_checkpoint()
    fresh.cleanup_metadata()
    fresh.alter.set_table_properties(before)
    orphans = set(unnamed) - live_files(fresh)
    return len(gone) + remove_files(path, orphans)


_NONE_KEPT = ("interval 0 seconds", "interval 0 minutes")


def _fence(now: Mapping[str, str]) -> dict[str, str]:
    """Return properties that keep nothing and differ from those there are: a commit that changes them fails who came before."""
    other = _NONE_KEPT[now.get(LOG_RETENTION) == _NONE_KEPT[0]]
    return {LOG_RETENTION: other, REMOVED_RETENTION: other}


def _kept_properties(now: Mapping[str, str]) -> dict[str, str]:
    """Return how long the table keeps things; a purge that was killed left it at nothing, which is put right."""
    return {
        key: RETENTION[key] if now[key] in _NONE_KEPT else now[key]
        for key in (LOG_RETENTION, REMOVED_RETENTION)
        if key in now
    }
