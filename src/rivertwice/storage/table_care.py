"""Keep Delta tables small and whole: merge small files, remove what no commit names, mend what is torn.

How long old commits and removed files are kept is a property of each table, written when it is created
(`delta.logRetentionDuration`, `delta.deletedFileRetentionDuration`). Old commits are removed when a checkpoint of the log
is made. A file that a commit within the retention names is never removed.

A torn entry of a log cannot be restored, so an empty commit takes its place and the log is complete again. The rows of the lost commit
are then missing by name, and a caller that knows them writes them again. A torn checkpoint is taken out: readers use the one before it,
or the entries. No file is deleted: damaged files are set aside. In an object store only checkpoints are taken out.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError

from rivertwice.core import LostRaceError, Place, RequestError, to_ms
from rivertwice.storage.blobs import files_below
from rivertwice.storage.local import make_folder, replace_bytes, sync_path
from rivertwice.storage.places import open_store
from rivertwice.storage.snapshot import Snapshot, explained
from rivertwice.storage.sql import Where
from rivertwice.storage.table import (
    FILE_BYTES,
    LOG_RETENTION,
    NONCE,
    REMOVED_RETENTION,
    REPAIR,
    RETENTION,
    Table,
    file_bytes_of,
    properties_of,
)
from rivertwice.storage.table_log import (
    LOG,
    POINTER,
    TornEntry,
    added_files,
    entry_path,
    find_torn,
    parse_entry,
    sync_commit,
)

_OF_THE_LOG = re.compile(r"^(_last_checkpoint|\.?\d{20}\.(json|crc|checkpoint\.(\d+\.\d+\.)?parquet)(\.crc)?)\Z")
SMALL_BYTES = 16_000_000
UNNAMED_KEPT = timedelta(days=7)
"""So long a file that no commit names is kept: until then its writer may be about to commit it, or a repair may need its rows."""
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}


@dataclass(frozen=True)
class TableShape:
    """The files of a table on disk.

    Attributes:
        small_in_one_partition: the largest number of small files in one partition: below 16 MB, or half of what a file may have.
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


class TableCare:
    """The upkeep and the repair of the table at a place."""

    def __init__(self, place: Place) -> None:
        """Look at nothing yet; the table need not exist."""
        self.place = place
        self._table = Table(place)

    def shape(self) -> TableShape | None:
        """Return the table's shape, or None if it does not exist."""
        table = self._table.open()
        if table is None:
            return None
        actions = table.actions()
        partitions = [name for name in actions.column_names if name.startswith("partition.")]
        sizes = actions["size_bytes"].to_pylist()
        keys: list[Any] = list(zip(*(actions[name].to_pylist() for name in partitions), strict=True)) or [()] * len(
            sizes
        )
        properties = table.handle.metadata().configuration
        limit = min(SMALL_BYTES, int(properties.get(FILE_BYTES) or 2 * SMALL_BYTES) // 2)
        small = Counter(key for key, size in zip(keys, sizes, strict=True) if size < limit)
        removed_kept = properties.get(REMOVED_RETENTION) or ""
        return TableShape(
            files=len(sizes),
            small_in_one_partition=max(small.values(), default=0),
            removed_kept=parse_interval(removed_kept, timedelta(days=7)),
        )

    def compact(self) -> int:
        """Merge the table's small files in one commit and return how many were removed; rows and transactions do not change.

        Raises:
            LostRaceError: another writer removed one of the files first; nothing changed.
        """
        table = self._table.open()
        if table is None:
            return 0
        try:
            metrics: dict[str, Any] = table.handle.optimize.compact()
        except CommitFailedError as error:
            message = f"{self._table.name} changed while its small files were merged ({error}); nothing was merged; it is tried again"
            raise LostRaceError(message) from error
        self._sync()  # the replaced files are swept later, so the new ones must survive a power loss
        return int(metrics["numFilesRemoved"])

    def _sync(self) -> None:
        fresh = self._table.open() if isinstance(self.place, Path) else None
        if fresh is not None:
            sync_commit(Path(self.place), fresh.version)

    def sweep(self) -> int:
        """Delete the data files that no commit within its retention names, drop old commits, write a checkpoint.

        In this order: only commits that the checkpoint of an earlier sweep covers are dropped. So a reader that listed the
        log a moment ago still finds every file that it needs.

        Returns:
            how many data files were deleted.

        Raises:
            LostRaceError: another writer replaced rows meanwhile; only unnamed files were deleted, the rest waits.
        """
        table = self._table.open()
        if table is None:
            return 0
        try:
            deleted = table.handle.vacuum(
                dry_run=False, enforce_retention_duration=False
            )  # None hours: the table's own property
        except (
            CommitFailedError
        ) as error:  # a vacuum commits its result, and this commit loses against an overwrite (ran)
            message = f"{self._table.name} changed while it was swept ({error}); it is tried again"
            raise LostRaceError(message) from error
        table.handle.cleanup_metadata()
        fresh = self._table.open()
        if fresh is not None:
            fresh.handle.create_checkpoint()
            self._sync()
        return len(deleted)

    def sweep_unnamed(self) -> int:
        """Delete the data files that no commit names, left by writers that were killed, once they are `UNNAMED_KEPT` old.

        A sweep reads the log alone and does not see them. Here the table's folder is listed, so this is done less often.

        Returns:
            how many data files were deleted.

        Raises:
            LostRaceError: another writer replaced rows meanwhile.
        """
        table = self._table.open()
        if table is None:
            return 0
        hours = int(UNNAMED_KEPT.total_seconds()) // 3600
        if not table.handle.vacuum(retention_hours=hours, full=True, dry_run=True):
            return 0  # a vacuum that deletes nothing makes two commits nevertheless
        try:
            deleted = table.handle.vacuum(retention_hours=hours, full=True, dry_run=False)
        except CommitFailedError as error:
            message = (
                f"{self._table.name} changed while files that no commit names were deleted ({error}); it is tried again"
            )
            raise LostRaceError(message) from error
        return len(deleted)

    def set_retention(self, log: timedelta, removed: timedelta) -> bool:
        """Write other retention properties into the table at rest; return False if it has them already.

        A change of properties conflicts with an append at the same moment, so no writer may run meanwhile.
        """
        table = self._table.open()
        return table is not None and _set_properties(table, retention(log, removed))

    def set_statistics(self, skip_by: Sequence[str]) -> bool:
        """Write into a table of an older version what makes its commits cheap (`properties_of`); return False if it has it already.

        Rows, files and their statistics stay. An append that was begun before the change loses against it (ran), so a stream does this
        before its first batch. The change itself loses against another change of the table's properties, and is made at the next start.
        """
        table = self._table.open()
        return table is not None and self._changed(table, properties_of(table.schema.names, skip_by))

    def set_file_bytes(self, size: int) -> bool:
        """Bound the data files that are written from now on (`Table`); return False if the table has this bound already, or does not exist.

        A write that was begun before the change loses against it, and is tried again by its writer.
        """
        table = self._table.open()
        return table is not None and self._changed(table, file_bytes_of(size))

    def _changed(self, table: Snapshot, properties: Mapping[str, str]) -> bool:
        try:
            with explained(self.place, "changing its properties"):
                is_changed = _set_properties(table, properties)
        except CommitFailedError:
            return False
        if is_changed:
            self._sync()
        return is_changed

    def purge(self) -> int:
        """Delete all files of the idle table that its newest version does not name, and the log entries about them, at once.

        A sweep keeps removed files and old commits for the table's retention, so that readers and resumed streams find them. Here
        they must be deleted, because they contain data that may no longer be kept. No reader may use the table meanwhile.

        A file that no commit names may come from a killed append, or may be about to be committed. So this function lists such
        files. Then it changes a property: writers that opened the table before the change now fail to commit (ran), and all listed
        files were written by such writers. Then it reads which of the files were committed before the change, and deletes the others.

        Returns:
            how many data files were deleted.
        """
        table = self._table.open()
        if table is None:
            return 0
        before = _kept_properties(table.handle.metadata().configuration)
        self._sync()
        unnamed = self._unnamed(live_files(table))
        table.handle.alter.set_table_properties(_fence(table.handle.metadata().configuration))
        fresh = self._table.open()
        assert fresh is not None, "the table was there"
        deleted = fresh.handle.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        fresh.handle.create_checkpoint()
        fresh.handle.cleanup_metadata()
        fresh.handle.alter.set_table_properties(before)
        orphans = set(unnamed) - live_files(fresh)
        return len(deleted) + self._remove(orphans)

    def _unnamed(self, live: Collection[str]) -> list[str]:
        """Return the files in the table's folder that are neither live nor entries of the log, relative to it, sorted.

        They include parts of a write in progress, which delta-rs' vacuum does not see: `FILE#1`, `_delta_log/_commit_*.json.tmp`.
        """
        if isinstance(self.place, Path):
            names: Iterable[str] = (path.relative_to(self.place).as_posix() for path in files_below(self.place))
        else:
            names = open_store(self.place).list()
        return sorted(name for name in names if name not in live and not _belongs_to_log(name))

    def _remove(self, names: Iterable[str]) -> int:
        """Delete files of the table's folder, and return how many existed; a file that is already deleted is not an error."""
        removed = 0
        for name in names:
            if isinstance(self.place, Path):
                path = self.place / name
                removed += path.exists()
                path.unlink(missing_ok=True)
                continue
            try:
                open_store(self.place).delete(name)
            except RequestError:  # not a name of ours: another program wrote it
                continue
            removed += 1
        return removed

    # Repair of what is torn or missing.

    def find_torn(self, *, decode: bool = False) -> list[TornEntry]:
        """Return what a reader of the log needs and is torn (`table_log.find_torn`)."""
        return find_torn(self.place, decode=decode)

    def mend_log(self, torn: Sequence[TornEntry], aside: Path | None, now: datetime, files: Path | None = None) -> str:
        """Take torn checkpoints out, replace torn entries with empty commits; the damaged files are moved to `aside` (None: overwritten).

        The first entry has the table's columns: they are read from a data file. If no file can be read, the whole log is moved aside,
        and the table no longer exists.

        Args:
            torn: what is torn of the log; in an object store checkpoints alone.
            now: the instant in the new entries.
            files: the folder with the data files, if it is not the table's.

        Returns:
            what was done, for people.
        """
        done = _describe_mended(torn)
        for checkpoint in (each for each in torn if each.is_checkpoint):
            for name in (str(checkpoint.path).rpartition("/")[2], POINTER):
                _take_out(self.place, name, aside)
        table = self.place
        for torn_entry in (each for each in torn if not each.is_checkpoint):
            assert isinstance(table, Path), "an entry in an object store is written whole"
            path = entry_path(table, torn_entry.version)
            entry = _first_entry(files or table) if torn_entry.is_first else _commit_of_nothing(now)
            if entry is None:
                _forget(table, aside)
                return done
            if path.exists() and aside is not None:
                _set_aside(path, aside)
            replace_bytes(path, entry)
            if (
                torn_entry.before
            ):  # a log that begins with this entry is read, but looks torn until a checkpoint covers it
                DeltaTable(str(table)).create_checkpoint()
        return done

    def drop_files(self, broken: Sequence[Path], aside: Path, keep: Sequence[Path] = ()) -> int:
        """Remove missing or incomplete data files in one commit; return how many. Their remains are moved aside.

        Files of `keep` stay in the table, even if one is missing: empty files replace them meanwhile, because delta-rs removes
        missing files. If a kill leaves an empty file, it is a file with another size than in the log.
        """
        for path in broken:
            if path.exists():
                _set_aside(path, aside)
        stand_ins = [path for path in keep if not path.exists()]
        for path in stand_ins:
            make_folder(path.parent)
            path.touch()
        try:
            metrics: dict[str, Any] = DeltaTable(str(self.place)).repair(dry_run=False)
        finally:
            for path in stand_ins:
                path.unlink()
        return len(metrics["files_removed"])

    def delete_batch(self, timeline: str, batch: int) -> None:
        """Delete the rows of one batch in one commit."""
        own = CommitProperties(
            custom_metadata={NONCE: json.dumps(uuid.uuid4().hex)}
        )  # a reconcile tells it from a foreign delete
        DeltaTable(str(self.place)).delete(
            f"{Where('_timeline').equals(timeline)} AND _batch = {batch}", commit_properties=own
        )

    def copy_as_mended(self, torn: Sequence[TornEntry], broken: Sequence[Path], target: Path, now: datetime) -> None:
        """Create a folder that reads like the mended table: its log is copied, its complete data files are linked."""
        table = Path(self.place)
        shutil.copytree(table / LOG, target / LOG)
        TableCare(target).mend_log(torn, None, now, table)
        skipped = set(broken)
        for path in _data_files(table):
            if path not in skipped:
                link = target / path.relative_to(table)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(path)
        if broken:
            DeltaTable(str(target)).repair(dry_run=False)

    def unnamed_rows(self, mended: Path, columns: Sequence[str]) -> pa.Table | None:
        """Return the rows of data files that no readable commit names: from torn commits, killed appends, or old merges.

        Args:
            mended: the table, or its mended copy, which can be opened.
            columns: files that lack one of them are left out, as are those that cannot be read.
        """
        table, opened = Path(self.place), Table(mended).open()
        named = set() if opened is None else {table / name for name in opened.sizes()}
        for path in (mended / LOG).glob("*.json"):
            named.update(added_files(table, parse_entry(path.read_bytes()) or []))
        return _read_files(table, [path for path in _data_files(table) if path not in named], columns)


def live_files(table: Snapshot) -> set[str]:
    """Return the data files of a handle's version, relative to the table, with their names in the log and on disk."""
    paths = table.actions()["path"].to_pylist()
    return {name for path in paths for name in (str(path), unquote(str(path)))}


def _belongs_to_log(name: str) -> bool:
    folder, _, file = name.rpartition("/")
    return folder == LOG and bool(_OF_THE_LOG.match(file))


def _set_properties(table: Snapshot, properties: Mapping[str, str]) -> bool:
    have = table.handle.metadata().configuration
    if all(have.get(key) == value for key, value in properties.items()):
        return False
    table.handle.alter.set_table_properties(dict(properties))
    return True


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


def _commit_of_nothing(now: datetime) -> bytes:
    """Return the log entry of a commit that changes nothing."""
    info = {"timestamp": to_ms(now), "operation": REPAIR, "operationParameters": {}, "engineInfo": "rivertwice"}
    return json.dumps({"commitInfo": info}).encode() + b"\n"


def _describe_mended(torn: Sequence[TornEntry]) -> str:
    checkpoints = ", ".join(str(entry.version) for entry in torn if entry.is_checkpoint)
    entries = ", ".join(str(entry.version) for entry in torn if not entry.is_checkpoint)
    parts = [f"checkpoint {checkpoints} set aside, the log is read without it"] if checkpoints else []
    parts += [f"log entry {entries} set aside, an empty commit in its place"] if entries else []
    return "; ".join(parts)


def _take_out(table: Place, name: str, aside: Path | None) -> None:
    """Move a file of the log to `aside`; in an object store its bytes. An absent one is not an error."""
    if isinstance(table, Path):
        path = table / LOG / name
        if path.exists():
            path.unlink() if aside is None else _set_aside(path, aside)
        return
    store = open_store(table)
    data = store.get(f"{LOG}/{name}")
    if data is not None:
        if aside is not None:
            make_folder(aside)
            replace_bytes(aside / name, data)
        store.delete(f"{LOG}/{name}")


def _first_entry(table: Path) -> bytes | None:
    """Return the entry that creates a table with the columns of its data files; None if no file can be read."""
    for path in _data_files(table):
        rows = _read_files(table, [path], ())
        if rows is None:
            continue
        days = [part.partition("=")[0] for part in path.relative_to(table).parts[:-1]]
        with tempfile.TemporaryDirectory(prefix="rivertwice-repair-") as folder:
            DeltaTable.create(folder, rows.schema, partition_by=days or None, configuration=RETENTION)
            return entry_path(Path(folder), 0).read_bytes()
    return None


def _forget(table: Path, aside: Path | None) -> None:
    if aside is None:
        shutil.rmtree(table / LOG)
    else:
        _set_aside(table / LOG, aside)


def _set_aside(path: Path, aside: Path) -> Path:
    """Move a damaged file into a folder, under its own name; return its new path."""
    make_folder(aside)
    target = aside / path.name
    shutil.move(path, target)
    sync_path(path.parent)
    return target


def _data_files(table: Path) -> list[Path]:
    """Return the data files in a table's folder, whether a commit names them or not."""
    return sorted(path for path in table.rglob("*.parquet") if LOG not in path.relative_to(table).parts)


def _read_files(table: Path, files: Sequence[Path], columns: Sequence[str]) -> pa.Table | None:
    """Return the rows of data files, with partition columns as texts; unreadable files, or files without `columns`, are left out."""
    tables = []
    for path in files:
        try:
            rows = pq.ParquetFile(path).read()
        except (OSError, pa.ArrowException):
            continue
        for part in path.relative_to(table).parts[:-1]:
            name, _, value = part.partition("=")
            rows = rows.append_column(name, pa.array([unquote(value)] * rows.num_rows, pa.string()))
        if set(columns) <= set(rows.schema.names):
            tables.append(rows)
    return pa.concat_tables(tables, promote_options="default") if tables else None
