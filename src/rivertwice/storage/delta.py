"""Delta tables with delta-rs: append once per (application, version), replace; `delta_read` reads and `delta_handle` opens."""

from __future__ import annotations

import io
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Transaction,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from rivertwice.core.errors import LostRaceError, ServiceError
from rivertwice.core.homes import Place
from rivertwice.core.waits import retry
from rivertwice.storage.delta_handle import TRIES, explained, name_of, opened, require_writable, storage_options
from rivertwice.storage.delta_handle import Table as Table
from rivertwice.storage.delta_handle import applied_version as applied_version
from rivertwice.storage.delta_handle import open_table as open_table
from rivertwice.storage.delta_log import require_whole as require_whole
from rivertwice.storage.delta_log import sync_commit
from rivertwice.storage.delta_read import commits as commits
from rivertwice.storage.delta_read import distinct as distinct
from rivertwice.storage.delta_read import read as read
from rivertwice.storage.delta_read import read_history
from rivertwice.storage.places import open_store
from rivertwice.storage.remembered import CHECKPOINT_EVERY
from rivertwice.storage.remembered import KeptTable as KeptTable
from rivertwice.storage.sql import equals

# What a commit of ours to a Delta table carries, and the error of one that another writer's commit came before.


def lost_race(path: Place, error: Exception) -> LostRaceError:
    """Return the error of a writer that found another one's commit where its own was to be."""
    message = (
        f"another writer changed {name_of(path)} while its rows were replaced ({error}); nothing was written; try again"
    )
    return LostRaceError(message)


def commit_properties(
    metadata: Mapping[str, Any] | None, transactions: Mapping[str, int] | None, *, only_at_once: bool = False
) -> CommitProperties:
    """Return the properties of a commit; `only_at_once`: it is not tried again after a commit that was made in between."""
    return CommitProperties(
        max_commit_retries=0 if only_at_once else None,
        custom_metadata={key: json.dumps(value, sort_keys=True) for key, value in (metadata or {}).items()},
        app_transactions=[Transaction(app, version) for app, version in (transactions or {}).items()],
    )


# Files that were written for a Delta table and that no commit has added yet.


@dataclass(frozen=True)
class NewFile:
    """A file below a table's place.

    Attributes:
        path: below the table's place. size: bytes. rows: how many it has.
        stats: number of rows and bounds of columns, as Delta stores them (JSON).
        partition: values of the partition columns, which are not in the file.
        note: what the writer said of its rows, for instance their digest.
    """

    path: str
    size: int
    rows: int
    stats: str
    partition: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def write_file(path: Place, rows: pa.Table, partition: Mapping[str, str] | None = None, note: str = "") -> NewFile:
    """Write rows to a new file of a table; no reader sees them before a commit adds the file (`delta.append_files`).

    Args:
        path: the table's place.
        rows: without the partition columns.
        partition: the value of each partition column; letters, digits and hyphens.
        note: kept with the file's entry, not stored.
    """
    values = dict(partition or {})
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, compression="zstd")
    data = buffer.getvalue()
    folders = "".join(f"{column}={value}/" for column, value in values.items())
    name = f"{folders}part-{uuid.uuid4().hex}.zstd.parquet"
    open_store(path).put_if_absent(name, data)
    return NewFile(name, len(data), rows.num_rows, statistics(rows), values, note)


def statistics(table: pa.Table) -> str:
    """Return the statistics of a file's rows as Delta stores them: rows, and bounds of numbers, texts and timestamps. Pure.

    A text's bounds are left out if they are long; a reader then reads the file.
    """
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in table.column_names:
        column = table[name]
        nulls[name] = column.null_count
        if column.null_count == len(column) or not _has_bounds(column.type):
            continue
        bounds = pc.min_max(column).as_py()
        low, high = _plain(bounds["min"]), _plain(bounds["max"])
        if isinstance(low, str) and isinstance(bounds["min"], str) and max(len(low), len(high)) > _LONGEST:
            continue
        lows[name], highs[name] = low, high
    return json.dumps({"numRecords": table.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls})


_LONGEST = 32


def _has_bounds(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_timestamp(kind))


def _plain(value: Any) -> Any:
    return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if isinstance(value, datetime) else value


LOG_RETENTION = "delta.logRetentionDuration"
REMOVED_RETENTION = "delta.deletedFileRetentionDuration"
RETENTION = {LOG_RETENTION: "interval 6 hours", REMOVED_RETENTION: "interval 6 hours"}
"""Properties of all our tables: how long old commits and removed files are kept (`storage.table_upkeep`)."""

CHECKPOINTS = "delta.checkpointInterval"
STATISTICS = "delta.dataSkippingStatsColumns"

_AFTER_COMMIT = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
"""A writer never removes old commits: if two do so at once, one of them fails after its commit was made (ran)."""

NONCE = "nonce"
"""Key of the metadata that every commit of ours has, but for those that replace a whole table."""
_LOOK_BACK = 50  # newest commits in which a writer searches its own


def properties_of(columns: Sequence[str], skip_by: Sequence[str]) -> dict[str, str]:
    """Return the properties with which a table is created, or that make a commit to an older one as cheap. Pure.

    Every commit reads the statistics of all live files again, so those that no reader uses make it slower from commit to commit.

    Args:
        columns: of the table.
        skip_by: the columns by which readers skip files: only these have statistics, besides each file's number of rows. Those that
            the table lacks are left out; empty: delta-rs' own choice, the first 32.
    """
    chosen = [name for name in skip_by if name in columns]
    return {CHECKPOINTS: str(CHECKPOINT_EVERY), **({STATISTICS: ",".join(chosen)} if chosen else {})}


def _created_with(columns: Sequence[str], skip_by: Sequence[str]) -> dict[str, str | None]:
    return {**RETENTION, **properties_of(columns, skip_by)}


def append(
    path: Place,
    rows: pa.Table,
    *,
    transactions: Mapping[str, int] | None = None,
    metadata: Mapping[str, Any] | None = None,
    partition_by: Sequence[str] = (),
    check: Callable[[Table], None] | None = None,
    widen: bool = False,
    kept: KeptTable | None = None,
    skip_by: Sequence[str] = (),
) -> int:
    """Append rows in one commit and return the table's new version, once the commit is safe from a power loss.

    On S3 the answer to a commit may be lost; then the client tries again and loses against its own commit. So every commit
    has a nonce, and a writer that lost first checks whether the winner was its own commit.

    Args:
        path: the table's place; created with the rows' schema if absent.
        rows: the rows; without rows the commit is made too, with transactions and metadata.
        transactions: application id to version, recorded with the commit. On the writing handle no version may be older
            than the applied one, and at least one must be newer. So of several writers with the same versions exactly
            one wins.
        metadata: values are stored as JSON texts in the commit.
        partition_by: partition columns, for the first write.
        check: with transactions: is passed the writing handle, and raises LostRaceError if the computed rows no longer
            fit. It sees all commits except those made at the same moment; of these one wins if they share a
            transaction's application id.
        widen: columns that the table lacks are added to it; its older rows are null in them.
        kept: the handle of a writer that appends again and again; None: the table is opened.
        skip_by: for the first write: as for `properties_of`.

    Raises:
        LostRaceError: another writer committed a conflicting change first; nothing was written.
        ServiceError: S3 did not answer; the caller must check whether the commit exists.
        ConfigError: the S3 endpoint ignores conditional writes.
    """
    handle = KeptTable(path) if kept is None else kept

    def write(target: Table | str, properties: CommitProperties) -> bool:
        write_deltalake(
            target,
            rows,
            mode="append",
            schema_mode="merge" if widen else None,
            partition_by=list(partition_by) or None,
            commit_properties=properties,
            post_commithook_properties=_AFTER_COMMIT,
            configuration=_created_with(rows.schema.names, skip_by),
            storage_options=storage_options(path) if isinstance(target, str) else None,
        )
        return True

    def target() -> Table | str:
        if transactions:
            return _guarded(handle, rows.schema, transactions, partition_by, check, skip_by)
        return handle.current() or str(path)

    return _append(handle, target, write, transactions, metadata)


def append_files(
    path: Place,
    files: Sequence[NewFile],
    schema: pa.Schema,
    *,
    transactions: Mapping[str, int],
    metadata: Mapping[str, Any] | None = None,
    partition_by: Sequence[str] = (),
    check: Callable[[Table], None] | None = None,
    skip_by: Sequence[str] = (),
) -> int:
    """Append rows that executors wrote to files (`storage.spark_scan.write_files`), in one commit as `append` makes it.

    Args:
        path: the table's place; created with `schema` if absent.
        files: each becomes part of the table.
        schema: of the rows, with the partition columns.
        transactions: as for `append`.
        metadata: as for `append`.
        partition_by: as for `append`.
        check: as for `append`.
        skip_by: as for `append`.
    """
    now_ms = time.time_ns() // 1_000_000
    handle = KeptTable(path)

    def write(target: Table | str, properties: CommitProperties) -> bool:
        assert not isinstance(target, str), "it was opened for its transactions"
        actions = [AddAction(file.path, file.size, file.partition, now_ms, True, file.stats) for file in files]
        target.create_write_transaction(
            list(actions),
            "append",
            target.schema(),
            list(partition_by) or None,
            commit_properties=properties,
            post_commithook_properties=_AFTER_COMMIT,
        )
        return False

    def target() -> Table:
        return _guarded(handle, schema, transactions, partition_by, check, skip_by)

    return _append(handle, target, write, transactions, metadata)


def _append(
    handle: KeptTable,
    target: Callable[[], Table | str],
    write: Callable[[Table | str, CommitProperties], bool],
    transactions: Mapping[str, int] | None,
    metadata: Mapping[str, Any] | None,
) -> int:
    """Commit once, whatever becomes of the answer; `write` says whether the target that it wrote with is at the new version."""
    path = handle.place
    require_writable(path)
    nonce = uuid.uuid4().hex
    properties = commit_properties({**(metadata or {}), NONCE: nonce}, transactions)
    tries = TRIES if transactions and storage_options(path) else 1

    def commit() -> int:
        try:
            used = target()
            version = _written(path, used, write, properties)
        except BaseException as error:
            handle.forget()
            own_version = _version_of(path, nonce) if isinstance(error, (LostRaceError, ServiceError)) else None
            if own_version is not None:
                return own_version
            raise
        if not isinstance(used, str) and int(used.version()) == version:
            handle.keep(used)
        _sync(path, version, nonce)
        return version

    return retry(ServiceError, tries=tries, first_wait_s=0.4)(commit)


def _written(
    path: Place,
    target: Table | str,
    write: Callable[[Table | str, CommitProperties], bool],
    properties: CommitProperties,
) -> int:
    try:
        with explained(path, "committing"):
            is_current = write(target, properties)
    except CommitFailedError as error:
        message = (
            f"another writer committed to {name_of(path)} first ({error}); nothing was written; read again and retry"
        )
        raise LostRaceError(message) from error
    return int((target if is_current and not isinstance(target, str) else opened(path)).version())


def _sync(path: Place, version: int, nonce: str | None = None) -> None:
    if isinstance(path, Path):
        sync_commit(path, version, nonce, _LOOK_BACK)


def _version_of(path: Place, nonce: str) -> int | None:
    """Return the version of the commit with this nonce, if it is among the newest."""
    text = json.dumps(nonce)
    table = open_table(path)
    newest = [] if table is None else read_history(path, table, _LOOK_BACK)
    return next((int(row["version"]) for row in newest if row.get(NONCE) == text), None)


def _guarded(
    handle: KeptTable,
    schema: pa.Schema,
    transactions: Mapping[str, int],
    partition_by: Sequence[str],
    check: Callable[[Table], None] | None,
    skip_by: Sequence[str],
) -> Table:
    """Return the handle to write with, on which the transactions are not applied yet.

    Delta compares a commit's transactions only with commits made after the handle was opened: with a path, or a
    table that does not exist yet, the same (application, version) is accepted twice (ran). So the table is created
    first, and the version is read from the same handle that writes.

    Raises:
        LostRaceError: another writer applied one of the transactions first.
    """
    path, table = handle.place, handle.current()
    if table is None:
        table = _created(path, schema, partition_by, skip_by)
    applied = {app: table.transaction_version(app) for app in transactions}
    newer = [app for app, version in transactions.items() if (applied[app] or 0) > version]
    if newer or all(applied[app] == version for app, version in transactions.items()):
        app = (newer or list(transactions))[0]
        message = (
            f"{name_of(path)} already holds version {applied[app]} of {app}, so version {transactions[app]} was not "
            "written; another writer was first: read again and retry"
        )
        raise LostRaceError(message)
    if check is not None:
        check(table)
    return table


def _created(path: Place, schema: pa.Schema, partition_by: Sequence[str], skip_by: Sequence[str]) -> Table:
    """Return a handle on a table that was just created, by us or by another writer at the same moment.

    Raises:
        ServiceError: S3 did not answer, and the table does not exist.
    """
    try:
        with explained(path, "creating it"):
            DeltaTable.create(
                str(path),
                schema,
                mode="ignore",
                partition_by=list(partition_by) or None,
                configuration=_created_with(schema.names, skip_by),
                storage_options=storage_options(path),
            )
    except (CommitFailedError, DeltaError, ServiceError):
        if open_table(path) is None:
            raise
    return opened(path)


def overwrite(
    path: Place,
    rows: pa.Table,
    *,
    metadata: Mapping[str, Any] | None = None,
    at: Table | None = None,
    new: bool = False,
) -> int:
    """Replace a table's whole content in one commit and return its new version.

    Args:
        path: the table; created if absent.
        rows: all new rows.
        metadata: values are stored as JSON texts in the commit.
        at: a handle opened before the input of the rows was read; None: the current content is replaced in any case.
        new: the table did not exist before the input was read, so the commit creates it, or is not made.

    Raises:
        LostRaceError: another writer committed after the handle was opened, or created the table; nothing was written.
    """
    require_writable(path)
    try:
        with explained(path, "replacing its content"):
            write_deltalake(
                str(path) if at is None else at,
                rows,
                mode="error" if new else "overwrite",
                schema_mode=None if new else "overwrite",
                commit_properties=commit_properties(metadata, None, only_at_once=new or at is not None),
                post_commithook_properties=_AFTER_COMMIT,
                configuration=_created_with(rows.schema.names, ()) if at is None else None,
                storage_options=storage_options(path) if at is None else None,
            )
    except (CommitFailedError, DeltaError, ServiceError) as error:
        if (new and open_table(path) is None) or (not new and (at is None or not isinstance(error, CommitFailedError))):
            raise
        raise lost_race(path, error) from error
    return _synced(path)


def replace_rows(
    path: Place,
    rows: pa.Table,
    *,
    only: tuple[str, str] | None = None,
    where: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    transactions: Mapping[str, int] | None = None,
    at: Table | None = None,
) -> int:
    """Replace a table's rows, or some of them, in one commit; schema, properties and transactions stay.

    The commit directly follows the handle's version, or is not made. Delta would accept an overwrite after an append that was
    made in between, and delta-rs would remove the append's rows, or keep them, depending on the handle's version (ran).

    Args:
        path: the table.
        rows: all new rows, in the table's columns.
        only: (partition column, value): all rows belong to this partition, and other partitions are not changed.
        where: a condition of `storage.sql`, not together with `only`: all rows match it, and rows that do not match are not
            changed. It must be true or false for every row, never null: a row for which it is null may be lost. Only files
            that hold a matching row are written again.
        metadata: values are stored as JSON texts in the commit.
        transactions: application id to its version from this commit on; it may be smaller than before.
        at: the handle with which the input of the rows was read; None: a new one.

    Raises:
        LostRaceError: another writer committed (also an append) after the handle was opened; nothing was written.
    """
    predicate = where if only is None else equals(*only)
    how = {"mode": "overwrite", "predicate": predicate}
    return _write_at(path, at or opened(path), rows, metadata, "replacing rows", how, transactions)


def append_rows(path: Place, rows: pa.Table, *, metadata: Mapping[str, Any] | None = None, at: Table) -> int:
    """Append rows in one commit that directly follows the handle's version, or is not made; return the new version.

    Args:
        path: the table.
        rows: in the table's columns; may be empty.
        metadata: values are stored as JSON texts in the commit.
        at: the handle with which the input of the rows was read.

    Raises:
        LostRaceError: another writer committed after the handle was opened; nothing was written.
    """
    return _write_at(path, at, rows, metadata, "appending rows", {"mode": "append"})


def _write_at(
    path: Place,
    table: Table,
    rows: pa.Table,
    metadata: Mapping[str, Any] | None,
    doing: str,
    how: Mapping[str, Any],
    transactions: Mapping[str, int] | None = None,
) -> int:
    require_writable(path)
    nonce = uuid.uuid4().hex
    try:
        with explained(path, doing):
            write_deltalake(
                table,
                rows,
                **how,
                commit_properties=commit_properties(
                    {**(metadata or {}), NONCE: nonce}, transactions, only_at_once=True
                ),
                post_commithook_properties=_AFTER_COMMIT,
            )
    except (CommitFailedError, ServiceError) as error:
        own_version = _version_of(path, nonce)
        if own_version is not None:
            return own_version
        if isinstance(error, ServiceError):
            raise
        raise lost_race(path, error) from error
    return _synced(path)


def _synced(path: Place) -> int:
    version = int(opened(path).version())
    _sync(path, version)
    return version
