"""Read Delta tables: rows as Arrow, and the metadata of their commits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import QueryBuilder

from rivertwice.core.homes import Place, is_s3
from rivertwice.storage.delta_handle import Table, read_log, repeated
from rivertwice.storage.remembered import borrow_table
from rivertwice.storage.sql import all_of, equals, is_between, quoted


def read(
    path: Place,
    *,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    between: tuple[str, int, int] | None = None,
    only: tuple[str, str] | None = None,
    matching: str | None = None,
    at: Table | None = None,
) -> pa.Table | None:
    """Return a table's rows as Arrow, or None if the table does not exist.

    Read with delta-rs' own query engine: `to_pyarrow_table` of deltalake 1.6.6 with pyarrow 26 sometimes aborts the
    process at exit ("terminate called without an active exception").

    Args:
        path: the table's folder.
        columns: columns to read; None reads all.
        where: a pyarrow expression over the columns read; only rows for which it is true are returned.
        between: (column, first, last): only rows whose value is between the two whole numbers, both included; files that
            cannot have such a row, by their statistics, are not read.
        only: (column, value): only rows with exactly this text; for a partition column no other files are read.
        matching: a condition of `storage.sql`: only rows for which it is true; files that cannot have one, by their statistics,
            are not read.
        at: an open handle, whose version is read; None: a new one.
    """
    if at is None:
        with borrow_table(path) as table:
            rows = None if table is None else _read_at(path, table, columns, between, only, matching)
    else:
        rows = _read_at(path, at, columns, between, only, matching)
    return rows if rows is None or where is None else rows.filter(where)


def distinct(path: Place, column: str) -> set[str]:
    """Return the different texts of a column, without null; none if the table does not exist."""
    with borrow_table(path) as table:
        if table is None:
            return set()
        query = f"SELECT DISTINCT {quoted(column)} FROM t"  # noqa: S608 (our own name, quoted)

        def run(_: object) -> pa.Table:
            return pa.RecordBatchReader.from_stream(QueryBuilder().register("t", table).execute(query)).read_all()

        return {str(value) for value in repeated(path, "reading it", run)[column].to_pylist() if value is not None}


def _read_at(
    path: Place,
    table: Table,
    columns: Sequence[str] | None,
    between: tuple[str, int, int] | None,
    only: tuple[str, str] | None,
    matching: str | None,
) -> pa.Table:
    schema = pa.schema(table.schema().to_arrow())
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    names = ", ".join(quoted(name) for name in schema.names)
    conditions = [] if matching is None else [matching]
    if between is not None:
        conditions.append(is_between(*between))
    if only is not None:
        conditions.append(equals(*only))
    query = f"SELECT {names} FROM t" + (f" WHERE {all_of(conditions)}" if conditions else "")  # noqa: S608 (our own names, quoted)

    def run(_: object) -> pa.Table:
        # With pyarrow's reader, which lets other threads run meanwhile; the query's own `read_all` does not (ran), and
        # a lease's renewal must not wait for a large table.
        stream = QueryBuilder().register("t", table).execute(query)
        return pa.RecordBatchReader.from_stream(stream).read_all().cast(schema)

    return repeated(path, "reading it", run)


def read_history(path: Place, table: Table, limit: int | None) -> list[dict[str, Any]]:
    """Return the metadata of the newest `limit` commits.

    On S3 the log is read here: delta-rs' own `history` holds Python's lock while it waits for the network (ran), and a
    lease's renewal must not wait for it.
    """
    if is_s3(path):
        return read_log(str(path), int(table.version()), limit)
    return list(table.history(limit))


@dataclass(frozen=True)
class TableChange:
    """One commit of a table after some version.

    Attributes:
        operation: Delta's word for it, for instance `WRITE` or `OPTIMIZE`.
        mode: of a write: `Append` or `Overwrite`; empty for other operations.
        is_partial: whether an overwrite replaced only the rows for which a predicate was true.
        keys: names of the custom metadata.
    """

    version: int
    operation: str
    mode: str
    is_partial: bool
    keys: frozenset[str]


def version_of(path: Place) -> int:
    """Return a table's newest version, -1 if it does not exist."""
    with borrow_table(path) as table:
        return -1 if table is None else int(table.version())


def changes_since(path: Place, version: int) -> tuple[int, list[TableChange] | None]:
    """Return a table's version, and its commits after an older version, oldest first; None: their log entries are gone.

    The version of a table that does not exist is -1.
    """
    with borrow_table(path) as table:
        if table is None:
            return -1, []
        newest = int(table.version())
        count = newest - version
        if count <= 0:
            return newest, [] if count == 0 else None
        history = read_history(path, table, count)
    own = sorted((_change(row) for row in history if int(row["version"]) > version), key=lambda change: change.version)
    return newest, own if len(own) == count else None


def _change(row: Mapping[str, Any]) -> TableChange:
    details = row.get("operationParameters") or {}
    return TableChange(
        version=int(row["version"]),
        operation=str(row.get("operation", "")).upper(),
        mode=str(details.get("mode", "")),
        is_partial=bool(details.get("predicate")),
        keys=frozenset(row),
    )


def commits(path: Place, key: str, *, limit: int | None = None) -> list[tuple[int, Any]]:
    """Return (table version, decoded metadata) of the newest `limit` commits that have `key`, oldest first.

    Other commits (for example, a merge of small files) are skipped. Fewer are returned only if the log has no more.
    """
    with borrow_table(path) as table:
        return [] if table is None else _commits_of(path, table, key, limit)


def newest_stamped(path: Place, table: Table, key: str | None) -> tuple[datetime, Any] | None:
    """Return when the newest commit of a handle's version that has `key` was made, and its decoded metadata, or None.

    Without a key the newest commit counts, and the metadata is None. Old commits may have been removed from the log.
    """
    window: int | None = 4
    while True:
        history = read_history(path, table, window)
        newest = max(
            (row for row in history if key is None or key in row), key=lambda row: int(row["version"]), default=None
        )
        if newest is not None:
            at = datetime.fromtimestamp(int(newest["timestamp"]) / 1000, UTC)
            return at, None if key is None else json.loads(newest[key])
        if window is None or len(history) < window:
            return None
        window = None


def _commits_of(path: Place, table: Table, key: str, limit: int | None) -> list[tuple[int, Any]]:
    window = limit
    while True:
        history = read_history(path, table, window)
        decoded = [(int(row["version"]), json.loads(row[key])) for row in history if key in row]
        if limit is None or window is None or len(decoded) >= limit or len(history) < window:
            return sorted(decoded, key=lambda pair: pair[0])[-limit if limit else 0 :]
        window *= 4
