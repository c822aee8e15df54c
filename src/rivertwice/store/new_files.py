"""Files that were written for a Delta table and that no commit has added yet."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rivertwice.config import Place
from rivertwice.store.places import open_store


@dataclass(frozen=True)
class NewFile:
    """A file below a table's place.

    Attributes:
        path: below the table's place. size: bytes. rows: how many it has.
        stats: number of rows and bounds of columns, as Delta stores them (JSON).
        partition: values of the partition columns, which are not in the file.
        note: what the writer said of its rows, for instance their digest.
    """

    path: str
    size: int
    rows: int
    stats: str
    partition: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def write_file(path: Place, rows: pa.Table, partition: Mapping[str, str] | None = None, note: str = "") -> NewFile:
    """Write rows to a new file of a table; no reader sees them before a commit adds the file (`delta.append_files`).

    Args:
        path: the table's place.
        rows: without the partition columns.
        partition: the value of each partition column; letters, digits and hyphens.
        note: kept with the file's entry, not stored.
    """
    values = dict(partition or {})
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, compression="zstd")
    data = buffer.getvalue()
    folders = "".join(f"{column}={value}/" for column, value in values.items())
    name = f"{folders}part-{uuid.uuid4().hex}.zstd.parquet"
    open_store(path).put_if_absent(name, data)
    return NewFile(name, len(data), rows.num_rows, statistics(rows), values, note)


def statistics(table: pa.Table) -> str:
    """Return the statistics of a file's rows as Delta stores them: rows, and bounds of numbers, texts and timestamps. Pure.

    A text's bounds are left out if they are long; a reader then reads the file.
    """
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in table.column_names:
        column = table[name]
        nulls[name] = column.null_count
        if column.null_count == len(column) or not _has_bounds(column.type):
            continue
        bounds = pc.min_max(column).as_py()
        low, high = _plain(bounds["min"]), _plain(bounds["max"])
        if isinstance(low, str) and isinstance(bounds["min"], str) and max(len(low), len(high)) > _LONGEST:
            continue
        lows[name], highs[name] = low, high
    return json.dumps({"numRecords": table.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls})


_LONGEST = 32


def _has_bounds(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_timestamp(kind))


def _plain(value: Any) -> Any:
    return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if isinstance(value, datetime) else value
