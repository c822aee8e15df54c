"""Small files on the local disk: atomic and durable writes, put-if-absent, and error messages that explain a damaged record.

Every small file of a home is written here: a temporary file in the same folder, fsync, rename (or link), fsync of the folder.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from rivertwice.errors import DamagedFileError
from rivertwice.store.durable import is_durable, make_folder, sync_path


def _write_temp(path: Path, data: bytes) -> Path:
    make_folder(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if is_durable():
                os.fsync(file.fileno())
    except BaseException:
        Path(name).unlink(missing_ok=True)  # on a full disk the remains would take space that is needed
        raise
    return Path(name)


def replace_bytes(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old or the new content, never a part, also after a power loss."""
    temp = _write_temp(path, data)
    os.replace(temp, path)
    sync_path(path.parent)


def put_bytes_if_absent(path: Path, data: bytes) -> bool:
    """Create a file with its whole content, atomically; return False if it exists already."""
    temp = _write_temp(path, data)
    try:
        os.link(temp, path)
    except FileExistsError:
        return False
    finally:
        temp.unlink()
    sync_path(path.parent)
    return True


def encode_json(value: Any) -> bytes:
    """Return canonical JSON: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def replace_json(path: Path, value: Any) -> None:
    """Write `value` as readable JSON, atomically."""
    replace_bytes(path, json.dumps(value, sort_keys=True, indent=1).encode() + b"\n")


def put_json_if_absent(path: Path, value: Any) -> bool:
    """Create a readable JSON file, atomically; return False if it exists already."""
    return put_bytes_if_absent(path, json.dumps(value, sort_keys=True, indent=1).encode() + b"\n")


def read_json(path: Path) -> Any | None:
    """Return the content of a JSON file, or None if there is none.

    Raises:
        DamagedFileError: it is no JSON; the message names the file, its purpose and the remedy.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return parse_json(data, path)


def parse_json(data: bytes, path: Path | str) -> Any:
    """Return the content of a JSON file from its bytes; `path` is for the message.

    Raises:
        DamagedFileError: the bytes are no JSON.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(describe_damage(data, str(path))) from error


_REMOVE = "remove it (`rm {path}`): it is only a note of what a process last did, and is written again"
_RECORDS = {
    "intent.json": (
        "what is wanted of the stream",
        "remove it (`rm {path}`) and give the command again (`rivertwice start NAME`)",
    ),
    "timeline.json": (
        "the record of a timeline, without which it is unknown which batches count",
        "put the file back from a backup",
    ),
    "heartbeat.json": ("the last report of a process about itself", _REMOVE),
    "exit.json": ("why the last driver ended", _REMOVE),
    "owner.json": ("who runs the stream", "stop that process, then " + _REMOVE),
    "retention.json": ("when the log's records run out", _REMOVE),
    "memory.json": ("what the agent remembers of a pipeline", _REMOVE),
    "unplaced.json": ("which batch waits for its ends; without it that batch keeps those that Spark planned", _REMOVE),
    "intact.json": ("up to where the tables were checked", _REMOVE),
    "note.json": ("what a delivery last did", _REMOVE),
    "ports.json": ("the ports of the embedded broker", "remove it (`rm {path}`) and run `rivertwice up`"),
    "plan.json": ("the plan of a backfill", "remove its folder and plan the backfill again"),
    "audit.json": ("the audit of a backfill", "remove it (`rm {path}`): the audit runs again"),
    "fall-back.json": ("what the last fall-back came to", _REMOVE),
}


def describe_damage(data: bytes, path: str) -> str:
    """Return the message about a JSON file that cannot be decoded: path, size, meaning and remedy. Pure."""
    name = path.rpartition("/")[2]
    meaning, remedy = _RECORDS.get(name, ("a record of rivertwice", "put the file back from a backup"))
    if name.startswith(("restore-", "rewind-")):
        meaning = "the record of an operation"
        remedy = "if it is over or has changed nothing yet, remove it (`rm {path}`); else put it back from a backup"
    content = (
        "is empty"
        if not data
        else "holds only zeros"
        if not data.strip(b"\0")
        else f"holds {len(data)} bytes that are no JSON"
    )
    return (
        f"{path} ({meaning}) {content}: a power loss, a full disk or a hand cut it short; it is not guessed at; "
        f"{remedy.format(path=path)}"
    )
