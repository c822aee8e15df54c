"""One version of a Delta table, opened with delta-rs: its rows as Arrow, its commits, and counts from its log."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from rivertwice.core import Place, ServiceError, is_one_command, is_remote, retry
from rivertwice.storage.blobs import BlobStore
from rivertwice.storage.places import open_store
from rivertwice.storage.sql import quoted
from rivertwice.storage.table_log import require_whole

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


# How delta-rs accesses a table: a folder directly, an address in an object store with options from the environment.

_TIMEOUT = "60s"
_LOG = "_delta_log"
_WORKERS = 8


def name_of(place: Place) -> str:
    """Return the last part of a place, for messages."""
    return str(place).rstrip("/").rpartition("/")[2]


def storage_options(place: Place) -> dict[str, str] | None:
    """Return delta-rs' options for a place; None for a folder.

    The credentials of S3 are those that boto3 finds (environment, profile, instance). They are read again for every handle, because
    they may be renewed meanwhile. They are passed in memory and never written. Those of other stores delta-rs finds itself.
    """
    if not is_remote(place):
        return None
    if not str(place).startswith("s3://"):
        from rivertwice.storage.cloud import cloud_options

        return {"timeout": _TIMEOUT, **cloud_options(place)}
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
    """Probe the object store of a place once per process: without conditional writes two commits could both win.

    Raises:
        ConfigError: the endpoint ignores conditions.
        ServiceError: the endpoint does not answer or refuses the credentials.
    """
    if is_remote(place):
        url = urlsplit(str(place))
        open_store(f"{url.scheme}://{url.netloc}/{url.path.strip('/').rpartition('/')[0]}".rstrip("/"))


def _read_log(place: str, newest: int, limit: int | None) -> list[dict[str, Any]]:
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


TRIES = 3
"""Number of tries in an object store: for a commit whose transactions prevent a second one, and for reads."""
_T = TypeVar("_T")


@contextmanager
def explained(path: Place, doing: str) -> Iterator[None]:
    """Name what is torn of a table's log; place and remedy if a table in an object store cannot be reached."""
    try:
        yield
    except (TableNotFoundError, CommitFailedError):
        raise
    except (DeltaError, OSError) as error:
        if not is_remote(path) or "Kernel error" in str(error):
            require_whole(path, error)
        if not is_remote(path):
            raise
        message = (
            f"the table {path} could not be reached at {doing}: {str(error)[:600]}; the commit under way may or may not be "
            "there, and the next start finds out; check the store's address and the credentials"
        )
        raise ServiceError(message) from error


def repeated(path: Place, doing: str, act: Callable[[dict[str, str] | None], _T]) -> _T:
    """Call a function that only reads; retry it in an object store, because delta-rs does not retry a body that breaks off (ran)."""

    def once() -> _T:
        options = storage_options(path)
        with explained(path, doing):
            return act(options)

    return retry(ServiceError, tries=TRIES, first_wait_s=0.2)(once)


class Snapshot:
    """A table at one version."""

    def __init__(self, place: Place, handle: DeltaTable | None = None) -> None:
        """Open the newest version of a table, or take a handle.

        Raises:
            TableNotFoundError: the table does not exist.
        """
        self.place = place
        self.handle = handle or repeated(
            place, "opening it", lambda options: DeltaTable(str(place), storage_options=options)
        )

    @property
    def version(self) -> int:
        """Number of the newest commit that the snapshot has."""
        return int(self.handle.version())

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""
        return pa.schema(self.handle.schema().to_arrow())

    @property
    def partition_columns(self) -> list[str]:
        """Names of the columns that are not in the data files."""
        return list(self.handle.metadata().partition_columns)

    def applied_version(self, app: str) -> int | None:
        """Return the newest version that `app` committed, or None."""
        return self.handle.transaction_version(app)

    def uris(self) -> list[str]:
        """Return the full names of the live data files."""
        return list(self.handle.file_uris())

    def actions(self) -> pa.Table:
        """Return a row for each live data file, as the log has it."""
        return pa.table(self.handle.get_add_actions(flatten=True))

    def read(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
        matching: str | None = None,
    ) -> pa.Table:
        """Return rows as Arrow.

        Read with delta-rs' own query engine: `to_pyarrow_table` of deltalake 1.6.6 with pyarrow 26 sometimes aborts the
        process at exit ("terminate called without an active exception").

        Args:
            columns: columns to read; None reads all.
            where: a pyarrow expression over the columns read; only rows for which it is true are returned.
            matching: a condition made of `Where`: only rows for which it is true; files that cannot have one, by their
                statistics, are not read.
        """
        schema = self.schema
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        names = ", ".join(quoted(name) for name in schema.names)
        chosen = "" if matching is None else f" WHERE {matching}"
        rows = self.query(f"SELECT {names} FROM t{chosen}", "reading it").cast(schema)  # noqa: S608 (our own names, quoted)
        return rows if where is None else rows.filter(where)

    def query(self, query: str, doing: str) -> pa.Table:
        """Return what a query of the table `t` gives.

        With pyarrow's reader, which lets other threads run meanwhile; the query's own `read_all` does not (ran), and a lease's
        renewal must not wait for a large table.
        """

        def run(_: object) -> pa.Table:
            stream = QueryBuilder().register("t", self.handle).execute(query)
            return pa.RecordBatchReader.from_stream(stream).read_all()

        return repeated(self.place, doing, run)

    def history(self, limit: int | None) -> list[dict[str, Any]]:
        """Return the metadata of the newest `limit` commits.

        In an object store the log is read here: delta-rs' own `history` holds Python's lock while it waits for the network (ran), and a
        lease's renewal must not wait for it.
        """
        if is_remote(self.place):
            return _read_log(str(self.place), self.version, limit)
        return list(self.handle.history(limit))

    def commits(self, key: str, *, limit: int | None = None) -> list[tuple[int, Any]]:
        """Return (table version, decoded metadata) of the newest `limit` commits that have `key`, oldest first.

        Other commits (for example, a merge of small files) are skipped. Fewer are returned only if the log has no more.
        """
        window = limit
        while True:
            history = self.history(window)
            decoded = [(int(row["version"]), json.loads(row[key])) for row in history if key in row]
            if limit is None or window is None or len(decoded) >= limit or len(history) < window:
                return sorted(decoded, key=lambda pair: pair[0])[-limit if limit else 0 :]
            window *= 4

    def newest_stamped(self, key: str | None) -> tuple[datetime, Any] | None:
        """Return when the newest commit that has `key` was made, and its decoded metadata, or None.

        Without a key the newest commit counts, and the metadata is None. Old commits may have been removed from the log.
        """
        window: int | None = 4
        while True:
            history = self.history(window)
            newest = max(
                (row for row in history if key is None or key in row), key=lambda row: int(row["version"]), default=None
            )
            if newest is not None:
                at = datetime.fromtimestamp(int(newest["timestamp"]) / 1000, UTC)
                return at, None if key is None else json.loads(newest[key])
            if window is None or len(history) < window:
                return None
            window = None

    # From the log alone, so the cost depends on the number of live files.

    def total_rows(self) -> int | None:
        """Return the number of rows from the statistics in the log; None if a file has none."""
        counts = self.actions()["num_records"].to_pylist()
        return None if any(count is None for count in counts) else sum(counts)

    def sizes(self) -> dict[str, int]:
        """Return each live data file, relative to the table, with its size in bytes."""
        actions = self.actions()
        names = [unquote(name) for name in actions["path"].to_pylist()]
        return dict(zip(names, actions["size_bytes"].to_pylist(), strict=True))

    def least_by_file(self, column: str) -> dict[str, Any]:
        """Return the live data files, each with the least value of a column; None where the log has none."""
        actions, least = self.actions(), f"min.{column}"
        names = actions["path"].to_pylist()
        values = actions[least].to_pylist() if least in actions.column_names else [None] * len(names)
        return dict(zip(names, values, strict=True))

    def uris_above(self, column: str, number: int) -> list[str]:
        """Return the full names of the live data files that may have a value of a column above a whole number."""
        actions, most = self.actions(), f"max.{column}"
        rows = actions.select(
            [name for name in ("path", "num_records", most) if name in actions.column_names]
        ).to_pylist()
        without = {
            row["path"].rpartition("/")[2]
            for row in rows
            if row["num_records"] == 0 or (row.get(most) is not None and row[most] <= number)
        }
        return sorted(uri for uri in self.uris() if uri.rpartition("/")[2] not in without)
