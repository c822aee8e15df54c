"""Which store a place names: a local folder or `s3://bucket/prefix`."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from rivertwice.errors import ConfigError
from rivertwice.store.base import BlobStore
from rivertwice.store.local import LocalStore


def open_store(place: str | Path, *parts: str) -> BlobStore:
    """Return the store at `place`, a folder or `s3://bucket/prefix`; `parts` go below it.

    Raises:
        ConfigError: the scheme is not known, or the endpoint cannot decide races.
    """
    url = urlsplit(str(place))
    if url.scheme in ("", "file"):
        return LocalStore(Path(url.path).joinpath(*parts))
    if url.scheme == "s3" and url.netloc:
        return _open_s3(url.netloc, "/".join([*filter(None, [url.path.strip("/")]), *parts]))
    message = f"{str(place)!r} names no store; write a folder or s3://bucket/prefix in RIVERTWICE_SAVEPOINTS"
    raise ConfigError(message)


@lru_cache(maxsize=8)
def _open_s3(bucket: str, prefix: str) -> BlobStore:
    from rivertwice.store.s3 import S3Store  # boto3 takes half a second to load; a local home never needs it

    return S3Store(bucket, prefix)
