"""The SHA-256 of the archive's data files, stored beside the tables when the files are written, and compared before they are read.

A data file of a Delta table never changes, and it does not show a flipped bit: a backfill would compute another number from it. So a
writer of a topic's archive stores the sums of its live files in `archive/.sums/TOPIC.json`. A reader of a file compares size and sum
first, once per process. A file of an earlier version has no sum until the archive is extended; until then only its size is compared.
On S3 an object is written whole and kept by the store, so no sum is stored.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rivertwice.config import Settings, below, require_topic
from rivertwice.errors import DamagedFileError, TableDamageError
from rivertwice.store.delta import Table, open_table
from rivertwice.store.delta_counts import check_size, live_sizes
from rivertwice.store.files import read_json, replace_json

LOG = logging.getLogger(__name__)
FORMAT = 1
_FOLDER = ".sums"  # no topic can have this name
_SOUND: set[tuple[str, int, int, int]] = set()
"""Files that this process has compared: path, size, time of the last change and inode number."""


@dataclass(frozen=True)
class BrokenFile:
    """A data file that differs from what was written, or is missing.

    Attributes:
        path: path of the file, also if it is missing.
        how: the damage.
    """

    path: Path
    how: str


def forget_compared() -> None:
    """Compare all files again: the next verb of a resident process reads as one that has just started."""
    _SOUND.clear()


def sums_file(settings: Settings, topic: str) -> Path | None:
    """Return the file of a topic's sums; None if its archive is on S3."""
    place = below(settings.home if settings.shared is None else settings.shared, "archive", _FOLDER)
    return place / f"{require_topic(topic)}.json" if isinstance(place, Path) else None


def read_sums(settings: Settings, topic: str) -> dict[str, str]:
    """Return data file, relative to the archive, to its SHA-256 in hex, if it is stored.

    Raises:
        DamagedFileError: the stored sums cannot be decoded.
    """
    path = sums_file(settings, topic)
    data = None if path is None else read_json(path)
    return {} if data is None or data.get("format") != FORMAT else dict(data["sums"])


def note_sums(settings: Settings, topic: str) -> int:
    """Store the sums of live files that have none, and remove the sums of deleted files; return how many are new.

    The caller must hold the archive's lock.
    """
    place, path = settings.archive(topic), sums_file(settings, topic)
    table = open_table(place) if isinstance(place, Path) else None
    if table is None or path is None or not isinstance(place, Path):
        return 0
    try:
        noted = read_sums(settings, topic)
    except DamagedFileError as error:
        LOG.warning("%s; the sums of the files as they are now are noted", error)
        noted = {}
    live = live_sizes(table)
    updated = {name: noted[name] for name in live if name in noted}
    new = [name for name in live if name not in noted and (place / name).is_file()]
    updated |= {name: sum_of(place / name) for name in new}
    if updated != noted:
        replace_json(path, {"format": FORMAT, "sums": updated})
    return len(new)


def sum_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_broken(place: Path, sizes: Mapping[str, int], sums: Mapping[str, str]) -> list[BrokenFile]:
    """Return the data files that are missing, or differ from what was written.

    Args:
        place: folder of the table.
        sizes: the files to check, relative to the folder, with their sizes.
        sums: SHA-256 of the files that have one.
    """
    broken_files = []
    for name, size in sorted(sizes.items()):
        how = _how_broken(place / name, size, sums.get(name))
        if how is not None:
            broken_files.append(BrokenFile(place / name, how))
    return broken_files


def _how_broken(path: Path, size: int, noted: str | None) -> str | None:
    status = check_size(path, size)
    if isinstance(status, str):
        return status
    mark = (str(path), status.st_size, status.st_mtime_ns, status.st_ino)
    if noted is None or mark in _SOUND:
        return None
    if sum_of(path) != noted:
        return "is not what was written (its SHA-256 is another)"
    _SOUND.add(mark)
    return None


def require_sound(settings: Settings, topic: str, table: Table, files: Sequence[str] | None = None) -> None:
    """Check that files of an archive are as they were written, before they are read.

    Args:
        settings: location of the archive.
        topic: the archive's topic.
        table: an open handle of the archive.
        files: full names of the files; None: all live files.

    Raises:
        TableDamageError: a file is missing or changed; the message names it and the remedy.
    """
    place = settings.archive(topic)
    if not isinstance(place, Path):
        return
    sizes = live_sizes(table)
    if files is not None:
        requested = {Path(name).relative_to(place).as_posix() for name in files}
        sizes = {name: size for name, size in sizes.items() if name in requested}
    broken = find_broken(place, sizes, read_sums(settings, topic))
    if broken:
        damage = "; ".join(f"{file.path} {file.how}" for file in broken[:5])
        message = (
            f"the archive of topic {topic} is damaged: {damage}; nothing was computed from it; `rivertwice repair NAME`, of a pipeline that "
            "reads the topic, lists the lost records, and writes them again while Kafka has them"
        )
        raise TableDamageError(message)
