"""The newest rows of a table, or the oldest: files are read from that end on, until there are enough rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.storage import DataFile
from rivertwice.timeline import Rows

_WIDER = 8
_FIRST, _LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)


def newest_rows(rows: Rows, limit: int, *, oldest: bool = False) -> pa.Table:
    """Return at most `limit` rows, newest first, or oldest first; rows without a time are last.

    By the statistics in the table's log it is known after which instant there are enough rows, so older files are not read. If a
    condition leaves too few of them, more files are read, each of them once. In memory are `limit` rows and a few batches.

    Args:
        limit: at least 1.
    """
    time = rows.table.time
    kind = rows.table.files.schema.field(time).type
    wanted = replace_columns(rows, [*rows.names, *([] if time in rows.names else [time])])
    best = wanted.schema.empty_table()
    bounds = [None, *_bounds(rows, limit, oldest=oldest), None]
    for near, far in pairwise(bounds):
        parts = [pc.field(time).is_valid()]
        if oldest:
            parts += [] if near is None else [pc.field(time) > pa.scalar(near, kind)]
            parts += [] if far is None else [pc.field(time) <= pa.scalar(far, kind)]
        else:
            parts += [] if near is None else [pc.field(time) < pa.scalar(near, kind)]
            parts += [] if far is None else [pc.field(time) >= pa.scalar(far, kind)]
        condition = parts[0]
        for part in parts[1:]:
            condition = condition & part
        best = _best(best, wanted, condition, limit, oldest=oldest)
        if best.num_rows >= limit:
            return best.select(rows.names)
    if rows.time_condition is None:
        without = _best(
            wanted.schema.empty_table(), wanted, pc.field(time).is_null(), limit - best.num_rows, oldest=oldest
        )
        best = pa.concat_tables([best, without])
    return best.select(rows.names)


def replace_columns(rows: Rows, names: Sequence[str]) -> Rows:
    """Return the same rows with other columns."""
    return Rows(rows.table, rows.start, rows.end, rows.key, tuple(names))


def _best(best: pa.Table, rows: Rows, condition: pc.Expression, limit: int, *, oldest: bool) -> pa.Table:
    time, keys = rows.table.time, set(rows.table.keys)
    rest = [field.name for field in rows.schema if field.name != time and field.name in rows.table.files.sortable]
    # Of one window, rows are in the order of their keys in both directions.
    ordered = [*(name for name in rest if name in keys), *(name for name in rest if name not in keys)]
    order = [(time, "ascending" if oldest else "descending"), *((name, "ascending") for name in ordered)]
    held = best
    for batch in rows.batches_where(condition):
        held = pa.concat_tables([held, pa.Table.from_batches([batch])])
        if held.num_rows > 4 * limit + 100_000:
            held = held.sort_by(order).slice(0, limit).combine_chunks()
    return held.sort_by(order).slice(0, limit).combine_chunks()


def _bounds(rows: Rows, limit: int, *, oldest: bool) -> Iterator[datetime]:
    """Yield instants, each further from the end than the one before, such that there are enough rows up to it by the log."""
    time = rows.table.time
    start, end = rows.start or _FIRST, rows.end or _LAST
    inside = [
        span for span in (_span(file, time) for file in rows.table.files.files) if start <= span[1] and span[0] < end
    ]
    inside.sort(key=lambda span: span[1] if oldest else span[0], reverse=not oldest)
    wanted, counted, before = limit, 0, None
    for low, high, count in inside:
        counted += count if start <= low and high < end else 0
        far = high if oldest else low
        if counted >= wanted and far != before:
            yield far
            wanted, before = counted * _WIDER, far


def _span(file: DataFile, time: str) -> tuple[datetime, datetime, int]:
    low, high = file.bounds.get(time, (_FIRST, _LAST))
    return low, high, file.rows or 0
