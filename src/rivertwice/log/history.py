"""History that is in a lake: rows of somebody else's table as the records of a topic before the log's first one.

The rows have addresses in partition 0 of the topic, directly below the log's first offset there, which is 0 as a rule: then the last row is
at -1. So a range of offsets reaches from the history into the log without a hole, and whatever reads records by range reads both. Kafka
is never asked for an offset below the log.

What the addresses mean is stored once, `archive/.history/TOPIC_ID.json`, before a pipeline uses them: the data files of one snapshot, with
their sizes and rows, and how a row becomes a record. It never changes. Rows at or after `until` have no record: their offsets are like
those that a transaction leaves.

Columns become a JSON object, by Spark's `to_json`, and are decoded like any record: one set of rules says what is accepted.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rivertwice.core import (
    LogGapError,
    Place,
    RequestError,
    Settings,
    TableDamageError,
    below,
    is_remote,
    parse_iso,
    require_topic,
    to_iso,
)
from rivertwice.log.addresses import OffsetRanges
from rivertwice.log.decoded_files import has_sum, sum_of
from rivertwice.storage import LakeFile, LakeSnapshot, RecordStore

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMAT = 1
PARTITION = 0
"""The partition whose offsets the rows have."""
TASK_BYTES = 32 << 20
_FOLDER = ".history"  # no topic can have this name
_TEXT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"


@dataclass(frozen=True)
class LakeTable:
    """Which table of a lake is the history of a topic, and how its rows become records.

    Attributes:
        form, table, catalog: as `storage.open_lake` takes them.
        number: of the snapshot; None: not said.
        columns: path of a field in the record to a column of the table; empty if `payload` names the column of whole values.
        payload, key: columns of the values and keys of records; None: there is none.
        time: column of the instant that `until` is compared with, and that is the record's timestamp.
        until: rows at or after it are no records.
    """

    form: Any
    table: str
    catalog: str
    number: int | None
    columns: Mapping[str, str]
    payload: str | None
    key: str | None
    time: str
    until: datetime

    @property
    def wanted(self) -> list[str]:
        """The columns that are read, each once."""
        return list(dict.fromkeys([*self.columns.values(), *filter(None, (self.payload, self.key)), self.time]))

    @property
    def name(self) -> str:
        """Format and table, for people."""
        return f"{self.form} table {self.table}" if self.form != "parquet" else f"Parquet files in {self.table}"

    def to_plain(self) -> dict[str, Any]:
        """Return what is stored of it."""
        return {**vars(self), "columns": dict(self.columns), "until": to_iso(self.until)}


@dataclass(frozen=True)
class LakeRows:
    """Rows of a file, from `first_row` (the file's first is 0), and the offsets [start, end) that they have."""

    file: str
    first_row: int
    start: int
    end: int


@dataclass(frozen=True)
class LakeHistory:
    """The history of a topic: the files of one snapshot, with an offset for each row.

    Attributes:
        topic, topic_id: whose records they are.
        table: `number` is that of the snapshot.
        end: the offset after the last row; the log begins there.
        schema: of the columns that are read.
        files: in order; sums: their SHA-256, empty for those in an object store.
    """

    topic: str
    topic_id: str
    table: LakeTable
    end: int
    schema: pa.Schema
    files: Sequence[LakeFile]
    sums: Sequence[str]

    @classmethod
    def take(
        cls,
        settings: Settings,
        topic: str,
        topic_id: str,
        table: LakeTable,
        fitting: Mapping[str, Sequence[str]],
        end: int,
    ) -> LakeHistory:
        """Return the history of a topic as it is pinned, or, if nothing is pinned yet, as its table is now; nothing is written.

        Args:
            table: as the definition has it.
            fitting: column to the kinds (`column_kind`) that it may have.
            end: the log's first offset in partition 0.

        Raises:
            RequestError: another history is pinned, there is no such table or column, or a column does not fit.
            ServiceError: the store or the catalog does not answer.
        """
        pinned = cls.pinned(settings, topic, topic_id)
        if pinned is not None:
            _require_same(settings, pinned, table, end)
            return pinned
        snapshot = LakeSnapshot.open(table.form, table.table, table.number, table.catalog)
        columns = []
        for name in table.wanted:
            kind = column_kind(snapshot.columns.field(name).type) if name in snapshot.columns.names else None
            if kind not in fitting[name]:
                is_there = name in snapshot.columns.names
                actual = f"is {snapshot.columns.field(name).type}" if is_there else "is not there"
                known = "" if is_there else f"; its columns are {', '.join(snapshot.columns.names[:20])}"
                message = f"column {name} of {table.name} {actual}, and must be {' or '.join(fitting[name])}{known}; correct `history` of the source"
                raise RequestError(message)
            of_table = snapshot.columns.field(name).type
            columns.append(pa.field(name, of_table if kind == "decimal" else _READ_AS[str(kind)]))
        return _of_snapshot(topic, topic_id, table, end, snapshot, pa.schema(columns))

    def pin(self, settings: Settings) -> None:
        """Store it, before its addresses are used; what is stored already stays.

        Raises:
            RequestError: another one was stored meanwhile.
        """
        require_topic(self.topic)
        names = [each.name for each in fields(LakeFile)]
        stored = {
            "format": FORMAT,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "table": self.table.to_plain(),
            "end": self.end,
            "schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
            "files": {name: [getattr(file, name) for file in self.files] for name in names},
            "sums": list(self.sums),
        }
        if not RecordStore(_place(settings)).put_if_absent(_key(self.topic_id), stored):
            pinned = self.pinned(settings, self.topic, self.topic_id)
            assert pinned is not None, "it is there, and never removed by us"
            _require_same(settings, pinned, self.table, self.end)

    @classmethod
    def pinned(cls, settings: Settings, topic: str, topic_id: str) -> LakeHistory | None:
        """Return the history of a topic, None if it has none.

        Raises:
            DamagedFileError: what is stored cannot be decoded.
            RequestError: a newer version stored it.
        """
        data = RecordStore(_place(settings)).read(_key(topic_id))
        if data is None:
            return None
        if data.get("format") != FORMAT:
            message = f"{_key(topic_id)} in {_place(settings)} is not of format {FORMAT}, which this version reads; use a newer rivertwice"
            raise RequestError(message)
        table = data["table"]
        columns = data["files"]
        files = [LakeFile(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]
        return cls(
            topic,
            topic_id,
            LakeTable(**{**table, "until": parse_iso(table["until"])}),
            int(data["end"]),
            pa.ipc.read_schema(pa.py_buffer(base64.b64decode(data["schema"]))),
            tuple(files),
            tuple(data["sums"]),
        )

    @cached_property
    def _starts(self) -> list[int]:
        """The offset of each file's first row, and the end."""
        starts = [self.end]
        for file in reversed(self.files):
            starts.append(starts[-1] - file.rows)
        return starts[::-1]

    @property
    def ranges(self) -> OffsetRanges:
        """The offsets of all rows."""
        return {PARTITION: (self._starts[0], self.end)}

    @property
    def snapshot(self) -> str:
        """The snapshot for people."""
        if self.table.number is None:
            return f"{self.table.name}, {len(self.files)} files"
        return f"snapshot {self.table.number} of {self.table.name}"

    @property
    def text(self) -> str:
        """What the history is, for people."""
        return f"{self.snapshot}, until {to_iso(self.table.until)}"

    def rows_at(self, low: int, high: int) -> list[LakeRows]:
        """Return where the rows of offsets [low, high) are in the lake, file by file."""
        spans = ((self.files[n].name, self._starts[n], self._starts[n + 1]) for n in self._needed(low, high))
        return [LakeRows(name, max(low, start) - start, max(low, start), min(high, end)) for name, start, end in spans]

    def _needed(self, low: int, high: int) -> list[int]:
        return [n for n, file in enumerate(self.files) if self._starts[n] < high and low < self._starts[n] + file.rows]

    def _lost(self, numbers: Sequence[int]) -> dict[str, str]:
        found = LakeFile.lost([self.files[n] for n in numbers])
        for number in numbers:
            name = self.files[number].name
            if name not in found and self.sums[number]:
                path = Path(name)
                if not has_sum(path, path.stat(), self.sums[number]):
                    found[name] = "is not what it was (its SHA-256 is another)"
        return found

    def readable(self, low: int, high: int) -> tuple[list[tuple[int, int]], dict[str, str]]:
        """Return what can be read of offsets [low, high), in order, and the files that cannot, with what is wrong with each."""
        needed = self._needed(low, high)
        lost = self._lost(needed)
        runs: list[tuple[int, int]] = []
        for number in needed:
            if self.files[number].name not in lost:
                start, end = max(low, self._starts[number]), min(high, self._starts[number + 1])
                runs[-1:] = [(runs[-1][0], end)] if runs and runs[-1][1] == start else [*runs[-1:], (start, end)]
        return runs, lost

    def refusal(self, lost: Mapping[str, str]) -> TableDamageError:
        """Return the error that names files that cannot be read, and the remedy."""
        shown = "; ".join(f"{name} {how}" for name, how in list(lost.items())[:3])
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        return TableDamageError(
            f"the history of topic {self.topic} is {self.snapshot}, and {shown}{more}; nothing was computed without it; put the files back as they "
            "were (a backup, or the store's earlier versions), and run it again; windows without records in them can be computed meanwhile"
        )

    def records(self, spark: SparkSession, low: int, high: int) -> DataFrame:
        """Return the records of offsets [low, high), with Kafka's columns; executors read the files."""
        from pyspark.sql import functions as F
        from pyspark.sql.pandas.types import from_arrow_schema

        tasks = _shares([(self.files[n], self._starts[n]) for n in self._needed(low, high)])
        wanted = self.schema
        result = pa.schema([pa.field("_offset", pa.int64()), *wanted])

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    for file, start in tasks[number]:
                        for at, rows in file.read(wanted):
                            offsets = pa.array(range(start + at, start + at + rows.num_rows), pa.int64())
                            yield from pa.table([offsets, *rows.columns], schema=result).to_batches()

        numbers = spark.range(0, len(tasks), 1, max(1, len(tasks)))
        rows = numbers.mapInArrow(read, from_arrow_schema(result))
        time = F.col(f"`{self.table.time}`")
        before = F.lit(to_iso(self.table.until)).cast("timestamp")
        rows = rows.where((F.col("_offset") >= F.lit(low)) & (F.col("_offset") < F.lit(high)))
        rows = rows.where(time.isNull() | (time < before))
        return rows.select(
            (F.lit(None) if self.table.key is None else F.col(f"`{self.table.key}`")).cast("binary").alias("key"),
            self._value().cast("binary").alias("value"),
            F.lit(self.topic).alias("topic"),
            F.lit(PARTITION).alias("partition"),
            F.col("_offset").alias("offset"),
            F.coalesce(time, before).alias("timestamp"),  # a row without a time is rejected, or its payload has one
            F.lit(0).alias("timestampType"),
            F.lit(None).cast("array<struct<key:string,value:binary>>").alias("headers"),
        )

    def _value(self) -> Column:
        """Return the value of a record: the payload, or the columns as the text of a JSON object."""
        from pyspark.sql import functions as F

        if self.table.payload is not None:
            return F.col(f"`{self.table.payload}`")
        tree: dict[str, Any] = {}
        for path, column in self.table.columns.items():
            *outer, last = path.split(".")
            inside = tree
            for part in outer:
                inside = inside.setdefault(part, {})
            inside[last] = F.col(f"`{column}`")
        return F.to_json(_struct(tree), {"timestampFormat": _TEXT, "timeZone": "UTC", "dateFormat": "yyyy-MM-dd"})


def _struct(tree: Mapping[str, Any]) -> Column:
    from pyspark.sql import functions as F

    return F.struct(
        *((_struct(value) if isinstance(value, dict) else value).alias(name) for name, value in tree.items())
    )


def _shares(files: Sequence[tuple[LakeFile, int]]) -> list[list[tuple[LakeFile, int]]]:
    """Return the files by task of Spark: neighbours together, up to a number of bytes. Pure."""
    tasks: list[list[tuple[LakeFile, int]]] = []
    size = 0
    for file, start in files:
        if not tasks or size + file.size > TASK_BYTES:
            tasks.append([])
            size = 0
        tasks[-1].append((file, start))
        size += file.size
    return tasks


# What a history is read as: checked against the table's columns when the snapshot is taken.


def column_kind(kind: pa.DataType) -> str | None:
    """Return the word for an Arrow type in `FITTING` of the definition, or None for one that is not read. Pure."""
    for word, checks in _KINDS.items():
        if any(check(kind) for check in checks):
            return word
    return None


_KINDS = {
    "string": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    "binary": (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
    "boolean": (pa.types.is_boolean,),
    "integer": (pa.types.is_signed_integer, pa.types.is_uint8, pa.types.is_uint16, pa.types.is_uint32),
    "float": (pa.types.is_float32, pa.types.is_float64),
    "decimal": (pa.types.is_decimal128,),
    "timestamp": (pa.types.is_timestamp,),
    "date": (pa.types.is_date,),
}
_READ_AS: dict[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "float": pa.float64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
}


def _of_snapshot(
    topic: str, topic_id: str, table: LakeTable, end: int, snapshot: LakeSnapshot, schema: pa.Schema
) -> LakeHistory:
    own = replace(table, number=snapshot.number)
    sums = ["" if is_remote(file.name) else sum_of(Path(file.name)) for file in snapshot.files]
    return LakeHistory(topic, topic_id, own, end, schema, tuple(snapshot.files), tuple(sums))


def _require_same(settings: Settings, pinned: LakeHistory, table: LakeTable, end: int) -> None:
    asked = replace(table, number=pinned.table.number) if table.number is None else table
    differing = [name for name in vars(asked) if getattr(asked, name) != getattr(pinned.table, name)]
    if differing:
        was = ", ".join(
            f"{name} was {getattr(pinned.table, name)!r}, is {getattr(asked, name)!r}" for name in differing
        )
        message = (
            f"topic {pinned.topic} has a history already, {pinned.text}, whose rows have their addresses for ever, and the definition has another "
            f"one: {was}; put the definition back, or, if no pipeline was loaded from it, remove {below(_place(settings), _key(pinned.topic_id))} "
            "and start it again"
        )
        raise RequestError(message)
    if end != pinned.end:
        message = (
            f"the history of topic {pinned.topic} ends at offset {pinned.end}, and what Kafka and the archive have without a hole begins at {end}; "
            "records between are gone, so a load would leave them out unseen; let the archive follow Kafka's retention, and load by an older archive"
        )
        raise LogGapError(message)


# Where it is stored.


def _place(settings: Settings) -> Place:
    return below(settings.home if settings.shared is None else settings.shared, "archive", _FOLDER)


def _key(topic_id: str) -> str:
    return f"{topic_id}.json"
