"""A user's unit tests, `cases/*.yaml`: events in arrival order and their expected results. Pure except for reading."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from rivertwice.core import DefinitionError, RequestError, Row, parse_iso, read_yaml, to_iso
from rivertwice.definition import Definition, Source, describe, describe_yaml_error, encode_proto, indexes_of, prefixed
from rivertwice.engine.decode import REASONS, SCHEMA_ID_HEADER


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CaseEvent(_Model):
    """One record of the log."""

    id: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="How `expect` names the record.")
    at: datetime = Field(description="The record's own timestamp.")
    source: str | None = Field(default=None, description="For several sources: the view that the record belongs to.")
    value: Row | None = Field(default=None, description="Fields that differ from `defaults`; written as JSON.")
    raw: str | None = Field(default=None, description="The value as text, instead of `value`.")
    hex: str | None = Field(default=None, pattern=r"^([0-9a-fA-F]{2})*$", description="The value's bytes, instead.")
    schema_id: int | None = Field(
        default=None, ge=0, lt=2**32, description="For framed records: an id other than the newest pinned one."
    )
    key: str | None = Field(default=None, description="The record's Kafka key; default: the id.")
    tombstone: bool = Field(default=False, description="The record has no value.")
    headers: dict[str, str] | None = Field(default=None, description="Instead of the schema id the definition wants.")

    @field_validator("at", mode="before")
    @classmethod
    def _instant(cls, value: Any) -> datetime:
        text = value.isoformat() if isinstance(value, datetime) else str(value)
        try:
            return parse_iso(text)
        except RequestError as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _one_value(self) -> Self:
        given = [self.value, self.raw, self.hex]
        if sum(each is not None for each in given) + self.tombstone != 1:
            message = f"event {self.id!r} must have exactly one of value, raw, hex and tombstone"
            raise ValueError(message)
        return self


class Expect(_Model):
    """The expected results of the events; only the columns that a row names are compared.

    A fold's row names its event's id under `record`. If an event has several rows, `row` gives the row's number, from 0.
    """

    batch: list[Row] = Field(description="Every row of a recompute over all accepted events.")
    stream: list[Row] = Field(
        description="Every row the stream emits: its closed windows; of a stream with updates, the newest of each."
    )
    emitted: list[list[Row]] | None = Field(
        default=None,
        description="What each micro-batch emits, if that is compared too; batches that are not listed emit nothing.",
    )
    late: list[str] = Field(
        default_factory=list, description="Ids of events the stream drops as late, if only from one of their windows."
    )
    dead: dict[str, str] = Field(default_factory=dict, description="Id to reason of events that are not accepted.")

    @field_validator("dead")
    @classmethod
    def _known(cls, value: dict[str, str]) -> dict[str, str]:
        unknown = [reason for reason in value.values() if reason not in REASONS]
        if unknown:
            message = f"{unknown[0]!r} is not a valid reason of a dead letter; use one of {', '.join(REASONS)}"
            raise ValueError(message)
        return value


class Case(_Model):
    """One case: micro-batches of events in arrival order, and what is expected."""

    name: str
    description: str
    defaults: Row = Field(default_factory=dict, description="Fields every `value` starts from.")
    batches: list[list[CaseEvent]] = Field(min_length=1, description="One list of events per micro-batch.")
    expect: Expect

    @model_validator(mode="after")
    def _ids(self) -> Self:
        ids = [event.id for event in self.events]
        if len(set(ids)) != len(ids):
            message = f"two events share an id in {ids}; give each its own"
            raise ValueError(message)
        unknown = [name for name in (*self.expect.late, *self.expect.dead) if name not in ids]
        if unknown:
            message = f"expect names {unknown[0]!r}, which is the id of no event; correct it"
            raise ValueError(message)
        if any(not batch for batch in self.batches):
            message = "a micro-batch without events never runs; remove it"
            raise ValueError(message)
        return self

    @property
    def events(self) -> list[CaseEvent]:
        """All events in arrival order; an event's index is its offset in partition 0."""
        return [event for batch in self.batches for event in batch]


def case_paths(folder: Path) -> list[Path]:
    """Return the files of the cases of the pipeline in `folder`, sorted."""
    return sorted((folder / "cases").glob("*.yaml"))


def load_case(path: Path) -> Case:
    """Return the case in a file.

    Raises:
        DefinitionError: the file is not a case; names file, field, value and remedy.
    """
    data = path.read_bytes()
    try:
        return Case.model_validate({"name": path.stem, **(read_yaml(data) or {})})
    except ValidationError as error:
        raise DefinitionError(describe(error, str(path), data, Case)) from None
    except (yaml.YAMLError, TypeError) as error:
        why = describe_yaml_error(error) if isinstance(error, yaml.YAMLError) else str(error)
        message = f"{path} is not a case in YAML: {why}; correct it there, or just before"
        raise DefinitionError(message) from None


def load_cases(folder: Path) -> list[Case]:
    """Return the cases of the pipeline in `folder`, by file name.

    Raises:
        DefinitionError: a file is not a case; names file, field, value and remedy.
    """
    return [load_case(path) for path in case_paths(folder)]


def record_value(case: Case, event: CaseEvent, definition: Definition) -> bytes | None:
    """Return the bytes of the event's value as they would be in the log.

    An Avro record is written with the pinned schema that `schema_id` names. Without an id, or with an unknown id, it is
    written with the newest schema: so a case can show what happens to an unknown id.
    """
    if event.tombstone:
        return None
    if event.raw is not None or event.hex is not None:
        return event.raw.encode() if event.raw is not None else bytes.fromhex(event.hex or "")
    fields = {**case.defaults, **(event.value or {})}
    source = source_of(event, definition)
    schema_id = newest_id(source) if event.schema_id is None else event.schema_id
    if source.format == "avro":
        body = _avro(source, schema_id, fields)
    elif source.format == "protobuf":
        indexes = indexes_of(source.message_type) if source.framing == "confluent" else b""
        body = indexes + encode_proto(source.message_type, fields)
    else:
        body = json.dumps(fields, default=_json).encode()
    return body if source.framing == "none" else prefixed(schema_id, body)


def source_of(event: CaseEvent, definition: Definition) -> Source:
    """Return the source that an event belongs to; it need not be named if there is only one.

    Raises:
        DefinitionError: the event names an unknown source, or names none although there are several.
    """
    views = list(definition.sources)
    named = views[0] if event.source is None and len(views) == 1 else event.source
    if named not in definition.sources:
        message = f"event {event.id!r} has source: {event.source}, but the sources of {definition.name} are {views}; name one of them"
        raise DefinitionError(message)
    return definition.sources[named]


def newest_id(source: Source) -> int:
    """Return the largest schema id that the source knows; 1 if it accepts any."""
    known = source.pins.writers if source.format == "avro" else (int(each) for each in source.schema_ids)
    return max(known, default=1) if source.framing == "confluent" else 1


def _avro(source: Source, schema_id: int, fields: Row) -> bytes:
    writers = source.pins.writers
    writer = writers.get(schema_id) or writers.get(newest_id(source)) or source.pins.writer
    return writer.encode(fields)


def record_headers(event: CaseEvent, definition: Definition) -> list[dict[str, str | bytes]]:
    """Return the event's headers; by default the first schema id the definition accepts."""
    source = source_of(event, definition)
    default = {SCHEMA_ID_HEADER: source.schema_ids[0]} if source.schema_ids and source.framing == "none" else {}
    headers = default if event.headers is None else event.headers
    return [{"key": key, "value": value.encode()} for key, value in headers.items()]


def _json(value: Any) -> str:
    if isinstance(value, datetime):
        return to_iso(value)
    message = f"{value!r} has no JSON form; write it as a text, a number, true, false or null"
    raise DefinitionError(message)
