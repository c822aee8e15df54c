"""Iceberg without a copy: a catalog's table that names the data files of one of our Delta tables.

A look compares two lists of files: what the catalog's table names, and what the Delta table's newest version names. The difference is one
commit of the catalog, so a reader sees the rows of one version, whatever led to it: new batches, replaced windows, another head, an
erasure, merged files. No data file is read or written; what a manifest needs is in Delta's log.

The catalog's table is loaded before the Delta table is opened, and its commit asserts that the snapshot is still the one that was loaded.
So the catalog is never ahead of Delta's log, and never goes back: of two registrars one is turned away, and looks again. What was
registered is not remembered anywhere, so a kill at any point needs no repair.

A snapshot that is no longer the current one is kept for a part of the time for which Delta keeps removed files. Then it is expired, with
the manifests that only it had. Manifests have the bounds of instants and dates alone: values that an erasure removes are in none.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update.snapshot import ExpireSnapshots, ManageSnapshots, _ManifestMergeManager, _OverwriteFiles
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, TimestampType, TimestamptzType

from rivertwice.core import ConfigError, LostRaceError, PipelineHome, Place, Settings, retry, to_iso, utc_now
from rivertwice.definition import IcebergDelivery
from rivertwice.deliver.deliver import Delivered
from rivertwice.deliver.iceberg_catalog import PROPERTIES, CatalogTable, column_type, forbid_retries
from rivertwice.deliver.model import Position
from rivertwice.deliver.note import Note, read_note, write_note
from rivertwice.deliver.source import ServingSource, version_mark
from rivertwice.storage import DataFile as DeltaFile
from rivertwice.storage import Snapshot as DeltaVersion
from rivertwice.storage import Table as DeltaTable
from rivertwice.storage import TableCare, TableFiles
from rivertwice.timeline import Timeline, read_served_stamp

LOG = logging.getLogger(__name__)
OWNER = "rivertwice.registered"
"""Property of a table that a sink made: which of our tables it names. A table without it is not touched."""
VERSION = "rivertwice.delta-version"
"""Version of the Delta table that a snapshot shows."""
MERGE_AT = "commit.manifest.min-count-to-merge"
_TABLE_PROPERTIES = {
    **PROPERTIES,
    MERGE_AT: "16",
    "write.metadata.previous-versions-max": "10",
    "gc.enabled": "false",  # Iceberg's own tools must not delete data files: they are Delta's
}
KEPT_SHARE = 5 / 6
"""The part of the time for which Delta keeps removed files, for which a snapshot is kept."""
_RACES = 5
_UNREADABLE = {"deletionVectors", "columnMapping"}
"""Features of Delta tables with which a data file alone does not say its rows. We use none; another program may switch one on."""


# What changes. Pure.


@dataclass(frozen=True)
class FileChange:
    """The files that a commit of the catalog names newly, and those that it names no longer."""

    added: Sequence[str]
    removed: Sequence[str]


def find_change(named: Collection[str], live: Collection[str]) -> FileChange:
    """Return how the files that a catalog names become those that are live."""
    return FileChange(
        sorted(path for path in live if path not in named), sorted(path for path in named if path not in live)
    )


def columns_of(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a Delta table as Iceberg has them; every one may be null.

    Raises:
        ConfigError: Iceberg lacks a type.
    """
    return pa.schema([pa.field(field.name, column_type(field)) for field in schema])


def select_dropped(held: pa.Schema, wanted: pa.Schema) -> list[str]:
    """Return the columns that go: they are gone, or their values cannot be read as the new type."""
    types = {field.name: field.type for field in wanted}
    return [field.name for field in held if field.name not in types or not _is_widened(field.type, types[field.name])]


def _is_widened(before: pa.DataType, after: pa.DataType) -> bool:
    """Say whether Iceberg reads older values of a column as another type."""
    if pa.types.is_decimal(before) and pa.types.is_decimal(after):
        return bool(before.scale == after.scale and before.precision <= after.precision)
    return before == after or (before, after) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))


def select_expired(metadata: TableMetadata, older: datetime | None) -> list[int]:
    """Return the snapshots that were made before an instant, all if there is none; not the current one, and none that a tag or a branch has."""
    held = {ref.snapshot_id for ref in metadata.refs.values()}
    return [
        snapshot.snapshot_id
        for snapshot in metadata.snapshots
        if snapshot.snapshot_id not in held and (older is None or snapshot.timestamp_ms < older.timestamp() * 1000)
    ]


def first_kept(snapshots: Iterable[Snapshot], expired: Collection[int]) -> list[Snapshot]:
    """Return the snapshots that are kept and whose parent is not: what an expired one has and none of these, no kept one has."""
    kept = {snapshot.snapshot_id: snapshot for snapshot in snapshots if snapshot.snapshot_id not in expired}
    return [snapshot for snapshot in kept.values() if snapshot.parent_snapshot_id not in kept]


def file_of(path: str, file: DeltaFile, schema: Schema, spec: PartitionSpec) -> DataFile:
    """Return what a manifest says of a Delta file; bounds of instants and dates alone."""
    bounded = [
        (field.field_id, field.field_type, file.bounds[field.name])
        for field in schema.fields
        if isinstance(field.field_type, DateType | TimestampType | TimestamptzType) and field.name in file.bounds
    ]
    made = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(*(file.partition[field.name] for field in spec.fields)),
        record_count=file.rows,
        file_size_in_bytes=file.size,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds={number: to_bytes(kind, least) for number, kind, (least, _) in bounded},
        upper_bounds={number: to_bytes(kind, most) for number, kind, (_, most) in bounded},
        split_offsets=None,
        equality_ids=None,
        key_metadata=None,
        sort_order_id=None,
    )
    made.spec_id = spec.spec_id
    return made


class _Replacement(_OverwriteFiles):  # type: ignore[misc] # pyiceberg has no types here
    """A snapshot in which some files take the place of others; manifests without files go, and many small ones are merged."""

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        kept = [
            each
            for each in manifests
            if each.has_added_files() or each.has_existing_files() or each.added_snapshot_id == self._snapshot_id
        ]
        properties = self._transaction.table_metadata.properties
        merge = _ManifestMergeManager(
            target_size_bytes=TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT,
            min_count_to_merge=int(properties.get(MERGE_AT, _TABLE_PROPERTIES[MERGE_AT])),
            merge_enabled=True,
            snapshot_producer=self,
        )
        merged: list[ManifestFile] = merge.merge_manifests(kept)
        return merged


# The newest version of a Delta table, and what the catalog names.


@dataclass(frozen=True)
class Shown:
    """One version of a Delta table: its files, columns, and the position that it shows.

    Attributes:
        names: the files' full names, each with its place in `files.paths`.
        position: None: it is not known; the rows are those of the version in any case.
    """

    place: Place
    version: int
    columns: pa.Schema
    partition_columns: Sequence[str]
    names: Mapping[str, int]
    files: TableFiles
    position: Position | None

    @property
    def rows(self) -> int:
        """Number of rows of all files."""
        return self.files.rows or 0

    def file(self, name: str, io: FileIO) -> DeltaFile:
        """Return a file by its full name, with its number of rows, which another program's commit may not say: the file does."""
        file = self.files.file_at(self.names[name])
        if file.rows is not None:
            return file
        with io.new_input(name).open() as source:
            return replace(file, rows=int(pq.read_metadata(source).num_rows))


class RegisteredSource:
    """The Delta table that a sink names: of whichever version of the pipeline serves."""

    def __init__(self, settings: Settings, pipeline: str, of: str) -> None:
        self._settings = settings
        self._base = settings.pipeline(pipeline)
        self._of = of
        self._source = ServingSource(settings, pipeline)

    @property
    def owner(self) -> str:
        """What the property `OWNER` says: the same as long as the pipeline's tables are where they are."""
        return f"{self._of} of {self._base.public_served}"

    @property
    def place(self) -> Place:
        """Where the table is now."""
        return getattr(self._home.tables, self._of)  # type: ignore[no-any-return]

    @property
    def _home(self) -> PipelineHome:
        return self._settings.pipeline(self._base.serving_version)

    def version(self) -> int:
        """Return the newest version, -1 without a table."""
        return DeltaTable(self.place).version()

    def look(self) -> Shown | None:
        """Return the newest version; None if the table does not exist.

        Raises:
            ConfigError: it has a feature with which its files alone do not say its rows, or a type that Iceberg lacks.
        """
        while True:
            position = self._position()
            place = self.place
            with DeltaTable(place).borrow() as table:
                if table is None:
                    return None
                _require_plain(table, self._of)
                files = TableFiles(table)
                names = {_full_name(place, path): number for number, path in enumerate(files.paths)}
                columns = columns_of(table.schema)
                shown = Shown(place, table.version, columns, table.partition_columns, names, files, position)
            if self._of == "changelog" or self._position() == position:  # else it is the position of another version
                return shown

    def kept(self) -> timedelta:
        """Return for how long a snapshot of the catalog is kept."""
        shape = TableCare(self.place).shape()
        return timedelta(0) if shape is None else shape.removed_kept * KEPT_SHARE

    def _position(self) -> Position | None:
        """Return the position that `served` shows now, or the newest batch on the head's path: a changelog that is opened later has it."""
        if self._of == "served":
            home = self._home
            stamp = read_served_stamp(home)
            if stamp is None:
                return None
            born = to_iso(Timeline.load(home, stamp.timeline).created_at)
            return Position(stamp.timeline, stamp.batch, stamp.sequence, born, 0, version_mark(home))
        view = self._source.look(None)
        if view is None or not view.batches:
            return None
        head = view.head
        return Position(head.timeline, view.batches[-1].batch, view.seq, head.born, 0, head.version)


def _require_plain(table: DeltaVersion, of: str) -> None:
    protocol = table.handle.protocol()
    features = _UNREADABLE & {*(protocol.reader_features or ())}
    mapped = table.handle.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"
    if features or mapped:
        message = (
            f"the Delta table {of} has {', '.join(sorted(features)) or 'columnMapping'}, which another program switched on: its files "
            "alone do not say its rows, so no catalog can name them; build the table again in a new folder, or remove `files` from the sink"
        )
        raise ConfigError(message)


def _full_name(place: Place, path: str) -> str:
    return f"file://{place}/{path}" if isinstance(place, Path) else f"{place}/{path}"


def named_files(table: Table) -> dict[str, DataFile]:
    """Return the files that a table's current snapshot names.

    Raises:
        ConfigError: another program deleted rows of the table.
    """
    snapshot = table.metadata.current_snapshot()
    found = {}
    for manifest in [] if snapshot is None else snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            if manifest.content != ManifestContent.DATA:
                message = (
                    f"another program deleted rows of {'.'.join(table.name())} through the catalog, which names files of ours; nothing was "
                    "registered; drop the table in the catalog without its files (no purge), and it is registered again"
                )
                raise ConfigError(message)
            found[entry.data_file.file_path] = entry.data_file
    return found


@dataclass(frozen=True)
class Registered:
    """What a catalog's table names, beside the newest version of the Delta table.

    Attributes:
        version: the one of which the catalog's snapshot was made; None: another program made the snapshot.
    """

    named: Mapping[str, DataFile]
    version: int | None
    shown: Shown

    @property
    def change(self) -> FileChange:
        """What a registration would change."""
        return find_change(self.named, self.shown.names)

    @property
    def rows(self) -> int:
        """Number of rows that a reader of the catalog finds."""
        return sum(file.record_count for file in self.named.values())


def look_at(settings: Settings, pipeline: str, name: str, asked: IcebergDelivery) -> Registered | None:
    """Return what is registered; None if nothing is. Reads only."""
    assert asked.registered is not None, "a sink with files of its own has no registration"
    target, source = CatalogTable(pipeline, name, asked), RegisteredSource(settings, pipeline, asked.registered)
    with target.explained("reading"):
        table = target.load()
        snapshot = None if table is None else table.metadata.current_snapshot()
        shown = source.look()
        if table is None or shown is None:
            return None
        properties = {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties
        version = properties.get(VERSION)
        return Registered(named_files(table), None if version is None else int(version), shown)


class Registrar:
    """Keeps a catalog's table at the newest version of one of our Delta tables. Any number may run; the catalog lets one win."""

    def __init__(
        self,
        settings: Settings,
        pipeline: str,
        name: str,
        asked: IcebergDelivery,
        *,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """Create a registrar; nothing happens until `run`."""
        assert asked.registered is not None, "a sink with files of its own has a deliverer"
        self._home = settings.pipeline(pipeline)
        self._name = name
        self._every_s = float(asked.every_s)
        self._source = RegisteredSource(settings, pipeline, asked.registered)
        self._target = CatalogTable(pipeline, name, asked)
        self._now = now
        self._done: tuple[Place, int] | None = None
        self._table: Table | None = None
        self._named: tuple[int | None, Mapping[str, DataFile]] | None = None
        self._kept = timedelta(0)
        self._note = Note()
        self._steps = self._records = 0

    def run(self, stop: threading.Event, finish: threading.Event, *, again: bool = False) -> Delivered:
        """Register until `stop` is set, or, once `finish` is set, until the newest version is registered.

        Args:
            again: name all files anew, also in a table that another home made, and expire all earlier snapshots, tagged ones too.

        Raises:
            RivertwiceError: the catalog or the table does not allow it; a later run continues.
        """
        self._note = read_note(self._home, self._name)
        while not stop.is_set():
            ending = finish.is_set()
            if self._is_due() or again:
                # A race is lost to another registrar: what it did is looked at.
                retry(LostRaceError, tries=_RACES)(self._register, again=again)
                again = False
            if ending:
                break
            stop.wait(self._every_s)
        return Delivered(self._name, self._steps, self._records, self._note.position)

    def _is_due(self) -> bool:
        version = self._source.version()
        if version < 0:
            return False
        if self._done != (self._source.place, version) or self._table is None:
            return True
        return bool(select_expired(self._table.metadata, self._now() - self._kept))

    def _register(self, *, again: bool) -> None:
        with self._target.explained("registering"):
            table = self._target.load()  # first: Delta is never behind what is loaded
            if table is not None:
                self._require_own(table, again=again)
                forbid_retries(table)
            shown = self._source.look()
            if shown is None:
                return
            self._kept = self._source.kept()
            if table is None:
                self._create(shown)
            else:
                self._change(table, shown, again=again)
        self._done = (shown.place, shown.version)

    def _require_own(self, table: Table, *, again: bool) -> None:
        owner = table.properties.get(OWNER)
        if owner == self._source.owner or (again and owner is not None):
            return
        where, pipeline = self._target.asked.place, self._target.pipeline
        if owner is None:
            message = (
                f"the {where} of sink {self._name} was there before, and is not made of files of {pipeline}; nothing was registered; name "
                "another table, or drop it in the catalog"
            )
        else:
            message = (
                f"the {where} of sink {self._name} names files of another table ({owner}); nothing was registered; name another table, or "
                f"let it name these with `rivertwice deliver run {pipeline} --sink {self._name} --until-end --again`"
            )
        raise ConfigError(message)

    def _create(self, shown: Shown) -> None:
        """Create the table with its first snapshot, in one commit."""
        creation = self._target.create(shown.columns, {**_TABLE_PROPERTIES, OWNER: self._source.owner})
        with creation.update_spec() as spec:
            for name in shown.partition_columns:
                spec.add_identity(name)
        mapping = creation.table_metadata.schema().name_mapping.model_dump_json()
        creation.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
        named, added = self._swap(creation, creation._table.io, shown, {})
        self._committed(creation.commit_transaction(), shown, named, added)

    def _change(self, table: Table, shown: Shown, *, again: bool) -> None:
        """Commit what differs; nothing, if nothing does."""
        before = table.metadata
        known = self._named if self._named is not None and self._named[0] == before.current_snapshot_id else None
        named = named_files(table) if known is None else known[1]
        change = table.transaction()
        if again:
            change.set_properties({OWNER: self._source.owner})
            _drop_refs(change)
        is_reshaped = self._reshape(change, table, shown)
        named, added = self._swap(change, table.io, shown, named)
        older = None if again or is_reshaped else self._now() - self._kept
        expired = select_expired(change.table_metadata, older)
        if expired:
            ExpireSnapshots(change).by_ids(expired).commit()
        if change._updates:
            self._committed(change.commit_transaction(), shown, named, added)
            _remove_manifests(table.io, before, table.metadata, expired)
        else:
            self._table, self._named = table, (before.current_snapshot_id, named)
            self._noted(shown, 0)

    def _reshape(self, change: Transaction, table: Table, shown: Shown) -> bool:
        """Give the table the columns of the Delta table; return whether earlier snapshots could be read wrongly then.

        A column of a new type gets a new id. Files are read by names, so files of earlier snapshots would be read by it, too.
        """
        held = columns_of(table.schema().as_arrow())
        if {field.name: field.type for field in held} == {field.name: field.type for field in shown.columns}:
            return False
        partitions = [field.name for field in table.spec().fields]
        if partitions != list(shown.partition_columns):
            message = (
                f"the {self._target.asked.place} is partitioned by {partitions}, and the Delta table by {list(shown.partition_columns)}; "
                "drop the table in the catalog without its files (no purge), and it is registered again"
            )
            raise ConfigError(message)
        dropped = select_dropped(held, shown.columns)
        if dropped:
            with change.update_schema(allow_incompatible_changes=True) as update:
                for name in dropped:
                    update.delete_column(name)
        with change.update_schema(allow_incompatible_changes=True) as update:
            update.union_by_name(shown.columns)
        return bool(set(dropped) & set(shown.columns.names))

    def _swap(
        self, change: Transaction, io: FileIO, shown: Shown, named: Mapping[str, DataFile]
    ) -> tuple[Mapping[str, DataFile], int]:
        """Stage the snapshot that names the version's files, none if they are the same; return what is named then, and the new rows."""
        differing = find_change(named, shown.names)
        if not differing.added and not differing.removed:
            return named, 0
        schema, spec, stamp = change.table_metadata.schema(), change.table_metadata.spec(), _stamp(shown)
        if differing.removed:
            producer: Any = _Replacement(Operation.OVERWRITE, change, io, snapshot_properties=stamp)
        else:
            producer = change.update_snapshot(snapshot_properties=stamp).merge_append()
        for name in differing.removed:
            producer.delete_data_file(named[name])
        added = {name: file_of(name, shown.file(name, io), schema, spec) for name in differing.added}
        for file in added.values():
            producer.append_data_file(file)
        producer.commit()
        gone = set(differing.removed)
        kept = {name: file for name, file in named.items() if name not in gone}
        return {**kept, **added}, sum(file.record_count for file in added.values())

    def _committed(self, table: Table, shown: Shown, named: Mapping[str, DataFile], added: int) -> None:
        self._table, self._named = table, (table.metadata.current_snapshot_id, named)
        self._steps += 1
        self._records += added
        self._noted(shown, added, commits=1)

    def _noted(self, shown: Shown, added: int, *, commits: int = 0) -> None:
        before = self._note.position
        at = shown.position or before
        number = commits if before is None else before.number + commits
        position = None if at is None else replace(at, number=number)
        self._note = Note(position=position, rows=self._note.rows + added, delivered_at=self._now())
        write_note(self._home, self._name, self._note)


def _stamp(shown: Shown) -> dict[str, str]:
    """Return what a snapshot says of the version that it shows, for people and for readers who need to know."""
    at = shown.position
    known = {} if at is None else {"timeline": at.timeline, "batch": str(at.batch), "sequence": str(at.seq)}
    return {VERSION: str(shown.version), **{f"rivertwice.{name}": value for name, value in known.items()}}


def _drop_refs(change: Transaction) -> None:
    """Drop tags and branches, whose snapshots could not be expired."""
    manage = ManageSnapshots(change)
    others = [name for name in change.table_metadata.refs if name != MAIN_BRANCH]
    for name in others:
        manage = manage._remove_ref_snapshot(name)
    if others:
        manage.commit()


def _remove_manifests(io: FileIO, before: TableMetadata, after: TableMetadata, expired: Collection[int]) -> None:
    """Delete the manifests that only expired snapshots had, and their lists. What a kill leaves names no value and is small."""
    gone = [snapshot for snapshot in before.snapshots if snapshot.snapshot_id in expired]
    kept = first_kept(after.snapshots, expired)
    if not gone:
        return
    try:
        used = {manifest.manifest_path for snapshot in kept for manifest in snapshot.manifests(io)}
        unused = {manifest.manifest_path for snapshot in gone for manifest in snapshot.manifests(io)} - used
        for path in [*sorted(unused), *(snapshot.manifest_list for snapshot in gone)]:
            io.delete(path)
    except OSError as error:
        LOG.warning("old metadata of a registered table stays: %s", error)
