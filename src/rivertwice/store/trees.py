"""Files of a folder in which somebody else works."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def files_below(folder: Path) -> Iterator[Path]:
    """Yield every file below a folder; what vanishes meanwhile, or is not there, is left out (`Path.rglob` fails at it)."""
    for place, _, names in os.walk(folder):
        yield from (Path(place) / name for name in names)


def sizes_below(folder: Path) -> dict[Path, int]:
    """Return path relative to the folder to bytes, of every file below it that is still there."""
    sizes = {}
    for path in files_below(folder):
        try:
            sizes[path.relative_to(folder)] = path.stat().st_size
        except FileNotFoundError:
            continue
    return sizes
