"""The files of one version of a Delta table: as a dataset of pyarrow, and as a frame of Spark; and rows in order.

DuckDB, Polars and pandas read the dataset, with filters. Its files are read by pyarrow's own file systems. Those that cannot have a row
of interest, by the statistics in the table's log, are not opened. `to_pyarrow_dataset` of deltalake gives the same, but its promises
about a file cover columns for which they need not hold: a float column with NaN, and texts that the log has truncated.

Spark has no connector for Delta here, and the driver must not hold a table that grows with history. So the driver asks
delta-rs which files a version has, and each executor reads its share of them, or writes a file for each of its tasks.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pyarrow.types as types

from rivertwice.core import Place, SparkVersion, is_remote
from rivertwice.storage.places import local_files, open_store
from rivertwice.storage.snapshot import Snapshot, explained, storage_options

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_ROUNDING_US = 1000  # the log has timestamps in whole milliseconds, rounded down
_WHOLE_TEXT = 31  # longer texts may be truncated in the log
_MICROSECOND = pa.timestamp("us", "UTC")


Change = Callable[[pa.Table], pa.Table]
TASK_BYTES = 32 << 20
"""So many bytes of Parquet are read by one task, or one file if it is larger."""
BATCH_ROWS = 65_536
"""So many rows of a file are in memory at once."""


@dataclass(frozen=True)
class DataFile:
    """A live data file, as the table's log describes it.

    Attributes:
        size: bytes.
        partition: values of the partition columns.
        rows: how many it has; None: the log has no statistics of it.
        bounds: column to its least and largest value, both inclusive; columns without known bounds are not in it.
    """

    path: str
    size: int
    partition: Mapping[str, Any]
    rows: int | None = None
    bounds: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)

    def read(self, place: Place, wanted: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows in pieces of at most `BATCH_ROWS`, with the wanted columns; one that the file lacks is null."""
        with pq.ParquetFile(_source(place, self.path)) as parquet:
            names = [name for name in parquet.schema_arrow.names if name in wanted.names]
            for batch in parquet.iter_batches(BATCH_ROWS, columns=names):
                yield completed(pa.Table.from_batches([batch]), self.partition, wanted)


class TableFiles:
    """The files of one version of a table."""

    def __init__(self, snapshot: Snapshot, without: Collection[str] = ()) -> None:
        """Read the list of files from the log; the rows have no column that is named in `without`."""
        self.place = snapshot.place
        self.schema = pa.schema([column for column in snapshot.schema if column.name not in without])
        self._partition_columns = snapshot.partition_columns
        self._actions = snapshot.actions()

    @property
    def paths(self) -> list[str]:
        """The files' paths below the table's place, in the order of the log."""
        return [unquote(path) for path in self._actions["path"].to_pylist()]

    @cached_property
    def files(self) -> list[DataFile]:
        """All files; of one among many `file_at` costs less."""
        return [self._file(row) for row in self._actions.to_pylist()]

    def file_at(self, number: int) -> DataFile:
        """Return the file whose path is at a place of `paths`."""
        (row,) = self._actions.slice(number, 1).to_pylist()
        return self._file(row)

    def _file(self, row: dict[str, Any]) -> DataFile:
        bounds = {}
        for column in self.schema:
            least, most = row.get(f"min.{column.name}"), row.get(f"max.{column.name}")
            known = _bounds(column.type, least, most) if row.get(f"null_count.{column.name}") == 0 else None
            if known is not None:
                bounds[column.name] = known
        partition = {name: row[f"partition.{name}"] for name in self._partition_columns}
        return DataFile(unquote(row["path"]), int(row["size_bytes"]), partition, row["num_records"], bounds)

    @property
    def rows(self) -> int | None:
        """How many rows the version has, by its log; None if a file has no statistics."""
        counts = [file.rows for file in self.files]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def sortable(self) -> set[str]:
        """Names of the columns by which rows can be sorted: not of nested ones."""
        return {column.name for column in self.schema if _can_sort(column.type)}

    def named(self, uris: Collection[str] | None) -> list[DataFile]:
        """Return the files of these full names, in the order of their paths; None: all. No two files of a table have one name."""
        names = None if uris is None else {uri.rpartition("/")[2] for uri in uris}
        chosen = [file for file in self.files if names is None or file.path.rpartition("/")[2] in names]
        return sorted(chosen, key=lambda file: file.path)

    def shares(self, uris: Collection[str] | None) -> list[list[DataFile]]:
        """Return the files of these full names by task of Spark: neighbours together."""
        return _shares(self.named(uris))

    def explained(self, doing: str) -> AbstractContextManager[None]:
        """Return a block in which an error says place and remedy if the table cannot be reached."""
        return explained(self.place, doing)

    @cached_property
    def _filesystem(self) -> pafs.FileSystem:
        return file_system(self.place)

    def dataset(self, files: Sequence[DataFile] | None = None) -> ds.FileSystemDataset:
        """Return the rows of some files, of all if none are named; nothing is read yet."""
        import pyarrow.dataset as ds  # asks for pandas when it is imported: after `storage.snapshot`

        form = ds.ParquetFileFormat()
        chosen = self.files if files is None else files
        fragments = [
            form.make_fragment(file.path, self._filesystem, partition_expression=_promise(file, self.schema))
            for file in chosen
        ]
        return ds.FileSystemDataset(fragments, self.schema, form, self._filesystem)

    def batches(self, columns: Sequence[str], where: pc.Expression | None = None) -> Iterator[pa.RecordBatch]:
        """Yield rows, some files ahead of the reader and no more."""
        scanner = self.dataset().scanner(
            columns=list(columns), filter=where, batch_size=BATCH_ROWS, batch_readahead=4, fragment_readahead=2
        )
        for batch in scanner.to_reader():
            if batch.num_rows:
                yield batch

    def copies(self, uris: Sequence[str], cache: Path) -> list[str]:
        """Return a local path for each of some files; files in an object store are downloaded into `cache` once."""
        return local_files(uris, cache)

    def are_read_by_executors(self, spark: SparkSession) -> bool:
        """Say whether the files cannot be handed to Spark by their path: they are in an object store, and executors run on other hosts.

        A Spark Connect server runs elsewhere, too. In a local session Spark's own reader reads the files, those in an object store from copies on this disk. Executors on other hosts do not
        see this disk: there they read files in an object store themselves, through our own client and the credentials of their environment.
        """
        return is_remote(self.place) and (
            SparkVersion.is_connect(spark) or not str(spark.sparkContext.master).startswith("local")
        )

    def frame(
        self, spark: SparkSession, schema: StructType, cache: Path, *, uris: Collection[str] | None = None
    ) -> DataFrame:
        """Return rows as a frame of Spark, wherever the session's executors run.

        Args:
            schema: columns to return; one that a file lacks is null.
            cache: folder for copies of files in an object store in a local session.
            uris: full names of the files to read, of those that the version has; None: all.
        """
        if self.are_read_by_executors(spark):
            columns = _arrow(schema)
            return self.scan(
                spark, schema, lambda rows: _with_columns(rows, columns), files=self.named(uris), columns=columns.names
            )
        names = [f"{self.place}/{file.path}" for file in self.named(uris)]
        files = [SparkVersion.local_path(spark, path) for path in local_files(names, cache)]
        return spark.read.schema(schema).parquet(*files) if files else spark.createDataFrame([], schema)

    def scan(
        self,
        spark: SparkSession,
        schema: StructType,
        change: Change,
        *,
        files: Sequence[DataFile] | None = None,
        columns: Sequence[str] | None = None,
    ) -> DataFrame:
        """Return what a function makes of rows, read and computed by executors, which reach the place under the same name.

        Args:
            schema: of what `change` returns.
            change: gets rows in pieces of at most `BATCH_ROWS`.
            files: the files to read, of those that the version has; None: all.
            columns: the columns of the table that `change` gets; None: all.
        """
        place = self.place
        chosen = self.named(None) if files is None else files
        tasks = _shares([DataFile(file.path, file.size, file.partition) for file in chosen])
        wanted = pa.schema([column for column in self.schema if columns is None or column.name in columns])
        result = _arrow(schema)

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    for file in tasks[number]:
                        for rows in file.read(place, wanted):
                            yield from change(rows).select(result.names).cast(result).to_batches()

        numbers = spark.range(0, len(tasks), 1, max(1, len(tasks)))
        return numbers.mapInArrow(read, schema)


def _shares(files: Sequence[DataFile], most_bytes: int = TASK_BYTES) -> list[list[DataFile]]:
    """Return the files by task: neighbours together, up to a number of bytes. Pure."""
    tasks: list[list[DataFile]] = []
    size = 0
    for file in files:
        if not tasks or size + file.size > most_bytes:
            tasks.append([])
            size = 0
        tasks[-1].append(file)
        size += file.size
    return tasks


def _arrow(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, **SparkVersion.installed().arrow_in_utc)


def _source(path: Place, name: str) -> Any:
    if isinstance(path, Path):
        return path / name
    data = open_store(path).get(name)
    if data is None:
        message = f"{name} of the table {path} is gone while it was read"
        raise FileNotFoundError(message)
    return io.BytesIO(data)


def completed(rows: pa.Table, partition: Mapping[str, Any], wanted: pa.Schema) -> pa.Table:
    """Return rows with all requested columns: partition values, others null."""
    columns = []
    for column in wanted:
        if column.name in partition:
            value = pa.scalar(partition[column.name], pa.string()).cast(column.type)
            columns.append(pa.repeat(value, rows.num_rows))
        elif column.name in rows.column_names:
            columns.append(rows[column.name].cast(column.type))
        else:
            columns.append(pa.nulls(rows.num_rows, column.type))
    return pa.table(columns, schema=wanted)


def _with_columns(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    for column in columns:
        if column.name not in rows.column_names:
            rows = rows.append_column(column, pa.nulls(rows.num_rows, column.type))
    return rows


def _bounds(kind: pa.DataType, least: Any, most: Any) -> tuple[Any, Any] | None:
    """Return the bounds of a column that are sure to hold. Pure."""
    if least is None or most is None:
        return None
    if types.is_timestamp(kind) and kind.tz is not None:
        low = pa.scalar(least, _MICROSECOND).value
        high = pa.scalar(most, _MICROSECOND).value + _ROUNDING_US
        return pa.scalar(low, _MICROSECOND).as_py(), pa.scalar(high, _MICROSECOND).as_py()
    if types.is_integer(kind) or types.is_date(kind):
        return least, most
    if types.is_string(kind) and max(len(least.encode()), len(most.encode())) <= _WHOLE_TEXT:
        return least, most
    return None


def _promise(file: DataFile, schema: pa.Schema) -> pc.Expression:
    """Return what holds for every row of a file, as pyarrow checks filters against it."""
    parts = [_equals(schema.field(name), value) for name, value in file.partition.items()]
    for name, (least, most) in file.bounds.items():
        kind, field = schema.field(name).type, pc.field(name)
        parts += [field >= pa.scalar(least, kind), field <= pa.scalar(most, kind)]
    return reduce(and_, parts, pc.scalar(True))


def _equals(field: pa.Field, value: Any) -> pc.Expression:
    if value is None:
        return pc.field(field.name).is_null()
    return pc.field(field.name) == pa.scalar(value, pa.string()).cast(field.type)


def file_system(place: Place) -> pafs.FileSystem:
    """Return the files below a place, to be read by pyarrow."""
    if isinstance(place, Path):
        return pafs.SubTreeFileSystem(str(place), pafs.LocalFileSystem())
    if not place.startswith("s3://"):
        from rivertwice.storage import cloud

        return cloud.file_system(place)
    options = storage_options(place) or {}
    endpoint = options.get("aws_endpoint", "")
    scheme, _, address = endpoint.rpartition("://")
    server = pafs.S3FileSystem(
        access_key=options.get("aws_access_key_id"),
        secret_key=options.get("aws_secret_access_key"),
        session_token=options.get("aws_session_token"),
        region=options["aws_region"],
        endpoint_override=address.rstrip("/") or None,
        scheme=scheme or "https",
    )
    return pafs.SubTreeFileSystem(place.removeprefix("s3://").rstrip("/"), server)


# Rows in order, also where there are more of them than fit into memory: sorted runs on disk, merged.

RUN_ROWS = 500_000
RUN_BYTES = 128 << 20
BLOCK_ROWS = 16_384
"""A block of a run; as many rows of each run are in memory at once."""
_LAST = sys.maxsize


def _can_sort(kind: pa.DataType) -> bool:
    """Say whether rows can be sorted by a column of a type: not by nested ones. Pure."""
    return not (types.is_nested(kind) or types.is_null(kind) or types.is_dictionary(kind))


def sorted_rows(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    first: str,
    scratch: Path,
    *,
    run_rows: int = RUN_ROWS,
    block_rows: int = BLOCK_ROWS,
    done: Callable[[int], None] = lambda _: None,
) -> Iterator[pa.Table]:
    """Yield rows ordered by a column, then by all others that can be sorted, in the schema's order; nulls are last.

    In memory are one run, a block of each run, and the rows that share a value of the first column.

    Args:
        first: a column of timestamps or whole numbers.
        scratch: a folder for the runs, which the caller removes.
        run_rows: most rows of a run; it also ends at `RUN_BYTES`.
        block_rows: most rows of a block.
        done: is called with the number of rows that have been read.
    """
    names = [first, *(field.name for field in schema if field.name != first and _can_sort(field.type))]
    order = [(name, "ascending") for name in names]
    held: list[pa.RecordBatch] = []
    runs: list[Path] = []
    rows = read = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        read += batch.num_rows
        done(read)
        if rows >= run_rows or sum(part.nbytes for part in held) >= RUN_BYTES:
            runs.append(_spill(_sorted(held, schema, order), scratch / f"run-{len(runs)}.arrow", block_rows))
            held, rows = [], 0
    if not runs:
        whole = _sorted(held, schema, order)
        yield from (whole.slice(start, block_rows) for start in range(0, whole.num_rows, block_rows))
        return
    if held:
        runs.append(_spill(_sorted(held, schema, order), scratch / f"run-{len(runs)}.arrow", block_rows))
    with ExitStack() as stack:
        opened = [stack.enter_context(pa.OSFile(str(path))) for path in runs]
        yield from _merge([_Run(pa.ipc.open_stream(file), first) for file in opened], schema, order)


def _sorted(batches: Sequence[pa.RecordBatch], schema: pa.Schema, order: list[tuple[str, str]]) -> pa.Table:
    return pa.Table.from_batches(batches, schema).sort_by(order)


def _spill(rows: pa.Table, path: Path, block_rows: int) -> Path:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=block_rows)
    return path


class _Run:
    """A sorted run of which the next rows are in memory."""

    def __init__(self, reader: pa.RecordBatchReader, first: str) -> None:
        self._reader = reader
        self._first = first
        self.is_read = False
        self.rows: pa.Table = reader.schema.empty_table()
        self.firsts: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def load(self) -> None:
        """Add a block to the rows in memory."""
        try:
            block = pa.Table.from_batches([self._reader.read_next_batch()])
        except StopIteration:
            self.is_read = True
            return
        self.rows = pa.concat_tables([self.rows, block])
        self.firsts = np.concatenate([self.firsts, as_numbers(block[self._first])])

    def take_before(self, bound: int | None) -> pa.Table:
        """Return the rows in memory whose first column is below a bound, all for None; they are not in memory any more."""
        count = len(self.firsts) if bound is None else int(np.searchsorted(self.firsts, bound))
        taken, self.rows, self.firsts = self.rows.slice(0, count), self.rows.slice(count), self.firsts[count:]
        return taken


def as_numbers(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return a column of timestamps or whole numbers as numbers of the same order; nulls are last."""
    whole = (
        column.cast(pa.int64()) if types.is_integer(column.type) else column.cast(pa.timestamp("us", column.type.tz))
    )
    numbers: npt.NDArray[np.int64] = pc.fill_null(whole.cast(pa.int64()), _LAST).to_numpy()
    return numbers


def _merge(runs: list[_Run], schema: pa.Schema, order: list[tuple[str, str]]) -> Iterator[pa.Table]:
    while True:
        for run in runs:
            while not run.is_read and not len(run.firsts):
                run.load()
        # What a run has not shown yet is at or after its last row in memory: rows before the least of these are complete.
        ends = [int(run.firsts[-1]) for run in runs if not run.is_read]
        bound = min(ends) if ends else None
        block = pa.concat_tables([schema.empty_table(), *(run.take_before(bound) for run in runs)])
        if block.num_rows:
            yield block.sort_by(order)
        elif bound is None:
            return
        else:
            for run in runs:
                if not run.is_read and len(run.firsts) and int(run.firsts[-1]) == bound:
                    run.load()
