"""How delta-rs accesses a table: a folder directly, an address on S3 with options from the environment."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from rivertwice.config import Place, is_s3
from rivertwice.store.base import BlobStore
from rivertwice.store.places import open_store

_TIMEOUT = "60s"
_LOG = "_delta_log"
_WORKERS = 8


def name_of(place: Place) -> str:
    """Return the last part of a place, for messages."""
    return str(place).rstrip("/").rpartition("/")[2]


def storage_options(place: Place) -> dict[str, str] | None:
    """Return delta-rs' options for a place; None for a folder.

    The credentials are those that boto3 finds (environment, profile, instance). They are read again for every handle, because
    they may be renewed meanwhile. They are passed in memory and never written.
    """
    if not is_s3(place):
        return None
    session = _session(tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_"))))
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    options = {"aws_region": session.region_name or "us-east-1", "timeout": _TIMEOUT}
    if endpoint:
        options |= {"aws_endpoint": endpoint, "aws_allow_http": str(endpoint.startswith("http://")).lower()}
    credentials = session.get_credentials()
    if credentials is not None:
        frozen = credentials.get_frozen_credentials()
        options |= {"aws_access_key_id": frozen.access_key, "aws_secret_access_key": frozen.secret_key}
        if frozen.token:
            options["aws_session_token"] = frozen.token
    return options


@lru_cache(maxsize=4)
def _session(variables: tuple[tuple[str, str], ...]) -> Any:
    """Return boto3's session for these variables; its credentials renew themselves if possible."""
    import boto3  # half a second to load; a local home never needs it

    return boto3.session.Session()


def require_writable(place: Place) -> None:
    """Probe the store of a place on S3 once per process: without conditional writes two commits could both win.

    Raises:
        ConfigError: the endpoint ignores conditions.
        ServiceError: the endpoint does not answer or refuses the credentials.
    """
    if is_s3(place):
        url = urlsplit(str(place))
        open_store(f"s3://{url.netloc}/{url.path.strip('/').rpartition('/')[0]}".rstrip("/"))


def read_log(place: str, newest: int, limit: int | None) -> list[dict[str, Any]]:
    """Return the commit infos of a table's log, newest first, each with its `version`; removed commits are left out."""
    store = open_store(place)
    if limit is None:
        names = [key.rpartition("/")[2] for key in store.list(f"{_LOG}/0") if key.endswith(".json")]
        versions = [int(name[:20]) for name in names if len(name) == 25 and name[:20].isdigit()]
    else:
        versions = list(range(max(0, newest - limit + 1), newest + 1))
    with ThreadPoolExecutor(_WORKERS) as pool:
        infos = pool.map(lambda version: _commit_info(store, version), sorted(versions, reverse=True))
        return [info for info in infos if info is not None]


def _commit_info(store: BlobStore, version: int) -> dict[str, Any] | None:
    data = store.get(f"{_LOG}/{version:020d}.json")
    actions = [] if data is None else [json.loads(line) for line in data.splitlines() if line.strip()]
    return next(({**action["commitInfo"], "version": version} for action in actions if "commitInfo" in action), None)
