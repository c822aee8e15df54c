"""The definition of a pipeline: what `pipelines/NAME/pipeline.yaml` and the files beside it say, checked."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from rivertwice.config import NAME
from rivertwice.pipeline.delivery_model import Delivery, find_delivery_conflict
from rivertwice.pipeline.fast_model import FastPath, find_fast_conflict
from rivertwice.pipeline.fold_model import StateType, find_fold_conflict
from rivertwice.pipeline.limits import AlertLimits
from rivertwice.pipeline.names import Column, without_null
from rivertwice.pipeline.parts import (
    LatePolicy,
    OutputColumn,
    StreamPins,
    Strict,
    find_emit_conflict,
    find_late_conflict,
)
from rivertwice.pipeline.source_model import Source, SqlType
from rivertwice.pipeline.sources import find_sources_conflict, find_topics_conflict
from rivertwice.pipeline.windows import Window

VALID_FROM, VALID_TO = "valid_from", "valid_to"
VERSION = {VALID_FROM, VALID_TO}
"""Columns of a table's view: when a version was valid; `valid_to` is NULL of one that still is."""
RECORD = "record"
"""Column of a slice's views: the record's place in its topic, different for every record; it breaks ties. Of a fold's rows: the event's."""
SOURCE = "source"
"""Column of a fold's rows, where it has several sources: the view that the event is of."""
ROW = "row"
"""Column of a fold's rows: which of the rows of one event it is, from 0."""


def _optional_part(schema: dict[str, Any]) -> None:
    """Publish a part that may be left out without null."""
    schema.update(next(each for each in schema.pop("anyOf") if "$ref" in each))
    schema.pop("default", None)


def _name(value: str) -> str:
    if not NAME.match(value):
        message = (
            f"{value[:80]!r} is no allowed name; names start with a lower-case letter or digit and hold at "
            "most 64 of a-z, 0-9, _ and -"
        )
        raise ValueError(message)
    return value


Name = Annotated[str, AfterValidator(_name)]


class DefinitionFile(Strict):
    """What `pipeline.yaml` may say."""

    name: Name
    description: str = Field(min_length=1, max_length=2000)
    sources: dict[Column, Source] = Field(min_length=1, description="View name (as the SQL uses it) to source.")
    window: Window
    keys: list[Column] = Field(default_factory=list, description="Result columns that identify a row in its window.")
    columns: dict[Column, OutputColumn] = Field(min_length=1, description="The other result columns, in order.")
    by: list[Column] | dict[Column, dict[Column, Column]] = Field(
        default_factory=list,
        description="Of folds: fields whose values share a state, of the same name in every source; or key to view to field, "
        "where a source calls it otherwise.",
    )
    state: dict[Column, StateType] = Field(
        default_factory=dict, description="Of folds: field of the state to its type."
    )
    types: dict[Column, SqlType] = Field(default_factory=dict, description="Of folds: key or column to its type.")
    order: Literal["read", "any"] = Field(
        default="read",
        description="Of folds: any: the newest row of a key does not hang on the order in which sources and partitions were "
        "read (tables as one view); a reconcile checks it.",
    )
    deleted: Column | None = Field(
        default=None,
        description="Of folds: the boolean column that says that a key is gone, so that a view leaves it out.",
        json_schema_extra=without_null,
    )
    count_column: Column | None = Field(
        default=None,
        description="The column that counts the rows that went into a result row; all but slices and folds need it.",
        json_schema_extra=without_null,
    )
    watermark_policy: Literal["min", "max"] = Field(
        default="min",
        description="Of several sources: min: the slowest holds the watermark back, an idle one for ever; max: the fastest drives it.",
    )
    emit: Literal["final", "updates"] = Field(
        default="final",
        description="final: a window's rows are emitted once, when it closes. updates: with every batch that changes them.",
    )
    late: LatePolicy = LatePolicy()
    stream: StreamPins = StreamPins()
    alerts: AlertLimits = AlertLimits()
    deliver: dict[Name, Delivery] = Field(
        default_factory=dict, description="Where results go beyond the tables, by name (docs/howto-delivery.md)."
    )
    fast: FastPath | None = Field(
        default=None,
        description="Where the rows of fast.sql go, record by record (docs/howto-fast.md).",
        json_schema_extra=_optional_part,
    )
    compare: bool = Field(default=True, description="false: results are not reconciled; lifts the symmetry refusals.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        conflict = find_sources_conflict(self) or find_topics_conflict(self)
        if conflict:
            raise ValueError(conflict)
        if self.window.is_session:
            self._check_session_keys()
        conflict = find_delivery_conflict(self.deliver, self.topics, folds=self.window.is_fold) or self._time_conflict()
        if conflict:
            raise ValueError(conflict)
        names = self.result_columns
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            message = f"result column {twice[0]!r} is given twice among window, keys and columns; rename one"
            raise ValueError(message)
        wrong = find_fast_conflict(self) or find_fold_conflict(self)
        if wrong:
            raise ValueError(wrong)
        if self.window.is_fold:
            return self
        if self.window.is_sliced:
            self._check_slices()
            return self
        if self.count_column is None:
            message = "count_column is missing; name the column that is count(*): the balance is built on it"
            raise ValueError(message)
        if self.count_column not in self.columns:
            message = f"count_column {self.count_column!r} is not among columns {list(self.columns)}; correct it"
            raise ValueError(message)
        if self.columns[self.count_column].compare != "exact":
            message = f"count_column {self.count_column!r} must be compared exactly; the balance is built on it"
            raise ValueError(message)
        return self

    def _time_conflict(self) -> str | None:
        """Return why what becomes of late rows, or when rows are emitted, does not go with the rest; None if it does."""
        return find_late_conflict(self.window, self.late) or find_emit_conflict(
            self.window, has_updates=self.has_updates
        )

    def _check_slices(self) -> None:
        if self.count_column is not None:
            message = (
                f"count_column is {self.count_column!r}, but rows of slices are not counted by a column; remove it"
            )
            raise ValueError(message)
        if not self.keys:
            message = "slices need keys: the result columns that tell a row from all others of its slice; name them"
            raise ValueError(message)
        if self.window.at not in (*self.keys, *self.columns):
            message = f"window.at {self.window.at!r} is neither a key nor a column; add it to the result, or correct it"
            raise ValueError(message)
        reserved = {self.window.start_column, self.window.end_column, RECORD}
        for view, source in self.sources.items():
            taken = sorted((reserved | (VERSION if source.is_table else set())) & set(source.schema_))
            if taken:
                message = (
                    f"field {taken[0]!r} of source {view!r} has the name of a column that slices add to every view; rename the "
                    "window's columns (window.start_column, window.end_column), or the field before the log"
                )
                raise ValueError(message)

    def _check_session_keys(self) -> None:
        schema = self.source[1].schema_
        wrong = [key for key in self.keys if schema.get(key, "double") == "double"]
        if not self.keys or wrong:
            found = "there are none" if not self.keys else f"{wrong[0]!r} is {schema.get(wrong[0], 'no field')}"
            message = (
                "sessions are built per key, and what the stream did is derived by following each key, so keys must be fields "
                f"of the source's schema and no doubles; {found}: name at least one such field"
            )
            raise ValueError(message)

    @property
    def source(self) -> tuple[str, Source]:
        """View name and source, for what has exactly one source: windows, sessions and their transform."""
        return next(iter(self.sources.items()))

    @property
    def has_several_sources(self) -> bool:
        """Whether what is read must be told apart by its topic."""
        return len(self.sources) > 1

    def by_fields(self, view: str) -> dict[str, str]:
        """Return column of a fold's key to the field of a source that it is."""
        named = self.by if isinstance(self.by, dict) else {}
        return {column: named.get(column, {}).get(view, column) for column in self.by}

    @property
    def streams(self) -> dict[str, Source]:
        """View name to source, of those whose records belong to windows."""
        return {view: source for view, source in self.sources.items() if not source.is_table}

    @property
    def tables(self) -> dict[str, Source]:
        """View name to source, of those whose records are versions of rows."""
        return {view: source for view, source in self.sources.items() if source.is_table}

    @property
    def topics(self) -> list[str]:
        """The topics of all sources, in the definition's order."""
        return [source.topic for source in self.sources.values()]

    @property
    def by_topic(self) -> dict[str, tuple[str, Source]]:
        """Topic to view name and source."""
        return {source.topic: (view, source) for view, source in self.sources.items()}

    @property
    def has_updates(self) -> bool:
        """Whether a window's rows are emitted with every batch that changes them; the newest of each is what it says."""
        return self.emit == "updates"

    @property
    def output_mode(self) -> Literal["append", "update"]:
        """Spark's output mode."""
        return "update" if self.has_updates else "append"

    @property
    def row_keys(self) -> list[str]:
        """The result columns that tell a row from all others of its window: the keys, of a fold its event's place too."""
        if not self.window.is_fold:
            return self.keys
        return [*([SOURCE] if self.has_several_sources else []), RECORD, ROW, *self.keys]

    @property
    def session_keys(self) -> list[str] | None:
        """The key columns if windows are sessions, which their key and stretch tell apart; else None."""
        return self.keys if self.window.is_session else None

    @property
    def row_types(self) -> dict[str, str]:
        """Key or column of a fold to its type."""
        view, source = self.source
        given = {name: source.schema_.get(field, "") for name, field in self.by_fields(view).items()}
        return {name: self.types.get(name, given.get(name, "")) for name in (*self.keys, *self.columns)}

    @property
    def result_columns(self) -> list[str]:
        """Window columns, keys and the other columns, in the result's order."""
        return [self.window.start_column, self.window.end_column, *self.row_keys, *self.columns]


class Definition(DefinitionFile):
    """A definition with the SQL it runs, or the fold: complete, immutable, independent of the folder it came from."""

    transform_sql: str = ""
    rows_sql: str | None = None
    fold_py: str | None = None
    fast_sql: str | None = None
