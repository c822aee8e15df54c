"""Files of a folder that other processes change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def files_below(folder: Path) -> Iterator[Path]:
    """Yield every file below a folder; files that vanish meanwhile, or a missing folder, are skipped (`Path.rglob` fails)."""
    for place, _, names in os.walk(folder):
        yield from (Path(place) / name for name in names)


def sizes_below(folder: Path) -> dict[Path, int]:
    """Return path relative to the folder to bytes, for every file below it that still exists."""
    sizes = {}
    for path in files_below(folder):
        try:
            sizes[path.relative_to(folder)] = path.stat().st_size
        except FileNotFoundError:
            continue
    return sizes
