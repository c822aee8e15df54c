"""Rows as a CSV, JSON Lines or Parquet file, written block by block."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pyarrow.types as types

from rivertwice.errors import RequestError
from rivertwice.timeline.served_export import json_lines, json_value


class Writer(Protocol):
    """A file that is being written."""

    def write(self, rows: pa.Table) -> None:
        """Append rows."""

    def close(self) -> None:
        """End the file."""


class JsonLines:
    """A JSON object in each line (`served_export.json_lines`)."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        """Create the file."""
        self._file = path.open("wb")

    def write(self, rows: pa.Table) -> None:
        """Append rows."""
        self._file.write(b"".join(line + b"\n" for line in json_lines(rows)))

    def close(self) -> None:
        """End the file."""
        self._file.close()


class Csv:
    """A header and a line for each row: texts are quoted and nulls are not, so that an empty text is not a null."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        """Create the file with its header."""
        self._file = path.open("wb")
        self._header = True
        self.write(schema.empty_table())

    def write(self, rows: pa.Table) -> None:
        """Append rows."""
        plain = pa.table({name: csv_column(rows[name]) for name in rows.schema.names})
        text = io.BytesIO()
        pacsv.write_csv(plain, text, pacsv.WriteOptions(include_header=self._header, quoting_style="needed"))
        self._file.write(text.getvalue())
        self._header = False

    def close(self) -> None:
        """End the file."""
        self._file.close()


class Parquet:
    """A Parquet file."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        """Create the file."""
        self._writer = pq.ParquetWriter(path, schema, compression="zstd")

    def write(self, rows: pa.Table) -> None:
        """Append rows."""
        self._writer.write_table(rows)

    def close(self) -> None:
        """End the file."""
        self._writer.close()


def csv_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as the CSV has it: instants in ISO 8601, bytes in Base64, nested values as JSON. Pure."""
    kind = column.type
    if types.is_timestamp(kind):
        text = pc.strftime(column, format="%Y-%m-%dT%H:%M:%SZ")
        return pc.replace_substring_regex(text, pattern=r"\.0+Z$", replacement="Z")
    if types.is_binary(kind) or types.is_large_binary(kind):
        values = [None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()]
        return pa.chunked_array([pa.array(values, pa.string())])
    if types.is_nested(kind):
        values = [
            None if value is None else json.dumps(json_value(value), ensure_ascii=False) for value in column.to_pylist()
        ]
        return pa.chunked_array([pa.array(values, pa.string())])
    return column


FORMATS: dict[str, Callable[[Path, pa.Schema], Writer]] = {".jsonl": JsonLines, ".csv": Csv, ".parquet": Parquet}


def format_of(target: Path) -> str | None:
    """Return the ending that says how a file is written; None for a folder, which has no ending. Pure.

    Raises:
        RequestError: the ending is not known.
    """
    if not target.suffix:
        return None
    if target.suffix not in FORMATS:
        message = f"{target.name} ends in {target.suffix}; write a name that ends in {', '.join(FORMATS)}, or one without an ending for a folder"
        raise RequestError(message)
    return target.suffix
