"""Delta tables between executors and Spark: executors read a table's files, and write files that one commit adds.

Spark has no connector for Delta here, and the driver must not hold a table that grows with history. So the driver asks
delta-rs which files a version has, and each executor reads its share of them, or writes a file for each of its tasks.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from rivertwice.core.homes import Place, is_s3
from rivertwice.storage.delta import NewFile, write_file
from rivertwice.storage.delta_handle import Table
from rivertwice.storage.places import local_files, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Change = Callable[[pa.Table], pa.Table]
TASK_BYTES = 32 << 20
"""So many bytes of Parquet are read by one task, or one file if it is larger."""
BATCH_ROWS = 65_536
"""So many rows of a file are in memory at once."""


@dataclass(frozen=True)
class File:
    """A file of a table: its path below the table's place, its size in bytes, and the values of partition columns."""

    path: str
    size: int
    partition: Mapping[str, str | None]


def live_files(table: Table) -> list[File]:
    """Return the files of a handle's version, in the order of their paths."""
    names = list(table.metadata().partition_columns)
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return sorted(
        (
            File(unquote(row["path"]), int(row["size_bytes"]), {name: row[f"partition.{name}"] for name in names})
            for row in actions
        ),
        key=lambda file: file.path,
    )


def shares(files: Sequence[File], most_bytes: int = TASK_BYTES) -> list[list[File]]:
    """Return the files by task: neighbours together, up to so many bytes. Pure."""
    tasks: list[list[File]] = []
    size = 0
    for file in files:
        if not tasks or size + file.size > most_bytes:
            tasks.append([])
            size = 0
        tasks[-1].append(file)
        size += file.size
    return tasks


def scan(
    spark: SparkSession,
    path: Place,
    table: Table,
    schema: StructType,
    change: Change,
    *,
    files: Sequence[File] | None = None,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Return what a function makes of a table's rows, read and computed by executors.

    Args:
        spark: the session.
        path: the table's place, which executors reach under the same name.
        table: an open handle, whose version is read.
        schema: of what `change` returns.
        change: gets rows in pieces of at most `BATCH_ROWS`.
        files: the files to read, of those that the version has; None: all.
        columns: the columns of the table that `change` gets; None: all.
    """
    tasks = shares(live_files(table) if files is None else files)
    wanted = pa.schema(
        [field for field in pa.schema(table.schema().to_arrow()) if columns is None or field.name in columns]
    )
    result = to_arrow_schema(schema, timezone="UTC")

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for file in tasks[number]:
                    for rows in pieces_of(path, file, wanted):
                        yield from change(rows).select(result.names).cast(result).to_batches()

    numbers = spark.range(0, len(tasks), 1, max(1, len(tasks)))
    return numbers.mapInArrow(read, schema)


def pieces_of(path: Place, file: File, wanted: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of a table's file in pieces of at most `BATCH_ROWS`, with the wanted columns; one that it lacks is null."""
    source = _source(path, file.path)
    with pq.ParquetFile(source) as parquet:
        names = [name for name in parquet.schema_arrow.names if name in wanted.names]
        for batch in parquet.iter_batches(BATCH_ROWS, columns=names):
            yield _completed(pa.Table.from_batches([batch]), file, wanted)


def _source(path: Place, name: str) -> Any:
    if isinstance(path, Path):
        return path / name
    data = open_store(path).get(name)
    if data is None:
        message = f"{name} of the table {path} is gone while it was read"
        raise FileNotFoundError(message)
    return io.BytesIO(data)


def _completed(rows: pa.Table, file: File, wanted: pa.Schema) -> pa.Table:
    """Return rows with all wanted columns: partition values from the file's entry, others null."""
    columns = []
    for field in wanted:
        if field.name in file.partition:
            value = pa.scalar(file.partition[field.name], pa.string()).cast(field.type)
            columns.append(pa.repeat(value, rows.num_rows))
        elif field.name in rows.column_names:
            columns.append(rows[field.name].cast(field.type))
        else:
            columns.append(pa.nulls(rows.num_rows, field.type))
    return pa.table(columns, schema=wanted)


_NEW_FILES = "path string, size bigint, rows bigint, stats string, partition string, note string"


def write_files(
    rows: DataFrame,
    path: Place,
    schema: pa.Schema,
    change: Change,
    *,
    partition_by: str | None = None,
    note: Callable[[pa.Table], str] = lambda _: "",
) -> list[NewFile]:
    """Write the rows of each task to files of a table, on executors; no reader sees them before a commit adds them.

    A task that is repeated leaves a file that nobody adds; the table's upkeep removes it.

    Args:
        rows: what is written.
        path: the table's place.
        schema: of the table.
        change: makes rows of `schema` of the frame's rows.
        partition_by: the partition column, a text: a task writes a file for each value; None: the table has none.
        note: is said of the rows of each file (`NewFile.note`).
    """

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pieces = [change(pa.Table.from_batches([batch])) for batch in batches]
        table = pa.concat_tables([schema.empty_table(), *pieces]).select(schema.names).cast(schema)
        for values, part in _by_value(table, partition_by):
            file = write_file(path, part, values, note(part))
            yield pa.RecordBatch.from_pylist([{**asdict(file), "partition": json.dumps(values)}])

    found = rows.mapInArrow(write, _NEW_FILES).toArrow().to_pylist()
    files = (NewFile(**{**row, "partition": json.loads(row["partition"])}) for row in found)
    return sorted(files, key=lambda file: file.path)


def _by_value(table: pa.Table, column: str | None) -> list[tuple[dict[str, str], pa.Table]]:
    """Return the rows by the value of a column, without that column; no rows give nothing."""
    if column is None:
        return [({}, table)] if table.num_rows else []
    values = sorted(set(table[column].to_pylist()))
    rest = [name for name in table.column_names if name != column]
    return [({column: value}, table.filter(pc.equal(table[column], value)).select(rest)) for value in values]


# Rows of a Delta table's files as a frame of Spark, wherever the session's executors run.
#
# In a local session Spark's own reader reads the files, those on S3 from copies on this disk. Executors on other hosts do not see this
# disk: there they read files on S3 themselves, through our own client and the credentials of their environment.


def read_by_executors(spark: SparkSession, place: Place) -> bool:
    """Say whether the files at a place cannot be handed to Spark by their path: they are on S3, and executors on other hosts."""
    return is_s3(place) and not str(spark.sparkContext.master).startswith("local")


def read_files(
    spark: SparkSession,
    place: Place,
    table: Table,
    schema: StructType,
    cache: Path,
    *,
    uris: Collection[str] | None = None,
) -> DataFrame:
    """Return the rows of a table's files.

    Args:
        spark: the session.
        place: the table's place; a folder is one that executors see at the same path.
        table: an open handle, whose version is read.
        schema: columns to return; one that a file lacks is null.
        cache: folder for copies of files on S3 in a local session.
        uris: full names of the files to read, of those that the version has; None: all.
    """
    if read_by_executors(spark, place):
        columns = to_arrow_schema(schema, timezone="UTC")
        return scan(
            spark,
            place,
            table,
            schema,
            lambda rows: _with_columns(rows, columns),
            files=files_of(table, uris),
            columns=columns.names,
        )
    files = local_files(sorted(table.file_uris() if uris is None else uris), cache)
    return spark.read.schema(schema).parquet(*files) if files else spark.createDataFrame([], schema)


def files_of(table: Table, uris: Collection[str] | None) -> list[File]:
    """Return a version's files of these full names; None: all. No two files of a table have one name."""
    names = None if uris is None else {uri.rpartition("/")[2] for uri in uris}
    return [file for file in live_files(table) if names is None or file.path.rpartition("/")[2] in names]


def _with_columns(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    for field in columns:
        if field.name not in rows.column_names:
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    return rows
