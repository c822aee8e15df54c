"""Write rows to a file or a folder, in order, with bounded memory; a reader sees all of it or nothing."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pyarrow.types as types

from rivertwice.core import RequestError, ServiceError
from rivertwice.read.newest import replace_columns
from rivertwice.storage import sorted_rows, sync_path
from rivertwice.timeline import Rows, Status, json_lines, json_value

# Rows as a CSV, JSON Lines or Parquet file, written block by block.


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


_DAY_FORMAT = ".parquet"
_NO_DAY = "__HIVE_DEFAULT_PARTITION__"
"""Folder of the rows without a time, as Hive and Spark name it."""
_CHUNK = 1 << 20


@dataclass(frozen=True)
class ExportReport:
    """What an export wrote.

    Attributes:
        sha256: of the file; of a folder, of the lines `SHA256  NAME` of its files, sorted by name.
    """

    target: Path
    rows: int
    bytes: int
    files: int
    sha256: str
    status: Status


def export_rows(
    rows: Rows, target: Path, *, overwrite: bool = False, progress: Callable[[int], None] = lambda _: None
) -> ExportReport:
    """Write rows ordered by time, then by the other columns.

    1. Rows are sorted into runs in a hidden folder beside the target, and merged into a file there. 2. The file, or the folder,
    gets the target's name in one step. Ended before that, an export leaves the hidden folder and no target.

    Args:
        target: its ending says how: `.jsonl`, `.csv`, `.parquet`. A name without an ending is a folder, with a folder
            `day=YYYY-MM-DD` with a Parquet file for each day.
        progress: is called with the number of rows that were read.

    Raises:
        RequestError: the target exists, or its name has another ending, or its folder does not exist.
        ServiceError: the target cannot be written.
    """
    ending = format_of(target)
    _require_free(target, overwrite)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            made = Path(folder) / "made"
            scratch = Path(folder) / "runs"
            scratch.mkdir()
            count = _write(rows, made, ending, scratch, progress)
            files = sorted(made.rglob("*.parquet")) if ending is None else [made]
            for written in [*files, *{file.parent for file in files}]:
                sync_path(written)
            sizes = sum(file.stat().st_size for file in files)
            sha256 = _sha256(made) if ending is not None else _sha256_of_folder(made, files)
            _put(made, target, overwrite)
    except OSError as error:
        message = f"{target} cannot be written: {error}; what was there before is unchanged; name another place"
        raise ServiceError(message) from error
    return ExportReport(target, count, sizes, len(files), sha256, rows.status)


def _require_free(target: Path, overwrite: bool) -> None:
    if not target.parent.is_dir():
        message = f"the folder {target.parent} does not exist, so {target.name} cannot be written there; run `mkdir -p {target.parent}`"
        raise RequestError(message)
    if target.exists() and not overwrite:
        message = f"{target} exists and was left as it is; to replace it, run the command again with --overwrite"
        raise RequestError(message)


def _write(rows: Rows, made: Path, ending: str | None, scratch: Path, progress: Callable[[int], None]) -> int:
    names, time = rows.names, rows.table.time
    read = rows if time in names else replace_columns(rows, [*names, time])
    count = 0
    with ExitStack() as stack:
        if ending is None:
            made.mkdir()
            writer: Writer = stack.enter_context(closing(_Days(made, rows.schema, time)))
        else:
            writer = stack.enter_context(closing(FORMATS[ending](made, rows.schema)))
        for block in sorted_rows(read.batches(), read.schema, time, scratch, done=progress):
            writer.write(block if ending is None else block.select(names))
            count += block.num_rows
    return count


class _Days:
    """A folder with a Parquet file for each day, `day=2013-06-30/rows.parquet`; rows come ordered by time."""

    def __init__(self, folder: Path, schema: pa.Schema, time: str) -> None:
        self._folder = folder
        self._schema = schema
        self._time = time
        self._day: str | None = None
        self._writer: Writer | None = None

    def write(self, rows: pa.Table) -> None:
        """Append rows to the files of their days."""
        for day, part in _by_day(rows, self._time):
            if day != self._day or self._writer is None:
                self.close()
                place = self._folder / f"day={day}"
                place.mkdir()
                self._day, self._writer = day, FORMATS[_DAY_FORMAT](place / "rows.parquet", self._schema)
            self._writer.write(part.select(self._schema.names))

    def close(self) -> None:
        """End the file of the last day."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _by_day(rows: pa.Table, time: str) -> Iterator[tuple[str, pa.Table]]:
    days = pc.fill_null(pc.strftime(rows[time], format="%Y-%m-%d"), _NO_DAY)
    for day in pc.unique(days).to_pylist():
        yield day, rows.filter(pc.equal(days, day))


def _put(made: Path, target: Path, overwrite: bool) -> None:
    """Give what was made its name.

    Raises:
        RequestError: another process made the target meanwhile.
    """
    try:
        if made.is_dir():
            if overwrite and target.exists():
                _move_away(target, made.parent / "before")
            made.rename(target)
        elif overwrite:
            made.replace(target)
        else:
            os.link(made, target)
    except FileExistsError:
        _require_free(target, overwrite=False)
        raise
    sync_path(target.parent)


def _move_away(target: Path, before: Path) -> None:
    if target.is_dir() and any(
        child.name != "rows.parquet" and not child.name.startswith("day=") for child in target.iterdir()
    ):
        message = (
            f"{target} holds more than an export, so it was left as it is; name another folder, or remove it yourself"
        )
        raise RequestError(message)
    shutil.move(target, before)


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as data:
        while chunk := data.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _sha256_of_folder(folder: Path, files: list[Path]) -> str:
    lines = [f"{_sha256(file)}  {file.relative_to(folder).as_posix()}\n" for file in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
