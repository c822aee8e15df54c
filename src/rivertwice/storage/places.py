"""The store at a place (a local folder or an address in an object store), and small records kept there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from rivertwice.core import ConfigError, Place, below, is_remote, naming_extras
from rivertwice.storage.blobs import BlobStore, Patience
from rivertwice.storage.local import LocalStore, parse_json, put_json_if_absent, read_json


def open_store(place: str | Path, *parts: str, answer_s: float | None = None) -> BlobStore:
    """Return the store at `place`, a folder or an address in an object store; `parts` go below it.

    Args:
        answer_s: of an object store: abandon a request after this number of seconds and one repetition; None: the default patience.

    Raises:
        ConfigError: the scheme is unknown, or the endpoint cannot decide races.
        ServiceError: the endpoint does not answer or refuses the credentials.
    """
    url = urlsplit(str(place))
    if url.scheme in ("", "file"):
        return LocalStore(Path(url.path).joinpath(*parts))
    if is_remote(place) and url.scheme != "s3":
        address = str(below(str(place), *parts))
        return _open_cloud(address, _other_servers(), answer_s)
    if is_remote(place) and url.netloc:
        prefix = "/".join([*filter(None, [url.path.strip("/")]), *parts])
        return _open_s3(url.netloc, prefix, _endpoint(), answer_s)
    message = (
        f"{str(place)!r} names no store; write a folder or an address as s3://bucket/prefix in RIVERTWICE_SHARED, "
        "RIVERTWICE_SAVEPOINTS or RIVERTWICE_LEASES"
    )
    raise ConfigError(message)


def _endpoint() -> str | None:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def _other_servers() -> tuple[str | None, ...]:
    """Return the addresses of emulators: with another one it is another store."""
    return tuple(map(os.environ.get, ("STORAGE_EMULATOR_HOST", "AZURE_STORAGE_ENDPOINT")))


@lru_cache(maxsize=32)
def _open_s3(bucket: str, prefix: str, endpoint: str | None, answer_s: float | None) -> BlobStore:
    from rivertwice.storage.s3 import (
        S3Store,
        s3_client,
    )  # boto3 takes half a second to load; a local home never needs it

    return S3Store(bucket, prefix, client=s3_client(endpoint, _patience(answer_s)))


@lru_cache(maxsize=32)
def _open_cloud(address: str, _servers: tuple[str | None, ...], answer_s: float | None) -> BlobStore:
    with naming_extras("obstore"):
        from rivertwice.storage.cloud import CloudStore

    return CloudStore(address, _patience(answer_s))


def explain_kept_versions(bucket: str) -> str | None:
    """Return in words what a bucket or container keeps of replaced and deleted objects; None if it keeps nothing."""
    if bucket.startswith("s3://"):
        from rivertwice.storage.s3 import explain_versions

        return explain_versions(bucket)
    from rivertwice.storage.cloud import explain_kept

    return explain_kept(bucket)


def _patience(answer_s: float | None) -> Patience:
    return Patience() if answer_s is None else Patience(answer_s, answer_s, 2)


# Files of tables in an object store as local files, for readers without it. A table's data files never change once written.

_WORKERS = 8


def local_files(uris: Sequence[str], cache: Path) -> list[str]:
    """Return a local path for each file; files in an object store are downloaded into `cache` once. The cache may be deleted at any time."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        return list(pool.map(lambda uri: _local(uri, cache), uris))


def _local(uri: str, cache: Path) -> str:
    if not is_remote(uri):
        return unquote(uri)  # Delta writes a space in a folder's name as %20; our partitions are days
    url = urlsplit(uri)
    folder, _, name = unquote(url.path).strip("/").rpartition("/")
    place, _, part = folder.rpartition("/")
    path = cache / url.netloc / folder / name
    if not path.is_file():
        open_store(f"{url.scheme}://{url.netloc}/{place}".rstrip("/")).get_file(f"{part}/{name}", path)
    return str(path)


class RecordStore:
    """Small JSON records below a place (a folder or an address): written once, read whole, listed by name."""

    def __init__(self, place: Place) -> None:
        """Nothing is read yet."""
        self._place = place

    def put_if_absent(self, key: str, value: Any) -> bool:
        """Create a record; return False if it exists already."""
        if isinstance(self._place, Path):
            return put_json_if_absent(self._place / key, value)
        return open_store(self._place).put_if_absent(key, json.dumps(value, sort_keys=True, indent=1).encode() + b"\n")

    def read(self, key: str) -> Any | None:
        """Return a record's content, or None if there is none.

        Raises:
            DamagedFileError: the record cannot be decoded.
        """
        if isinstance(self._place, Path):
            return read_json(self._place / key)
        data = open_store(self._place).get(key)
        return None if data is None else parse_json(data, str(below(self._place, key)))

    def delete(self, key: str) -> None:
        """Remove a record; an absent one is not an error."""
        if isinstance(self._place, Path):
            (self._place / key).unlink(missing_ok=True)
        else:
            open_store(self._place).delete(key)

    def remove_all(self) -> None:
        """Remove all that is stored at the place; an absent one is not an error."""
        if isinstance(self._place, Path):
            shutil.rmtree(self._place, ignore_errors=True)
            return
        store = open_store(self._place)
        for key in store.list():
            store.delete(key)

    def folders_with(self, name: str) -> list[str]:
        """Return the folders directly below the place that have a record called `name`, sorted."""
        if isinstance(self._place, Path):
            return sorted(path.parent.name for path in self._place.glob(f"*/{name}"))
        keys = open_store(self._place).list()
        return sorted(key.partition("/")[0] for key in keys if key.partition("/")[2] == name)

    def list(self) -> list[str]:
        """Return the keys of the records directly in the place, sorted."""
        if isinstance(self._place, Path):
            return sorted(path.name for path in self._place.glob("*.json"))
        return sorted(key for key in open_store(self._place).list() if "/" not in key and key.endswith(".json"))
