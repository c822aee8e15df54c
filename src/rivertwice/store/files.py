"""Small files on the local disk: atomic writes and put-if-absent."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def _write_temp(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return Path(name)


def replace_bytes(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old or the new content, never a part."""
    temp = _write_temp(path, data)
    os.replace(temp, path)


def put_bytes_if_absent(path: Path, data: bytes) -> bool:
    """Create a file with its whole content, atomically; return False if it is already there."""
    temp = _write_temp(path, data)
    try:
        os.link(temp, path)
    except FileExistsError:
        return False
    finally:
        temp.unlink()
    return True


def encode_json(value: Any) -> bytes:
    """Return canonical JSON: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def replace_json(path: Path, value: Any) -> None:
    """Write `value` as readable JSON, atomically."""
    replace_bytes(path, json.dumps(value, sort_keys=True, indent=1).encode() + b"\n")


def put_json_if_absent(path: Path, value: Any) -> bool:
    """Create a readable JSON file, atomically; return False if it is already there."""
    return put_bytes_if_absent(path, json.dumps(value, sort_keys=True, indent=1).encode() + b"\n")


def read_json(path: Path) -> Any | None:
    """Return the content of a JSON file, or None if there is none."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
