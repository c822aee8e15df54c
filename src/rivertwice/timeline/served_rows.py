"""Which rows the closed windows of a path serve, chosen from changelog, corrections and sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from rivertwice.config import PipelineHome
from rivertwice.pipeline.definition import Definition
from rivertwice.store import delta
from rivertwice.store.sql import is_after, is_among
from rivertwice.timeline.committed import newest_batch
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.lineage import Segment, head_path, path_of, path_semantics, path_until
from rivertwice.timeline.sequence import PUBLICATION, Entry, select_head
from rivertwice.timeline.serving import Publication, select_served, to_epoch_ms


def publications_of(entries: Sequence[Entry]) -> list[Publication]:
    """Return the publications of a sequence, oldest first."""
    return [Publication.from_payload(entry.seq, entry.payload) for entry in entries if entry.kind == PUBLICATION]


def stream_rows(home: PipelineHome) -> pa.Table | None:
    """Return the changelog's rows on the head's path, of committed batches; None before the first batch."""
    path = head_path(home)
    last = newest_batch(home, path)
    return None if last is None else path_rows(home, path_until(path, last.batch))


def path_rows(home: PipelineHome, path: Sequence[Segment]) -> pa.Table | None:
    """Return the changelog's rows on a path with an end (`lineage.path_until`); None if there is no changelog."""
    rows = delta.read(home.tables.changelog)
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
    rows = delta.read(home.tables.changelog, matching=is_after(definition.window.end_column, closed_ms))
    if rows is None:
        return None
    return newest_rows(rows.filter(is_on_path(path_until(path, last.batch))), definition)


def rows_served_by(
    home: PipelineHome, definition: Definition, entries: list[Entry], ledger: Sequence[LedgerRow]
) -> pa.Table | None:
    """Return what closed windows serve by a sequence and the path's ledger, not by the table; None before the first batch.

    Args:
        home: the pipeline's.
        definition: what the head runs.
        entries: the sequence.
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
    return delta.read(home.tables.corrections, matching=is_among("_backfill", names))
