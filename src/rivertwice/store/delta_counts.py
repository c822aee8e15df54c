"""Count the rows of a Delta table, in total from its log, or by the values of columns; and find damaged data files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import QueryBuilder

from rivertwice.config import Place
from rivertwice.store.delta import open_table


def total_rows(path: Place) -> int | None:
    """Return the number of rows from the statistics in a table's log, 0 if it does not exist; None if a file has none.

    No data file is read: the cost depends on the number of live files.
    """
    table = open_table(path)
    if table is None:
        return 0
    counts = pa.table(table.get_add_actions(flatten=True))["num_records"].to_pylist()
    return None if any(count is None for count in counts) else sum(counts)


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
    actions = pa.table(table.get_add_actions(flatten=True))
    broken = []
    for name, size in zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True):
        file = Path(path) / unquote(name)
        try:
            actual_size = file.stat().st_size
        except FileNotFoundError:
            broken.append((file, "is gone"))
            continue
        if actual_size != size:
            broken.append((file, f"holds {actual_size} bytes, not {size}"))
    return broken
