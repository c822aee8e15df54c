"""Sync files and folders to the disk, so that a power loss cannot undo finished work.

A file's content and its name are stored separately: `fsync` of the file keeps its content, `fsync` of its folder keeps its name.
RIVERTWICE_DURABLE=off leaves both to the system (it writes within half a minute); for tests, and for homes that may be lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from rivertwice.errors import ConfigError

VARIABLE = "RIVERTWICE_DURABLE"


def is_durable() -> bool:
    """Say whether writes are synced to the disk at once (RIVERTWICE_DURABLE, `on` unless it is `off`).

    Raises:
        ConfigError: the variable is neither.
    """
    value = os.environ.get(VARIABLE) or "on"
    if value not in ("on", "off"):
        message = (
            f"{VARIABLE} is {value[:40]!r}, but only on and off are known; nothing was written; set it to one of them"
        )
        raise ConfigError(message)
    return value == "on"


def sync_path(path: Path) -> None:
    """Sync a file's content, or a folder's names, to the disk; does nothing with RIVERTWICE_DURABLE=off."""
    if not is_durable():
        return
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_all(files: Iterable[Path]) -> None:
    """Sync files to the disk, then the names of all files."""
    folders: dict[Path, None] = {}
    for path in files:
        sync_path(path)
        folders[path.parent] = None
    for folder in folders:
        sync_path(folder)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, and sync the new names to the disk."""
    missing = []
    for ancestor in (folder, *folder.parents):
        if ancestor.exists():
            break
        missing.append(ancestor)
    folder.mkdir(parents=True, exist_ok=True)
    for ancestor in reversed(missing):
        sync_path(ancestor.parent)
