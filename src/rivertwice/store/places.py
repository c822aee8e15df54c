"""Open the store at a place: a local folder or `s3://bucket/prefix`."""

from __future__ import annotations

import os
import shutil
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from rivertwice.config import is_s3
from rivertwice.errors import ConfigError
from rivertwice.store.base import BlobStore
from rivertwice.store.local import LocalStore


def open_store(place: str | Path, *parts: str, answer_s: float | None = None) -> BlobStore:
    """Return the store at `place`, a folder or `s3://bucket/prefix`; `parts` go below it.

    Args:
        place: the folder or address.
        parts: names below it.
        answer_s: for S3, give a request up after so many seconds and one repetition; None: the default patience.

    Raises:
        ConfigError: the scheme is unknown, or the endpoint cannot decide races.
        ServiceError: the endpoint does not answer or refuses the credentials.
    """
    url = urlsplit(str(place))
    if url.scheme in ("", "file"):
        return LocalStore(Path(url.path).joinpath(*parts))
    if is_s3(place) and url.netloc:
        prefix = "/".join([*filter(None, [url.path.strip("/")]), *parts])
        return _open_s3(url.netloc, prefix, _endpoint(), answer_s)
    message = (
        f"{str(place)!r} names no store; write a folder or s3://bucket/prefix in RIVERTWICE_SHARED, RIVERTWICE_SAVEPOINTS "
        "or RIVERTWICE_LEASES"
    )
    raise ConfigError(message)


def _endpoint() -> str | None:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


@lru_cache(maxsize=32)
def _open_s3(bucket: str, prefix: str, endpoint: str | None, answer_s: float | None) -> BlobStore:
    from rivertwice.store.s3 import S3Store  # boto3 takes half a second to load; a local home never needs it
    from rivertwice.store.s3_client import Patience, s3_client

    patience = Patience() if answer_s is None else Patience(answer_s, answer_s, 2)
    return S3Store(bucket, prefix, client=s3_client(endpoint, patience))


def remove_place(place: str | Path) -> None:
    """Remove all that is stored at a place; an absent one is no error."""
    if isinstance(place, Path):
        shutil.rmtree(place, ignore_errors=True)
        return
    store = open_store(place)
    for key in store.list():
        store.delete(key)
