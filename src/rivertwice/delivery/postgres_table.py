"""The tables in PostgreSQL: their statements and types. Names were checked before and are quoted; values are parameters.

A row's `_key` is the same text as the key of a Kafka record. It can contain nulls, and is the primary key on any version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from psycopg import sql

from rivertwice.delivery.model import DeliveredColumns
from rivertwice.errors import ConfigError
from rivertwice.pipeline.delivery_model import POSITIONS

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
    """Return the statement that finds the sessions of one name that have stood still inside COPY for so many seconds.

    A live deliverer's COPY is much shorter. The sessions are those of this role in this database: others may not be ended.
    """
    return sql.SQL(
        "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND datname = current_database() AND usename = current_user "
        "AND pid <> pg_backend_pid() AND state = 'active' AND wait_event = 'ClientRead' AND query LIKE 'COPY %%' "
        "AND query_start < clock_timestamp() - make_interval(secs => %s)"
    )


def _names(columns: dict[str, str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(name) for name in columns)
