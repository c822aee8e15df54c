"""What the archive's data files were when they were written: their SHA-256, noted beside the tables and compared before they are read.

A data file of a Delta table never changes, and nothing in it tells of a flipped bit: a backfill would compute another number from it. So who
writes to a topic's archive notes the sums of its live files, under `archive/.sums/TOPIC.json`, and who reads a file compares size and sum
first, once a process. A file of an earlier version has no sum before the archive is next extended; then only its size is compared. On S3
an object is written whole and kept by the store, so nothing is noted.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from rivertwice.config import Settings, below, require_topic
from rivertwice.errors import DamagedFileError, TableDamageError
from rivertwice.store.delta import Table, open_table
from rivertwice.store.files import read_json, replace_json

LOG = logging.getLogger(__name__)
FORMAT = 1
_FOLDER = ".sums"  # no topic can be called so
_SOUND: set[tuple[str, int, int, int]] = set()
"""Files that this process has compared: path, size, time of the last change and number of the file."""


@dataclass(frozen=True)
class BrokenFile:
    """A data file that is not what was written.

    Attributes:
        path: where it lies, or lay.
        how: what is wrong with it.
    """

    path: Path
    how: str


def sums_file(settings: Settings, topic: str) -> Path | None:
    """Return where a topic's sums are noted; None if its archive lies on S3."""
    place = below(settings.home if settings.shared is None else settings.shared, "archive", _FOLDER)
    return place / f"{require_topic(topic)}.json" if isinstance(place, Path) else None


def read_sums(settings: Settings, topic: str) -> dict[str, str]:
    """Return data file, relative to the archive, to its SHA-256 in hex, as far as it was noted.

    Raises:
        DamagedFileError: the note cannot be decoded.
    """
    path = sums_file(settings, topic)
    data = None if path is None else read_json(path)
    return {} if data is None or data.get("format") != FORMAT else dict(data["sums"])


def note_sums(settings: Settings, topic: str) -> int:
    """Note the sums of live files that have none, and forget those of files that are gone; return how many are new.

    The caller is the one who writes the archive now.
    """
    place, path = settings.archive(topic), sums_file(settings, topic)
    table = open_table(place) if isinstance(place, Path) else None
    if table is None or path is None or not isinstance(place, Path):
        return 0
    try:
        known = read_sums(settings, topic)
    except DamagedFileError as error:
        LOG.warning("%s; the sums of the files as they are now are noted", error)
        known = {}
    live = live_sizes(table)
    wanted = {name: known[name] for name in live if name in known}
    new = [name for name in live if name not in known and (place / name).is_file()]
    wanted |= {name: sum_of(place / name) for name in new}
    if wanted != known:
        replace_json(path, {"format": FORMAT, "sums": wanted})
    return len(new)


def live_sizes(table: Table) -> dict[str, int]:
    """Return each live data file, relative to its table, with the bytes that the table's log says it has."""
    actions = pa.table(table.get_add_actions(flatten=True))
    names: Iterable[Any] = actions["path"].to_pylist()
    return {unquote(name): size for name, size in zip(names, actions["size_bytes"].to_pylist(), strict=True)}


def sum_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_broken(place: Path, sizes: Mapping[str, int], sums: Mapping[str, str]) -> list[BrokenFile]:
    """Return which data files are gone, or not what was written.

    Args:
        place: folder of the table.
        sizes: files to look at, relative to it, with their sizes.
        sums: SHA-256 of those that have one.
    """
    found = []
    for name, size in sorted(sizes.items()):
        how = _how_broken(place / name, size, sums.get(name))
        if how is not None:
            found.append(BrokenFile(place / name, how))
    return found


def _how_broken(path: Path, size: int, noted: str | None) -> str | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return "is gone"
    if status.st_size != size:
        return f"holds {status.st_size} bytes, not {size}"
    mark = (str(path), status.st_size, status.st_mtime_ns, status.st_ino)
    if noted is None or mark in _SOUND:
        return None
    if sum_of(path) != noted:
        return "is not what was written (its SHA-256 is another)"
    _SOUND.add(mark)
    return None


def require_sound(settings: Settings, topic: str, table: Table, files: Sequence[str] | None = None) -> None:
    """Check that files of an archive are what was written, before anything is read from them.

    Args:
        settings: where it lies.
        topic: whose archive it is.
        table: an open handle of it.
        files: their full names; None: all live files.

    Raises:
        TableDamageError: one is gone or another; the message names it and the way out.
    """
    place = settings.archive(topic)
    if not isinstance(place, Path):
        return
    sizes = live_sizes(table)
    if files is not None:
        asked = {Path(name).relative_to(place).as_posix() for name in files}
        sizes = {name: size for name, size in sizes.items() if name in asked}
    broken = find_broken(place, sizes, read_sums(settings, topic))
    if broken:
        told = "; ".join(f"{one.path} {one.how}" for one in broken[:5])
        message = (
            f"the archive of topic {topic} is damaged: {told}; nothing was computed from it; `rivertwice repair NAME`, of a pipeline that "
            "reads the topic, says which records that are, and writes them again while Kafka has them"
        )
        raise TableDamageError(message)
