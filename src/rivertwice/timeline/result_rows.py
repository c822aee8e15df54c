"""Rows of one table and their columns, chosen by a range and a key and read only when asked for: pandas, Arrow, Polars, Spark, SQL."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from rivertwice.core import RequestError, ServiceError, naming_extras, parse_instant
from rivertwice.storage import DataFile, Snapshot, TableFiles
from rivertwice.timeline.digest import key_text
from rivertwice.timeline.result_kinds import Kind
from rivertwice.timeline.result_status import Status
from rivertwice.timeline.served_rows import OWN_COLUMNS

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame, SparkSession


# Columns and values that people name, checked against a table's schema. Pure.


def require_columns(schema: pa.Schema, names: Sequence[str], table: str) -> None:
    """Check that a table has some columns.

    Raises:
        RequestError: it lacks one; the closest name, or all, are given.
    """
    for name in names:
        if name not in schema.names:
            close = difflib.get_close_matches(name, schema.names, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(schema.names)}"
            message = f"{table} has no column {name!r}; {hint}"
            raise RequestError(message)


def condition_of_key(schema: pa.Schema, key: Mapping[str, Any], keys: Sequence[str] = ()) -> pc.Expression | None:
    """Return the condition that a row has some values; None if none are given.

    Args:
        key: column to value. A table that stores keys as one text, as verdicts do, is asked for that text.

    Raises:
        RequestError: there is no such column, or a value does not fit its column.
    """
    if not key:
        return None
    if "key" in schema.names and types.is_string(schema.field("key").type) and not set(key) <= set(schema.names):
        missing = sorted(set(keys) - set(key))
        if missing or set(key) - set(keys):
            message = f"a row is found here by its whole key, which is {', '.join(keys)}; the key that is given has {', '.join(key)}"
            raise RequestError(message)
        return pc.field("key") == key_text(list(key), key.values())
    require_columns(schema, list(key), "the table")
    parts = [_equals(schema.field(name), value) for name, value in key.items()]
    return reduce(and_, parts)


def _equals(field: pa.Field, value: Any) -> pc.Expression:
    if value is None:
        return pc.field(field.name).is_null()
    try:
        if types.is_timestamp(field.type) and isinstance(value, str):
            value = parse_instant(value)
        scalar = (
            pa.scalar(value, pa.string()).cast(field.type) if isinstance(value, str) else pa.scalar(value, field.type)
        )
    except (pa.ArrowException, TypeError, ValueError, RequestError) as error:
        message = f"{value!r} is not a value of the column {field.name}, which is {field.type} ({error})"
        raise RequestError(message) from None
    return pc.field(field.name) == scalar


@dataclass(frozen=True)
class ResultTable:
    """A table of a pipeline at one version.

    Attributes:
        pipeline: its name, as it was asked for.
        time: the column of instants by which rows are ordered and chosen.
        scope: which of the stored rows count; None: all.
    """

    pipeline: str
    kind: Kind
    handle: Snapshot
    files: TableFiles
    time: str
    keys: tuple[str, ...]
    status: Status
    scope: pc.Expression | None = None

    @property
    def columns(self) -> list[str]:
        """The columns that are shown if none are named."""
        return [name for name in self.files.schema.names if name not in OWN_COLUMNS]

    @property
    def withheld(self) -> str:
        """Which columns with a record's own values are not here, and who gets them; empty: none."""
        names = [name for name in self.kind.raw if name not in self.files.schema.names]
        stored = [name for name in names if name in self.handle.schema.names]
        who = f"users with the permission to start operate__{self.pipeline}"
        return f"{', '.join(stored)} of {self.kind.name} of {self.pipeline}: only for {who}" if stored else ""


@dataclass(frozen=True)
class Rows:
    """Rows that were chosen and not read yet. Every way of reading gives the rows of the same version of the table.

    Attributes:
        start, end: only rows whose time is in `[start, end)`; None: without that end.
        key: only rows with these values; empty: all.
        columns: the columns that are read; empty: all but `_format` and `_day`.
    """

    table: ResultTable
    start: datetime | None = None
    end: datetime | None = None
    key: tuple[tuple[str, Any], ...] = ()
    columns: tuple[str, ...] = ()

    def choose(
        self,
        start: datetime | None = None,
        end: datetime | None = None,
        key: Mapping[str, Any] | None = None,
        columns: Sequence[str] = (),
    ) -> Rows:
        """Return some of the rows.

        Args:
            start: only rows whose time is at or after this aware instant.
            end: only rows whose time is before it.
            key: column to value; a row must have all of them.

        Raises:
            RequestError: there is no such column, a value does not fit its column, or an instant has no zone.
        """
        for instant in (start, end):
            if instant is not None and instant.tzinfo is None:
                message = f"{instant.isoformat()} has no time zone, so it names no instant; give it one, for instance datetime.UTC"
                raise RequestError(message)
        chosen = replace(self, start=start, end=end, key=tuple((key or {}).items()), columns=tuple(columns))
        require_columns(self.table.files.schema, chosen.columns, str(self.table.kind.name))
        _ = chosen.where
        return chosen

    @property
    def status(self) -> Status:
        """What the rows show: batch, sequence, when it was built, and whether more is committed."""
        return self.table.status

    @property
    def names(self) -> list[str]:
        """The columns that are read."""
        return list(self.columns) or self.table.columns

    @property
    def schema(self) -> pa.Schema:
        """The columns that are read, with their types; instants are in UTC."""
        return pa.schema([self.table.files.schema.field(name) for name in self.names])

    @property
    def time_condition(self) -> pc.Expression | None:
        """The condition of the range alone."""
        kind = self.table.files.schema.field(self.table.time).type
        time = pc.field(self.table.time)
        parts = [] if self.start is None else [time >= pa.scalar(self.start, kind)]
        parts += [] if self.end is None else [time < pa.scalar(self.end, kind)]
        return reduce(and_, parts) if parts else None

    @property
    def where(self) -> pc.Expression | None:
        """The condition for a stored row to be one of these; None: all are."""
        asked = condition_of_key(self.table.files.schema, dict(self.key), self.table.keys)
        parts = [part for part in (self.table.scope, self.time_condition, asked) if part is not None]
        return reduce(and_, parts) if parts else None

    def dataset(self, files: Sequence[DataFile] | None = None) -> ds.Dataset:
        """Return the rows as a pyarrow dataset, which DuckDB and Polars read with filters; it has all columns of the table."""
        rows, where = self.table.files.dataset(files), self.where
        return rows if where is None else rows.filter(where)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches, in no order; only a few are in memory.

        Raises:
            ServiceError: a file cannot be read.
        """
        yield from self.batches_where(None)

    def batches_where(self, further: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        """Yield those rows for which a further condition is true."""
        parts = [part for part in (self.where, further) if part is not None]
        with _explained(self.table, "reading it"):
            yield from self.table.files.batches(self.names, reduce(and_, parts) if parts else None)

    def count(self) -> int | None:
        """Return how many rows there are if the log of the table or the files of the range say so cheaply; None: not known."""
        where, files = self.where, self.table.files
        if where is None:
            return files.rows
        if self.key or (self.table.scope is not None and self.time_condition is None):
            return None
        with _explained(self.table, "counting its rows"):
            return int(self.dataset().count_rows())

    def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table, in memory, in no order."""
        return pa.Table.from_batches(list(self.batches()), self.schema)

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a pandas frame, in memory; instants are `datetime64[us, UTC]`."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_polars(self) -> pl.DataFrame:
        """Return the rows as a Polars frame, in memory.

        Raises:
            ConfigError: Polars is not installed.
        """
        with naming_extras():
            import polars
        return polars.DataFrame(self.to_arrow())

    def scan(self) -> pl.LazyFrame:
        """Return the rows as a lazy frame of Polars, which reads only the files and columns that its filters leave.

        Raises:
            ConfigError: Polars is not installed.
        """
        with naming_extras():
            import polars
        frame: pl.LazyFrame = polars.scan_pyarrow_dataset(self.dataset()).select(self.names)
        return frame

    def to_spark(self, session: SparkSession) -> DataFrame:
        """Return the rows as a frame of Spark, read by its executors; they must reach the table under the same name."""
        from rivertwice.timeline.result_spark import spark_frame

        return spark_frame(session, self)

    def __repr__(self) -> str:
        """Return what the rows are, for a notebook."""
        return f"<{self.status.describe()}; {self.table.files.rows} rows stored>"


@contextmanager
def _explained(table: ResultTable, doing: str) -> Iterator[None]:
    """Explain a data file that is gone: upkeep removed it hours after the table was opened, or it was lost."""
    with table.files.explained(doing):
        try:
            yield
        except FileNotFoundError as error:
            message = (
                f"a file of {table.kind.name} of {table.pipeline} is gone: {error}; if the rows were opened hours ago, open them "
                f"again; else `rivertwice admin repair {table.pipeline}` says what was lost"
            )
            raise ServiceError(message) from error
