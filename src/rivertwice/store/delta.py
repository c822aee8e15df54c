"""Delta tables through delta-rs: append once per (application, version), read, and read commits' metadata."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    QueryBuilder,
    Transaction,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from rivertwice.config import Place
from rivertwice.errors import LostRaceError, ServiceError
from rivertwice.store.again import again
from rivertwice.store.delta_log import require_whole as require_whole
from rivertwice.store.delta_log import sync_commit
from rivertwice.store.delta_place import name_of, read_log, require_writable, storage_options

Table = DeltaTable
"""An open table handle."""

LOG_RETENTION = "delta.logRetentionDuration"
REMOVED_RETENTION = "delta.deletedFileRetentionDuration"
RETENTION = {LOG_RETENTION: "interval 6 hours", REMOVED_RETENTION: "interval 6 hours"}
"""Properties of every table of ours: how long old commits and removed files stay (`store.table_upkeep`)."""

_AFTER_COMMIT = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
"""A writer never removes old commits: two that do so at once make one of them fail after its commit stands (ran)."""

_T = TypeVar("_T")
_NONCE = "nonce"
_LOOK_BACK = 50  # commits in which a writer looks for its own
_TRIES = 3  # of a commit on S3 that no transaction lets happen twice


@contextmanager
def _explained(path: Place, doing: str) -> Iterator[None]:
    """Name place and remedy when a table on S3 cannot be reached, and of a table in a folder what of its log is torn."""
    try:
        yield
    except (TableNotFoundError, CommitFailedError):
        raise
    except (DeltaError, OSError) as error:
        if not str(path).startswith("s3://"):
            require_whole(path, error)
            raise
        message = (
            f"the table {path} could not be reached at {doing}: {str(error)[:600]}; the commit under way may or may not be "
            "there, and the next start finds out; check AWS_ENDPOINT_URL and the credentials"
        )
        raise ServiceError(message) from error


def open_table(path: Place) -> Table | None:
    """Return a fresh handle, or None if the table does not exist."""
    try:
        return _opened(path)
    except TableNotFoundError:
        return None


def _opened(path: Place) -> Table:
    return _repeated(path, "opening it", lambda options: DeltaTable(str(path), storage_options=options))


def _repeated(path: Place, doing: str, act: Callable[[dict[str, str] | None], _T]) -> _T:
    """Do something that only reads; on S3 again if it fails, for delta-rs repeats no body that breaks off (ran)."""

    def once() -> _T:
        options = storage_options(path)
        with _explained(path, doing):
            return act(options)

    return again(_TRIES, 0.2, lambda error: isinstance(error, ServiceError))(once)


def applied_version(path: Place, app: str) -> int | None:
    """Return the newest version `app` committed to the table, or None."""
    table = open_table(path)
    return None if table is None else table.transaction_version(app)


def append(
    path: Place,
    rows: pa.Table,
    *,
    transactions: Mapping[str, int] | None = None,
    metadata: Mapping[str, Any] | None = None,
    partition_by: Sequence[str] = (),
    check: Callable[[Table], None] | None = None,
    widen: bool = False,
) -> int:
    """Append rows in one commit and return the table's new version, once a power loss can take nothing of it back.

    On S3 the answer to a commit may be lost, and the client then tries again and loses against itself. So every commit
    carries a nonce, and a writer that is told that it lost first looks whether the winner was itself.

    Args:
        path: the table's place; created with the rows' schema if absent.
        rows: may be empty: the commit is made all the same, and carries transactions and metadata.
        transactions: application id to version, recorded with the commit. On the handle that writes none may be older
            than the one applied, and one at least must be newer; so of several writers with the same versions exactly
            one wins.
        metadata: values are stored as JSON texts in the commit.
        partition_by: partition columns, for the first write.
        check: with transactions: is given the handle that writes, and raises LostRaceError if what was computed no longer
            fits. It sees all commits but those that are made at the same moment; of these one wins if they have a
            transaction's application id in common.
        widen: columns that the table lacks are added to it; its older rows have null there.

    Raises:
        LostRaceError: another writer committed a conflicting change first; nothing was written.
        ServiceError: S3 did not answer; whether the commit is there must be looked up.
        ConfigError: the S3 endpoint ignores conditional writes.
    """
    require_writable(path)
    nonce = uuid.uuid4().hex
    properties = _properties({**(metadata or {}), _NONCE: nonce}, transactions)
    tries = _TRIES if transactions and storage_options(path) else 1
    attempt = 0
    while True:
        attempt += 1
        try:
            target = _guarded(path, rows.schema, transactions, partition_by, check) if transactions else str(path)
            version = _append(path, target, rows, properties, partition_by, widen)
        except (LostRaceError, ServiceError) as error:
            own = _version_of(path, nonce)
            if own is not None:
                return own
            if isinstance(error, LostRaceError) or attempt == tries:
                raise
            time.sleep(0.2 * 2**attempt)
        else:
            _sync(path, version, nonce)
            return version


def _sync(path: Place, version: int, nonce: str | None = None) -> None:
    if isinstance(path, Path):
        sync_commit(path, version, nonce, _LOOK_BACK)


def _append(
    path: Place,
    target: Table | str,
    rows: pa.Table,
    properties: CommitProperties,
    partition_by: Sequence[str],
    widen: bool,
) -> int:
    try:
        with _explained(path, "committing"):
            write_deltalake(
                target,
                rows,
                mode="append",
                schema_mode="merge" if widen else None,
                partition_by=list(partition_by) or None,
                commit_properties=properties,
                post_commithook_properties=_AFTER_COMMIT,
                configuration=RETENTION,
                storage_options=storage_options(path) if isinstance(target, str) else None,
            )
    except CommitFailedError as error:
        message = (
            f"another writer committed to {name_of(path)} first ({error}); nothing was written; read again and retry"
        )
        raise LostRaceError(message) from error
    return int(_opened(path).version())


def _version_of(path: Place, nonce: str) -> int | None:
    """Return the version of the commit with this nonce, if it is among the newest."""
    text = json.dumps(nonce)
    table = open_table(path)
    history = [] if table is None else _history(path, table, _LOOK_BACK)
    return next((int(row["version"]) for row in history if row.get(_NONCE) == text), None)


def _guarded(
    path: Place,
    schema: pa.Schema,
    transactions: Mapping[str, int],
    partition_by: Sequence[str],
    check: Callable[[Table], None] | None,
) -> Table:
    """Return the handle to write with, on which the transactions are not applied yet.

    Delta compares a commit's transactions only with commits made after the handle was opened: on a path, or on a
    table that does not exist yet, the same (application, version) is accepted twice (ran). So the table is created
    first, and the version is looked up on the very handle that writes.

    Raises:
        LostRaceError: another writer applied one of the transactions first.
    """
    table = open_table(path)
    if table is None:
        table = _created(path, schema, partition_by)
    applied = {app: table.transaction_version(app) for app in transactions}
    back = [app for app, version in transactions.items() if (applied[app] or 0) > version]
    if back or all(applied[app] == version for app, version in transactions.items()):
        app = (back or list(transactions))[0]
        message = (
            f"{name_of(path)} already holds version {applied[app]} of {app}, so version {transactions[app]} was not "
            "written; another writer was first: read again and retry"
        )
        raise LostRaceError(message)
    if check is not None:
        check(table)
    return table


def _created(path: Place, schema: pa.Schema, partition_by: Sequence[str]) -> Table:
    """Return a handle on a table that was just created, by us or by another writer at the same moment.

    Raises:
        ServiceError: S3 did not answer, and the table is not there.
    """
    try:
        with _explained(path, "creating it"):
            DeltaTable.create(
                str(path),
                schema,
                mode="ignore",
                partition_by=list(partition_by) or None,
                configuration=RETENTION,
                storage_options=storage_options(path),
            )
    except (CommitFailedError, DeltaError, ServiceError):
        if open_table(path) is None:
            raise
    return _opened(path)


def overwrite(
    path: Place, rows: pa.Table, *, metadata: Mapping[str, Any] | None = None, at: Table | None = None
) -> int:
    """Replace a table's whole content in one commit and return its new version.

    Args:
        path: the table; created if absent.
        rows: all of them.
        metadata: values are stored as JSON texts in the commit.
        at: a handle opened before what the rows were made from was read; None: whatever the table holds by now goes.

    Raises:
        LostRaceError: somebody committed since the handle was opened; nothing was written.
    """
    require_writable(path)
    try:
        with _explained(path, "replacing its content"):
            write_deltalake(
                str(path) if at is None else at,
                rows,
                mode="overwrite",
                schema_mode="overwrite",
                commit_properties=_properties(metadata, None, only_at_once=at is not None),
                post_commithook_properties=_AFTER_COMMIT,
                configuration=RETENTION if at is None else None,
                storage_options=storage_options(path) if at is None else None,
            )
    except CommitFailedError as error:
        if at is None:
            raise
        raise LostRaceError(_changed(path, error)) from error
    version = int(_opened(path).version())
    _sync(path, version)
    return version


def replace_rows(
    path: Place,
    rows: pa.Table,
    *,
    only: tuple[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    at: Table | None = None,
) -> int:
    """Replace a table's rows, or those of one partition, in one commit; schema, properties and transactions stay.

    The commit follows the handle's version or is not made: Delta would let an overwrite pass an append that was made in between,
    and delta-rs removes its rows, or leaves them as they were, by what the handle knows (ran).

    Args:
        path: the table.
        rows: all of them, in the table's columns.
        only: (partition column, value): the rows are all of that partition, and no other is touched.
        metadata: values are stored as JSON texts in the commit.
        at: the handle on which the rows were read that these were made of; None: a fresh one.

    Raises:
        LostRaceError: somebody committed since the handle was opened, an append too; nothing was written.
    """
    require_writable(path)
    table = at or _opened(path)
    nonce = uuid.uuid4().hex
    try:
        with _explained(path, "replacing rows"):
            write_deltalake(
                table,
                rows,
                mode="overwrite",
                predicate=None if only is None else _equals(*only),
                commit_properties=_properties({**(metadata or {}), _NONCE: nonce}, None, only_at_once=True),
                post_commithook_properties=_AFTER_COMMIT,
            )
    except (CommitFailedError, ServiceError) as error:
        own = _version_of(path, nonce)
        if own is not None:
            return own
        if isinstance(error, ServiceError):
            raise
        raise LostRaceError(_changed(path, error)) from error
    version = int(_opened(path).version())
    _sync(path, version)
    return version


def _changed(path: Place, error: Exception) -> str:
    return (
        f"another writer changed {name_of(path)} while its rows were replaced ({error}); nothing was written; try again"
    )


def _equals(column: str, value: str) -> str:
    name, text = column.replace('"', '""'), value.replace("'", "''")
    return f"\"{name}\" = '{text}'"


def _properties(
    metadata: Mapping[str, Any] | None, transactions: Mapping[str, int] | None, *, only_at_once: bool = False
) -> CommitProperties:
    """Return what goes with a commit; `only_at_once`: it is not tried again behind a commit that was made in between."""
    return CommitProperties(
        max_commit_retries=0 if only_at_once else None,
        custom_metadata={key: json.dumps(value, sort_keys=True) for key, value in (metadata or {}).items()},
        app_transactions=[Transaction(app, version) for app, version in (transactions or {}).items()],
    )


def read(
    path: Place,
    *,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    between: tuple[str, int, int] | None = None,
    only: tuple[str, str] | None = None,
    at: Table | None = None,
) -> pa.Table | None:
    """Return a table's rows as Arrow, or None if the table does not exist.

    Read through delta-rs' own query engine: `to_pyarrow_table` of deltalake 1.6.6 with pyarrow 26 now and then
    aborts the process at exit ("terminate called without an active exception").

    Args:
        path: the table's folder.
        columns: columns to read; None reads all.
        where: a pyarrow expression over the columns read; rows for which it is not true are left out.
        between: (column, first, last): only rows whose value lies between the two whole numbers, both included; files whose
            statistics rule that out are not read.
        only: (column, value): only rows with just this text; of a partition column no other files are read.
        at: an open handle, whose version is read; None: a fresh one.
    """
    table = at or open_table(path)
    if table is None:
        return None
    schema = pa.schema(table.schema().to_arrow())
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    names = ", ".join('"' + name.replace('"', '""') + '"' for name in schema.names)
    query = f"SELECT {names} FROM t"  # noqa: S608 (the names are the table's own columns, quoted)
    if between is not None:
        column, first, last = between
        query += f' WHERE "{schema.field(column).name}" BETWEEN {int(first)} AND {int(last)}'

    if only is not None:
        query += f" WHERE {_equals(schema.field(only[0]).name, only[1])}"

    def run(_: object) -> pa.Table:
        # Through pyarrow's reader, which lets other threads run meanwhile; the query's own `read_all` does not (ran), and
        # a lease's renewal must not wait for a large table.
        found = QueryBuilder().register("t", table).execute(query)
        return pa.RecordBatchReader.from_stream(found).read_all().cast(schema)

    rows = _repeated(path, "reading it", run)
    return rows if where is None else rows.filter(where)


def _history(path: Place, table: Table, limit: int | None) -> list[dict[str, Any]]:
    """Return what the newest `limit` commits say of themselves.

    On S3 the log is read here: delta-rs' own `history` holds Python's lock while it waits for the network (ran), and a
    lease's renewal must not wait for that.
    """
    if isinstance(path, str) and path.startswith("s3://"):
        return read_log(path, int(table.version()), limit)
    return list(table.history(limit))


def commits(path: Place, key: str, *, limit: int | None = None) -> list[tuple[int, Any]]:
    """Return (table version, decoded metadata) of the newest `limit` commits that carry `key`, oldest first.

    Other commits (a merge of small files, say) are passed over. Fewer are returned only if the log holds no more.
    """
    table = open_table(path)
    if table is None:
        return []
    looked_at = limit
    while True:
        history = _history(path, table, looked_at)
        found = [(int(row["version"]), json.loads(row[key])) for row in history if key in row]
        if limit is None or looked_at is None or len(found) >= limit or len(history) < looked_at:
            return sorted(found, key=lambda pair: pair[0])[-limit if limit else 0 :]
        looked_at *= 4
