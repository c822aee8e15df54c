"""Decoded records of an archive, kept beside it: one file of columns for each data file of the archive, by each decoder.

`archive/.decoded/TOPIC/DECODER/NAME.SHA256.parquet`: NAME is that of the data file, which never changes and whose name never comes
back; DECODER stands for all that decides what a record is decoded as; SHA256 is the file's own sum. So a file has its whole meaning in its
name: it is made aside and renamed, another decoder does not find it, and an altered one no longer fits its name. The bytes stay
the truth: a file that is gone, or does not fit, is made again of them.

An archive in an object store keeps none.
"""

from __future__ import annotations

import logging
import os
import secrets
import shlex
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import file_digest
from pathlib import Path

from rivertwice.core import Settings, TopicName, below, lock_if_free
from rivertwice.storage import sync_path

LOG = logging.getLogger(__name__)
_FOLDER = ".decoded"  # no topic can have this name
_SCRATCH = ".making-"
UNUSED_S = 30 * 86_400
"""A decoder whose files were not read for so long before another's were is one that nobody has any more."""


# The sum of a file that never changes, compared before the file is read: once in a process.

ANOTHER_SUM = "is not what was written (its SHA-256 is another)"
_SOUND: set[tuple[str, int, int, int]] = set()
"""Files that this process has compared: path, size, time of the last change and inode number."""


def forget_compared() -> None:
    """Compare all files again: the next verb of a resident process reads as one that has just started."""
    _SOUND.clear()


def sum_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def has_sum(path: Path, status: os.stat_result, noted: str) -> bool:
    """Say whether a file still has the sum that it was written with."""
    mark = (str(path), status.st_size, status.st_mtime_ns, status.st_ino)
    if mark not in _SOUND:
        if sum_of(path) != noted:
            return False
        _SOUND.add(mark)
    return True


# What is kept of an archive.


def decoded_place(settings: Settings, topic: str) -> Path | None:
    """Return the folder of what is kept of a topic; None if its archive is in an object store."""
    place = below(settings.home if settings.shared is None else settings.shared, "archive", _FOLDER)
    return place / TopicName(topic).folder if isinstance(place, Path) else None


class DecodedFiles:
    """What one decoder keeps of a topic's archive.

    Attributes:
        sound: name of a data file of the archive to the file of its columns.
        altered: likewise those that are not what was written; they are not read.
    """

    def __init__(self, folder: Path, names: Collection[str]) -> None:
        """Find what is kept of some data files, and compare each file with its sum; once in a process.

        Args:
            folder: of the decoder.
            names: of the data files, without their folders.
        """
        self.folder = folder
        self.sound: dict[str, Path] = {}
        self.altered: dict[str, Path] = {}
        for path in sorted(folder.glob("*.parquet")):
            name, noted = _parse(path)
            if name in names:
                with suppress(FileNotFoundError):  # an archive job has just removed it
                    (self.sound if has_sum(path, path.stat(), noted) else self.altered)[name] = path
        for path in self.altered.values():
            LOG.warning("%s %s; it is not read; `rm %s`", path, ANOTHER_SUM, shlex.quote(str(path)))
        if self.sound:
            with suppress(OSError):  # a reader who may not write
                os.utime(folder)  # read now: `tidy_decoded` goes by it

    @contextmanager
    def making(self) -> Iterator[Path]:
        """Give a folder beside the kept files; it is removed after the block, or by `tidy_decoded` once its process has ended."""
        scratch = self.folder.parent / f"{_SCRATCH}{secrets.token_hex(6)}"
        scratch.mkdir(parents=True)
        try:
            with lock_if_free(scratch):
                yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def keep(self, made: Mapping[str, Path], live: Collection[str]) -> None:
        """Keep files that were made, of data files that are still live. The caller holds the archive's lock.

        So what an erasure has rewritten is never kept: the erasure holds the lock too, and removes what was kept before.

        Args:
            made: name of a data file to the file of its columns.
            live: names of the archive's data files now.
        """
        self.folder.mkdir(exist_ok=True)
        for name, path in made.items():
            if name in live:
                sync_path(path)
                kept = self.folder / f"{name.removesuffix('.parquet')}.{sum_of(path)}.parquet"
                os.replace(path, kept)
                self.sound[name] = kept
        sync_path(self.folder)


def tidy_decoded(settings: Settings, topic: str, live: Collection[str]) -> None:
    """Remove what is kept of data files that are not live, what a killed process was making, and what no reader has read for long.

    The caller holds the archive's lock.

    Args:
        live: names of the archive's data files, without their folders.
    """
    place = decoded_place(settings, topic)
    if place is None or not place.is_dir():
        return
    folders = [path for path in place.iterdir() if path.is_dir()]
    for scratch in folders:
        if scratch.name.startswith(_SCRATCH):
            with lock_if_free(scratch) as is_left:
                if is_left:
                    shutil.rmtree(scratch, ignore_errors=True)
    read_at = {path: path.stat().st_mtime for path in folders if not path.name.startswith(_SCRATCH)}
    for folder, at in read_at.items():
        if at < max(read_at.values()) - UNUSED_S:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        gone = [path for path in folder.glob("*.parquet") if _parse(path)[0] not in live]
        for path in gone:
            path.unlink(missing_ok=True)
        os.utime(folder, (at, at))  # removing is not reading


def _parse(path: Path) -> tuple[str, str]:
    """Return the data file that a kept file is of, and its own sum."""
    name, _, noted = path.name.removesuffix(".parquet").rpartition(".")
    return f"{name}.parquet", noted
