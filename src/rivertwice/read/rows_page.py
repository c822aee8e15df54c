"""Rows of a table as the page shows them, each number with the way to its explanation, and as a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rivertwice.core import RequestError, Settings, to_iso
from rivertwice.definition import Definition
from rivertwice.read.cell_rows import parse_cell_key
from rivertwice.read.export import export_rows
from rivertwice.read.find import find_rows
from rivertwice.read.newest import newest_rows
from rivertwice.timeline import KINDS, PROVISIONAL, SERVED, Rows, json_value, key_text

MOST_ROWS = 200
MOST_IN_FILE = 200_000
"""Rows that the page shows, and that it gives as a file; `rivertwice show --write` has no limit."""


@dataclass(frozen=True)
class RowsQuery:
    """Which rows of a pipeline: of which table, in which range of time, with which values, how many, newest or oldest first.

    Attributes:
        raw: with the columns of records' own values (`Kind.raw`).
    """

    table: str = SERVED
    start: datetime | None = None
    end: datetime | None = None
    key: str | None = None
    limit: int = 50
    oldest: bool = False
    raw: bool = False

    def read(self, settings: Settings, definition: Definition) -> RowsPage:
        """Return the rows; only files that can have some of them are read.

        Raises:
            RequestError: there is no such table, nothing was written to it yet, or a value does not fit its column.
        """
        rows, limit = self._rows(settings, definition), min(self.limit, MOST_ROWS)
        shown = newest_rows(rows, limit, oldest=self.oldest)
        names = [name for name in shown.schema.names if name not in rows.table.kind.hidden]
        values = shown.to_pylist()
        explained = self.table in (SERVED, PROVISIONAL) and definition.window.start_column in names
        return RowsPage(
            table=rows.table.kind.name,
            tables={kind.name: kind.what for kind in KINDS},
            columns=tuple(names),
            rows=tuple([json_value(row[name]) for name in names] for row in values),
            places=tuple(_place(definition, row) for row in values) if explained else (),
            total=shown.num_rows if shown.num_rows < limit else rows.count(),
            status=rows.status.describe(),
            withheld=rows.table.withheld,
        )

    def write(self, settings: Settings, definition: Definition, target: Path) -> None:
        """Write the rows to a file, whose ending says how: `.csv`, `.parquet`, `.jsonl`.

        Raises:
            RequestError: as for `read`, or there are too many.
        """
        rows = self._rows(settings, definition)
        count = rows.count()
        if count is None:  # which files of the table have such rows, no statistics say
            count = newest_rows(rows, MOST_IN_FILE + 1).num_rows
        if count > MOST_IN_FILE:
            message = (
                f"the page gives files of at most {MOST_IN_FILE:,} rows, and these are more; choose a range, or write them where the agent is: "
                f"`rivertwice show {definition.name} --table {self.table} --write {target.name}`"
            )
            raise RequestError(message)
        export_rows(rows, target)

    def _rows(self, settings: Settings, definition: Definition) -> Rows:
        return find_rows(settings, definition.name, self.table, raw=self.raw).choose(
            self.start, self.end, parse_cell_key(self.key)
        )


@dataclass(frozen=True)
class RowsPage:
    """Rows of one table.

    Attributes:
        tables: name of each table that can be asked for, to what its rows are.
        places: of each row the window and key by which it is explained; empty: rows of this table are not.
        total: rows that fit what was asked for; None: not known.
        status: which batch they are of.
        withheld: which columns the one who asks may not see; empty: none.
    """

    table: str
    tables: Mapping[str, str]
    columns: tuple[str, ...]
    rows: tuple[list[Any], ...]
    places: tuple[tuple[str, str], ...]
    total: int | None
    status: str
    withheld: str


def _place(definition: Definition, row: Mapping[str, Any]) -> tuple[str, str]:
    keys = definition.row_keys
    return to_iso(row[definition.window.start_column]), key_text(keys, [row[name] for name in keys])
