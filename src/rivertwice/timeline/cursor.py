"""A cursor over the ledger's table: its rows in a few columns, of which each look reads only what was appended since the last.

It holds about 90 bytes for a batch, in Arrow's columns. It is right whatever was done to the table meanwhile: data files never
change, so a table whose files are all there that were there has all rows that it had. If one of them is gone (small files were
merged, an older version was restored, an erasure rewrote rows), the cursor starts over.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.config import Place
from rivertwice.store import delta
from rivertwice.store.delta_counts import least_by_file
from rivertwice.store.remembered import Mark, mark_of
from rivertwice.timeline.ledger import MOST, SCHEMA

SUMMED = ("read", "bad", "accepted", "emitted")
COLUMNS = (
    "timeline",
    "batch",
    *SUMMED,
    "late_rows",
    "epoch",
    "batch_watermark_ms",
    "batch_timestamp_ms",
    "committed_at",
)
ROWS = pa.schema([SCHEMA.field(name) for name in COLUMNS])
MOST_CURSORS = 16
_MOST_CHUNKS = 64
Key = tuple[str, int]


class LedgerCursor:
    """The rows of one ledger's table, kept between looks; threads may share it.

    Attributes:
        starts: how often it read the whole table.
        rows_read: how many rows it has read in all.
    """

    def __init__(self, place: Place) -> None:
        """Create a cursor that has not looked yet."""
        self._place = place
        self._lock = threading.Lock()
        self._files: frozenset[str] = frozenset()
        self._mark: Mark | None = None
        self._rows = ROWS.empty_table()
        self.starts = self.rows_read = 0

    def look(self) -> pa.Table:
        """Return all rows of the table now, in the columns `COLUMNS`, each batch once; those of a timeline mostly in order.

        A table in which nothing was committed since the last look is not opened.
        """
        with self._lock:
            mark = mark_of(self._place)
            if mark is None or mark != self._mark:
                self._mark = None  # if the look fails, the next one looks again
                self._rows = self._looked()
                self._mark = mark
            return self._rows

    def _looked(self) -> pa.Table:
        table = delta.open_table(self._place)
        if table is None:
            self._files = frozenset()
            return ROWS.empty_table()
        rows, files = self._rows, least_by_file(table, "batch")
        fresh = files.keys() - self._files
        if fresh:
            lowest = [files[name] for name in fresh]
            is_grown = bool(self._files) and self._files <= files.keys() and None not in lowest
            rows = self._grown(table, min(low for low in lowest if low is not None)) if is_grown else self._whole(table)
        elif self._files != files.keys():
            rows = self._whole(table)
        self._files = frozenset(files)
        return rows

    def _whole(self, table: delta.Table) -> pa.Table:
        self.starts += 1
        rows = self._read(table, None).sort_by([("timeline", "ascending"), ("batch", "ascending")]).combine_chunks()
        if rows.num_rows < 2:
            return rows
        is_new = pc.or_(
            *(pc.not_equal(_chunk(rows, name)[1:], _chunk(rows, name)[:-1]) for name in ("timeline", "batch"))
        )
        return rows if pc.all(is_new).as_py() else rows.filter(pa.concat_arrays([pa.array([True]), is_new]))

    def _grown(self, table: delta.Table, lowest: int) -> pa.Table:
        """Return the held rows and those that are new among the rows from a batch on."""
        rows = self._read(table, lowest)
        held = set(keys_from(self._rows, lowest))
        places = {key: place for place, key in enumerate(keys_of(rows)) if key not in held}
        new = rows.take(pa.array(sorted(places.values()), pa.int64())).sort_by("batch")
        grown = pa.concat_tables([self._rows, new])
        return grown.combine_chunks() if grown["batch"].num_chunks > _MOST_CHUNKS else grown

    def _read(self, table: delta.Table, lowest: int | None) -> pa.Table:
        held = {field.name for field in table.schema().fields}
        names = [name for name in COLUMNS if name in held]  # a table of an earlier format lacks some
        between = None if lowest is None else ("batch", lowest, MOST)
        rows = delta.read(self._place, columns=names, between=between, at=table)
        assert rows is not None, "the table is open"
        self.rows_read += rows.num_rows
        columns = [rows[name] if name in held else pa.nulls(rows.num_rows, ROWS.field(name).type) for name in COLUMNS]
        return pa.table(columns, names=list(COLUMNS)).cast(ROWS)


def _chunk(rows: pa.Table, name: str) -> pa.Array:
    return rows[name].chunk(0)


def keys_of(rows: pa.Table) -> list[Key]:
    """Return (timeline, batch) of each row."""
    return list(zip(rows["timeline"].to_pylist(), rows["batch"].to_pylist(), strict=True))


def keys_from(rows: pa.Table, lowest: int) -> list[Key]:
    """Return (timeline, batch) of the rows from a batch on."""
    return keys_of(rows.select(["timeline", "batch"]).filter(pc.field("batch") >= lowest))


_CURSORS: OrderedDict[str, LedgerCursor] = OrderedDict()
_CURSORS_LOCK = threading.Lock()


def cursor_of(place: Place) -> LedgerCursor:
    """Return this process's cursor of a ledger; those that were not asked for the longest are dropped."""
    with _CURSORS_LOCK:
        cursor = _CURSORS.setdefault(str(place), LedgerCursor(place))
        _CURSORS.move_to_end(str(place))
        while len(_CURSORS) > MOST_CURSORS:
            _CURSORS.popitem(last=False)
        return cursor
