"""Bring files and folders onto the disk, so that a power loss takes back nothing that counts as done.

A file's content and its name are two things: `fsync` of the file keeps the one, `fsync` of its folder the other. RIVERTWICE_DURABLE=off
leaves both to the system (it writes within half a minute); for tests, and for homes that may be lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from rivertwice.errors import ConfigError

VARIABLE = "RIVERTWICE_DURABLE"


def is_durable() -> bool:
    """Say whether what is written is brought onto the disk at once (RIVERTWICE_DURABLE, `on` unless it is `off`).

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
    """Bring a file's content, or a folder's names, onto the disk; nothing with RIVERTWICE_DURABLE=off."""
    if not is_durable():
        return
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_all(files: Iterable[Path]) -> None:
    """Bring files onto the disk, then the names of all of them."""
    folders: dict[Path, None] = {}
    for path in files:
        sync_path(path)
        folders[path.parent] = None
    for folder in folders:
        sync_path(folder)


def make_folder(folder: Path) -> None:
    """Create a folder and what is missing above it, and bring the new names onto the disk."""
    missing = []
    for one in (folder, *folder.parents):
        if one.exists():
            break
        missing.append(one)
    folder.mkdir(parents=True, exist_ok=True)
    for one in reversed(missing):
        sync_path(one.parent)
