"""The log of a Delta table in a folder, read without delta-rs: sync the files of a commit to the disk, and find torn entries.

delta-rs reads an empty entry as an empty commit, and for an entry that is cut short it reports only the position of its parser (ran).
Entries that a checkpoint of the log covers are not read by any reader, so they are not checked here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from rivertwice.config import Place
from rivertwice.errors import TableDamageError
from rivertwice.store.durable import is_durable, sync_all, sync_path

LOG = "_delta_log"
EMPTY, CUT, GONE = "empty", "cut short", "gone"
_ENTRY = re.compile(r"^(\d{20})\.json$")
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint(\.\d+\.\d+)?\.parquet$")
_TOP = 3  # folders above a new table whose names are new, too


@dataclass(frozen=True)
class TornEntry:
    """One entry of a table's log that cannot be the committed one.

    Attributes:
        version: the commit's number.
        path: the file.
        how: `empty`, `cut short`, or `gone` (later entries exist).
    """

    version: int
    path: Path
    how: str


def entry_path(table: Path, version: int) -> Path:
    """Return the file of one commit."""
    return table / LOG / f"{version:020d}.json"


def parse_entry(data: bytes) -> list[dict[str, Any]] | None:
    """Return the actions of a log entry; None if it is not one or more complete lines of JSON, as writers write. Pure."""
    try:
        actions = [json.loads(line) for line in data.splitlines() if line.strip()]
    except ValueError:
        return None
    return actions if actions and all(isinstance(action, dict) for action in actions) else None


def find_torn(table: Path) -> list[TornEntry]:
    """Return the torn entries that a reader needs: those after the newest checkpoint of the log, oldest first.

    Costs one listing, and a read of at most as many entries as a checkpoint's interval. Torn entries are checked twice, because
    upkeep may drop old entries while they are listed.
    """
    torn = _look(table)
    if not torn:
        return []
    again = set(_look(table))
    return [entry for entry in torn if entry in again]


def _look(table: Path) -> list[TornEntry]:
    names = _names(table)
    versions = sorted(int(match.group(1)) for match in map(_ENTRY.match, names) if match)
    checkpoints = [int(match.group(1)) for match in map(_CHECKPOINT.match, names) if match and _holds(table, match)]
    covered = max(checkpoints, default=-1)
    needed = [version for version in versions if version > covered]
    if not needed:
        return []
    first = covered + 1 if covered >= 0 else 0
    existing = set(needed)
    torn = []
    for version in range(first, needed[-1] + 1):
        path = entry_path(table, version)
        if version not in existing:
            torn.append(TornEntry(version, path, GONE))
        elif (how := _how_torn(path)) is not None:
            torn.append(TornEntry(version, path, how))
    return torn


def _holds(table: Path, name: re.Match[str]) -> bool:
    try:
        return (table / LOG / name.group(0)).stat().st_size > 0
    except FileNotFoundError:
        return False


def _how_torn(path: Path) -> str | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:  # upkeep removed it a moment ago: a checkpoint covers it now
        return None
    if not data:
        return EMPTY
    return CUT if parse_entry(data) is None else None


def _names(table: Path) -> list[str]:
    try:
        return [entry.name for entry in (table / LOG).iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def describe_torn(table: Path, torn: Sequence[TornEntry]) -> str:
    """Return the message about torn entries: table, versions, files. Pure."""
    shown = "; ".join(f"version {entry.version} ({entry.path}) is {entry.how}" for entry in torn[:5])
    more = f"; and {len(torn) - 5} more" if len(torn) > 5 else ""
    return f"the log of table {table.name} is damaged: {shown}{more}"


def require_whole(path: Place, cause: BaseException | None = None) -> None:
    """Check that no entry of a table's log is torn; a table on S3 has none, because an object is written whole.

    Raises:
        TableDamageError: an entry is torn; the message names it. Its rows and its commit are not read.
    """
    torn = find_torn(path) if isinstance(path, Path) else []
    if torn:
        message = (
            f"{describe_torn(Path(path), torn)}; the rows of these commits cannot be read, so no job continues; "
            f"{_way_out(Path(path))}"
        )
        raise TableDamageError(message) from cause


def _way_out(table: Path) -> str:
    if table.parent.name == "tables" or table.parent.parent.name == "tables":
        pipeline = (table.parent if table.parent.name == "tables" else table.parent.parent).parent.name
        return f"`rivertwice repair {pipeline}` explains the damage and what can be written again"
    return f"put the file back from a backup, or move {table} away and archive its records again while Kafka has them"


def added_files(table: Path, actions: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Return the data files that a commit added."""
    return [table / unquote(str(action["add"]["path"])) for action in actions if "add" in action]


def sync_commit(table: Path, newest: int, nonce: str | None = None, look_back: int = 50) -> None:
    """Sync a commit to the disk: its data files, their folders, the log's entry, the log's folder, a new checkpoint.

    A power loss before this function returns may leave any part of the commit; after it, no part is lost.

    Args:
        table: the table's folder.
        newest: the table's current version.
        nonce: identifies the commit, if later ones may exist; None: it is the newest.
        look_back: number of commits to search.
    """
    if not is_durable():
        return
    log = table / LOG
    for version, text in _newest_first(table, newest, look_back):
        is_own = nonce is None or nonce in text
        if is_own:
            files = added_files(table, parse_entry(text.encode()) or [])
            sync_all(path for path in files if path.exists())  # a merge directly after it may have removed some
            sync_path(entry_path(table, version))
            if version <= 1:
                _sync_new(table)
            break
    for name in (f"{newest:020d}.checkpoint.parquet", "_last_checkpoint"):
        if (log / name).exists():
            sync_path(log / name)
    sync_path(log)
    sync_path(table)


def _newest_first(table: Path, newest: int, look_back: int) -> Iterator[tuple[int, str]]:
    for version in range(newest, max(newest - look_back, -1), -1):
        try:
            yield version, entry_path(table, version).read_text(errors="replace")
        except FileNotFoundError:
            continue


def _sync_new(table: Path) -> None:
    """Sync a table that was just created: its first entry, and the names of its folders."""
    first = entry_path(table, 0)
    if first.exists():
        sync_path(first)
    for folder in list(table.parents)[:_TOP]:
        sync_path(folder)
