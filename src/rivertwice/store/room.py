"""Whether a disk has room."""

from __future__ import annotations

import shutil
from pathlib import Path

RESERVE = 1 << 20
"""Bytes that the agent keeps for a message about a full disk."""


def has_room(folder: Path) -> bool:
    """Say whether the disk of a folder has room; the reserve that was given up for a message is none yet.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    return shutil.disk_usage(folder).free > 2 * RESERVE
