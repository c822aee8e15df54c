"""The records of a step: pure functions over frames. After them, a sink has the rows that the tables serve at its position."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.core import LedgerError
from rivertwice.deliver.model import (
    BATCHES,
    CORRECT,
    EMIT,
    WITHDRAW,
    DeliveredColumns,
    DeliveredRecord,
    DeliveryStep,
    Line,
    Position,
    RowOrigin,
    View,
)
from rivertwice.deliver.wire import key_text
from rivertwice.timeline import (
    STREAM_SEQ,
    Publication,
    Segment,
    as_folded,
    newest_by,
    select_replaced,
    select_served,
    to_epoch_ms,
)

Ranges = Sequence[tuple[int, int]]
_Row = tuple[tuple[Any, ...], RowOrigin]
_Touched = Callable[[pa.Table], pa.Table]


class RowReader(Protocol):
    """Rows of the tables of one version, all or some."""

    def changelog(self, first: int, last: int) -> pa.Table:
        """Return rows of the batches `first <= batch <= last` of all timelines."""
        ...

    def corrections(self, backfills: frozenset[str]) -> pa.Table | None:
        """Return the rows that these backfills computed; None if the table does not exist."""
        ...


class Reader(RowReader, Protocol):
    """The rows of the tables of one version, and their columns."""

    def columns_of(self, line: Line, *, newest: bool) -> DeliveredColumns:
        """Return the result's columns by the definition of a line."""
        ...


class Readers(Protocol):
    """The tables of the versions of a pipeline."""

    def of(self, line: Line) -> Reader:
        """Return the tables that have a line."""
        ...


def records_of(
    step: DeliveryStep, position: Position | None, view: View, shape: DeliveredColumns, readers: Readers
) -> list[DeliveredRecord]:
    """Return the records that a step delivers, in order.

    Raises:
        LedgerError: the tables have two rows of one window and key, or another number of rows than the ledger.
    """
    if step.kind == BATCHES:
        return _rows_of_batches(step, position, view, shape, readers)
    assert position is not None, "only batches come first"
    touched = _touched_by(step, view, shape, readers.of(view.head))
    return _differing(step, position, view, shape, readers, touched)


def _differing(
    step: DeliveryStep,
    position: Position | None,
    view: View,
    shape: DeliveredColumns,
    readers: Readers,
    touched: _Touched,
) -> list[DeliveredRecord]:
    """Return the records that change a sink's rows to those that are served after the step; only `touched` rows are compared.

    If another version's rows have other columns or types, each of them is another row.
    """
    held: Mapping[str, _Row] = {}
    held_columns: dict[str, pa.DataType] | None = None
    own = shape
    if position is not None:
        own = _held_shape(view, shape, readers)
        rows = _held(position, touched, view, own, readers)
        held_columns = _result_columns(rows)
        held = _by_row(rows, own)
    publications = view.publications
    wanted = _served(view.head, step.to, step.closed_ms, touched, publications, shape, readers.of(view.head))
    has_same_columns = held_columns is None or held_columns == _result_columns(wanted)
    return diff(
        held, _by_row(wanted, shape), only_values=has_same_columns, columns=None if own.keys == shape.keys else own
    )


def _held_shape(view: View, shape: DeliveredColumns, readers: Readers) -> DeliveredColumns:
    """Return the columns by which the rows of the position's version are read."""
    assert view.held is not None, "a sink at a position is asked"
    if view.held.version == view.head.version:
        return shape
    return shape.as_held(readers.of(view.held).columns_of(view.held, newest=shape.newest is not None))


def _by_row(rows: pa.Table, shape: DeliveredColumns) -> dict[str, _Row]:
    """Return rows by their key's text; of newest rows those that are present."""
    return _by_key(rows, shape) if shape.newest is None else _newest_present(rows, shape)


def rows_at(
    view: View, position: Position, shape: DeliveredColumns, reader: RowReader, *, day: str | None = None
) -> dict[str, tuple[Any, ...]]:
    """Return the rows that a sink at a position must have, by key: their values in the shape's order.

    Args:
        view: the view that led to the position.
        reader: reads rows, at least those of the day.
        day: only rows of windows that start on this day (UTC); None: all.
    """

    def touched(rows: pa.Table) -> pa.Table:
        return rows if day is None else rows.filter(pc.equal(rows["_day"], day))

    rows = _served(view.head, position, view.batches[-1].closed_ms, touched, view.publications, shape, reader)
    hold = _by_key if shape.newest is None else _newest_present
    return {key: values for key, (values, _) in hold(rows, shape).items()}


def _held(position: Position, touched: _Touched, view: View, shape: DeliveredColumns, readers: Readers) -> pa.Table:
    """Return the `touched` rows that a sink at a position has."""
    assert view.held is not None, "a sink at a position is asked"
    publications = view.publications if view.held_publications is None else view.held_publications
    return _served(view.held, position, view.held_closed_ms, touched, publications, shape, readers.of(view.held))


def _result_columns(rows: pa.Table) -> dict[str, pa.DataType]:
    """Return the types of a table's columns by name, without those that the platform adds."""
    return {field.name: field.type for field in rows.schema if not field.name.startswith("_")}


def records_again(
    lacking: Mapping[str, Mapping[str, Any] | None],
    position: Position,
    view: View,
    shape: DeliveredColumns,
    readers: Readers,
) -> list[DeliveredRecord]:
    """Return the records that give a destination the served rows of the keys that it lacks, at its position.

    Args:
        lacking: key to the row that the destination has instead (`source`, `values`), or None.
        position: the sink's position; no step waits after it.
    """

    def touched(rows: pa.Table) -> pa.Table:
        names = (shape.start, shape.end, *shape.keys)
        keys = zip(*(rows[name].to_pylist() for name in names), strict=True)
        return rows.filter(pa.array([key_text(shape, key) in lacking for key in keys], pa.bool_()))

    wanted = _by_row(_held(position, touched, view, shape, readers), shape)
    records = []
    for key, held in lacking.items():
        row = wanted.get(key)
        if row is not None:
            first = _first(key, row)
            records.append(
                first if held is None else replace(first, op=CORRECT, replaces=_source(held), old=_values(held))
            )
        elif held is not None:
            records.append(DeliveredRecord(WITHDRAW, key, _values(held), None, _source(held), _values(held)))
    return records


def _source(held: Mapping[str, Any]) -> RowOrigin:
    source = held["source"]
    return RowOrigin(source.get("timeline"), source.get("batch"), source.get("backfill"))


def _values(held: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(held["values"])


def _touched_by(step: DeliveryStep, view: View, shape: DeliveredColumns, reader: RowReader) -> _Touched:
    """Return a function that selects the rows that a step may change: of a publication's windows or sessions, or all for a move."""
    if not step.ranges:
        return lambda rows: rows
    if not shape.sessions:
        return lambda rows: _within(rows, step.ranges, shape)
    columns = [shape.start, shape.end, *shape.keys]
    named = frozenset(entry.backfill for entry in view.publications if entry.seq == step.to.seq)
    claims = reader.corrections(named)
    if claims is None:
        return lambda rows: rows.slice(0, 0)
    seqs = np.zeros(claims.num_rows, dtype=np.int64)

    def overlapped(rows: pa.Table) -> pa.Table:
        own = np.full(rows.num_rows, STREAM_SEQ, dtype=np.int64)
        return rows.filter(pa.array(select_replaced(rows, own, claims, seqs, columns)))

    return overlapped


def _closes_published(counting: Sequence[Publication], held_closed_ms: int, shape: DeliveredColumns) -> bool:
    """Say whether a publication covers windows that were open at the sink: with updates, it may have rows that are not published."""
    reach_ms = shape.updates_ms
    if reach_ms is None:
        return False
    return any(end + reach_ms > held_closed_ms for entry in counting for _, end in entry.ranges)


def _rows_of_batches(
    step: DeliveryStep, position: Position | None, view: View, shape: DeliveredColumns, readers: Readers
) -> list[DeliveredRecord]:
    batches, reader = step.batches, readers.of(view.head)
    changelog = reader.changelog(batches[0].batch, batches[-1].batch)
    rows = changelog.filter(_on_path(changelog, view.head.path))
    expected = sum(batch.rows for batch in batches)
    if rows.num_rows != expected:
        message = (
            f"the ledger counts {expected} rows for batches {batches[0].batch} to {batches[-1].batch} of {shape.pipeline}, "
            f"the changelog holds {rows.num_rows}; run `rivertwice reconcile {shape.pipeline}`"
        )
        raise LedgerError(message)
    counting = _counting(view.publications, view.head, step.to.seq)
    if _closes_published(counting, view.held_closed_ms, shape):
        return _differing(step, position, view, shape, readers, lambda all_rows: all_rows)
    claims = corrections = _corrections(counting, reader)
    if corrections is not None:  # a publication can cover windows that close on this path only now
        corrections = corrections.filter(pa.array(to_epoch_ms(corrections[shape.end]) > view.held_closed_ms))
    served = _select(rows, corrections, claims, counting, view.head, step.closed_ms, shape)
    if shape.newest is not None:
        return [_changed(key, row, shape) for key, row in sorted(_newest(served, shape).items())]
    place: dict[tuple[str | None, int | None], int] = {
        (batch.timeline, batch.batch): number for number, batch in enumerate(batches)
    }
    records = [_first(key, row) for key, row in _by_key(served, shape).items()]
    last = len(batches)
    return sorted(records, key=lambda record: (_order(record.address, place, last), record.key))


def _order(address: RowOrigin | None, place: Mapping[tuple[str | None, int | None], int], last: int) -> int:
    return last if address is None else place.get((address.timeline, address.batch), last)


def _first(key: str, row: _Row) -> DeliveredRecord:
    values, address = row
    return DeliveredRecord(EMIT if address.backfill is None else CORRECT, key, values, address)


def _changed(key: str, row: _Row, shape: DeliveredColumns) -> DeliveredRecord:
    """Return the record of the row that a batch gave a key, whatever row the key had before."""
    return DeliveredRecord(WITHDRAW, key, row[0], None) if _is_gone(row, shape) else _first(key, row)


def _newest(rows: pa.Table, shape: DeliveredColumns) -> dict[str, _Row]:
    """Return the newest row of each key, also if that row deletes the key."""
    assert shape.newest is not None, "only of newest rows"
    return dict(_keyed(as_folded(rows, shape.newest.views), shape))


def _newest_present(rows: pa.Table, shape: DeliveredColumns) -> dict[str, _Row]:
    return {key: row for key, row in _newest(rows, shape).items() if not _is_gone(row, shape)}


def _is_gone(row: _Row, shape: DeliveredColumns) -> bool:
    column = None if shape.newest is None else shape.newest.deleted
    return column is not None and bool(row[0][shape.columns.index(column)])


def diff(
    held: Mapping[str, _Row],
    wanted: Mapping[str, _Row],
    *,
    only_values: bool = True,
    columns: DeliveredColumns | None = None,
) -> list[DeliveredRecord]:
    """Return the records that change a consumer's rows to the target rows, by key.

    A row with equal values is not delivered again, whatever its origin; without `only_values` every row is.

    Args:
        only_values: whether equal values are enough.
        columns: of the held rows, if they have other keys; None: they have the same.
    """
    records = []
    for key in sorted({*held, *wanted}):
        old, new = held.get(key), wanted.get(key)
        if new is None:
            assert old is not None, "the key is in one of the two"
            records.append(DeliveredRecord(WITHDRAW, key, old[0], None, old[1], old[0], columns))
        elif old is None:
            records.append(_first(key, new))
        elif not only_values or not _equal(old[0], new[0]):
            records.append(DeliveredRecord(CORRECT, key, new[0], new[1], old[1], old[0]))
    return records


def _equal(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    return all(a == b or (a != a and b != b) for a, b in zip(left, right, strict=True))


def _served(
    line: Line,
    position: Position,
    closed_ms: int,
    touched: _Touched,
    publications: Sequence[Publication],
    shape: DeliveredColumns,
    reader: RowReader,
) -> pa.Table:
    """Return the `touched` rows that a path serves at a position."""
    changelog = reader.changelog(line.path[0].first, position.batch)
    rows = touched(changelog.filter(_on_path(changelog, line.path)))
    counting = _counting(publications, line, position.seq)
    claims = corrections = _corrections(counting, reader)
    if corrections is not None:
        corrections = touched(corrections)
    return _select(rows, corrections, claims, counting, line, closed_ms, shape)


def _counting(publications: Sequence[Publication], line: Line, seq: int) -> list[Publication]:
    return [entry for entry in publications if entry.seq <= seq and entry.semantics in line.semantics]


def _corrections(publications: Sequence[Publication], reader: RowReader) -> pa.Table | None:
    return reader.corrections(frozenset(entry.backfill for entry in publications)) if publications else None


def _select(
    rows: pa.Table,
    corrections: pa.Table | None,
    claims: pa.Table | None,
    publications: Sequence[Publication],
    line: Line,
    closed_ms: int,
    shape: DeliveredColumns,
) -> pa.Table:
    if shape.updates_ms is not None:
        rows = newest_by(rows, [shape.start, shape.end, *shape.keys])
    served = select_served(
        rows,
        corrections,
        publications,
        semantics=line.semantics,
        closed_ms=closed_ms,
        start_column=shape.start,
        end_column=shape.end,
        session_keys=shape.keys if shape.sessions else None,
        claims=claims,
    )
    if shape.updates_ms is None:
        return served
    return pa.concat_tables([served, _still_open(rows, served.schema, closed_ms, shape)])


def _still_open(rows: pa.Table, schema: pa.Schema, closed_ms: int, shape: DeliveredColumns) -> pa.Table:
    """Return the rows of windows that are not closed, with the columns of served rows."""
    open_rows = rows.filter(pa.array(to_epoch_ms(rows[shape.end]) > closed_ms))
    columns = [
        open_rows[name] if name in open_rows.schema.names else pa.nulls(open_rows.num_rows, schema.field(name).type)
        for name in schema.names
    ]
    return pa.table(columns, names=schema.names).cast(schema)


def _within(rows: pa.Table, ranges: Ranges, shape: DeliveredColumns) -> pa.Table:
    starts = to_epoch_ms(rows[shape.start])
    inside = np.zeros(len(starts), dtype=bool)
    for start, end in ranges:
        inside |= (starts >= start) & (starts < end)
    return rows.filter(pa.array(inside))


def _on_path(rows: pa.Table, path: Sequence[Segment]) -> Any:
    keep = pa.array(np.zeros(rows.num_rows, dtype=bool))
    for part in path:
        inside = pc.and_(pc.equal(rows["_timeline"], part.timeline), pc.greater_equal(rows["_batch"], part.first))
        if part.last is not None:
            inside = pc.and_(inside, pc.less_equal(rows["_batch"], part.last))
        keep = pc.or_(keep, inside)
    return keep


def _by_key(rows: pa.Table, shape: DeliveredColumns) -> dict[str, _Row]:
    """Return rows by their key's text.

    Raises:
        LedgerError: two rows have the same key.
    """
    rows_by_key = dict(_keyed(rows, shape))
    if len(rows_by_key) != rows.num_rows:
        message = (
            f"{rows.num_rows} rows of {shape.pipeline} have only {len(rows_by_key)} different windows and keys; a consumer could "
            "hold only one row of each; let the transform yield one row per window and keys"
        )
        raise LedgerError(message)
    return rows_by_key


def _keyed(rows: pa.Table, shape: DeliveredColumns) -> Iterator[tuple[str, _Row]]:
    columns = [
        rows[name].to_pylist() if name in rows.column_names else [None] * rows.num_rows  # a column that a version added
        for name in (*shape.columns, "_timeline", "_batch", "_backfill")
    ]
    for *values, timeline, batch, backfill in zip(*columns, strict=True):
        yield key_text(shape, values), (tuple(values), RowOrigin(timeline, batch, backfill))
