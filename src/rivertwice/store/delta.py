"""Delta tables through delta-rs: append once per (application, version), read, and read commits' metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from rivertwice.errors import LostRaceError

Table = DeltaTable
"""An open table handle."""


def open_table(path: Path) -> Table | None:
    """Return a fresh handle, or None if the table does not exist."""
    try:
        return DeltaTable(str(path))
    except TableNotFoundError:
        return None


def applied_version(path: Path, app: str) -> int | None:
    """Return the newest version `app` committed to the table, or None."""
    table = open_table(path)
    return None if table is None else table.transaction_version(app)


def append(
    path: Path,
    rows: pa.Table,
    *,
    transactions: Mapping[str, int] | None = None,
    metadata: Mapping[str, Any] | None = None,
    partition_by: Sequence[str] = (),
) -> int:
    """Append rows in one commit and return the table's new version.

    Args:
        path: the table's folder; created with the rows' schema if absent.
        rows: may be empty: the commit is made all the same, and carries transactions and metadata.
        transactions: application id to version, recorded with the commit. On the handle that writes none may be older
            than the one applied, and one at least must be newer; so of several writers with the same versions exactly
            one wins.
        metadata: values are stored as JSON texts in the commit.
        partition_by: partition columns, for the first write.

    Raises:
        LostRaceError: another writer committed a conflicting change first; nothing was written.
    """
    properties = _properties(metadata, transactions)
    target: DeltaTable | str = str(path)
    if transactions:
        target = _guarded(path, rows.schema, transactions, partition_by)
    try:
        write_deltalake(
            target,
            rows,
            mode="append",
            partition_by=list(partition_by) or None,
            commit_properties=properties,
        )
    except CommitFailedError as error:
        message = f"another writer committed to {path.name} first ({error}); nothing was written; read again and retry"
        raise LostRaceError(message) from error
    return int(DeltaTable(str(path)).version())


def _guarded(path: Path, schema: pa.Schema, transactions: Mapping[str, int], partition_by: Sequence[str]) -> DeltaTable:
    """Return the handle to write with, on which the transactions are not applied yet.

    Delta compares a commit's transactions only with commits made after the handle was opened: on a path, or on a
    table that does not exist yet, the same (application, version) is accepted twice (ran). So the table is created
    first, and the version is looked up on the very handle that writes.

    Raises:
        LostRaceError: another writer applied one of the transactions first.
    """
    if open_table(path) is None:
        try:
            DeltaTable.create(str(path), schema, mode="ignore", partition_by=list(partition_by) or None)
        except (CommitFailedError, DeltaError):
            if open_table(path) is None:
                raise
    table = DeltaTable(str(path))
    applied = {app: table.transaction_version(app) for app in transactions}
    back = [app for app, version in transactions.items() if (applied[app] or 0) > version]
    if back or all(applied[app] == version for app, version in transactions.items()):
        app = (back or list(transactions))[0]
        message = (
            f"{path.name} already holds version {applied[app]} of {app}, so version {transactions[app]} was not written; "
            "another writer was first: read again and retry"
        )
        raise LostRaceError(message)
    return table


def overwrite(path: Path, rows: pa.Table, *, metadata: Mapping[str, Any] | None = None) -> int:
    """Replace a table's whole content in one commit and return its new version."""
    properties = _properties(metadata, None)
    write_deltalake(str(path), rows, mode="overwrite", schema_mode="overwrite", commit_properties=properties)
    return int(DeltaTable(str(path)).version())


def _properties(metadata: Mapping[str, Any] | None, transactions: Mapping[str, int] | None) -> CommitProperties:
    return CommitProperties(
        custom_metadata={key: json.dumps(value, sort_keys=True) for key, value in (metadata or {}).items()},
        app_transactions=[Transaction(app, version) for app, version in (transactions or {}).items()],
    )


def read(path: Path, *, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> pa.Table | None:
    """Return a table's rows as Arrow, or None if the table does not exist.

    Read through delta-rs' own query engine: `to_pyarrow_table` of deltalake 1.6.6 with pyarrow 26 now and then
    aborts the process at exit ("terminate called without an active exception").

    Args:
        path: the table's folder.
        columns: columns to read; None reads all.
        where: a pyarrow expression over the columns read; rows for which it is not true are left out.
    """
    table = open_table(path)
    if table is None:
        return None
    schema = pa.schema(table.schema().to_arrow())
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    names = ", ".join('"' + name.replace('"', '""') + '"' for name in schema.names)
    query = f"SELECT {names} FROM t"  # noqa: S608 (the names are the table's own columns, quoted)
    rows = pa.table(QueryBuilder().register("t", table).execute(query).read_all()).cast(schema)
    return rows if where is None else rows.filter(where)


def commits(path: Path, key: str, *, limit: int | None = None) -> list[tuple[int, Any]]:
    """Return (table version, decoded metadata) of the commits that carry `key`, oldest first."""
    table = open_table(path)
    if table is None:
        return []
    found = [(int(row["version"]), json.loads(row[key])) for row in table.history(limit) if key in row]
    return sorted(found, key=lambda pair: pair[0])


def compact(path: Path) -> None:
    """Merge small files; the rows stay the same."""
    table = open_table(path)
    if table is not None:
        table.optimize.compact()
