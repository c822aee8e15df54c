"""How many rows a Delta table holds: in all by its log, by batch from two columns; and which of its data files are not whole."""

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
    """Return how many rows a table holds by the statistics in its log, 0 if it does not exist; None if a file has none.

    No data file is read: the cost follows the number of live files.
    """
    table = open_table(path)
    if table is None:
        return 0
    counts = pa.table(table.get_add_actions(flatten=True))["num_records"].to_pylist()
    return None if any(count is None for count in counts) else sum(counts)


def rows_by(path: Place, columns: Sequence[str], *, above: tuple[str, int] | None = None) -> dict[tuple[Any, ...], int]:
    """Return how many rows a table holds for each combination of values of some columns; nothing if it does not exist.

    Args:
        path: the table.
        columns: whose values are counted; no other is read.
        above: (column, number): only rows with a larger whole number; files whose statistics rule that out are not read.
    """
    table = open_table(path)
    if table is None:
        return {}
    known = {field.name for field in table.schema().fields}
    names = ", ".join(f'"{name}"' for name in columns if name in known)
    where = "" if above is None or above[0] not in known else f' WHERE "{above[0]}" > {int(above[1])}'
    query = f"SELECT {names}, count(*) AS n FROM t{where} GROUP BY {names}"  # noqa: S608 (columns of our own tables)
    found = pa.RecordBatchReader.from_stream(QueryBuilder().register("t", table).execute(query)).read_all()
    values = [found.column(number).to_pylist() for number in range(len(columns))]
    return dict(zip(zip(*values, strict=True), found.column("n").to_pylist(), strict=True))


def broken_files(path: Place) -> list[tuple[Path, str]]:
    """Return the data files of a table in a folder that are gone or of another size than its log says, and which it is.

    On S3 an object is written whole, so nothing is looked at.
    """
    table = open_table(path) if isinstance(path, Path) else None
    if table is None:
        return []
    actions = pa.table(table.get_add_actions(flatten=True))
    broken = []
    for name, size in zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True):
        file = Path(path) / unquote(name)
        try:
            found = file.stat().st_size
        except FileNotFoundError:
            broken.append((file, "is gone"))
            continue
        if found != size:
            broken.append((file, f"holds {found} bytes, not {size}"))
    return broken
