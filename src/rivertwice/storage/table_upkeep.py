"""Keep Delta tables small: merge their small files, and remove files that no commit within the tables' retention names.

How long old commits and removed files are kept is a property of each table, written when it is created
(`delta.logRetentionDuration`, `delta.deletedFileRetentionDuration`). Old commits are removed when a checkpoint of the log
is made. A file that a commit within the retention names is never removed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake.exceptions import CommitFailedError

from rivertwice.core.errors import LostRaceError, RequestError
from rivertwice.core.homes import Place
from rivertwice.storage.blobs import files_below
from rivertwice.storage.delta import LOG_RETENTION, REMOVED_RETENTION, RETENTION, open_table, properties_of
from rivertwice.storage.delta_handle import Table, explained, name_of
from rivertwice.storage.delta_log import sync_commit
from rivertwice.storage.places import open_store

# Files in a table's folder that its newest version does not name: from killed writers, or from commits in progress.

LOG = "_delta_log"
_OF_THE_LOG = re.compile(r"^(_last_checkpoint|\.?\d{20}\.(json|crc|checkpoint\.(\d+\.\d+\.)?parquet)(\.crc)?)\Z")


def live_files(table: Table) -> set[str]:
    """Return the data files of a handle's version, relative to the table, with their names in the log and on disk."""
    paths = pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()
    return {name for path in paths for name in (str(path), unquote(str(path)))}


def unnamed_files(place: Place, live: Collection[str]) -> list[str]:
    """Return the files in a table's folder that are neither live nor entries of the log, relative to it, sorted.

    They include parts of a write in progress, which delta-rs' vacuum does not see: `FILE#1`, `_delta_log/_commit_*.json.tmp`.
    """
    if isinstance(place, Path):
        names: Iterable[str] = (path.relative_to(place).as_posix() for path in files_below(place))
    else:
        names = open_store(place).list()
    return sorted(name for name in names if name not in live and not _belongs_to_log(name))


def _belongs_to_log(name: str) -> bool:
    folder, _, file = name.rpartition("/")
    return folder == LOG and bool(_OF_THE_LOG.match(file))


def remove_files(place: Place, names: Iterable[str]) -> int:
    """Delete files of a table's folder, and return how many existed; a file that is already deleted is no error."""
    removed = 0
    for name in names:
        if isinstance(place, Path):
            path = place / name
            removed += path.exists()
            path.unlink(missing_ok=True)
            continue
        try:
            open_store(place).delete(name)
        except RequestError:  # not a name of ours: another program wrote it
            continue
        removed += 1
    return removed


SMALL_BYTES = 16_000_000
UNNAMED_KEPT = timedelta(days=7)
"""So long a file that no commit names is kept: until then its writer may be about to commit it, or a repair may need its rows."""
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}


@dataclass(frozen=True)
class TableShape:
    """The files of a table on disk.

    Attributes:
        files: live data files.
        small_in_one_partition: the largest number of small files (below 16 MB) in one partition.
        removed_kept: how long removed files are kept.
    """

    files: int
    small_in_one_partition: int
    removed_kept: timedelta


def retention(log: timedelta, removed: timedelta) -> dict[str, str]:
    """Return the table properties for these retention times of old commits and removed files."""
    return {
        LOG_RETENTION: f"interval {int(log.total_seconds())} seconds",
        REMOVED_RETENTION: f"interval {int(removed.total_seconds())} seconds",
    }


def parse_interval(text: str, default: timedelta) -> timedelta:
    """Return the length of Delta's `interval N units`; the default if the text is absent or invalid."""
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
    removed_kept = table.metadata().configuration.get(REMOVED_RETENTION) or ""
    return TableShape(
        files=len(sizes),
        small_in_one_partition=max(small.values(), default=0),
        removed_kept=parse_interval(removed_kept, timedelta(days=7)),
    )


def compact(path: Place) -> int:
    """Merge a table's small files in one commit and return how many were removed; rows and transactions do not change.

    Raises:
        LostRaceError: another writer removed one of the files first; nothing changed.
    """
    table = open_table(path)
    if table is None:
        return 0
    try:
        metrics: dict[str, Any] = table.optimize.compact()
    except CommitFailedError as error:
        message = f"{name_of(path)} changed while its small files were merged ({error}); nothing was merged; it is tried again"
        raise LostRaceError(message) from error
    _sync(path)  # the replaced files are swept later, so the new ones must survive a power loss
    return int(metrics["numFilesRemoved"])


def _sync(path: Place) -> None:
    fresh = open_table(path) if isinstance(path, Path) else None
    if fresh is not None:
        sync_commit(Path(path), int(fresh.version()))


def sweep(path: Place) -> int:
    """Delete the data files that no commit within the table's retention names, drop old commits, write a checkpoint.

    In this order: only commits that the checkpoint of an earlier sweep covers are dropped. So a reader that listed the
    log a moment ago still finds every file that it needs.

    Returns:
        how many data files were deleted.

    Raises:
        LostRaceError: another writer replaced rows meanwhile; only unnamed files were deleted, the rest waits.
    """
    table = open_table(path)
    if table is None:
        return 0
    try:
        deleted = table.vacuum(dry_run=False, enforce_retention_duration=False)  # None hours: the table's own property
    except CommitFailedError as error:  # a vacuum commits its result, and this commit loses against an overwrite (ran)
        message = f"{name_of(path)} changed while it was swept ({error}); it is tried again"
        raise LostRaceError(message) from error
    table.cleanup_metadata()
    fresh = open_table(path)
    if fresh is not None:
        fresh.create_checkpoint()
        _sync(path)
    return len(deleted)


def sweep_unnamed(path: Place) -> int:
    """Delete the data files that no commit names, left by writers that were killed, once they are `UNNAMED_KEPT` old.

    A sweep reads the log alone and does not see them. Here the table's folder is listed, so this is done less often.

    Returns:
        how many data files were deleted.

    Raises:
        LostRaceError: another writer replaced rows meanwhile.
    """
    table = open_table(path)
    if table is None:
        return 0
    hours = int(UNNAMED_KEPT.total_seconds()) // 3600
    if not table.vacuum(retention_hours=hours, full=True, dry_run=True):
        return 0  # a vacuum that deletes nothing makes two commits nevertheless
    try:
        deleted = table.vacuum(retention_hours=hours, full=True, dry_run=False)
    except CommitFailedError as error:
        message = f"{name_of(path)} changed while files that no commit names were deleted ({error}); it is tried again"
        raise LostRaceError(message) from error
    return len(deleted)


def set_retention(path: Place, log: timedelta, removed: timedelta) -> bool:
    """Write other retention properties into a table at rest; return False if it has them already.

    A change of properties conflicts with an append at the same moment, so no writer may run meanwhile.
    """
    table = open_table(path)
    return table is not None and _set_properties(table, retention(log, removed))


def set_statistics(path: Place, skip_by: Sequence[str]) -> bool:
    """Write into a table of an older version what makes its commits cheap (`delta.properties_of`); return False if it has it already.

    Rows, files and their statistics stay. An append that was begun before the change loses against it (ran), so a stream does this
    before its first batch. The change itself loses against another change of the table's properties, and is made at the next start.

    Args:
        path: the table; it need not exist.
        skip_by: the columns by which its readers skip files.
    """
    table = open_table(path)
    if table is None:
        return False
    columns = [field.name for field in table.schema().fields]
    try:
        with explained(path, "changing its properties"):
            is_changed = _set_properties(table, properties_of(columns, skip_by))
    except CommitFailedError:
        return False
    if is_changed:
        _sync(path)
    return is_changed


def _set_properties(table: Table, properties: Mapping[str, str]) -> bool:
    have = table.metadata().configuration
    if all(have.get(key) == value for key, value in properties.items()):
        return False
    table.alter.set_table_properties(dict(properties))
    return True


def purge(path: Place) -> int:
    """Delete all files of an idle table that its newest version does not name, and the log entries about them, at once.

    A sweep keeps removed files and old commits for the table's retention, so that readers and resumed streams find them. Here
    they must be deleted, because they contain data that may no longer be kept. No reader may use the table meanwhile.

    A file that no commit names may come from a killed append, or may be about to be committed. So this function lists such
    files. Then it changes a property: writers that opened the table before the change now fail to commit (ran), and all listed
    files were written by such writers. Then it reads which of the files were committed before the change, and deletes the others.

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
    deleted = fresh.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    fresh.create_checkpoint()
    fresh.cleanup_metadata()
    fresh.alter.set_table_properties(before)
    orphans = set(unnamed) - live_files(fresh)
    return len(deleted) + remove_files(path, orphans)


_NONE_KEPT = ("interval 0 seconds", "interval 0 minutes")


def _fence(now: Mapping[str, str]) -> dict[str, str]:
    """Return properties that keep nothing and differ from the current ones: this change makes commits of earlier handles fail."""
    changed = _NONE_KEPT[now.get(LOG_RETENTION) == _NONE_KEPT[0]]
    return {LOG_RETENTION: changed, REMOVED_RETENTION: changed}


def _kept_properties(now: Mapping[str, str]) -> dict[str, str]:
    """Return the table's retention properties; a value of zero, left by a killed purge, is replaced by the default."""
    return {
        key: RETENTION[key] if now[key] in _NONE_KEPT else now[key]
        for key in (LOG_RETENTION, REMOVED_RETENTION)
        if key in now
    }
