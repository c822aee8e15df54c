"""The log of a Delta table, read without delta-rs: sync the files of a commit to the disk, and find what is torn of it.

delta-rs reads an empty entry as an empty commit, and for an entry that is cut short it reports only the position of its parser (ran).
Entries that a checkpoint of the log covers are not read by any reader, so they are not checked here. Of a checkpoint that is gone,
empty or cut short delta-rs names neither table nor file (delta-rs 1.6: `tests/unit/upkeep/test_torn_checkpoints.py`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from rivertwice.core import Place, TableDamageError, below
from rivertwice.storage.local import is_durable, sync_all, sync_path
from rivertwice.storage.places import open_store

LOG = "_delta_log"
POINTER = "_last_checkpoint"
EMPTY, CUT, GONE = "empty", "cut short", "gone"
_ENTRY = re.compile(r"^(\d{20})\.json$")
_ANY_CHECKPOINT = re.compile(r"^\d{20}\.checkpoint\b.*\.parquet$")
_DIGITS = 20
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint(\.\d+\.\d+)?\.parquet$")
_TOP = 3  # folders above a new table whose names are new, too
_PARQUET = b"PAR1"  # a file of Parquet begins and ends with it


@dataclass(frozen=True)
class TornEntry:
    """One entry of a table's log, or one checkpoint of it, that cannot be the committed one.

    Attributes:
        how: `empty`, `cut short`, or `gone` (later entries exist).
        before: number of entries directly before it that are gone as well; no checkpoint has what they held.
    """

    version: int
    path: Place
    how: str
    before: int = 0

    @property
    def is_checkpoint(self) -> bool:
        """Whether it is a checkpoint: what it held may be in entries and an older checkpoint as well."""
        return str(self.path).endswith(".parquet")

    @property
    def is_first(self) -> bool:
        """Whether it is the entry that a reader of the log begins with, which has the table's columns."""
        return not self.is_checkpoint and self.before == self.version

    @property
    def text(self) -> str:
        """The entry in words, with its file."""
        kind = "checkpoint" if self.is_checkpoint else "version"
        earlier = f", and so are the {self.before} before it" if self.before else ""
        return f"{kind} {self.version} ({self.path}) is {self.how}{earlier}"


def are_checkpoints(torn: Sequence[TornEntry]) -> bool:
    """Say whether all that is torn are checkpoints, so that no commit is lost. Pure."""
    return all(entry.is_checkpoint for entry in torn)


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


def find_torn(table: Place, *, decode: bool = False) -> list[TornEntry]:
    """Return what a reader of the log needs and is torn: checkpoints first, then entries after the newest whole one, oldest first.

    Costs one listing, a read of at most as many entries as a checkpoint's interval, and of the ends of the newest checkpoint. What is
    torn is checked twice, because upkeep may drop old entries while they are listed.

    Args:
        decode: read checkpoints whole, as a reader does: so one is found that is damaged in the middle.
    """
    torn = _look(table, decode)
    if not torn:
        return []
    again = set(_look(table, decode))
    return [entry for entry in torn if entry in again]


def _look(table: Place, decode: bool) -> list[TornEntry]:
    names = _names(table)
    versions = sorted(int(match.group(1)) for match in map(_ENTRY.match, names) if match)
    if not versions:
        return []
    covered, torn = _checkpoints(table, names, versions[-1], decode)
    needed = [version for version in versions if version > covered]
    if not needed:
        return torn
    existing = set(needed)
    first = covered + 1 if covered >= 0 else 0
    if covered < 0 and needed[0] > 0:  # nothing has what these held, be they two or two million
        torn.append(TornEntry(needed[0] - 1, _place(table, needed[0] - 1), GONE, before=needed[0] - 1))
        first = needed[0]
    for version in range(first, needed[-1] + 1):
        place = _place(table, version)
        if version not in existing:
            torn.append(TornEntry(version, place, GONE))
        elif (how := _how_torn(_read(table, f"{version:020d}.json"))) is not None:
            torn.append(TornEntry(version, place, how))
    return torn


def _checkpoints(table: Place, names: Sequence[str], newest: int, decode: bool) -> tuple[int, list[TornEntry]]:
    """Return the version of the newest whole checkpoint (-1: there is none), and those that keep a reader from using it.

    A reader takes the newest checkpoint that is not empty. Without the one that the pointer names it fails, whatever else there is.
    """
    files = {int(match.group(1)): match.group(0) for match in map(_CHECKPOINT.match, sorted(names)) if match}
    pointed = _pointed(table) if POINTER in names else -1
    torn: list[TornEntry] = []
    for version in sorted({*files, pointed} - {-1}, reverse=True):
        name = files.get(version, f"{version:020d}.checkpoint.parquet")
        how = _how_checkpoint_torn(table, name, decode) if version in files else GONE
        if how is None:
            return version, torn
        if how == CUT or pointed == version <= newest:
            torn.append(TornEntry(version, _place(table, name), how))
    return -1, torn


def _pointed(table: Place) -> int:
    """Return the version of the checkpoint that the pointer names; -1: none, as readers say of a pointer that is not JSON."""
    try:
        return int(json.loads(_read(table, POINTER) or b"")["version"])
    except (ValueError, KeyError, TypeError):
        return -1


def _how_checkpoint_torn(table: Place, name: str, decode: bool) -> str | None:
    data = _read(table, name) if decode or not isinstance(table, Path) else _ends(table / LOG / name)
    if data is None:
        return GONE
    if not data:
        return EMPTY
    is_whole = len(data) >= 2 * len(_PARQUET) and data.startswith(_PARQUET) and data.endswith(_PARQUET)
    return None if is_whole and (not decode or _can_be_decoded(data)) else CUT


def _ends(path: Path) -> bytes | None:
    """Return the first and the last bytes of a file, all of a short one; None: there is no file."""
    try:
        with path.open("rb") as file:
            first = file.read(len(_PARQUET))
            file.seek(max(len(first), path.stat().st_size - len(_PARQUET)))
            return first + file.read()
    except FileNotFoundError:
        return None


def _can_be_decoded(data: bytes) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        pq.ParquetFile(pa.BufferReader(data)).read()
    except (OSError, ValueError):  # pyarrow's own errors are of these
        return False
    return True


def _how_torn(data: bytes | None) -> str | None:
    if data is None:  # upkeep removed it a moment ago: a checkpoint covers it now
        return None
    if not data:
        return EMPTY
    return CUT if parse_entry(data) is None else None


def _place(table: Place, entry: int | str) -> Place:
    return below(table, LOG, f"{entry:020d}.json" if isinstance(entry, int) else entry)


def _names(table: Place) -> list[str]:
    if not isinstance(table, Path):
        return [key.rpartition("/")[2] for key in open_store(table).list(f"{LOG}/")]
    try:
        return [entry.name for entry in (table / LOG).iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _read(table: Place, name: str) -> bytes | None:
    if not isinstance(table, Path):
        return open_store(table).get(f"{LOG}/{name}")
    try:
        return (table / LOG / name).read_bytes()
    except FileNotFoundError:
        return None


def describe_torn(table: Place, torn: Sequence[TornEntry]) -> str:
    """Return the message about torn entries: table, versions, files. Pure."""
    shown = "; ".join(entry.text for entry in torn[:5])
    more = f"; and {len(torn) - 5} more" if len(torn) > 5 else ""
    return f"the log of table {str(table).rpartition('/')[2]} is damaged: {shown}{more}"


def require_whole(path: Place, cause: BaseException | None = None) -> None:
    """Check that nothing is torn of a table's log; in an object store, where an object is written whole, only if the table cannot be opened.

    Args:
        cause: why it could not be opened; its checkpoints are read whole then.

    Raises:
        TableDamageError: an entry or a checkpoint is torn; the message names it. The rows and the commit of an entry are not read.
    """
    torn = find_torn(path, decode=cause is not None) if isinstance(path, Path) or cause is not None else []
    if torn:
        lost = "the table cannot be opened" if are_checkpoints(torn) else _ENTRY_LOST
        message = f"{describe_torn(path, torn)}; {lost}; {_way_out(path)}"
        raise TableDamageError(message) from cause


_ENTRY_LOST = "the rows of these commits cannot be read, so no job continues"


def _way_out(table: Place) -> str:
    above = str(table).split("/")[:-1]
    if "tables" in above[-2:]:
        pipeline = above[-2 if above[-1] == "tables" else -3]
        return f"`rivertwice admin repair {pipeline}` explains the damage and what can be written again"
    return f"put the file back from a backup, or move {table} away and archive its records again while Kafka has them"


def added_files(table: Path, actions: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Return the data files that a commit added."""
    return [table / unquote(str(action["add"]["path"])) for action in actions if "add" in action]


def sync_commit(table: Path, newest: int, nonce: str | None = None, look_back: int = 50) -> None:
    """Sync a commit to the disk: its data files, their folders, the log's entry, the log's folder, a new checkpoint.

    A power loss before this function returns may leave any part of the commit; after it, no part is lost.

    Args:
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
    for name in (f"{newest:020d}.checkpoint.parquet", POINTER):
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


# Detect at low cost that a table in a folder may have changed, or that its files have.


def newest_entry(table: Path) -> int:
    """Return the newest commit in a log, -1 if there is none. Costs one directory listing."""
    return max((int(matched.group(1)) for matched in map(_ENTRY.match, _names(table)) if matched), default=-1)


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

    @classmethod
    def of(cls, table: Path) -> LogFingerprint | None:
        """Return what the log of a table is made of; None if it is replaced at this moment."""
        log = table / LOG
        try:
            changed, names = log.stat().st_mtime_ns, os.listdir(log)
            commits = {int(name[:_DIGITS]): name for name in names if _ENTRY.match(name)}
            checkpoints = {int(name[:_DIGITS]): name for name in names if _ANY_CHECKPOINT.match(name)}
            covered, newest = max(checkpoints, default=-1), max(commits, default=-1)
            read = {name for version, name in commits.items() if version > covered or version == newest}
            if checkpoints:
                read.add(checkpoints[covered])
            return cls(changed, newest, frozenset(_status_of(f"{log}/{name}", name) for name in read))
        except FileNotFoundError:  # no table, or one that is replaced at this moment
            return None if log.exists() else cls()


def _status_of(path: str, name: str) -> tuple[str, int, int, int]:
    status = os.stat(path)
    return name, status.st_mtime_ns, status.st_size, status.st_ino


def check_size(file: Path, size: int) -> os.stat_result | str:
    """Return the status of a data file that has its size from the table's log, or the damage: it is gone, or has another size."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return "is gone"
    return status if status.st_size == size else f"holds {status.st_size} bytes, not {size}"
