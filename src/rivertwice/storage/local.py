"""The object store on a local folder: hard links decide races, renames make writes atomic."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rivertwice.core import ConfigError, DamagedFileError, RequestError, lock
from rivertwice.storage.blobs import Versioned, is_temporary, require_key

# Sync files and folders to the disk, so that a power loss cannot undo finished work.
#
# A file's content and its name are stored separately: `fsync` of the file keeps its content, `fsync` of its folder keeps its name.
# RIVERTWICE_DURABLE=off leaves both to the system (it writes within half a minute); for tests, and for homes that may be lost.

VARIABLE = "RIVERTWICE_DURABLE"


def is_durable() -> bool:
    """Say whether writes are synced to the disk at once (RIVERTWICE_DURABLE, `on` unless it is `off`).

    Raises:
        ConfigError: the variable is neither.
    """
    value = os.environ.get(VARIABLE) or "on"
    if value not in ("on", "off"):
        message = f"{VARIABLE} is {value[:40]!r}, but only on and off are known; set it to one of them"
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


# Small files on the local disk: atomic and durable writes, put-if-absent, and error messages that explain a damaged record.
#
# Every small file of a home is written here: a temporary file in the same folder, fsync, rename (or link), fsync of the folder.


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
        DamagedFileError: it is not valid JSON; the message names the file, its purpose and the remedy.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return parse_json(data, path)


def parse_json(data: bytes, path: Path | str) -> Any:
    """Return the content of a JSON file from its bytes; `path` is for the message.

    Raises:
        DamagedFileError: the bytes are not valid JSON.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(describe_damage(data, str(path))) from error


_REMOVE = "remove it (`rm {path}`): it is only a note of what a process last did, and is written again"
_RECORDS = {
    "intent.json": (
        "the desired state of the stream",
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
        else f"holds {len(data)} bytes that are not valid JSON"
    )
    return (
        f"{path} ({meaning}) {content}: a power loss, a full disk or a hand cut it short; it is not guessed at; "
        f"{remedy.format(path=path)}"
    )


_LOCK = ".versions.tmp"  # has a name like a write in progress, so that no listing shows it


class LocalStore:
    """A `BlobStore` on one folder; the folder is created by the first write."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __str__(self) -> str:
        return str(self.root)

    def _path(self, key: str) -> Path:
        path = self.root / require_key(key)
        if not path.resolve().is_relative_to(self.root.resolve()):
            message = f"{key!r} leads out of the store {self.root} by a link; remove the link"
            raise RequestError(message)
        return path

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create an object; return False if the key is taken."""
        return put_bytes_if_absent(self._path(key), data)

    def put(self, key: str, data: bytes) -> None:
        """Create or replace an object."""
        replace_bytes(self._path(key), data)

    def get(self, key: str) -> bytes | None:
        """Return an object's bytes, or None."""
        try:
            return self._path(key).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None

    def get_versioned(self, key: str) -> Versioned | None:
        """Return an object's bytes and version (the SHA-256 of its content), or None."""
        data = self.get(key)
        return None if data is None else Versioned(data, hashlib.sha256(data).hexdigest())

    def put_if_version(self, key: str, data: bytes, version: str) -> bool:
        """Replace an object that still has `version`, under the folder's lock; return False if it has another."""
        with lock(self.root / _LOCK):
            now = self.get_versioned(key)
            if now is None or now.version != version:
                return False
            self.put(key, data)
            return True

    def list(self, prefix: str = "") -> list[str]:
        """Return all keys that start with `prefix`, sorted."""
        start = self.root
        if "/" in prefix:
            start = self._path(prefix.rpartition("/")[0])
        keys = []
        for folder, _, names in os.walk(start):
            base = Path(folder).relative_to(self.root)
            keys += [(base / name).as_posix() for name in names if not is_temporary(name)]
        return sorted(key for key in keys if key.startswith(prefix))

    def delete(self, key: str) -> None:
        """Remove an object, and the folders that become empty."""
        path = self._path(key)
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a folder that is not empty stays
            for folder in path.parents:
                if folder == self.root:
                    break
                folder.rmdir()

    def put_file(self, key: str, path: Path) -> None:
        """Create or replace an object from a local file."""
        _copy_whole(path, self._path(key))

    def get_file(self, key: str, path: Path) -> None:
        """Write an object to a local file."""
        _copy_whole(self._path(key), path)

    def copy(self, source: str, target: str) -> None:
        """Create or replace `target` with the content of `source`."""
        _copy_whole(self._path(source), self._path(target))


def _copy_whole(source: Path, target: Path) -> None:
    make_folder(target.parent)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with source.open("rb") as reader, os.fdopen(handle, "wb") as writer:
            shutil.copyfileobj(reader, writer, 1 << 20)
            writer.flush()
            if is_durable():
                os.fsync(writer.fileno())
        os.replace(name, target)
        sync_path(target.parent)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
