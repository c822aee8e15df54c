"""Copy a checkpoint while its query runs.

The order makes it consistent: commits, offsets, sources, state, metadata. A batch whose commit was copied has its
offsets and its state in place already, so what comes later can only be newer, and is trimmed or ignored.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from rivertwice.errors import SavepointError
from rivertwice.savepoint.manifest import FileEntry
from rivertwice.store.base import is_temporary

ORDER = ("commits", "offsets", "sources", "state")
_ROUNDS = 5  # times a folder is listed again after a file in it vanished


@dataclass(frozen=True)
class HotCopy:
    """The result of a copy.

    Attributes:
        files: copied paths, relative, with slashes.
        vanished: number of files that were listed and were gone when they were opened (purged by the running query).
    """

    files: tuple[str, ...]
    vanished: int


def hot_copy(source: Path, target: Path) -> HotCopy:
    """Copy the checkpoint `source` into the empty folder `target` without stopping its query.

    Spark writes every file whole, under a temporary name that is skipped, so a file that is seen is complete. A file
    that vanishes was purged. Its folder is listed again, for its successor may be in it.

    Raises:
        SavepointError: there is no checkpoint, or its files vanish faster than they can be copied.
    """
    if not (source / "metadata").exists():
        message = f"{source} is no checkpoint (it has no metadata); start the stream first"
        raise SavepointError(message)
    target.mkdir(parents=True, exist_ok=False)
    copied: list[str] = []
    vanished = 0
    for part in ORDER:
        if (source / part).is_dir():
            paths, gone = _copy_tree(source, target, part)
            copied += paths
            vanished += gone
    for name in sorted(entry.name for entry in source.iterdir() if entry.is_file()):  # metadata and its .crc
        if not is_temporary(name):
            shutil.copyfile(source / name, target / name)
            copied.append(name)
    return HotCopy(tuple(copied), vanished)


def _copy_tree(source: Path, target: Path, part: str) -> tuple[list[str], int]:
    copied: dict[str, None] = {}
    vanished = 0
    for _ in range(_ROUNDS):
        clean = True
        for folder, _, names in os.walk(source / part):
            base = Path(folder).relative_to(source)
            (target / base).mkdir(parents=True, exist_ok=True)
            for name in names:
                path = (base / name).as_posix()
                if path in copied or is_temporary(name):
                    continue
                try:
                    shutil.copyfile(source / path, target / path)
                except FileNotFoundError:
                    (target / path).unlink(missing_ok=True)
                    vanished += 1
                    clean = False
                else:
                    copied[path] = None
        if clean:
            return list(copied), vanished
    message = (
        f"files of {source / part} vanished in {_ROUNDS} listings in a row: the query purges faster than the copy reads; "
        "raise stream.min_batches_to_retain in pipeline.yaml and take the savepoint again"
    )
    raise SavepointError(message)


def hash_file(path: Path) -> FileEntry:
    """Return a file's SHA-256 and size."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        return FileEntry(sha256=digest.hexdigest(), size=file.tell())


def hash_tree(root: Path) -> dict[str, FileEntry]:
    """Return hash and size of every file below `root`, by relative path."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): hash_file(path) for path in files}
