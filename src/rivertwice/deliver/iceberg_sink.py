"""Iceberg: rows by key and the position in one commit of the table.

One step is one commit: rows that are replaced go, new rows come, and the last snapshot has the position. The commit asserts that the
table's current snapshot is the one that was read. So of two deliverers one is turned away, and writes nothing that is seen.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.expressions import And, BooleanExpression, In, StartsWith
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from rivertwice.core import ConfigError, LostRaceError
from rivertwice.definition import IcebergDelivery
from rivertwice.deliver.iceberg_catalog import PROPERTIES, CatalogTable, column_type, forbid_retries
from rivertwice.deliver.model import EMIT, WITHDRAW, DeliveredColumns, DeliveredRecord, DeliveryBatch, Holding, Position
from rivertwice.deliver.refusals import SetAside, none_aside
from rivertwice.deliver.wire import key_start, plain, position_from_json, position_held, position_to_json, row_selection

# The rows and the position in an Iceberg table. Pure.
#
# A row's `_key` is the same text as the key of a Kafka record. `_day` is the day of its window's start and partitions the table, so a
# correction rewrites files of its days alone. A position is in the summary of the snapshot that reached it: who rolls the table back to
# an earlier snapshot gets the position that belongs to its rows.

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
    return pa.schema([*STAMPS, *(pa.field(name, column_type(schema.field(name))) for name in shape.columns)])


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


class IcebergSink:
    """A table with exactly the rows that are served, as far as they were delivered."""

    def __init__(self, pipeline: str, name: str, asked: IcebergDelivery) -> None:
        self._pipeline = pipeline
        self._name = name
        self._asked = asked
        self._place = CatalogTable(pipeline, name, asked)
        self._position_name = position_name(pipeline, name)
        self._schema: pa.Schema | None = None
        self._table: Table | None = None

    def open(self, shape: DeliveredColumns, schema: pa.Schema) -> Position | None:
        """Load the table, or create it, and return the position."""
        self._schema = schema_of(shape, schema)
        with self._place.explained("opening"):
            table = self._table = self._load(self._schema)
            forbid_retries(table)
            position = position_held(find_position(table.metadata, self._position_name), shape, self._name)
        if position is None or position.version == shape.version:
            self._check(table)
        return position

    def deliver(self, parcel: DeliveryBatch, set_aside: SetAside = none_aside) -> None:
        """Replace rows and store the position in one commit; the table refuses none."""
        table, schema = self._table, self._schema
        assert table is not None, "open comes first"
        assert schema is not None, "open comes first"
        more = row_selection(parcel.shape)
        after = position_to_json(parcel.after, **more)
        with self._place.explained("writing"):
            table.refresh()
            forbid_retries(table)
            before = "" if parcel.before is None else position_to_json(parcel.before, **more)
            if find_position(table.metadata, self._position_name) != before:
                raise LostRaceError(self._place.turned_away())
            set_aside(())
            if parcel.schema is not None:
                schema = self._schema = schema_of(parcel.shape, parcel.schema)
            summary = {self._position_name: after, **_stamp(parcel.after)}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that no row was replaced is not a mistake
                change = table.transaction()
                if parcel.schema is not None:
                    _reshape(change, table, schema)
                replaced = replaced_by(parcel.shape, parcel.records)
                if replaced is not None:
                    change.delete(replaced)
                change.append(rows_of(parcel.shape, schema, parcel.records, parcel.after.number), summary)
                change.set_properties({self._position_name: after})
                change.commit_transaction()

    def forget(self) -> None:
        """Forget the position and delete this pipeline's rows with it, for all are delivered again."""
        with self._place.explained("opening"):
            table = self._place.load()
            if table is not None:
                forbid_retries(table)
                with warnings.catch_warnings(), table.transaction() as change:
                    warnings.simplefilter("ignore", UserWarning)
                    change.delete(StartsWith(KEY, key_start(self._pipeline)))
                    change.append(table.schema().as_arrow().empty_table(), {self._position_name: ""})
                    change.set_properties({self._position_name: ""})
        self.close()

    @contextmanager
    def inspect(self) -> Iterator[Holding]:
        """Read rows and position of the table's current snapshot."""
        with self._place.explained("reading"):
            table = self._place.load()
            stored = "" if table is None else find_position(table.metadata, self._position_name)
            position = position_from_json(stored)[0] if stored else None
            yield Holding(position, functools.partial(self._rows, table))

    def _rows(self, table: Table | None, shape: DeliveredColumns, schema: pa.Schema) -> Iterator[tuple[str, list[Any]]]:
        del schema
        if table is None:
            return
        names = (KEY, *shape.columns)
        ours = StartsWith(KEY, key_start(self._pipeline))
        for batch in table.scan(row_filter=ours, selected_fields=names).to_arrow_batch_reader():
            for key, *values in zip(*(batch[name].to_pylist() for name in names), strict=True):
                yield key, [plain(value) for value in values]

    def close(self) -> None:
        """Forget the table; there is no connection to close."""
        self._table = None

    def _load(self, schema: pa.Schema) -> Table:
        table = self._place.load()
        if table is None:
            with contextlib.suppress(TableAlreadyExistsError, CommitFailedException):  # another deliverer was faster
                creation = self._place.create(schema, PROPERTIES)
                with creation, creation.update_spec() as spec:
                    spec.add_identity(DAY)
            table = self._place.load()
        assert table is not None, "it was created"
        return table

    def _check(self, table: Table) -> None:
        assert self._schema is not None, "open comes first"
        held = {field.name: _plain(field.type) for field in table.schema().as_arrow()}
        wanted = {field.name: field.type for field in self._schema}
        if held != wanted:
            differing = sorted(name for name in held.keys() | wanted.keys() if held.get(name) != wanted.get(name))
            message = (
                f"the {self._asked.place} of sink {self._name} has other columns than {self._pipeline} delivers: {', '.join(differing[:6])}; "
                "nothing was delivered; name another table, or drop it and run "
                f"`rivertwice deliver run {self._pipeline} --sink {self._name} --again`"
            )
            raise ConfigError(message)


def _reshape(change: Any, table: Table, schema: pa.Schema) -> None:
    """Give the table the columns of another version, and take away those that are none any more."""
    with change.update_schema(allow_incompatible_changes=True) as update:
        update.union_by_name(schema)
        for name in table.schema().column_names:
            if name not in schema.names:
                update.delete_column(name)


def _stamp(position: Position) -> dict[str, str]:
    """Return what a snapshot says of the rows that are served at it, for people."""
    return {
        "rivertwice.timeline": position.timeline,
        "rivertwice.batch": str(position.batch),
        "rivertwice.sequence": str(position.seq),
        "rivertwice.step": str(position.number),
    }


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind
