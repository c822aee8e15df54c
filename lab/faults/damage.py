"""Damage to files: each class of a checkpoint's files, and each way to break one."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path

KINDS = ("missing", "truncated", "zeroed", "flipped")
CLASSES = (
    "metadata",
    "offsets",
    "commits",
    "sources",
    "changelog",
    "snapshot",
    "state-metadata",
    "checksum",
    "newest-batch",
    "folder",
)
_STATE = re.compile(r"^(\d+)_[^/]*\.(changelog|zip)$")


def break_file(path: Path, kind: str, dice: random.Random) -> str:
    """Break one file and return what was done."""
    if kind == "missing":
        path.unlink()
        return f"{path.name} removed"
    data = bytearray(path.read_bytes())
    if kind == "truncated":
        data = data[: len(data) // 2]
    elif kind == "zeroed":
        data = bytearray(len(data))
    else:
        place = dice.randrange(len(data))
        data[place] ^= 1 << dice.randrange(8)
    path.write_bytes(bytes(data))
    return f"{path.name} {kind}"


def newest(folder: Path) -> Path:
    """Return the file of a numbered folder with the largest number."""
    return max((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))


def state_files(checkpoint: Path, suffix: str) -> list[Path]:
    """Return the state files of a kind, newest version first within each partition."""
    paths = [path for path in (checkpoint / "state").rglob(f"*.{suffix}") if _STATE.match(path.name)]
    return sorted(paths, key=lambda path: int(path.name.partition("_")[0]), reverse=True)


def victims(checkpoint: Path, which: str, dice: random.Random) -> list[Path]:
    """Return the files of a class that are to be broken; none if the checkpoint has no such file yet."""
    if which in ("offsets", "commits"):
        return [newest(checkpoint / which)]
    if which == "newest-batch":
        return [newest(checkpoint / "offsets"), newest(checkpoint / "commits")]
    if which == "folder":
        return [path for path in checkpoint.rglob("*") if path.is_file()]
    choice: Sequence[Path]
    if which == "changelog":
        choice = state_files(checkpoint, "changelog")[:2]
    elif which == "snapshot":
        choice = state_files(checkpoint, "zip")[:2]
    elif which == "state-metadata":
        choice = [path for path in (checkpoint / "state").rglob("_metadata/*") if not path.name.startswith(".")]
    elif which == "checksum":
        logs = [newest(checkpoint / name) for name in ("offsets", "commits")]
        names = [path.with_name(f".{path.name}.crc") for path in (*logs, *state_files(checkpoint, "changelog")[:2])]
        choice = [path for path in names if path.exists()]
    elif which == "sources":
        choice = [checkpoint / "sources" / "0" / "0"]
    else:
        choice = [checkpoint / "metadata"]
    return [dice.choice(sorted(choice))] if choice else []


def break_class(checkpoint: Path, which: str, kind: str, dice: random.Random) -> str:
    """Break the files of a class and return what was done, or that there was nothing to break."""
    done = [break_file(path, kind, dice) for path in victims(checkpoint, which, dice)]
    return f"{which}: {'; '.join(done[:3])}" if done else f"{which}: no such file yet"
