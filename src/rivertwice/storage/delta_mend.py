"""Mend a Delta table whose log or files are torn; or show it as it would be mended, without changing it.

A torn entry cannot be restored, so an empty commit takes its place and the log is complete again. The rows of the lost commit are then
missing by name, and a caller that knows them writes them again. A torn checkpoint is taken out: readers use the one before it, or the
entries. No file is deleted: damaged files are set aside. On S3 only checkpoints are taken out.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable

from rivertwice.core.homes import Place
from rivertwice.core.instants import to_ms
from rivertwice.storage.delta import NONCE, RETENTION, open_table
from rivertwice.storage.delta_log import LOG, POINTER, TornEntry, added_files, entry_path, parse_entry
from rivertwice.storage.local import make_folder, replace_bytes, sync_path
from rivertwice.storage.places import open_store
from rivertwice.storage.sql import equals

OPERATION = "RIVERTWICE REPAIR"


def commit_of_nothing(now: datetime) -> bytes:
    """Return the log entry of a commit that changes nothing."""
    info = {"timestamp": to_ms(now), "operation": OPERATION, "operationParameters": {}, "engineInfo": "rivertwice"}
    return json.dumps({"commitInfo": info}).encode() + b"\n"


def mend_log(
    table: Place, torn: Sequence[TornEntry], aside: Path | None, now: datetime, files: Path | None = None
) -> None:
    """Take torn checkpoints out, replace torn entries with empty commits; the damaged files are moved to `aside` (None: overwritten).

    The first entry has the table's columns: they are read from a data file. If no file can be read, the whole log is moved aside, and the
    table no longer exists.

    Args:
        table: the table's place.
        torn: what is torn of its log; on S3 checkpoints alone.
        aside: folder for the damaged files.
        now: the instant in the new entries.
        files: the folder with the data files, if it is not `table`.
    """
    for checkpoint in (each for each in torn if each.is_checkpoint):
        for name in (str(checkpoint.path).rpartition("/")[2], POINTER):
            _take_out(table, name, aside)
    for torn_entry in (each for each in torn if not each.is_checkpoint):
        assert isinstance(table, Path), "an entry on S3 is written whole"
        path = entry_path(table, torn_entry.version)
        entry = _first_entry(files or table) if torn_entry.is_first else commit_of_nothing(now)
        if entry is None:
            _forget(table, aside)
            return
        if path.exists() and aside is not None:
            set_aside(path, aside)
        replace_bytes(path, entry)
        if torn_entry.before:  # a log that begins with this entry is read, but looks torn until a checkpoint covers it
            DeltaTable(str(table)).create_checkpoint()


def describe_mended(torn: Sequence[TornEntry]) -> str:
    """Return what `mend_log` did, for people. Pure."""
    checkpoints = ", ".join(str(entry.version) for entry in torn if entry.is_checkpoint)
    entries = ", ".join(str(entry.version) for entry in torn if not entry.is_checkpoint)
    parts = [f"checkpoint {checkpoints} set aside, the log is read without it"] if checkpoints else []
    parts += [f"log entry {entries} set aside, an empty commit in its place"] if entries else []
    return "; ".join(parts)


def _take_out(table: Place, name: str, aside: Path | None) -> None:
    """Move a file of the log to `aside`; on S3 its bytes. An absent one is no error."""
    if isinstance(table, Path):
        path = table / LOG / name
        if path.exists():
            path.unlink() if aside is None else set_aside(path, aside)
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
    for path in data_files(table):
        rows = read_files(table, [path], ())
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
        set_aside(table / LOG, aside)


def set_aside(path: Path, aside: Path) -> Path:
    """Move a damaged file into a folder, under its own name; return its new path."""
    make_folder(aside)
    target = aside / path.name
    shutil.move(path, target)
    sync_path(path.parent)
    return target


def drop_files(table: Path, broken: Sequence[Path], aside: Path, keep: Sequence[Path] = ()) -> int:
    """Remove missing or incomplete data files from the table, in one commit; return how many. Their remains are moved aside.

    Files of `keep` stay in the table, even if one is missing: empty files replace them meanwhile, because delta-rs removes
    missing files. If a kill leaves an empty file, it is a file with another size than in the log.
    """
    for path in broken:
        if path.exists():
            set_aside(path, aside)
    stand_ins = [path for path in keep if not path.exists()]
    for path in stand_ins:
        make_folder(path.parent)
        path.touch()
    try:
        metrics: dict[str, Any] = DeltaTable(str(table)).repair(dry_run=False)
    finally:
        for path in stand_ins:
            path.unlink()
    return len(metrics["files_removed"])


def delete_rows(table: Path, timeline: str, batch: int) -> None:
    """Delete the rows of one batch in one commit."""
    own = CommitProperties(
        custom_metadata={NONCE: json.dumps(uuid.uuid4().hex)}
    )  # a reconcile tells it from a foreign delete
    DeltaTable(str(table)).delete(f"{equals('_timeline', timeline)} AND _batch = {batch}", commit_properties=own)


def copy_as_mended(table: Path, torn: Sequence[TornEntry], broken: Sequence[Path], target: Path, now: datetime) -> None:
    """Create a folder that reads like the mended table: its log is copied, its complete data files are linked."""
    shutil.copytree(table / LOG, target / LOG)
    mend_log(target, torn, None, now, table)
    skipped = set(broken)
    for path in data_files(table):
        if path not in skipped:
            link = target / path.relative_to(table)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    if broken:
        DeltaTable(str(target)).repair(dry_run=False)


def data_files(table: Path) -> list[Path]:
    """Return the data files in a table's folder, whether a commit names them or not."""
    return sorted(path for path in table.rglob("*.parquet") if LOG not in path.relative_to(table).parts)


def unnamed_files(table: Path, mended: Path) -> list[Path]:
    """Return the data files that no readable commit names: from torn commits, killed appends, or old merges.

    Args:
        table: the table whose files are checked.
        mended: the table, or its mended copy, which can be opened.
    """
    opened = open_table(mended)
    named = (
        set()
        if opened is None
        else {table / unquote(name) for name in pa.table(opened.get_add_actions())["path"].to_pylist()}
    )
    for path in (mended / LOG).glob("*.json"):
        named.update(added_files(table, parse_entry(path.read_bytes()) or []))
    return [path for path in data_files(table) if path not in named]


def read_files(table: Path, files: Sequence[Path], columns: Sequence[str]) -> pa.Table | None:
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
