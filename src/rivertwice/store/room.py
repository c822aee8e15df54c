"""Whether a disk has free space."""

from __future__ import annotations

import shutil
from pathlib import Path

RESERVE = 1 << 20
"""Bytes that the agent reserves for a message about a full disk."""


def has_room(folder: Path) -> bool:
    """Say whether the disk of a folder has free space; a released reserve alone does not count as space.

    Raises:
        FileNotFoundError: the folder does not exist.
    """
    return free_bytes(folder) > 2 * RESERVE


def free_bytes(folder: Path) -> int:
    """Return how many bytes the disk of a folder has free.

    Raises:
        FileNotFoundError: the folder does not exist.
    """
    return shutil.disk_usage(folder).free
