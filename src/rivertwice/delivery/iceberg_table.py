"""The rows and the position in an Iceberg table. Pure.

A row's `_key` is the same text as the key of a Kafka record. `_day` is the day of its window's start and partitions the table, so a
correction rewrites files of its days alone. A position is in the summary of the snapshot that reached it: who rolls the table back to
an earlier snapshot gets the position that belongs to its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import And, BooleanExpression, In
from pyiceberg.table.metadata import TableMetadata

from rivertwice.delivery.model import EMIT, WITHDRAW, DeliveredColumns, DeliveredRecord
from rivertwice.errors import ConfigError

DAY = "_day"
KEY = "_key"
STAMPS = pa.schema(
    [
        (KEY, pa.string()),
        (DAY, pa.string()),
        ("_timeline", pa.string()),
        ("_batch", pa.int64()),
        ("_backfill", pa.string()),
        ("_step", pa.int64()),
    ]
)


def schema_of(shape: DeliveredColumns, schema: pa.Schema) -> pa.Schema:
    """Return the table's columns in order: stamps first, then the result's.

    Raises:
        ConfigError: a column has a type that Iceberg lacks.
    """
    return pa.schema([*STAMPS, *(pa.field(name, _type_of(schema.field(name))) for name in shape.columns)])


def _type_of(column: pa.Field) -> pa.DataType:
    kind = column.type
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC")
    if pa.types.is_integer(kind):
        return pa.int64() if kind.bit_width == 64 else pa.int32()
    for known, own in (
        (pa.types.is_string, pa.string()),
        (pa.types.is_large_string, pa.string()),
        (pa.types.is_binary, pa.binary()),
        (pa.types.is_large_binary, pa.binary()),
    ):
        if known(kind):
            return own
    if any(check(kind) for check in (pa.types.is_boolean, pa.types.is_floating, pa.types.is_date, pa.types.is_decimal)):
        return kind
    message = (
        f"column {column.name} has type {kind}, which no Iceberg column is made for; leave the sink out, or cast it"
    )
    raise ConfigError(message)


def rows_of(shape: DeliveredColumns, schema: pa.Schema, records: Sequence[DeliveredRecord], step: int) -> pa.Table:
    """Return the rows that records bring, in the table's columns; a withdrawn row brings none."""
    rows = [
        {
            KEY: record.key,
            DAY: day_of(record),
            "_timeline": None if record.address is None else record.address.timeline,
            "_batch": None if record.address is None else record.address.batch,
            "_backfill": None if record.address is None else record.address.backfill,
            "_step": step,
            **dict(zip(shape.columns, record.values, strict=True)),
        }
        for record in records
        if record.op != WITHDRAW
    ]
    return pa.Table.from_pylist(rows, schema=schema)


def replaced_by(shape: DeliveredColumns, records: Sequence[DeliveredRecord]) -> BooleanExpression | None:
    """Return which rows records take the place of, None if of none.

    A batch's `emit` is a row of a window that was open before, so there is none of its key, unless newest rows are delivered.
    """
    replaces_all = shape.newest is not None or shape.updates_ms is not None
    gone = [record for record in records if replaces_all or record.op != EMIT]
    if not gone:
        return None
    keys = In(KEY, {record.key for record in gone})
    if shape.newest is not None:
        return keys  # the row before may be of another day
    return And(In(DAY, {day_of(record) for record in gone}), keys)


def day_of(record: DeliveredRecord) -> str:
    """Return the day of a row's window, UTC."""
    start: Any = record.values[0]
    return str(start.strftime("%Y-%m-%d"))


def position_name(pipeline: str, sink: str) -> str:
    """Return the name of a sink's position, in summaries of snapshots and among the table's properties."""
    return f"rivertwice.position.{pipeline}.{sink}"


def find_position(metadata: TableMetadata, name: str) -> str:
    """Return the position at the current snapshot: its own, or that of the nearest one before it; empty if there is none.

    Other writers (who compact files) make snapshots without one. If the one that has it was expired, the table's properties have it.
    """
    snapshot = metadata.current_snapshot()
    while snapshot is not None:
        if snapshot.summary is not None and name in snapshot.summary.additional_properties:
            return str(snapshot.summary.additional_properties[name])
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else metadata.snapshot_by_id(parent)
    return str(metadata.properties.get(name, ""))
