"""The protocol of an object store: whole objects under keys, and put-if-absent to decide races."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rivertwice.core import ConfigError, RequestError, ServiceError, UnknownOutcomeError, retry

_PART = re.compile(r"^[A-Za-z0-9._=+@-]{1,255}\Z")
_LONGEST = 900  # bytes; S3 allows 1024 with the store's own prefix


def require_key(key: str) -> str:
    """Return `key` if it stays inside the store: relative, `/` between parts, no `.` or `..`, no odd characters.

    Raises:
        RequestError: the key could leave the store's folder or prefix.
    """
    parts = key.split("/")
    if len(key) > _LONGEST or any(part in ("", ".", "..") or not _PART.match(part) for part in parts):
        message = (
            f"{key[:120]!r} is not a valid key: it could leave the store's folder or prefix; keys are parts of "
            "letters, digits and ._=+@- joined by single slashes"
        )
        raise RequestError(message)
    return key


def is_temporary(name: str) -> bool:
    """Say whether a file name marks a write in progress (`.x.tmp`, and the `.crc` beside it)."""
    return name.startswith(".") and name.endswith((".tmp", ".tmp.crc"))


@dataclass(frozen=True)
class Patience:
    """How long a client waits for one answer, and how often it asks in total."""

    connect_s: float = 5.0
    read_s: float = 30.0
    attempts: int = 5


@dataclass(frozen=True)
class Versioned:
    """An object with the store's own name for exactly this content (ETag; Google: generation); equal content may share it."""

    data: bytes
    version: str


class BlobStore(Protocol):
    """Objects under keys. A reader sees a whole object or none; a later `put` of the same key replaces it."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create an object; return False, and change nothing, if the key is taken. Exactly one of several writers wins.

        Raises:
            UnknownOutcomeError: the store did not answer, and the outcome of the request cannot be found out now.
        """
        ...

    def put_if_version(self, key: str, data: bytes, version: str) -> bool:
        """Replace an object that still has `version`; return False, and change nothing, if it has another or is gone.

        Exactly one of several writers wins, if every writer's bytes differ from all earlier ones (by a nonce).

        Raises:
            UnknownOutcomeError: the store did not answer, and the outcome of the request cannot be found out now.
        """
        ...

    def put(self, key: str, data: bytes) -> None:
        """Create or replace an object."""
        ...

    def get(self, key: str) -> bytes | None:
        """Return an object's bytes, or None if there is none."""
        ...

    def get_versioned(self, key: str) -> Versioned | None:
        """Return an object's bytes and version, or None if there is none."""
        ...

    def list(self, prefix: str = "") -> list[str]:
        """Return all keys that start with `prefix`, sorted, without writes in progress."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; an absent one is not an error."""
        ...

    def put_file(self, key: str, path: Path) -> None:
        """Create or replace an object from a local file."""
        ...

    def get_file(self, key: str, path: Path) -> None:
        """Write an object to a local file, whose folder is created.

        Raises:
            FileNotFoundError: there is no such object.
        """
        ...

    def copy(self, source: str, target: str) -> None:
        """Create or replace `target` with the content of `source`, without sending bytes through the client.

        Raises:
            FileNotFoundError: there is no such source.
        """
        ...


# Whether a server decides races.

_PROBE_TRIES = 4


def require_conditions(store: BlobStore, remedy: str) -> None:
    """Try both conditions on a probe object of a store.

    Raises:
        ConfigError: the server ignores one: no race could be decided. `remedy` ends the message.
    """
    broken = retry(_may_pass, tries=_PROBE_TRIES, first_wait_s=0.1)(_broken_condition, store)
    if broken:
        message = f"the object store {store} ignores {broken}: two writers of one savepoint, table or lease could both win; {remedy}"
        raise ConfigError(message)


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, UnknownOutcomeError | ServiceError)


def _broken_condition(store: BlobStore) -> str | None:
    """Return the condition that a server ignores; None if it honours both."""
    key = f".probe-{uuid.uuid4().hex}"
    try:
        created = store.put_if_absent(key, b"first") and not store.put_if_absent(key, b"second")
        current = store.get_versioned(key)
        if not created or current is None or current.data != b"first":
            return "If-None-Match"
        if not store.put_if_version(key, b"third", current.version):
            return "If-Match"
        return "If-Match" if store.put_if_version(key, b"fourth", current.version) else None
    finally:
        store.delete(key)


# Files of a folder that other processes change.


def files_below(folder: Path) -> Iterator[Path]:
    """Yield every file below a folder; files that vanish meanwhile, or a missing folder, are skipped (`Path.rglob` fails)."""
    for place, _, names in os.walk(folder):
        yield from (Path(place) / name for name in names)
