"""Counts of a Delta table: in total from its log, by the values of columns, by its stamps; and damaged data files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import QueryBuilder

from rivertwice.core.homes import Place
from rivertwice.storage.delta import Table, open_table
from rivertwice.storage.delta_handle import explained
from rivertwice.storage.remembered import borrow_table
from rivertwice.storage.sql import is_before, quoted


def total_rows(path: Place) -> int | None:
    """Return the number of rows from the statistics in a table's log, 0 if it does not exist; None if a file has none.

    No data file is read: the cost depends on the number of live files.
    """
    table = open_table(path)
    return 0 if table is None else rows_in_log(table)


def rows_in_log(table: Table) -> int | None:
    """Return the number of rows of a handle's version from the statistics in its log; None if a file has none."""
    counts = pa.table(table.get_add_actions(flatten=True))["num_records"].to_pylist()
    return None if any(count is None for count in counts) else sum(counts)


def least_by_file(table: Table, column: str) -> dict[str, Any]:
    """Return the live data files of a handle's version, each with the least value of a column; None where the log has none."""
    actions = pa.table(table.get_add_actions(flatten=True))
    names, least = actions["path"].to_pylist(), f"min.{column}"
    values = actions[least].to_pylist() if least in actions.column_names else [None] * len(names)
    return dict(zip(names, values, strict=True))


def uris_above(table: Table, column: str, number: int) -> list[str]:
    """Return the full names of the live data files that may have a value of a column above a whole number, by the log's statistics."""
    actions = pa.table(table.get_add_actions(flatten=True))
    most = f"max.{column}"
    rows = actions.select([name for name in ("path", "num_records", most) if name in actions.column_names]).to_pylist()
    without = {
        row["path"].rpartition("/")[2]
        for row in rows
        if row["num_records"] == 0 or (row.get(most) is not None and row[most] <= number)
    }
    return sorted(uri for uri in table.file_uris() if uri.rpartition("/")[2] not in without)


def rows_by(path: Place, columns: Sequence[str], *, above: tuple[str, int] | None = None) -> dict[tuple[Any, ...], int]:
    """Return the number of rows for each combination of values of some columns; empty if the table does not exist.

    Args:
        path: the table.
        columns: the columns to group by; no other column is read.
        above: (column, number): only rows with a larger whole number; files that cannot have one, by their statistics, are not read.
    """
    table = open_table(path)
    if table is None:
        return {}
    column_names = {field.name for field in table.schema().fields}
    names = ", ".join(f'"{name}"' for name in columns if name in column_names)
    where = "" if above is None or above[0] not in column_names else f' WHERE "{above[0]}" > {int(above[1])}'
    query = f"SELECT {names}, count(*) AS n FROM t{where} GROUP BY {names}"  # noqa: S608 (columns of our own tables)
    counts = pa.RecordBatchReader.from_stream(QueryBuilder().register("t", table).execute(query)).read_all()
    values = [counts.column(number).to_pylist() for number in range(len(columns))]
    return dict(zip(zip(*values, strict=True), counts.column("n").to_pylist(), strict=True))


def group_counts(
    path: Place,
    columns: Sequence[str],
    matching: str,
    *,
    order: Sequence[str] = (),
    limit: int | None = None,
    skip: int = 0,
) -> pa.Table | None:
    """Return the combinations of values of some columns, each with its number of rows as `n`; None without a table.

    The groups are made where the files are read: what comes here does not grow with the rows.

    Args:
        path: the table.
        columns: the columns to group by; no other column comes here.
        matching: a condition of `storage.sql`: only rows for which it is true; files that cannot have one are not read.
        order: columns by which the groups are ordered.
        limit: at most so many groups.
        skip: leave out so many of them first.
    """
    with borrow_table(path) as table:
        if table is None:
            return None
        names = ", ".join(quoted(name) for name in columns)
        query = f"SELECT {names}, count(*) AS n FROM t WHERE {matching} GROUP BY {names}"  # noqa: S608 (columns of our own tables)
        query += f" ORDER BY {', '.join(quoted(name) for name in order)}" if order else ""
        query += "" if limit is None else f" LIMIT {int(limit)} OFFSET {int(skip)}"
        schema = pa.schema(table.schema().to_arrow())
        wanted = pa.schema([*(schema.field(name) for name in columns), pa.field("n", pa.int64())])
        with explained(path, "reading it"):
            stream = QueryBuilder().register("t", table).execute(query)
            return pa.RecordBatchReader.from_stream(stream).read_all().cast(wanted)


@dataclass(frozen=True)
class TableExtent:
    """How much time the rows of a table cover: their number, how many different starts they have, the first start and the last end."""

    rows: int
    starts: int
    first: datetime | None
    last: datetime | None


def extent_of(path: Place, start: str, end: str, *, before_ms: int | None = None) -> TableExtent:
    """Return how much time the rows of a table cover. They are counted where the files are read.

    Args:
        path: the table; one that does not exist has no rows.
        start: the column of instants at which rows begin.
        end: that at which they end.
        before_ms: only rows that begin before this instant (epoch ms); None: all.
    """
    with borrow_table(path) as table:
        if table is None:
            return TableExtent(0, 0, None, None)
        names = f"count(*) AS n, count(DISTINCT {quoted(start)}) AS starts, min({quoted(start)}) AS low, max({quoted(end)}) AS high"
        where = "" if before_ms is None else f" WHERE {is_before(start, before_ms)}"
        with explained(path, "counting its rows"):
            stream = QueryBuilder().register("t", table).execute(f"SELECT {names} FROM t{where}")  # noqa: S608 (columns of our own tables)
            (row,) = pa.RecordBatchReader.from_stream(stream).read_all().to_pylist()
    return TableExtent(row["n"], row["starts"], row["low"], row["high"])


def bounds_in_log(path: Place, column: str) -> tuple[Any, Any] | None:
    """Return the least and the largest value of a column by the statistics in a table's log; None: there are none.

    The log has instants in whole milliseconds, rounded down.
    """
    with borrow_table(path) as table:
        if table is None:
            return None
        actions = pa.table(table.get_add_actions(flatten=True))
    if f"min.{column}" not in actions.column_names:
        return None
    least, most = pc.min(actions[f"min.{column}"]).as_py(), pc.max(actions[f"max.{column}"]).as_py()
    return None if least is None or most is None else (least, most)


def rows_in_range(path: Place, column: str, least: Any, most: Any) -> int:
    """Return how many rows the files have that can hold a value of a column between two, both included, by the table's log."""
    with borrow_table(path) as table:
        if table is None:
            return 0
        actions = pa.table(table.get_add_actions(flatten=True))
    if f"min.{column}" in actions.column_names:
        low, high = actions[f"min.{column}"], actions[f"max.{column}"]
        outside = pc.or_(pc.greater(low, pa.scalar(most, low.type)), pc.less(high, pa.scalar(least, high.type)))
        actions = actions.filter(pc.invert(pc.fill_null(outside, False)))
    return int(pc.sum(actions["num_records"]).as_py() or 0)


def broken_files(path: Place) -> list[tuple[Path, str]]:
    """Return the damaged data files of a table in a folder, each with the damage: missing, or another size than in the log.

    On S3 an object is written whole, so it is not checked.
    """
    table = open_table(path) if isinstance(path, Path) else None
    if table is None:
        return []
    files = [(Path(path) / name, size) for name, size in live_sizes(table).items()]
    answers = [(file, check_size(file, size)) for file, size in files]
    return [(file, answer) for file, answer in answers if isinstance(answer, str)]


def live_sizes(table: Table) -> dict[str, int]:
    """Return each live data file, relative to its table, with its size in bytes from the table's log."""
    actions = pa.table(table.get_add_actions(flatten=True))
    names: Iterable[Any] = actions["path"].to_pylist()
    return {unquote(name): size for name, size in zip(names, actions["size_bytes"].to_pylist(), strict=True)}


def check_size(file: Path, size: int) -> os.stat_result | str:
    """Return the status of a data file that has its size from the table's log, or the damage: it is gone, or has another size."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return "is gone"
    return status if status.st_size == size else f"holds {status.st_size} bytes, not {size}"


# Detect at low cost that a table may have changed.


def log_stamp(table: Place) -> int:
    """Return a number that changes with every commit to a table; -1 if it does not exist.

    In a folder it is the time of the log's last change, with the precision of the file system's clock. Two commits within
    one tick look like one, so a caller that waits for a change must also check at times without it. On S3 it is the table's version.
    """
    if isinstance(table, Path):
        try:
            return (table / "_delta_log").stat().st_mtime_ns
        except FileNotFoundError:
            return -1
    opened = open_table(table)
    return -1 if opened is None else int(opened.version())
