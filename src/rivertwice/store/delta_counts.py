"""Count the rows of a Delta table, in total from its log, or by the values of columns; and find damaged data files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import QueryBuilder

from rivertwice.config import Place
from rivertwice.store.delta import Table, open_table


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
