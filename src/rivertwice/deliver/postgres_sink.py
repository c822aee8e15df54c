"""PostgreSQL: rows by key and the position in one transaction, serialised by the position's row.

A second deliverer waits for the row, then sees another position than the one from which it computed, and writes nothing.

Every wait has an end. The server ends a transaction that is idle; a deliverer that opens the sink ends the session of one that stands
still inside COPY, which PostgreSQL itself does not count as idle; and the client waits for no answer longer than `WAIT_S`. After that
the position shows the outcome of the transaction.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.abc import RV, PQGen

from rivertwice.core import ConfigError, Deadline, LedgerError, LostRaceError, ServiceError
from rivertwice.definition import POSITIONS, PostgresDelivery
from rivertwice.deliver.model import WITHDRAW, DeliveredColumns, DeliveredRecord, DeliveryBatch, Holding, Position
from rivertwice.deliver.refusals import RefusedRecord, SetAside, isolate, none_aside
from rivertwice.deliver.wire import key_start, plain, position_from_json, position_held, position_to_json, row_selection

# The tables in PostgreSQL: their statements and types. Names were checked before and are quoted; values are parameters.
#
# A row's `_key` is the same text as the key of a Kafka record. It can contain nulls, and is the primary key on any version.

STAMPS = {"_key": "text", "_timeline": "text", "_batch": "bigint", "_backfill": "text", "_step": "bigint"}
_STAGE = sql.Identifier("pg_temp", "rivertwice_stage")


def type_of(column: pa.Field) -> str:
    """Return PostgreSQL's type for a result column, as `format_type` writes it.

    Raises:
        ConfigError: there is none.
    """
    kind = column.type
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    for known, name in (
        (pa.types.is_boolean, "boolean"),
        (pa.types.is_int64, "bigint"),
        (pa.types.is_integer, "integer"),
        (pa.types.is_float64, "double precision"),
        (pa.types.is_float32, "real"),
        (pa.types.is_timestamp, "timestamp with time zone"),
        (pa.types.is_date, "date"),
        (pa.types.is_string, "text"),
        (pa.types.is_large_string, "text"),
        (pa.types.is_binary, "bytea"),
    ):
        if known(kind):
            return name
    message = (
        f"column {column.name} has type {kind}, which no PostgreSQL column is made for; leave the sink out, or cast it"
    )
    raise ConfigError(message)


def columns_of(shape: DeliveredColumns, schema: pa.Schema) -> dict[str, str]:
    """Return the table's columns and their types, in order: stamps first, then the result's."""
    return {**STAMPS, **{name: type_of(schema.field(name)) for name in shape.columns}}


def identifier(table: str) -> sql.Identifier:
    """Return a table's quoted name; `schema.table` is two parts."""
    return sql.Identifier(*table.split("."))


def beside(table: str, name: str) -> sql.Identifier:
    """Return the quoted name of another table in the same schema."""
    return identifier(beside_name(table, name))


def beside_name(table: str, name: str) -> str:
    """Return the name of another table in the same schema."""
    return ".".join([*table.split(".")[:-1], name])


def create_table(table: str, columns: dict[str, str]) -> sql.Composed:
    """Return the statement that creates the table."""
    parts = [
        sql.SQL("{} {}{}").format(
            sql.Identifier(name), sql.SQL(_known(kind)), sql.SQL(" PRIMARY KEY" if name == "_key" else "")
        )
        for name, kind in columns.items()
    ]
    return sql.SQL("CREATE TABLE {} ({})").format(identifier(table), sql.SQL(", ").join(parts))


def _known(kind: str) -> str:
    """Return a type's text; it consists of letters, digits and few signs: it comes from `type_of`, never from outside."""
    assert all(sign.isalnum() or sign in " (),_" for sign in kind), kind
    return kind


def create_positions(table: str) -> sql.Composed:
    """Return the statement that creates the table of positions beside the table."""
    return sql.SQL(
        "CREATE TABLE IF NOT EXISTS {} (pipeline text NOT NULL, sink text NOT NULL, position text NOT NULL, "
        "PRIMARY KEY (pipeline, sink))"
    ).format(beside(table, POSITIONS))


def create_stage(table: str) -> sql.Composed:
    """Return the statement that makes the session's own table for the rows of one transaction."""
    return sql.SQL("CREATE TEMP TABLE IF NOT EXISTS {} (LIKE {}) ON COMMIT DELETE ROWS").format(
        sql.Identifier("rivertwice_stage"), identifier(table)
    )


def empty_stage() -> sql.Composed:
    """Return the statement that empties the stage: one transaction may try several times."""
    return sql.SQL("TRUNCATE {}").format(_STAGE)


def copy_stage(columns: dict[str, str]) -> sql.Composed:
    """Return the statement that fills the stage."""
    return sql.SQL("COPY {} ({}) FROM STDIN").format(_STAGE, _names(columns))


def upsert(table: str, columns: dict[str, str]) -> sql.Composed:
    """Return the statement that merges the stage's rows into the table, by key."""
    sets = [
        sql.SQL("{} = EXCLUDED.{}").format(sql.Identifier(name), sql.Identifier(name))
        for name in columns
        if name != "_key"
    ]
    return sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} ON CONFLICT (_key) DO UPDATE SET {}").format(
        identifier(table), _names(columns), _names(columns), _STAGE, sql.SQL(", ").join(sets)
    )


def withdraw(table: str) -> sql.Composed:
    """Return the statement that deletes rows by key."""
    return sql.SQL("DELETE FROM {} WHERE _key = ANY(%s)").format(identifier(table))


def empty(table: str) -> sql.Composed:
    """Return the statement that deletes all rows whose key begins with a text."""
    return sql.SQL("DELETE FROM {} WHERE starts_with(_key, %s)").format(identifier(table))


def select_rows(table: str, columns: Sequence[str]) -> sql.Composed:
    """Return the statement that reads the rows whose key begins with a text."""
    names = sql.SQL(", ").join(sql.Identifier(name) for name in ("_key", *columns))
    return sql.SQL("SELECT {} FROM {} WHERE starts_with(_key, %s)").format(names, identifier(table))


def find_others(table: str) -> sql.Composed:
    """Return the statement that finds a row whose key does not begin with a text."""
    return sql.SQL("SELECT 1 FROM {} WHERE NOT starts_with(_key, %s) LIMIT 1").format(identifier(table))


def reshape(table: str, gone: Sequence[str], new: Mapping[str, str]) -> list[sql.Composed]:
    """Return the statements that take columns away, then add others with their types; the stage is made again."""
    alter = sql.SQL("ALTER TABLE {} ").format(identifier(table))
    drops = [alter + sql.SQL("DROP COLUMN {}").format(sql.Identifier(name)) for name in gone]
    adds = [
        alter + sql.SQL("ADD COLUMN {} {}").format(sql.Identifier(name), sql.SQL(_known(kind)))
        for name, kind in new.items()
    ]
    return [sql.SQL("DROP TABLE IF EXISTS {}").format(_STAGE), *drops, *adds]


def find_columns(table: str) -> sql.Composed:
    """Return the statement that lists a table's columns and types."""
    return sql.SQL(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = to_regclass({}) AND attnum > 0 "
        "AND NOT attisdropped"
    ).format(sql.Literal(table))


def find_still() -> sql.SQL:
    """Return the statement that finds the sessions of one name that have been idle inside COPY for a number of seconds.

    A live deliverer's COPY is much shorter. The sessions are those of this role in this database: others may not be ended.
    """
    return sql.SQL(
        "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND datname = current_database() AND usename = current_user "
        "AND pid <> pg_backend_pid() AND state = 'active' AND wait_event = 'ClientRead' AND query LIKE 'COPY %%' "
        "AND query_start < clock_timestamp() - make_interval(secs => %s)"
    )


def _names(columns: dict[str, str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(name) for name in columns)


LOG = logging.getLogger(__name__)
_NOTHING = ""
STILL_S = 60
"""Seconds after which a transaction that waits for its client is ended, so that a suspended deliverer does not block others for ever."""
WAIT_S = 60.0
"""The longest wait for an answer of the server, also to COMMIT. Statements are cut so that each takes a small part of that."""
SLOW_S = 3600.0
"""The same for statements that read or delete the whole table; only a person or another version's columns ask for them."""
LOCK_S = 30
CHUNK = 10_000
"""Rows of one statement; also COPY ends after this number, or after `CHUNK_S`: one that lasts longer belongs to a client that hangs."""
CHUNK_S = 5.0


class _Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that waits for no answer longer than `patience_s`; then it is closed, and the error is an `OperationalError`."""

    patience_s = WAIT_S

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        if timeout is not None:
            return super().wait(gen, interval, timeout)
        deadline = Deadline.after(self.patience_s)
        try:
            return super().wait(gen, interval, self.patience_s)
        except psycopg.OperationalError:
            if not deadline.is_over():
                raise
            self.close()
            message = f"no answer came within {self.patience_s:.0f} s"
            raise psycopg.OperationalError(message) from None


class PostgresSink:
    """A table with exactly the rows that are served, as far as they were delivered."""

    def __init__(self, pipeline: str, name: str, asked: PostgresDelivery) -> None:
        self._pipeline = pipeline
        self._name = name
        self._asked = asked
        self._session_name = f"rivertwice {pipeline} {name}"[:63]
        self._columns: dict[str, str] = {}
        self._connection: _Connection | None = None

    def open(self, shape: DeliveredColumns, schema: pa.Schema) -> Position | None:
        """Connect, look at the table, and return the position."""
        self._columns = columns_of(shape, schema)
        with self._explained("opening"):
            connection = self._connect()
            stored = self._position(connection)
            table_columns: dict[str, str] = dict(connection.execute(find_columns(self._asked.table)).fetchall())
            connection.commit()
        position = position_held(stored, shape, self._name)
        is_another_version = position is not None and position.version != shape.version
        self._check(stored, table_columns, may_differ=is_another_version)
        return position

    def deliver(self, parcel: DeliveryBatch, set_aside: SetAside = none_aside) -> None:
        """Write rows and position in one transaction; rows that the database refuses are found with the help of savepoints."""
        connection = self._connection
        assert connection is not None, "open comes first"
        more = row_selection(parcel.shape)
        before = _NOTHING if parcel.before is None else position_to_json(parcel.before, **more)
        with self._explained("writing"), connection.transaction():
            self._lock(connection, before)
            if parcel.schema is not None:
                connection.patience_s = SLOW_S
                self._reshape(connection, columns_of(parcel.shape, parcel.schema))
                connection.patience_s = WAIT_S
            set_aside(self._write_what_fits(connection, parcel))
            self._store(connection, position_to_json(parcel.after, **more))

    def forget(self) -> None:
        """Forget the position and delete this pipeline's rows with it, for all are delivered again."""
        with self._explained("opening"):
            connection = self._connect()
            self._position(connection)
            connection.patience_s = SLOW_S
            if set(STAMPS) <= {name for name, _ in connection.execute(find_columns(self._asked.table))}:
                connection.execute(empty(self._asked.table), (key_start(self._pipeline),))
            self._store(connection, _NOTHING)
            connection.commit()
        self.close()

    @contextmanager
    def inspect(self) -> Iterator[Holding]:
        """Read rows and position as they are at one moment."""
        with self._explained("reading"), contextlib.closing(self):
            connection = self._connect()
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            stored = ""
            if connection.execute(find_columns(beside_name(self._asked.table, POSITIONS))).fetchall():
                stored = self._read(connection, lock=False)
            yield Holding(position_from_json(stored)[0] if stored else None, functools.partial(self._rows, connection))

    def _rows(
        self, connection: _Connection, shape: DeliveredColumns, schema: pa.Schema
    ) -> Iterator[tuple[str, list[Any]]]:
        if not connection.execute(find_columns(self._asked.table)).fetchall():
            return
        singles = [pa.types.is_float32(schema.field(name).type) for name in shape.columns]
        with connection.cursor("rows") as cursor:
            cursor.itersize = CHUNK
            cursor.execute(select_rows(self._asked.table, shape.columns), (key_start(self._pipeline),))
            for key, *values in cursor:
                yield key, [plain(_single(value) if one else value) for one, value in zip(singles, values, strict=True)]

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def _connect(self) -> _Connection:
        self.close()
        address = os.environ.get(self._asked.dsn_env)
        if not address:
            message = (
                f"{self._asked.dsn_env} is not set, so sink {self._name} of {self._pipeline} has no database; put the connection "
                "string into the environment of the agent, for instance postgresql://user@host/database with a ~/.pgpass"
            )
            raise ConfigError(message)
        connection = self._connection = _Connection.connect(
            address,
            connect_timeout=10,
            application_name=self._session_name,
            options=f"-c lock_timeout={LOCK_S}s -c idle_in_transaction_session_timeout={STILL_S}s",
            keepalives_idle=15,  # a server that vanished is noticed within these times
            keepalives_interval=5,
            keepalives_count=4,
            tcp_user_timeout=35_000,
        )
        connection.patience_s = WAIT_S
        for (pid,) in connection.execute(find_still(), (self._session_name, STILL_S)).fetchall():
            LOG.warning(
                "a deliverer of sink %s of %s stands still in a transaction; session %s is ended",
                self._name,
                self._pipeline,
                pid,
            )
            connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
        connection.commit()
        return connection

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            # psycopg's texts name host, user and table, never the password
            text = " ".join(str(error).split())[:300]
            description = (
                f"PostgreSQL failed at {doing} {self._asked.table} of sink {self._name}: {type(error).__name__}: {text}"
            )
            if isinstance(error, psycopg.DataError | psycopg.ProgrammingError):
                message = f"{description}; nothing was taken; correct the table, the rights or the data, then it resumes automatically"
                raise ConfigError(message) from None
            message = f"{description}; its position shows the outcome of the transaction when it is opened again"
            raise ServiceError(message) from None

    def _position(self, connection: psycopg.Connection) -> str:
        """Return the stored position's text; its row is created if there is none."""
        connection.execute("SELECT pg_advisory_xact_lock(7297384)")  # CREATE ... IF NOT EXISTS alone can race
        connection.execute(create_positions(self._asked.table))
        positions = beside(self._asked.table, POSITIONS)
        connection.execute(
            sql.SQL("INSERT INTO {} VALUES (%s, %s, %s) ON CONFLICT DO NOTHING").format(positions),
            (self._pipeline, self._name, _NOTHING),
        )
        return self._read(connection, lock=False)

    def _read(self, connection: psycopg.Connection, *, lock: bool) -> str:
        row = connection.execute(
            sql.SQL("SELECT position FROM {} WHERE pipeline = %s AND sink = %s{}").format(
                beside(self._asked.table, POSITIONS), sql.SQL(" FOR UPDATE" if lock else "")
            ),
            (self._pipeline, self._name),
        ).fetchone()
        return "" if row is None else str(row[0])

    def _store(self, connection: psycopg.Connection, position: str) -> None:
        connection.execute(
            sql.SQL("UPDATE {} SET position = %s WHERE pipeline = %s AND sink = %s").format(
                beside(self._asked.table, POSITIONS)
            ),
            (position, self._pipeline, self._name),
        )

    def _lock(self, connection: psycopg.Connection, before: str) -> None:
        stored = self._read(connection, lock=True)
        if stored != before:
            message = (
                f"sink {self._name} of {self._pipeline} is at {stored or 'nothing'}, not at {before or 'nothing'}: another "
                "deliverer was here; nothing was taken; read again and continue"
            )
            raise LostRaceError(message)

    def _reshape(self, connection: psycopg.Connection, columns: dict[str, str]) -> None:
        """Give the table the columns of another version's rows: all of its rows are written in this transaction.

        Raises:
            ConfigError: rows of another pipeline are in the table.
        """
        table = self._asked.table
        have: dict[str, str] = dict(connection.execute(find_columns(table)).fetchall())
        gone = [name for name in have if have[name] != columns.get(name)]
        new = {name: kind for name, kind in columns.items() if have.get(name) != kind}
        if gone or new:
            if connection.execute(find_others(table), (key_start(self._pipeline),)).fetchone() is not None:
                message = (
                    f"table {table} has rows of another pipeline than {self._pipeline}, so it cannot get the columns of the version that "
                    f"serves ({', '.join([*new, *gone])}); nothing was taken; let {self._pipeline} deliver to a separate table"
                )
                raise ConfigError(message)
            for statement in reshape(table, gone, new):
                connection.execute(statement)
        self._columns = columns

    def _check(self, stored: str, table_columns: dict[str, str], *, may_differ: bool) -> None:
        if table_columns and table_columns != self._columns and not may_differ:
            wrong = sorted(
                name for name in {*table_columns, *self._columns} if table_columns.get(name) != self._columns.get(name)
            )
            message = (
                f"table {self._asked.table} is not what {self._pipeline} delivers: {wrong[0]} is {table_columns.get(wrong[0], 'absent')}, "
                f"not {self._columns.get(wrong[0], 'absent')}; nothing was taken; name another table, or drop it and deliver all "
                "with --again"
            )
            raise ConfigError(message)
        if stored and not table_columns:
            message = (
                f"table {self._asked.table} is gone, but sink {self._name} says it was delivered up to {stored}; nothing was taken; "
                f"deliver all with `rivertwice deliver run {self._pipeline} --sink {self._name} --again`"
            )
            raise LedgerError(message)

    def _write_what_fits(self, connection: psycopg.Connection, parcel: DeliveryBatch) -> list[RefusedRecord]:
        """Write all records except those that the database refuses for their content; return these."""
        table = self._asked.table
        if parcel.before is None and not connection.execute(find_columns(table)).fetchall():
            connection.execute(create_table(table, self._columns))
        if not parcel.records:
            return []
        connection.execute(
            "SET CONSTRAINTS ALL IMMEDIATE"
        )  # else a constraint is checked at the commit, where no record can be named

        def attempt(part: Sequence[DeliveredRecord]) -> str | None:
            try:
                with connection.transaction():
                    self._write(connection, replace(parcel, records=part))
            except psycopg.Error as error:
                if not is_of_the_record(error):
                    raise
                return f"{type(error).__name__}: {' '.join(str(error).split())}"
            return None

        return [] if attempt(parcel.records) is None else isolate(parcel.records, attempt, self._name)

    def _write(self, connection: psycopg.Connection, parcel: DeliveryBatch) -> None:
        table = self._asked.table
        gone = [record.key for record in parcel.records if record.op == WITHDRAW]
        for start in range(0, len(gone), CHUNK):
            connection.execute(withdraw(table), (gone[start : start + CHUNK],))
        rows = [record for record in parcel.records if record.op != WITHDRAW]
        if rows:
            connection.execute(create_stage(table))
        done = 0
        while done < len(rows):
            connection.execute(empty_stage())
            deadline = Deadline.after(CHUNK_S)
            with connection.cursor() as cursor, cursor.copy(copy_stage(self._columns)) as copy:
                for record in rows[done : done + CHUNK]:
                    copy.write_row(_row(record, parcel.after.number))
                    done += 1
                    if deadline.is_over():
                        break
            connection.execute(upsert(table, self._columns))


def _single(value: float | None) -> float | None:
    """Return a number of a `real` as the tables have it: PostgreSQL sends the shortest text that means it."""
    return None if value is None else float(np.float32(value))


def is_of_the_record(error: psycopg.Error) -> bool:
    """Say whether an error is about a record's content, and not about the table, the rights or the server.

    Such errors are: data that does not fit its type (22; a zero byte is detected before it is sent, and has no code), a constraint
    of the table (23), a limit such as that of an indexed key (54), an exception from a trigger of the table (P0001).
    """
    if error.sqlstate is None:
        return isinstance(error, psycopg.DataError)
    return error.sqlstate[:2] in ("22", "23", "54") or error.sqlstate == "P0001"


def _row(record: DeliveredRecord, step: int) -> tuple[object, ...]:
    address = record.address
    assert address is not None, "only a withdrawal has none"
    return (record.key, address.timeline, address.batch, address.backfill, step, *record.values)
