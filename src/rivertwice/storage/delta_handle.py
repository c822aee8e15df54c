"""Open handles of Delta tables: their options, errors that name place and remedy, reads that are retried on S3."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from rivertwice.core.errors import ServiceError
from rivertwice.core.homes import Place, is_s3
from rivertwice.core.one_command import is_one_command
from rivertwice.core.waits import retry
from rivertwice.storage.blobs import BlobStore
from rivertwice.storage.delta_log import require_whole
from rivertwice.storage.places import open_store

# pyarrow in a command: without pandas before it is used. Whatever opens a table imports this first.
#
# pyarrow asks once whether pandas is there, and imports it to find out: 0.45 CPU-seconds of every command that reads a table. In a
# command it asks while pandas cannot be imported. What needs a frame (`to_pandas`) asks again, and gets it. In a user's program nothing
# is changed: there `pyarrow.array` may be given a series of pandas before the first frame is asked for.
# Seen with pyarrow 26.0.1: `PandasAPIShim` in pyarrow/pandas-shim.pxi, tests/unit/storage/test_arrow.py.


class _NoPandas:
    """Refuses to import pandas: a finder, because Cython takes a None in `sys.modules` for the module itself."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


if is_one_command() and "pandas" not in sys.modules:
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(_NoPandas)


# How delta-rs accesses a table: a folder directly, an address on S3 with options from the environment.

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


# before anything is made of rows


Table = DeltaTable
"""An open table handle."""

TRIES = 3
"""Number of tries on S3: for a commit whose transactions prevent a second one, and for reads."""
_T = TypeVar("_T")


@contextmanager
def explained(path: Place, doing: str) -> Iterator[None]:
    """Name what is torn of a table's log; place and remedy if a table on S3 cannot be reached."""
    try:
        yield
    except (TableNotFoundError, CommitFailedError):
        raise
    except (DeltaError, OSError) as error:
        if not is_s3(path) or "Kernel error" in str(error):
            require_whole(path, error)
        if not is_s3(path):
            raise
        message = (
            f"the table {path} could not be reached at {doing}: {str(error)[:600]}; the commit under way may or may not be "
            "there, and the next start finds out; check AWS_ENDPOINT_URL and the credentials"
        )
        raise ServiceError(message) from error


def open_table(path: Place) -> Table | None:
    """Return a new handle, or None if the table does not exist."""
    try:
        return opened(path)
    except TableNotFoundError:
        return None


def opened(path: Place) -> Table:
    """Return a new handle of an existing table."""
    return repeated(path, "opening it", lambda options: DeltaTable(str(path), storage_options=options))


def repeated(path: Place, doing: str, act: Callable[[dict[str, str] | None], _T]) -> _T:
    """Call a function that only reads; retry it on S3, because delta-rs does not retry a body that breaks off (ran)."""

    def once() -> _T:
        options = storage_options(path)
        with explained(path, doing):
            return act(options)

    return retry(ServiceError, tries=TRIES, first_wait_s=0.2)(once)


def applied_version(path: Place, app: str) -> int | None:
    """Return the newest version `app` committed to the table, or None."""
    table = open_table(path)
    return None if table is None else table.transaction_version(app)
