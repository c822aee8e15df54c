"""The section `history` of a source: a table in a lake whose rows are the records before the log's first one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from rivertwice.core import RequestError, TopicName, is_remote, meant, parse_iso, to_iso
from rivertwice.definition.delivery_section import iceberg_table
from rivertwice.definition.parts import Column, Strict, without_null

if TYPE_CHECKING:
    from rivertwice.definition.source import Source

_FITTING = {
    "string": ("string", "integer", "boolean", "date"),
    "boolean": ("boolean",),
    "int": ("integer",),
    "bigint": ("integer",),
    "double": ("float", "integer", "decimal"),
    "decimal": ("decimal", "integer"),
    "timestamp": ("timestamp",),
}
"""Type of a field, without digits, to the kinds of columns whose values the decoder takes for it, as JSON has them."""
_BYTES = ("binary", "string")


def _instant(value: object) -> datetime:
    try:
        return value if isinstance(value, datetime) and value.tzinfo is not None else parse_iso(str(value))
    except RequestError as error:
        raise ValueError(str(error)) from None


Instant = Annotated[
    datetime,
    BeforeValidator(_instant),
    PlainSerializer(to_iso),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]


class History(Strict):
    """Rows of a table in a lake, read by a first load; the stream begins after them."""

    table: str = Field(
        min_length=1,
        description="Delta or Parquet: a folder (absolute) or an address. Iceberg: its name, namespace.table.",
    )
    format: Literal["delta", "iceberg", "parquet"] = Field(
        default="delta", description="parquet: a folder of Parquet files with the same columns."
    )
    catalog: str = Field(default="default", description="For Iceberg: a catalog of pyiceberg's configuration.")
    snapshot: int | None = Field(
        default=None,
        ge=0,
        description="Delta: the version. Iceberg: the snapshot id. Left out: the newest when the history is first used.",
        json_schema_extra=without_null,
    )
    columns: dict[Column, str] = Field(
        default_factory=dict, description="Field of the schema to a column of the table; or payload."
    )
    payload: str | None = Field(
        default=None,
        min_length=1,
        description="Column with the values of whole records, as the log has them; or columns.",
        json_schema_extra=without_null,
    )
    key: str | None = Field(
        default=None, min_length=1, description="Column with the keys of records.", json_schema_extra=without_null
    )
    timestamp: str | None = Field(
        default=None,
        min_length=1,
        description="Column with the timestamps of records. Left out, with columns: that of the event time.",
        json_schema_extra=without_null,
    )
    until: Instant = Field(
        description="Rows whose timestamp is at or after this instant are not read: the log has their records."
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        wrong = self._finding()
        if wrong:
            raise ValueError(wrong)
        return self

    def _finding(self) -> str | None:
        """Return what does not fit together, with the remedy; None if nothing does not."""
        if self.format == "iceberg":
            iceberg_table(self.table)
        elif not (is_remote(self.table) or self.table.startswith("/")):
            return f"table {self.table[:80]!r} is not a place; write an absolute folder, or an address as s3://bucket/folder"
        if self.format != "iceberg" and "catalog" in self.model_fields_set:
            return f"catalog is for Iceberg, and the format is {self.format}; remove it, or say format: iceberg"
        if self.format == "parquet" and self.snapshot is not None:
            return "a folder of Parquet files has no snapshots; remove snapshot: the files that are there when the history is first used are read"
        if bool(self.columns) == (self.payload is not None):
            return "a row becomes a record by its columns or by one payload; give exactly one of columns and payload"
        if self.payload is not None and self.timestamp is None:
            return "with payload, timestamp is needed: the column with the record's timestamp, by which until is judged"
        return None

    def find_conflict(self, source: Source) -> str | None:
        """Return why the history does not fit its source, with the remedy; None if it does."""
        if source.is_table:
            return "a table has no history in a lake: only records of a stream are loaded by batch; remove history"
        if TopicName(source.topic).is_pattern:
            return f"topic {source.topic!r} is a pattern, and a history in a lake is the older part of one topic; name the topic, or remove history"
        if source.reads_headers and not source.schema_id_optional:
            return "rows of a lake have no header schema-id, so all would be dead letters; say schema_id_optional: true, or remove history"
        if self.payload is not None:
            return None
        if source.format != "json" or source.framing != "none" or source.envelope != "none":
            return "columns become plain JSON, and the source's records are not; name the column of whole records as payload, or remove history"
        unknown = [name for name in self.columns if name not in source.schema_]
        if unknown:
            return f"history.columns has {unknown[0]!r}, which is not in schema; correct it{meant(unknown[0], source.schema_)}"
        lacking = [name for name in source.required_fields if name not in self.columns]
        if lacking:
            return f"history.columns lacks {lacking[0]!r}, which is required, so every row would be a dead letter; add its column"
        return None

    def time_column(self, source: Source) -> str:
        """Return the column of the records' timestamps, which `until` is compared with."""
        return self.timestamp or self.columns[source.event_time]

    def fitting(self, source: Source) -> dict[str, Sequence[str]]:
        """Return column to the kinds that it may have, so that the decoder can take its values; empty if two uses exclude each other."""
        kinds: dict[str, Sequence[str]] = {}

        def narrow(column: str, fits: Sequence[str]) -> None:
            kinds[column] = [kind for kind in kinds.get(column, fits) if kind in fits]

        for name, column in self.columns.items():
            narrow(column, ("integer",) if name in source.epochs else _FITTING[source.schema_[name].partition("(")[0]])
        for column in filter(None, (self.payload, self.key)):
            narrow(column, _BYTES)
        narrow(self.time_column(source), ("timestamp",))
        return kinds
