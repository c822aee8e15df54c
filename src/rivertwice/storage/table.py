"""A Delta table with delta-rs: append once per (application, version), replace, and read its newest version."""

from __future__ import annotations

import io
import json
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from rivertwice.core import LostRaceError, Place, ServiceError, is_remote, retry
from rivertwice.storage.places import open_store
from rivertwice.storage.snapshot import TRIES, Snapshot, explained, name_of, require_writable, storage_options
from rivertwice.storage.sql import Where, quoted
from rivertwice.storage.table_log import (
    LOG,
    LogFingerprint,
    check_size,
    entry_path,
    newest_entry,
    require_whole,
    sync_commit,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHECKPOINT_EVERY = 20
"""Commits between two checkpoints of a table's log, and between two renewals of a kept handle."""

# What a commit of ours to a Delta table carries, and the error of one that another writer's commit came before.


def lost_race(path: Place, error: Exception) -> LostRaceError:
    """Return the error of a writer that found another one's commit where its own was to be."""
    message = f"another writer changed {name_of(path)} while its rows were replaced ({error}); try again"
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
"""Properties of all our tables: how long old commits and removed files are kept (`storage.table_care`)."""

CHECKPOINTS = "delta.checkpointInterval"
STATISTICS = "delta.dataSkippingStatsColumns"
FILE_BYTES = "delta.targetFileSize"

_AFTER_COMMIT = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
"""A writer never removes old commits: if two do so at once, one of them fails after its commit was made (ran)."""

NONCE = "nonce"
"""Key of the metadata that every commit of ours has, except for those that replace a whole table."""
REPAIR = "RIVERTWICE REPAIR"
"""Operation of a commit that takes the place of a torn one."""
_LOOK_BACK = 50  # newest commits in which a writer searches its own


def properties_of(columns: Sequence[str], skip_by: Sequence[str]) -> dict[str, str]:
    """Return the properties with which a table is created, or that make a commit to an older one as cheap. Pure.

    Every commit reads the statistics of all live files again, so those that no reader uses make it slower from commit to commit.

    Args:
        skip_by: the columns by which readers skip files: only these have statistics, besides each file's number of rows. Those that
            the table lacks are left out; empty: delta-rs' own choice, the first 32.
    """
    chosen = [name for name in skip_by if name in columns]
    return {CHECKPOINTS: str(CHECKPOINT_EVERY), **({STATISTICS: ",".join(chosen)} if chosen else {})}


def file_bytes_of(size: int) -> dict[str, str]:
    """Return the properties of a table whose data files are about as large, at most. Pure."""
    return {FILE_BYTES: str(size)}


_MOST_LENT = 32
_LOCK = threading.Lock()
_LENT: OrderedDict[str, tuple[LogFingerprint, Snapshot]] = OrderedDict()
"""Handles for readers, by place."""


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

    @property
    def is_ours(self) -> bool:
        """Whether it is a commit that only we make; one that replaces a whole table may be another program's."""
        return NONCE in self.keys

    @property
    def is_repair(self) -> bool:
        """Whether it takes files that are gone, or a torn commit, out of the log."""
        return self.operation in ("FSCK", REPAIR)

    @classmethod
    def from_history(cls, row: Mapping[str, Any]) -> TableChange:
        """Return the change of an entry of a table's history."""
        details = row.get("operationParameters") or {}
        return cls(
            version=int(row["version"]),
            operation=str(row.get("operation", "")).upper(),
            mode=str(details.get("mode", "")),
            is_partial=bool(details.get("predicate")),
            keys=frozenset(row),
        )


@dataclass(frozen=True)
class TableExtent:
    """How much time the rows of a table cover: their number, how many different starts they have, the first start and the last end."""

    rows: int
    starts: int
    first: datetime | None
    last: datetime | None


class Table:
    """The table at a place, which need not exist. One thread writes with an object.

    A writer that appends again and again keeps its handle between commits and brings it up to date, because opening a table reads
    all log entries since the last checkpoint of the log. But a handle that is brought up to date again and again holds what it
    learned in ever more pieces, and each commit reads all of them. So it is renewed where the log has a new checkpoint, from which
    it is whole again (delta-rs 1.6: `bench/commits.py`). In an object store no handle is kept: it has the credentials with which it was opened,
    and they may be renewed.
    """

    def __init__(
        self, place: Place, *, partition_by: Sequence[str] = (), skip_by: Sequence[str] = (), file_bytes: int = 0
    ) -> None:
        """Open nothing yet.

        Args:
            skip_by: for the first write: as for `properties_of`.
            file_bytes: for the first write: about how large a data file may be. Every later write, and the merging of small files,
                keep to it; a file that is larger is divided when rows of it are replaced (delta-rs 1.6). 0: delta-rs' own choice, 100 MB.
        """
        self.place = place
        self._file_bytes = file_bytes
        self._partition_by = list(partition_by) or None
        self._skip_by = skip_by
        self._kept: Snapshot | None = None
        self._opened_at = -1  # version

    @property
    def name(self) -> str:
        """The last part of the place, for messages."""
        return name_of(self.place)

    def open(self) -> Snapshot | None:
        """Return the newest version with a new handle, or None if the table does not exist."""
        try:
            return Snapshot(self.place)
        except TableNotFoundError:
            return None

    @contextmanager
    def borrow(self) -> Iterator[Snapshot | None]:
        """Give the newest version for the block, None without a table, with a handle that nobody else has meanwhile.

        Opening a table reads all entries since its log's last checkpoint, up to a hundred. A handle that was used before needs
        only those that came since, and none if the log is what it was. If anything else was done to the log, the table is opened.
        After a block that fails the handle is not used again. In an object store none is kept.
        """
        mark = self.mark()  # before the handle: a commit in between makes the next reader bring it up to date
        with _LOCK:
            before, lent = _LENT.pop(str(self.place), (None, None))
        if lent is not None and before is not None and mark != before:
            is_usable = mark is not None and mark.follows(before) and _is_brought_up_to_date(lent)
            lent = lent if is_usable else None
        if lent is None:
            lent = self.open()
        yield lent
        if lent is not None and mark is not None:
            with _LOCK:
                _LENT[str(self.place)] = (mark, lent)
                while len(_LENT) > _MOST_LENT:
                    _LENT.popitem(last=False)

    def require_whole(self) -> None:
        """Check that nothing is torn of the table's log.

        Raises:
            TableDamageError: an entry or a checkpoint is torn; the message names it.
        """
        require_whole(self.place)

    # How it looks from outside, at low cost.

    def mark(self) -> LogFingerprint | None:
        """Return what the table's log is made of now; None in an object store, where it would cost an opening."""
        return LogFingerprint.of(self.place) if isinstance(self.place, Path) else None

    def newest_commit(self) -> int:
        """Return the newest commit in the log, -1 if there is none. Costs one directory listing, in an object store one opening."""
        if isinstance(self.place, Path):
            return newest_entry(self.place)
        opened = self.open()
        return -1 if opened is None else opened.version

    def log_stamp(self) -> int:
        """Return a number that changes with every commit; -1 if the table does not exist.

        In a folder it is the time of the log's last change, with the precision of the file system's clock. Two commits within
        one tick look like one, so a caller that waits for a change must also check at times without it. In an object store it is the version.
        """
        if not isinstance(self.place, Path):
            return self.newest_commit()
        try:
            return (self.place / LOG).stat().st_mtime_ns
        except FileNotFoundError:
            return -1

    def broken_files(self) -> list[tuple[Path, str]]:
        """Return the damaged data files of a table in a folder, each with the damage: missing, or another size than in the log.

        In an object store an object is written whole, so it is not checked.
        """
        place = self.place
        opened = self.open() if isinstance(place, Path) else None
        if opened is None:
            return []
        answers = [(Path(place) / name, check_size(Path(place) / name, size)) for name, size in opened.sizes().items()]
        return [(file, answer) for file, answer in answers if isinstance(answer, str)]

    # Reading the newest version.

    def version(self) -> int:
        """Return the newest version, -1 if the table does not exist."""
        with self.borrow() as newest:
            return -1 if newest is None else newest.version

    def applied_version(self, app: str) -> int | None:
        """Return the newest version that `app` committed, or None."""
        newest = self.current()
        return None if newest is None else newest.applied_version(app)

    def read(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
        matching: str | None = None,
    ) -> pa.Table | None:
        """Return rows as Arrow (`Snapshot.read`), or None if the table does not exist."""
        with self.borrow() as newest:
            if newest is None:
                return None
            return newest.read(columns=columns, where=where, matching=matching)

    def total_rows(self) -> int | None:
        """Return the number of rows from the statistics in the log, 0 without a table; None if a file has none."""
        with self.borrow() as newest:
            return 0 if newest is None else newest.total_rows()

    def commits(self, key: str, *, limit: int | None = None) -> list[tuple[int, Any]]:
        """Return (table version, decoded metadata) of the newest commits that have `key` (`Snapshot.commits`)."""
        with self.borrow() as newest:
            return [] if newest is None else newest.commits(key, limit=limit)

    def changes_since(self, version: int) -> tuple[int, list[TableChange] | None]:
        """Return the table's version, and its commits after an older version, oldest first; None: their log entries are gone.

        The version of a table that does not exist is -1.
        """
        with self.borrow() as newest:
            if newest is None:
                return -1, []
            count = newest.version - version
            if count <= 0:
                return newest.version, [] if count == 0 else None
            history = newest.history(count)
            changes = [TableChange.from_history(row) for row in history if int(row["version"]) > version]
            own = sorted(changes, key=lambda change: change.version)
            return newest.version, own if len(own) == count else None

    def distinct(self, column: str) -> set[str]:
        """Return the different texts of a column, without null; none if the table does not exist."""
        with self.borrow() as newest:
            if newest is None:
                return set()
            rows = newest.query(f"SELECT DISTINCT {quoted(column)} FROM t", "reading it")  # noqa: S608 (our own name, quoted)
            return {str(value) for value in rows[column].to_pylist() if value is not None}

    def rows_by(self, columns: Sequence[str], *, above: tuple[str, int] | None = None) -> dict[tuple[Any, ...], int]:
        """Return the number of rows for each combination of values of some columns; empty if the table does not exist.

        Args:
            columns: the columns to group by; no other column is read.
            above: (column, number): only rows with a larger whole number; files that cannot have one, by their statistics, are
                not read.
        """
        with self.borrow() as newest:
            if newest is None:
                return {}
            known = newest.schema.names
            names = ", ".join(f'"{name}"' for name in columns if name in known)
            where = "" if above is None or above[0] not in known else f' WHERE "{above[0]}" > {int(above[1])}'
            query = f"SELECT {names}, count(*) AS n FROM t{where} GROUP BY {names}"  # noqa: S608 (columns of our own tables)
            counts = newest.query(query, "counting its rows")
        values = [counts.column(number).to_pylist() for number in range(len(columns))]
        return dict(zip(zip(*values, strict=True), counts.column("n").to_pylist(), strict=True))

    def group_counts(
        self,
        columns: Sequence[str],
        matching: str,
        *,
        order: Sequence[str] = (),
        limit: int | None = None,
        skip: int = 0,
    ) -> pa.Table | None:
        """Return the combinations of values of some columns, each with its number of rows as `n`; None without a table.

        The groups are made where the files are read: what comes here does not grow with the rows.

        Args:
            columns: the columns to group by; no other column comes here.
            matching: a condition made of `Where`: only rows for which it is true; files that cannot have one are not read.
        """
        with self.borrow() as newest:
            if newest is None:
                return None
            names = ", ".join(quoted(name) for name in columns)
            query = f"SELECT {names}, count(*) AS n FROM t WHERE {matching} GROUP BY {names}"  # noqa: S608 (columns of our own tables)
            query += f" ORDER BY {', '.join(quoted(name) for name in order)}" if order else ""
            query += "" if limit is None else f" LIMIT {int(limit)} OFFSET {int(skip)}"
            schema = newest.schema
            wanted = pa.schema([*(schema.field(name) for name in columns), pa.field("n", pa.int64())])
            return newest.query(query, "reading it").cast(wanted)

    def extent(self, start: str, end: str, *, before_ms: int | None = None) -> TableExtent:
        """Return how much time the rows cover. They are counted where the files are read.

        Args:
            start: the column of instants at which rows begin.
            end: that at which they end.
            before_ms: only rows that begin before this instant (epoch ms); None: all.
        """
        with self.borrow() as newest:
            if newest is None:
                return TableExtent(0, 0, None, None)
            names = f"count(*) AS n, count(DISTINCT {quoted(start)}) AS starts, min({quoted(start)}) AS low, max({quoted(end)}) AS high"
            where = "" if before_ms is None else f" WHERE {Where(start).is_before(before_ms)}"
            (row,) = newest.query(f"SELECT {names} FROM t{where}", "counting its rows").to_pylist()  # noqa: S608 (columns of our own tables)
        return TableExtent(row["n"], row["starts"], row["low"], row["high"])

    def bounds(self, column: str) -> tuple[Any, Any] | None:
        """Return the least and the largest value of a column by the statistics in the log; None: there are none.

        The log has instants in whole milliseconds, rounded down.
        """
        with self.borrow() as newest:
            if newest is None:
                return None
            actions = newest.actions()
        if f"min.{column}" not in actions.column_names:
            return None
        least, most = pc.min(actions[f"min.{column}"]).as_py(), pc.max(actions[f"max.{column}"]).as_py()
        return None if least is None or most is None else (least, most)

    def rows_in_range(self, column: str, least: Any, most: Any) -> int:
        """Return how many rows the files have that can hold a value of a column between two, both included, by the log."""
        with self.borrow() as newest:
            if newest is None:
                return 0
            actions = newest.actions()
        if f"min.{column}" in actions.column_names:
            low, high = actions[f"min.{column}"], actions[f"max.{column}"]
            outside = pc.or_(pc.greater(low, pa.scalar(most, low.type)), pc.less(high, pa.scalar(least, high.type)))
            actions = actions.filter(pc.invert(pc.fill_null(outside, False)))
        return int(pc.sum(actions["num_records"]).as_py() or 0)

    # Writing.

    def write_file(self, rows: pa.Table, partition: Mapping[str, str] | None = None, note: str = "") -> NewFile:
        """Write rows to a new file; no reader sees them before a commit adds the file (`append_files`).

        Args:
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
        open_store(self.place).put_if_absent(name, data)
        return NewFile(name, len(data), rows.num_rows, statistics(rows), values, note)

    def write_files(
        self,
        rows: DataFrame,
        schema: pa.Schema,
        change: Callable[[pa.Table], pa.Table],
        *,
        partition_by: str | None = None,
        note: Callable[[pa.Table], str] = lambda _: "",
    ) -> list[NewFile]:
        """Write the rows of each task of Spark to new files, on executors; no reader sees them before a commit adds them.

        A task that is repeated leaves an orphaned file; the table's upkeep removes it.

        Args:
            change: makes rows of `schema` of the frame's rows.
            partition_by: the partition column, a text: a task writes a file for each value; None: the table has none.
            note: is said of the rows of each file (`NewFile.note`).
        """
        table = Table(self.place)  # without a handle, which executors could not have

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            pieces = [change(pa.Table.from_batches([batch])) for batch in batches]
            whole = pa.concat_tables([schema.empty_table(), *pieces]).select(schema.names).cast(schema)
            for values, part in _by_value(whole, partition_by):
                file = table.write_file(part, values, note(part))
                yield pa.RecordBatch.from_pylist([{**asdict(file), "partition": json.dumps(values)}])

        found = rows.mapInArrow(write, _NEW_FILES).toArrow().to_pylist()
        files = (NewFile(**{**row, "partition": json.loads(row["partition"])}) for row in found)
        return sorted(files, key=lambda file: file.path)

    def append(
        self,
        rows: pa.Table,
        *,
        transactions: Mapping[str, int] | None = None,
        metadata: Mapping[str, Any] | None = None,
        check: Callable[[Snapshot], None] | None = None,
        widen: bool = False,
    ) -> int:
        """Append rows in one commit and return the table's new version, once the commit is safe from a power loss.

        In an object store the answer to a commit may be lost; then the client tries again and loses against its own commit. So every commit
        has a nonce, and a writer that lost first checks whether the winner was its own commit.

        Args:
            rows: the rows; without rows the commit is made too, with transactions and metadata. A table that does not exist is
                created with their schema.
            transactions: application id to version, recorded with the commit. On the writing handle no version may be older
                than the applied one, and at least one must be newer. So of several writers with the same versions exactly
                one wins.
            metadata: values are stored as JSON texts in the commit.
            check: with transactions: is passed the version that is written on, and raises LostRaceError if the computed rows no
                longer fit. It sees all commits except those made at the same moment; of these one wins if they share a
                transaction's application id.
            widen: columns that the table lacks are added to it; its older rows are null in them.

        Raises:
            LostRaceError: another writer committed a conflicting change first; nothing was written.
            ServiceError: the object store did not answer; the caller must check whether the commit exists.
            ConfigError: the store ignores conditional writes.
        """

        def write(target: Snapshot | None, properties: CommitProperties) -> bool:
            write_deltalake(
                str(self.place) if target is None else target.handle,
                rows,
                mode="append",
                schema_mode="merge" if widen else None,
                partition_by=self._partition_by,
                commit_properties=properties,
                post_commithook_properties=_AFTER_COMMIT,
                configuration=self._created_with(rows.schema),
                storage_options=storage_options(self.place) if target is None else None,
            )
            return True

        def target() -> Snapshot | None:
            return self._guarded(rows.schema, transactions, check) if transactions else self.current()

        return self._append(target, write, transactions, metadata)

    def append_files(
        self,
        files: Sequence[NewFile],
        schema: pa.Schema,
        *,
        transactions: Mapping[str, int],
        metadata: Mapping[str, Any] | None = None,
        check: Callable[[Snapshot], None] | None = None,
    ) -> int:
        """Append rows that are in new files already (`write_file`), in one commit as `append` makes it.

        Args:
            files: each becomes part of the table.
            schema: of the rows, with the partition columns; a table that does not exist is created with it.
            transactions: as for `append`.
            metadata: as for `append`.
            check: as for `append`.
        """
        now_ms = time.time_ns() // 1_000_000

        def write(target: Snapshot | None, properties: CommitProperties) -> bool:
            assert target is not None, "it was opened for its transactions"
            actions = [AddAction(file.path, file.size, file.partition, now_ms, True, file.stats) for file in files]
            target.handle.create_write_transaction(
                list(actions),
                "append",
                target.handle.schema(),
                self._partition_by,
                commit_properties=properties,
                post_commithook_properties=_AFTER_COMMIT,
            )
            return False

        return self._append(lambda: self._guarded(schema, transactions, check), write, transactions, metadata)

    def overwrite(
        self,
        rows: pa.Table,
        *,
        metadata: Mapping[str, Any] | None = None,
        at: Snapshot | None = None,
        new: bool = False,
    ) -> int:
        """Replace the table's whole content in one commit and return its new version.

        Args:
            rows: all new rows; the table is created if absent.
            metadata: values are stored as JSON texts in the commit.
            at: the version opened before the input of the rows was read; None: the current content is replaced in any case.
            new: the table did not exist before the input was read, so the commit creates it, or is not made.

        Raises:
            LostRaceError: another writer committed after `at`, or created the table; nothing was written.
        """
        require_writable(self.place)
        try:
            with explained(self.place, "replacing its content"):
                write_deltalake(
                    str(self.place) if at is None else at.handle,
                    rows,
                    mode="error" if new else "overwrite",
                    schema_mode=None if new else "overwrite",
                    commit_properties=commit_properties(metadata, None, only_at_once=new or at is not None),
                    post_commithook_properties=_AFTER_COMMIT,
                    configuration=self._created_with(rows.schema) if at is None else None,
                    storage_options=storage_options(self.place) if at is None else None,
                )
        except (CommitFailedError, DeltaError, ServiceError) as error:
            if (new and self.open() is None) or (not new and (at is None or not isinstance(error, CommitFailedError))):
                raise
            raise lost_race(self.place, error) from error
        return self._synced()

    def replace_rows(
        self,
        rows: pa.Table,
        *,
        where: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        transactions: Mapping[str, int] | None = None,
        at: Snapshot | None = None,
    ) -> int:
        """Replace rows, all or some of them, in one commit; schema, properties and transactions stay.

        The commit directly follows the version of `at`, or is not made. Delta would accept an overwrite after an append that was
        made in between, and delta-rs would remove the append's rows, or keep them, depending on the handle's version (ran).

        Args:
            rows: all new rows, in the table's columns.
            where: a condition made of `Where`: all rows match it, and rows that do not match are not changed. It must be true or false for every row, never null: a row for which it is null may be lost. Only files
                that hold a matching row are written again.
            metadata: values are stored as JSON texts in the commit.
            transactions: application id to its version from this commit on; it may be smaller than before.
            at: the version from which the input of the rows was read; None: the newest.

        Raises:
            LostRaceError: another writer committed (also an append) after `at`; nothing was written.
        """
        how = {"mode": "overwrite", "predicate": where}
        return self._write_at(at or Snapshot(self.place), rows, metadata, "replacing rows", how, transactions)

    def append_rows(self, rows: pa.Table, *, metadata: Mapping[str, Any] | None = None, at: Snapshot) -> int:
        """Append rows in one commit that directly follows a version, or is not made; return the new version.

        Args:
            rows: in the table's columns; may be empty.
            metadata: values are stored as JSON texts in the commit.
            at: the version from which the input of the rows was read.

        Raises:
            LostRaceError: another writer committed after `at`; nothing was written.
        """
        return self._write_at(at, rows, metadata, "appending rows", {"mode": "append"})

    def _created_with(self, schema: pa.Schema) -> dict[str, str | None]:
        bounded = file_bytes_of(self._file_bytes) if self._file_bytes else {}
        return {**RETENTION, **properties_of(schema.names, self._skip_by), **bounded}

    def current(self) -> Snapshot | None:
        """Return the newest version, with the handle of the last commit if that can be brought up to date."""
        if self._kept is None or self._is_due(self._kept) or not _is_brought_up_to_date(self._kept):
            self._kept = self.open()
            self._opened_at = -1 if self._kept is None else self._kept.version
        current = self._kept
        if not isinstance(self.place, Path):
            self._kept = None
        return current

    def _is_due(self, kept: Snapshot) -> bool:
        """Say whether a checkpoint was made since the handle was opened; the checkpoint is of the last commit of each twenty."""
        return (kept.version + 1) // CHECKPOINT_EVERY > (self._opened_at + 1) // CHECKPOINT_EVERY

    def _append(
        self,
        target: Callable[[], Snapshot | None],
        write: Callable[[Snapshot | None, CommitProperties], bool],
        transactions: Mapping[str, int] | None,
        metadata: Mapping[str, Any] | None,
    ) -> int:
        """Commit once, whatever becomes of the answer; `write` says whether the target that it wrote with is at the new version."""
        require_writable(self.place)
        nonce = uuid.uuid4().hex
        properties = commit_properties({**(metadata or {}), NONCE: nonce}, transactions)
        tries = TRIES if transactions and is_remote(self.place) else 1

        def commit() -> int:
            try:
                used = target()
                version = self._written(used, write, properties)
            except BaseException as error:
                self._kept = None  # after a commit that failed, its handle may know a part of it
                own_version = self._version_of(nonce) if isinstance(error, (LostRaceError, ServiceError)) else None
                if own_version is not None:
                    return own_version
                raise
            if used is not None and isinstance(self.place, Path) and used.version == version:
                self._kept = used
            self._sync(version, nonce)
            return version

        return retry(ServiceError, tries=tries, first_wait_s=0.4)(commit)

    def _written(
        self,
        target: Snapshot | None,
        write: Callable[[Snapshot | None, CommitProperties], bool],
        properties: CommitProperties,
    ) -> int:
        try:
            with explained(self.place, "committing"):
                is_current = write(target, properties)
        except CommitFailedError as error:
            message = f"another writer committed to {self.name} first ({error}); read again and retry"
            raise LostRaceError(message) from error
        return (target if is_current and target is not None else Snapshot(self.place)).version

    def _sync(self, version: int, nonce: str | None = None) -> None:
        if isinstance(self.place, Path):
            sync_commit(self.place, version, nonce, _LOOK_BACK)

    def _synced(self) -> int:
        version = Snapshot(self.place).version
        self._sync(version)
        return version

    def _version_of(self, nonce: str) -> int | None:
        """Return the version of the commit with this nonce, if it is among the newest."""
        text, newest = json.dumps(nonce), self.open()
        history = [] if newest is None else newest.history(_LOOK_BACK)
        return next((int(row["version"]) for row in history if row.get(NONCE) == text), None)

    def _guarded(
        self, schema: pa.Schema, transactions: Mapping[str, int], check: Callable[[Snapshot], None] | None
    ) -> Snapshot:
        """Return the version to write on, in which the transactions are not applied yet.

        Delta compares a commit's transactions only with commits made after the handle was opened: with a path, or a
        table that does not exist yet, the same (application, version) is accepted twice (ran). So the table is created
        first, and the version is read from the same handle that writes.

        Raises:
            LostRaceError: another writer applied one of the transactions first.
        """
        current = self.current() or self._created(schema)
        applied = {app: current.applied_version(app) for app in transactions}
        newer = [app for app, version in transactions.items() if (applied[app] or 0) > version]
        if newer or all(applied[app] == version for app, version in transactions.items()):
            app = (newer or list(transactions))[0]
            message = (
                f"{self.name} already holds version {applied[app]} of {app}, so version {transactions[app]} was not "
                "written; another writer was first: read again and retry"
            )
            raise LostRaceError(message)
        if check is not None:
            check(current)
        return current

    def _created(self, schema: pa.Schema) -> Snapshot:
        """Return a version of a table that was just created, by us or by another writer at the same moment.

        Raises:
            ServiceError: the object store did not answer, and the table does not exist.
        """
        try:
            with explained(self.place, "creating it"):
                DeltaTable.create(
                    str(self.place),
                    schema,
                    mode="ignore",
                    partition_by=self._partition_by,
                    configuration=self._created_with(schema),
                    storage_options=storage_options(self.place),
                )
        except (CommitFailedError, DeltaError, ServiceError):
            if self.open() is None:
                raise
        return Snapshot(self.place)

    def _write_at(
        self,
        at: Snapshot,
        rows: pa.Table,
        metadata: Mapping[str, Any] | None,
        doing: str,
        how: Mapping[str, Any],
        transactions: Mapping[str, int] | None = None,
    ) -> int:
        require_writable(self.place)
        nonce = uuid.uuid4().hex
        try:
            with explained(self.place, doing):
                write_deltalake(
                    at.handle,
                    rows,
                    **how,
                    commit_properties=commit_properties(
                        {**(metadata or {}), NONCE: nonce}, transactions, only_at_once=True
                    ),
                    post_commithook_properties=_AFTER_COMMIT,
                )
        except (CommitFailedError, ServiceError) as error:
            own_version = self._version_of(nonce)
            if own_version is not None:
                return own_version
            if isinstance(error, ServiceError):
                raise
            raise lost_race(self.place, error) from error
        return self._synced()


_NEW_FILES = "path string, size bigint, rows bigint, stats string, partition string, note string"


def _by_value(table: pa.Table, column: str | None) -> list[tuple[dict[str, str], pa.Table]]:
    """Return the rows by the value of a column, without that column; no rows give nothing."""
    if column is None:
        return [({}, table)] if table.num_rows else []
    values = sorted(set(table[column].to_pylist()))
    rest = [name for name in table.column_names if name != column]
    return [({column: value}, table.filter(pc.equal(table[column], value)).select(rest)) for value in values]


def _is_brought_up_to_date(snapshot: Snapshot) -> bool:
    """Bring a handle to its table's newest version; return whether that could be done, else the table is to be opened."""
    # Without its own entry the handle may be of a table that was put back from a backup, or of one that upkeep shortened.
    if not entry_path(Path(str(snapshot.place)), snapshot.version).exists():
        return False
    try:
        snapshot.handle.update_incremental()
    except (DeltaError, OSError):
        return False  # opening it says what is wrong, with the remedy
    return True
