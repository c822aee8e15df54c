"""Which rows the closed windows of a path serve, chosen from changelog, corrections and sequence."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from rivertwice.core import PipelineHome, Row, to_iso
from rivertwice.definition import Definition
from rivertwice.storage import Table, Where
from rivertwice.timeline.committed import newest_batch
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.lineage import Segment, head_path, path_of, path_semantics, path_until
from rivertwice.timeline.sequence import Entry, EntryKind, select_head
from rivertwice.timeline.serving import Publication, select_served, to_epoch_ms


def publications_of(entries: Sequence[Entry]) -> list[Publication]:
    """Return the publications of a sequence, oldest first."""
    return [
        Publication.from_payload(entry.seq, entry.payload) for entry in entries if entry.kind == EntryKind.PUBLICATION
    ]


def stream_rows(home: PipelineHome) -> pa.Table | None:
    """Return the changelog's rows on the head's path, of committed batches; None before the first batch."""
    path = head_path(home)
    last = newest_batch(home, path)
    return None if last is None else path_rows(home, path_until(path, last.batch))


def path_rows(home: PipelineHome, path: Sequence[Segment]) -> pa.Table | None:
    """Return the changelog's rows on a path with an end (`lineage.path_until`); None if there is no changelog."""
    rows = Table(home.tables.changelog).read()
    return None if rows is None else rows.filter(is_on_path(path))


def is_on_path(path: Sequence[Segment]) -> pc.Expression:
    """Return the condition that a changelog row is of a batch of these segments."""
    keep = pc.scalar(False)
    for segment in path:
        inside = (pc.field("_timeline") == segment.timeline) & (pc.field("_batch") >= segment.first)
        keep = keep | (inside if segment.last is None else inside & (pc.field("_batch") <= segment.last))
    return keep


def newest_rows(rows: pa.Table, definition: Definition) -> pa.Table:
    """Return the newest version of each row that was emitted more than once (emit: updates): batches only rise on a path."""
    if not definition.has_updates:
        return rows
    return newest_by(rows, [definition.window.start_column, definition.window.end_column, *definition.row_keys])


def newest_by(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the newest row of each address on a path; `names` are the columns of the address."""
    ordered = rows.sort_by("_batch")
    if all(_has_exact_equality(rows.schema.field(name).type) for name in names):
        places = pa.array(np.arange(ordered.num_rows))
        addressed = ordered.select(list(names)).append_column("_place", places)
        newest = addressed.group_by(list(names), use_threads=False).aggregate([("_place", "max")])["_place_max"]
        return ordered.take(newest.combine_chunks().sort())
    keys = zip(*(ordered[name].to_pylist() for name in names), strict=True)
    place_of = {key: place for place, key in enumerate(keys)}
    return ordered.take(pa.array(sorted(place_of.values()), pa.int64()))


def _has_exact_equality(column_type: pa.DataType) -> bool:
    """Say whether Arrow groups values of a type as Python compares them: not so for floats (-0.0) and nested values."""
    checks = (types.is_string, types.is_integer, types.is_boolean, types.is_temporal, types.is_decimal, types.is_binary)
    return any(check(column_type) for check in checks)


def open_rows(newest: pa.Table, definition: Definition, watermark_ms: int) -> pa.Table:
    """Return the rows of windows that are not closed at a watermark."""
    ends = to_epoch_ms(newest[definition.window.end_column])
    return newest.filter(pa.array(ends > definition.window.closed_ms(watermark_ms)))


def read_provisional(home: PipelineHome, definition: Definition) -> pa.Table | None:
    """Return the newest rows of windows that are not closed yet; None before the first batch. Only for emit: updates.

    They are those of the last committed batch. Of the changelog, files without an open window are not read.
    """
    path = head_path(home)
    last = newest_batch(home, path)
    if last is None:
        return None
    closed_ms = definition.window.closed_ms(last.batch_watermark_ms)
    rows = Table(home.tables.changelog).read(matching=Where(definition.window.end_column).is_after(closed_ms))
    if rows is None:
        return None
    return newest_rows(rows.filter(is_on_path(path_until(path, last.batch))), definition)


def rows_served_by(
    home: PipelineHome, definition: Definition, entries: list[Entry], ledger: Sequence[LedgerRow]
) -> pa.Table | None:
    """Return what closed windows serve by a sequence and the path's ledger, not by the table; None before the first batch.

    Args:
        ledger: the committed batches on the head's path.
    """
    head = select_head(entries)
    path = [] if head is None else path_of(home, head)
    stream = path_rows(home, path_until(path, ledger[-1].batch)) if ledger else None
    if stream is None:
        return None
    publications = publications_of(entries)
    return select_served(
        newest_rows(stream, definition),
        read_corrections(home, publications),
        publications,
        semantics=path_semantics(home, path),
        closed_ms=definition.window.closed_ms(ledger[-1].batch_watermark_ms),
        start_column=definition.window.start_column,
        end_column=definition.window.end_column,
        session_keys=definition.session_keys,
    )


def read_corrections(home: PipelineHome, publications: Sequence[Publication]) -> pa.Table | None:
    """Return the rows that the backfills of publications computed; None if there are none."""
    if not publications:
        return None
    names = sorted({entry.backfill for entry in publications})
    return Table(home.tables.corrections).read(matching=Where("_backfill").is_among(names))


# Rows as lines of JSON: what `rivertwice show --write` writes, and what two tables with the same rows have in common.

OWN_COLUMNS = frozenset({"_format", "_day"})
"""Columns that serve the storage alone; they are left out of an export unless they are named."""


def json_lines(rows: pa.Table) -> list[bytes]:
    """Return each row as a line with a JSON object, in the order of rows and columns, without the line's end."""
    names = rows.schema.names
    columns = [rows[name].to_pylist() for name in names]
    return [
        json.dumps(
            {name: json_value(value) for name, value in zip(names, row, strict=True)},
            ensure_ascii=False,
            separators=(",", ":"),
        ).encode()
        for row in zip(*columns, strict=True)
    ]


def export_lines(rows: pa.Table) -> list[bytes]:
    """Return the lines of rows in memory, sorted, with the columns by name: equal for two tables exactly when they hold the same rows."""
    return sorted(json_lines(rows.select(sorted(rows.schema.names))))


def json_value(value: Any) -> Any:
    """Return a value as JSON can hold it, without losing a digit.

    Instants are ISO 8601 in UTC, decimals text, bytes Base64; a float that JSON lacks is `"NaN"`, `"Infinity"` or `"-Infinity"`.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else json.dumps(value)
    if isinstance(value, datetime):
        return to_iso(value if value.tzinfo else value.replace(tzinfo=UTC))
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(name): json_value(item) for name, item in value.items()}
    if isinstance(value, Sequence):
        return [json_value(item) for item in value]
    return str(value)


# The late rows that the stream stored, only those of committed batches on the head's path.

COLUMNS = ("window_start", "window_end", "event_time", "late_watermark", "topic", "partition", "offset", "fields")


def read_late_rows(home: PipelineHome, path: Sequence[LedgerRow], columns: Sequence[str] = COLUMNS) -> list[Row]:
    """Return the stored late rows of the batches of `path`, each with its ledger row as `batch`, in the order of the log.

    Rows of batches that were never committed do not count: a crash may leave them.
    """
    table = Table(home.tables.late_rows).read(columns=["_timeline", "_batch", *columns])
    if table is None:
        return []
    by_batch = {(row.timeline, row.batch): row for row in path}
    late_rows = []
    for row in table.to_pylist():
        batch = by_batch.get((row.pop("_timeline"), row.pop("_batch")))
        if batch is not None:
            late_rows.append({**row, "batch": batch})
    return sorted(late_rows, key=lambda row: (row["topic"], row["partition"], row["offset"], row["window_start"]))
