"""The object store on a local folder: hard links decide races, renames make writes atomic."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from rivertwice.errors import RequestError
from rivertwice.locks import lock
from rivertwice.store.base import Versioned, is_temporary, require_key
from rivertwice.store.durable import is_durable, make_folder, sync_path
from rivertwice.store.files import put_bytes_if_absent, replace_bytes

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
            message = f"{key!r} leads out of the store {self.root} by a link, so it is neither read nor written; remove the link"
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
