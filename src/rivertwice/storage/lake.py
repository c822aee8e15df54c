"""Somebody else's table in a lake, at one snapshot: a Delta table, an Iceberg table, or a folder of Parquet files. It is only read.

What a snapshot is made of is asked once: its data files, with size and number of rows. From then on these files are the snapshot; the
table may be written on. Only the table's own vacuum or expiry takes files away, and a folder's files may be written over. Both are seen by
`LakeFile.lost`, before rows are read.

A row's place is that of its file in the snapshot and of the row in the file, and neither changes. That holds only where a file has all
its rows and no others: deletion vectors of Delta and delete files of Iceberg are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from rivertwice.core import Place, RequestError, ServiceError, TableDamageError, is_remote, naming_extras
from rivertwice.storage.snapshot import Snapshot, repeated
from rivertwice.storage.table_files import BATCH_ROWS, TableFiles, completed, file_system

_WORKERS = 8


@dataclass(frozen=True)
class LakeFile:
    """A data file of a snapshot.

    Attributes:
        name: its full name: a path, or an address in an object store.
        size: bytes. rows: how many it has.
        changed_at: when it was written (epoch s), where a file may be written over under its name in an object store; else None.
        partition: texts of the values of columns that are not in the file.
    """

    name: str
    size: int
    rows: int
    changed_at: int | None = None
    partition: Mapping[str, str | None] = field(default_factory=dict)

    def read(self, wanted: pa.Schema) -> Iterator[tuple[int, pa.Table]]:
        """Yield (number of the first row, rows) in pieces, with the wanted columns; one that the file lacks is null.

        Raises:
            TableDamageError: the file has another number of rows.
        """
        system, path = _opened(self.name)
        with system.open_input_file(path) as source, pq.ParquetFile(source) as parquet:
            if parquet.metadata.num_rows != self.rows:
                message = f"{self.name} has {parquet.metadata.num_rows} rows, and had {self.rows} in its snapshot; put back the file as it was"
                raise TableDamageError(message)
            names = [name for name in parquet.schema_arrow.names if name in wanted.names and name not in self.partition]
            at = 0
            for batch in parquet.iter_batches(BATCH_ROWS, columns=names):
                rows = _whole_microseconds(pa.Table.from_batches([batch]))
                yield at, completed(rows, self.partition, wanted)
                at += batch.num_rows

    @staticmethod
    def lost(files: Sequence[LakeFile]) -> dict[str, str]:
        """Return the names of files that are gone, or not what they were by size and time, with what is wrong."""
        with ThreadPoolExecutor(_WORKERS) as pool:
            found = pool.map(_how_lost, files)
            return {file.name: how for file, how in zip(files, found, strict=True) if how is not None}


@dataclass(frozen=True)
class LakeSnapshot:
    """What a table of a lake is made of.

    Attributes:
        number: Delta's version, Iceberg's snapshot id; None for a folder of Parquet files.
        columns: of its rows.
        files: in the order of their names.
    """

    number: int | None
    columns: pa.Schema
    files: Sequence[LakeFile]

    @staticmethod
    def open(form: str, table: str, number: int | None, catalog: str) -> LakeSnapshot:
        """Return a snapshot of a table.

        Args:
            form: delta, iceberg or parquet.
            table: a folder or an address; for Iceberg its name in the catalog.
            number: of the snapshot; None: the newest.
            catalog: of pyiceberg's configuration, for Iceberg.

        Raises:
            RequestError: there is no such table or snapshot, or its rows are not those of its files.
            ServiceError: the store or the catalog does not answer.
        """
        if form == "iceberg":
            return _iceberg(table, number, catalog)
        place: Place = table if is_remote(table) else Path(table)
        return _delta(place, number) if form == "delta" else _folder(place)


def _how_lost(file: LakeFile) -> str | None:
    system, path = _opened(file.name)
    info = _asked(file.name, lambda: system.get_file_info(path))
    if info.type == pafs.FileType.NotFound:
        return "is gone"
    if info.size != file.size:
        return f"has {info.size} bytes, and had {file.size}"
    changed_at = None if file.changed_at is None else int(info.mtime.timestamp())
    if changed_at is not None and changed_at != file.changed_at:
        return f"was written again at {datetime.fromtimestamp(changed_at, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return None


def _opened(name: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a file, and the file's path there."""
    if not is_remote(name):
        return pafs.LocalFileSystem(), name
    url = urlsplit(name)
    return file_system(f"{url.scheme}://{url.netloc}"), url.path.lstrip("/")


def _asked(name: str, ask: Any) -> Any:
    try:
        return ask()
    except OSError as error:
        message = f"{name} could not be looked at: {str(error)[:400]}; check the store's address and the credentials"
        raise ServiceError(message) from error


def _whole_microseconds(rows: pa.Table) -> pa.Table:
    """Return rows whose instants have no part of a microsecond, which neither Spark nor the records' text have."""
    for number, column in enumerate(rows.schema):
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            floored = pc.floor_temporal(rows.column(number), unit="microsecond")
            rows = rows.set_column(number, column.name, floored.cast(pa.timestamp("us", column.type.tz)))
    return rows


# Delta: the files of a version, from its log.


def _delta(place: Place, number: int | None) -> LakeSnapshot:
    try:
        handle = repeated(
            place, "opening it", lambda options: DeltaTable(str(place), version=number, storage_options=options)
        )
    except TableNotFoundError:
        message = (
            f"{place} is not a Delta table; correct `table`, or say `format: parquet` for a folder of Parquet files"
        )
        raise RequestError(message) from None
    except DeltaError as error:
        if number is None:
            raise
        message = f"Delta table {place} has no version {number} ({str(error)[:200]}); leave `snapshot` out for the newest, or correct it"
        raise RequestError(message) from error
    refused = _refused_feature(handle)
    if refused:
        message = f"Delta table {place} {refused}"
        raise RequestError(message)
    snapshot = Snapshot(place, handle)
    files = TableFiles(snapshot)
    moved = [file.path for file in files.files if "://" in file.path or file.path.startswith("/")]
    if moved:
        message = f"Delta table {place} has files elsewhere ({moved[0]}), as a shallow clone has; name the table that it was cloned from"
        raise RequestError(message)
    sizes = [(f"{place}/{file.path}", file.size, file.rows, file.partition) for file in files.files]
    return LakeSnapshot(snapshot.version, snapshot.schema, _counted(sizes))


def _refused_feature(handle: DeltaTable) -> str | None:
    features = set(handle.protocol().reader_features or ())
    mapping = (handle.metadata().configuration or {}).get("delta.columnMapping.mode", "none")
    if "deletionVectors" in features:
        return (
            "may have deletion vectors, so a file's rows are not all rows of the table; let `REORG TABLE ... APPLY (PURGE)`, then "
            "`ALTER TABLE ... DROP FEATURE deletionVectors` write them out, and name the new version"
        )
    if mapping not in ("none", None):
        return f"maps its columns by {mapping}, so files have other names for them; write it out as a table without column mapping"
    return None


def _counted(files: Sequence[tuple[str, int, int | None, Mapping[str, Any]]]) -> list[LakeFile]:
    """Return files with their rows; a file of which the log does not say how many it has is asked itself."""

    def count(name: str, rows: int | None) -> int:
        return _footer(name).num_rows if rows is None else rows

    with ThreadPoolExecutor(_WORKERS) as pool:
        counts = pool.map(lambda file: count(file[0], file[2]), files)
        made = [
            LakeFile(
                name, size, rows, None, {key: None if value is None else str(value) for key, value in partition.items()}
            )
            for (name, size, _, partition), rows in zip(files, counts, strict=True)
        ]
    return sorted(made, key=lambda file: file.name)


def _footer(name: str) -> pq.FileMetaData:
    system, path = _opened(name)

    def read() -> pq.FileMetaData:
        with system.open_input_file(path) as source:
            return pq.read_metadata(source)

    return _asked(name, read)


# A folder of Parquet files: those that lie there when it is looked at.


def _folder(place: Place) -> LakeSnapshot:
    if is_remote(place) and not str(place).startswith("s3://"):
        message = f"{place} is a folder of Parquet files, which is read from a disk or from S3; make it a Delta or an Iceberg table"
        raise RequestError(message)
    system, path = _opened(str(place))
    found = _asked(
        str(place), lambda: system.get_file_info(pafs.FileSelector(path, recursive=True, allow_not_found=True))
    )
    infos = sorted((info for info in found if _is_data(info, path)), key=lambda info: info.path)
    if not infos:
        message = f"{place} has no file that ends with .parquet; correct `table`"
        raise RequestError(message)
    if any("/_delta_log/" in f"/{info.path}" for info in found):
        message = f"{place} is a Delta table: some of its files may be no longer part of it; say `format: delta`"
        raise RequestError(message)
    prefix = "" if not is_remote(place) else f"{urlsplit(str(place)).scheme}://{urlsplit(str(place)).netloc}/"
    names = [prefix + info.path for info in infos]
    with ThreadPoolExecutor(_WORKERS) as pool:
        footers = list(pool.map(_footer, names))
    columns = footers[0].schema.to_arrow_schema()
    for name, footer in zip(names, footers, strict=True):
        kinds = footer.schema.to_arrow_schema()
        if kinds.names != columns.names or kinds.types != columns.types:
            message = (
                f"{name} has other columns than {names[0]}; a folder of Parquet files needs the same in all of them"
            )
            raise RequestError(message)
    files = [
        LakeFile(name, info.size, footer.num_rows, int(info.mtime.timestamp()) if is_remote(place) else None)
        for name, info, footer in zip(names, infos, footers, strict=True)
    ]
    return LakeSnapshot(None, columns.remove_metadata(), files)


def _is_data(info: pafs.FileInfo, folder: str) -> bool:
    """Say whether a file is one of data: by its ending, and not below a name that begins with `_` or `.`, as Spark and Hive have it."""
    parts = info.path.removeprefix(folder).strip("/").split("/")
    return info.is_file and info.path.endswith(".parquet") and not any(part.startswith(("_", ".")) for part in parts)


# Iceberg: the files of a snapshot, from the catalog's table.


def _iceberg(name: str, number: int | None, catalog: str) -> LakeSnapshot:
    with naming_extras("pyiceberg"):
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchTableError
        from pyiceberg.utils.config import Config
    properties = Config().get_catalog_config(catalog)
    if not properties:
        message = (
            f"pyiceberg knows no catalog {catalog!r}; set PYICEBERG_CATALOG__{catalog.upper()}__URI and what else the catalog needs in the "
            "environment, or write it into ~/.pyiceberg.yaml"
        )
        raise RequestError(message)
    try:
        table = load_catalog(catalog, **{key: str(value) for key, value in properties.items()}).load_table(name)
    except NoSuchTableError:
        message = f"catalog {catalog} has no Iceberg table {name}; correct `table` or `catalog`"
        raise RequestError(message) from None
    snapshot = table.current_snapshot() if number is None else table.snapshot_by_id(number)
    if snapshot is None:
        known = ", ".join(str(each.snapshot_id) for each in table.metadata.snapshots[-3:]) or "none"
        message = f"Iceberg table {name} has no snapshot {number or ''}; its newest are: {known}; correct `snapshot`"
        raise RequestError(message)
    scan = table.scan(snapshot_id=snapshot.snapshot_id)
    columns = scan.projection()
    _refuse_renamed(name, table.metadata.schemas)
    files = []
    for task in scan.plan_files():
        if task.delete_files:
            message = f"snapshot {snapshot.snapshot_id} of Iceberg table {name} has delete files; let `rewrite_data_files` write them out, and name the new snapshot"
            raise RequestError(message)
        if str(task.file.file_format).rpartition(".")[2] != "PARQUET":
            message = f"Iceberg table {name} has a file of format {task.file.file_format}; only Parquet is read"
            raise RequestError(message)
        path = task.file.file_path.replace("s3a://", "s3://", 1)
        files.append(
            LakeFile(
                path if is_remote(path) else unquote(urlsplit(path).path),
                task.file.file_size_in_bytes,
                task.file.record_count,
            )
        )
    _require_in_files(name, table, files)
    return LakeSnapshot(snapshot.snapshot_id, columns.as_arrow(), sorted(files, key=lambda file: file.name))


def _refuse_renamed(name: str, schemas: Sequence[Any]) -> None:
    """Refuse a table in whose files a column may have another name: it is found by its name."""
    ids: dict[str, int] = {}
    names: dict[int, str] = {}
    for schema in schemas:
        for column in schema.fields:
            if ids.setdefault(column.name, column.field_id) != column.field_id or (
                names.setdefault(column.field_id, column.name) != column.name
            ):
                message = f"column {column.name} of Iceberg table {name} had another name once, so older files have it under that; write it out as a new table"
                raise RequestError(message)


def _require_in_files(name: str, table: Any, files: Sequence[LakeFile]) -> None:
    """Refuse a table that took over files of Hive, which lack the columns that the table is partitioned by."""
    columns = {
        table.schema().find_column_name(part.source_id)
        for spec in table.metadata.partition_specs
        for part in spec.fields
        if str(part.transform) == "identity"
    } - {None}
    for file in files if columns else ():
        lacking = sorted(columns - set(_footer(file.name).schema.to_arrow_schema().names))
        if lacking:
            message = f"{file.name} of Iceberg table {name} has no column {lacking[0]}, by which the table is partitioned; let `rewrite_data_files` write it out"
            raise RequestError(message)
