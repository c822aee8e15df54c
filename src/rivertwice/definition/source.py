"""One source of a definition: a topic, its record format and what makes a record acceptable."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from rivertwice.core import TopicName, meant
from rivertwice.definition.folds import NO_WATERMARK, sql_type
from rivertwice.definition.history import History
from rivertwice.definition.parts import (
    Column,
    Duration,
    EpochUnit,
    Strict,
    TopicOrPattern,
    find_epochs_conflict,
    without_null,
)
from rivertwice.definition.pinned_files import MAX_ID, SUBJECT

if TYPE_CHECKING:
    from rivertwice.definition.protobuf import ProtoSchema
    from rivertwice.definition.schema_pins import Pins


# The settings of a source for the format of its records and their schema ids. Pure.

_NUMBER = re.compile(r"^[1-9][0-9]{0,9}\Z")


def format_finding(kind: str, framing: str, schema_ids: list[str], *, optional: bool) -> str | None:
    """Return the conflict between a source's format, framing and schema ids, with the remedy; None if there is none."""
    if framing == "none":
        return None
    if kind == "avro" and (schema_ids or optional):
        return (
            "schema_ids and schema_id_optional do not go with framed Avro: the ids are those of the files "
            "schemas/VIEW-ID.avsc, and a record without an id cannot be decoded; remove both"
        )
    if kind == "protobuf" and optional:
        return (
            "schema_id_optional does not go with framed Protobuf: without the prefix it is unknown whether the list of "
            "message indexes is there; remove it"
        )
    wrong = [each for each in schema_ids if not _NUMBER.match(each) or int(each) > MAX_ID]
    if wrong:
        return f"schema_ids holds {wrong[0][:40]!r}; with framing confluent ids are whole numbers from 1 to {MAX_ID}"
    return None


# Change events and tombstones: the settings of a source for them. Pure; `envelope` decodes.

DELETED = "_deleted"
OP = "_op"
TS_MS = "ts_ms"
_KEY_TYPES = ("string", "int", "bigint")


def marks_of(source: Source) -> dict[str, str]:
    """Return the columns that decoding adds to the fields of a source: name to type."""
    marks = {} if source.envelope == "none" else {OP: "string"}
    return {**marks, DELETED: "boolean"} if source.tombstones == "delete" else marks


def find_envelope_conflict(source: Source) -> str | None:
    """Return which settings of a source for envelope and tombstones conflict, or None."""
    if source.envelope != "none" and (source.format != "json" or source.framing != "none"):
        return "envelope: debezium is built for plain JSON (its JsonConverter); leave out format and framing, or the envelope"
    if (source.tombstones == "delete") != (source.key_field is not None):
        return "key_field is given exactly with tombstones: delete; write both or neither"
    if source.key_field == []:
        return "key_field is empty, so a tombstone would name nothing; name the fields of the Kafka key"
    for name in source.key_fields:
        kind = source.schema_.get(name)
        if kind not in _KEY_TYPES or name not in source.required_fields:
            actual = "not a field" if kind is None else f"of type {kind}" if kind not in _KEY_TYPES else "not required"
            return f"key_field {name!r} is {actual}; it must be a required field of type {', '.join(_KEY_TYPES)}"
    return None


# Where a JSON record has a field that is not named as the field is: another spelling, or inside objects. Pure; `decode` reads them.

PART = re.compile(r"^[A-Za-z_$@][A-Za-z0-9_$@:-]{0,63}\Z")
"""One name of a path. Not allowed: a dot, which separates names, and what Spark's paths or a quoted name would read otherwise."""
MOST_PARTS = 8


def _path(value: str) -> str:
    parts = value.split(".")
    if len(parts) > MOST_PARTS or not all(PART.match(part) for part in parts):
        message = (
            f"{value[:80]!r} is not a path to a field; write the names of the objects and of the field with dots between, for instance "
            f"customer.address.zipCode (at most {MOST_PARTS} names of A-Z, a-z, 0-9, _, -, $, @ and :, which begin with no digit)"
        )
        raise ValueError(message)
    return value


Path = Annotated[str, AfterValidator(_path)]


def value_at(record: Any, parts: Iterable[str]) -> Any:
    """Return what a record has where the names lead, outermost first; None if it has nothing there."""
    for part in parts:
        record = record.get(part) if isinstance(record, Mapping) else None
    return record


def _ddl(tree: Mapping[str, object]) -> str:
    return ", ".join(
        f"`{name}`: {f'struct<{_ddl(inner)}>' if isinstance(inner, dict) else inner}" for name, inner in tree.items()
    )


def find_paths_conflict(source: Source) -> str | None:
    """Return why the paths do not fit the source, or None."""
    if not source.paths:
        return None
    for name in source.paths:
        if name not in source.schema_:
            return f"paths names {name!r}, which is absent in schema; declare its type there, or remove it"
    if source.format != "json":
        return "paths is for plain JSON: Avro and Protobuf name their fields in a schema; remove paths"
    if source.envelope != "none":
        return f"paths is for plain JSON: the fields of a change event are those of its row, and event_time: {TS_MS} is when it was written; remove paths"
    seen: dict[str, str] = {}
    for name in source.schema_:
        path = source.paths.get(name, name)
        for other, owner in seen.items():
            if path.lower() == other.lower():
                return f"{owner!r} and {name!r} are both read from {path}, and Spark does not tell capitals apart; give each its own path"
            shorter, longer = sorted((path.lower(), other.lower()), key=len)
            if longer.startswith(f"{shorter}."):
                return f"{owner!r} is read from {other} and {name!r} from {path}: one value cannot be a field and an object of fields; remove one"
        seen[path] = name
    return None


Scalar = bool | int | str
_OF_SCALARS: Mapping[type, tuple[str, ...]] = {bool: ("boolean",), int: ("int", "bigint"), str: ("string",)}


def find_heartbeat_conflict(source: Source) -> str | None:
    """Return why no record can be the source's heartbeat, or None."""
    if not source.heartbeat:
        return None
    if source.format != "json" or source.envelope != "none" or not source.has_watermark:
        return "heartbeat is for plain JSON records that move a watermark; remove it"
    if TopicName(source.topic).is_pattern:
        return f"heartbeat is sent to one topic, but {source.topic!r} is a pattern of topics; remove it"
    for name, value in source.heartbeat.items():
        kind = source.schema_.get(name)
        if kind not in _OF_SCALARS[type(value)]:
            actual = "absent in schema" if kind is None else f"{kind} in schema"
            return f"heartbeat has {name}: {json.dumps(value)}, but {name!r} is {actual}; name a string, boolean, int or bigint field, and a value of its type"
    return None


def heartbeat_sql(view: str, source: Source, rows_sql: str | None) -> str:
    """Return the text of `rows.sql` that also leaves out the source's heartbeats."""
    same = " AND ".join(f"`{name}` <=> {_sql_literal(value)}" for name, value in source.heartbeat.items())
    kept = view if rows_sql is None else f"({rows_sql.rstrip().rstrip(';')}\n) AS {view}"
    return " ".join(("SELECT * FROM", kept, f"WHERE NOT ({same})"))


def _sql_literal(value: Scalar) -> str:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    return str(value).lower()


# Row rules: typed YAML, compiled to Columns by `decode`. Their text never reaches a SQL expression.


class _Rule(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$", description="Named in the dead letter's detail.")
    field: str = Field(description="The field of the source's schema that the rule judges.")


class NotNull(_Rule):
    """The field has a value."""

    rule: Literal["not_null"]


class InSet(_Rule):
    """The field, if it has a value, is one of `values`."""

    rule: Literal["in_set"]
    values: list[Scalar] = Field(min_length=1, max_length=1000)


class Range(_Rule):
    """The field, if it has a value, is between `min` and `max`, both included."""

    rule: Literal["range"]
    min: int | None = None
    max: int | None = None

    @model_validator(mode="after")
    def _bounds(self) -> Range:
        if self.min is None and self.max is None:
            message = f"rule {self.name!r} has neither min nor max; give at least one"
            raise ValueError(message)
        if self.min is not None and self.max is not None and self.min > self.max:
            message = f"rule {self.name!r} has min {self.min} above max {self.max}, so it would refuse every row"
            raise ValueError(message)
        return self


class Pattern(_Rule):
    """The field, if it has a value, matches the regular expression from its first to its last character."""

    rule: Literal["pattern"]
    pattern: str = Field(min_length=1, max_length=200)

    @model_validator(mode="after")
    def _compiles(self) -> Pattern:
        try:
            re.compile(self.pattern)
        except re.error as error:
            message = f"rule {self.name!r}: {self.pattern!r} is not a valid regular expression ({error}); correct it"
            raise ValueError(message) from None
        return self


RecordRule = Annotated[NotNull | InSet | Range | Pattern, Field(discriminator="rule")]


def _text(schema: dict[str, Any]) -> None:
    """Publish an optional name as a text, with the pattern that it must fit."""
    schema.pop("anyOf", None)
    schema.pop("default", None)
    schema.update({"type": "string", "pattern": SUBJECT.pattern.replace(r"\Z", "$")})


def _no_default(schema: dict[str, Any]) -> None:
    """Publish a field that only folds and tables leave out, without its default."""
    schema.pop("default")


def _subject(value: str) -> str:
    if not SUBJECT.match(value):
        message = f"{value[:80]!r} cannot name a subject; use at most 128 of A-Z, a-z, 0-9, '.', '_' and '-'"
        raise ValueError(message)
    return value


SqlType = Annotated[str, AfterValidator(sql_type)]
Subject = Annotated[str, AfterValidator(_subject)]


MOST_DIGITS = 38
"""Digits of Spark's largest decimal."""
MOST_EXACT = 32
"""Digits of a decimal field whose numbers can be exact: further digits of a number are read beside them."""


def decimal_digits(kind: str) -> tuple[int, int]:
    """Return the digits of a decimal type, and how many of them are after the point."""
    precision, scale = kind.removeprefix("decimal(").rstrip(")").split(",")
    return int(precision), int(scale)


class Source(Strict):
    """One topic, its record format and what makes a record acceptable."""

    topic: TopicOrPattern = Field(
        description="The topic that is read; or a pattern of topics, in which * stands for any characters: orders.*. A topic that "
        "matches and is new is read from its first record, from a batch boundary on."
    )
    role: Literal["stream", "table"] = Field(
        default="stream",
        description="table: records are versions of rows, joined as of the time of an event; only together with a stream, in intervals.",
    )
    table_keys: list[Column] = Field(
        default_factory=list, description="For a table: the fields that identify its rows."
    )
    partitions: int = Field(
        default=0,
        ge=1,
        le=10_000,
        description="Partitions the topic is created with; required, but not for a pattern.",
        json_schema_extra=_no_default,
    )
    format: Literal["json", "avro", "protobuf"] = Field(
        default="json",
        description="json: one JSON object per record value, UTF-8. avro: one Avro record, by the pinned schemas/VIEW*.avsc. "
        "protobuf: one message, by the pinned schemas/VIEW.protobuf.json.",
    )
    framing: Literal["none", "confluent"] = Field(
        default="none", description="confluent: byte 0 and a 4-byte schema id come before the value."
    )
    subject: Subject | None = Field(
        default=None,
        description="Subject in the schema registry, for `rivertwice admin schema refresh`.",
        json_schema_extra=_text,
    )
    schema_: dict[Column, SqlType] = Field(alias="schema", min_length=1, description="Field name to SQL type.")
    epochs: dict[Column, EpochUnit] = Field(
        default_factory=dict,
        description="For JSON: timestamp fields whose value is a number since 1970-01-01T00:00Z, with its unit: s, ms or us.",
    )
    paths: dict[Column, Path] = Field(
        default_factory=dict,
        description="For JSON: where the records have a field that has another name there, or is inside objects: customer_id: customer.id.",
    )
    decimals: Literal["round", "exact"] = Field(
        default="round",
        description="For JSON: a number with more digits after the point than its decimal type has. round: it is rounded half up, and "
        "nothing counts it. exact: the record is a dead letter.",
    )
    required: list[Column] = Field(default_factory=list, description="Fields that must have a value.")
    event_time: Column = Field(
        description="The timestamp field that windows and the watermark use; always required. With envelope: debezium also ts_ms, "
        "when the connector wrote the event; it need not be in schema."
    )
    watermark: Duration = Field(
        default=NO_WATERMARK,
        description="How far the watermark stays behind the largest event time; required, except for folds and tables, which have none.",
        json_schema_extra=_no_default,
    )
    max_future: Duration = Field(description="How far event time may be after the record's own timestamp.")
    heartbeat: dict[Column, Scalar] = Field(
        default_factory=dict,
        description="For JSON, in windows and sessions: fields and their values by which a record is a heartbeat: it moves the watermark "
        "and belongs to no window. `rivertwice send NAME --close` sends one.",
    )
    schema_ids: list[str] = Field(
        default_factory=list,
        description="Accepted values of the header `schema-id`, or of the ids in framed JSON; empty: not checked.",
    )
    schema_id_optional: bool = Field(default=False, description="Accept records without the header, or the prefix.")
    max_record_bytes: int = Field(default=1_048_576, ge=1, le=67_108_864, description="Larger values are dead letters.")
    keep_decoded: bool = Field(
        default=False,
        description="Keep the decoded records of archived files beside the archive: backfills and whole reconciles read these, and the "
        "space about doubles.",
    )
    rules: list[RecordRule] = Field(
        default_factory=list, description="Judged in this order; the first broken one is named."
    )
    envelope: Literal["none", "debezium"] = Field(
        default="none",
        description="For folds and tables. debezium: the fields are those of a change event's after (for a delete, before).",
    )
    tombstones: Literal["dead", "delete"] = Field(
        default="dead",
        description="For folds and tables. delete: a record without value deletes the key that its Kafka key names.",
    )
    key_field: Column | list[Column] | None = Field(
        default=None,
        description="With tombstones: delete: the string, int or bigint field whose text is the Kafka key; several: the key "
        "is a JSON object of them.",
        json_schema_extra=without_null,
    )
    history: History | None = Field(
        default=None,
        description="A table in a lake with the records before the log's first one; a first load reads them (`rivertwice start NAME --from-batch`).",
        json_schema_extra=without_null,
    )
    _pins: Pins | None = PrivateAttr(default=None)
    _message: ProtoSchema | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _with_written_at(cls, values: Any) -> Any:
        """Declare the time of a change event itself, which is not a field of its row."""
        if not isinstance(values, dict) or (values.get("envelope"), values.get("event_time")) != ("debezium", TS_MS):
            return values
        declared = values.get("schema")
        if not isinstance(declared, dict) or TS_MS in declared:
            return values
        return {**values, "schema": {**declared, TS_MS: "timestamp"}}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.schema_.get(self.event_time) != "timestamp":
            actual = self.schema_.get(self.event_time, "absent")
            message = f"event_time {self.event_time!r} is {actual} in schema; it must be a field of type timestamp"
            if actual in ("int", "bigint"):
                message += f", and numbers since 1970 are read by `epochs: {{{self.event_time}: ms}}` (or s, us)"
            times = [name for name, kind in self.schema_.items() if kind == "timestamp"]
            message += meant(self.event_time, times) or (f"; there is {times[0]}" if len(times) == 1 else "")
            raise ValueError(message)
        self._require_partitions()
        unknown = [name for name in (*self.required, *(rule.field for rule in self.rules)) if name not in self.schema_]
        if unknown:
            message = f"{unknown[0]!r} is required or judged by a rule but is not in schema; add or correct it{meant(unknown[0], self.schema_)}"
            raise ValueError(message)
        names = [rule.name for rule in self.rules]
        if len(set(names)) != len(names):
            message = f"two rules share a name in {names}; a dead letter names its rule, so names must differ"
            raise ValueError(message)
        for rule in self.rules:
            self._check_rule_type(rule)
        wrong = self._role_finding()
        if wrong:
            raise ValueError(wrong)
        wrong = format_finding(self.format, self.framing, self.schema_ids, optional=self.schema_id_optional)
        wrong = wrong or self._decimals_finding()
        wrong = wrong or find_envelope_conflict(self) or find_epochs_conflict(self) or find_paths_conflict(self)
        wrong = wrong or find_heartbeat_conflict(self)
        wrong = wrong or (None if self.history is None else self.history.find_conflict(self))
        if wrong:
            raise ValueError(wrong)
        return self

    def _require_partitions(self) -> None:
        if TopicName(self.topic).is_pattern != bool(self.partitions):
            return
        message = f"partitions is missing: with how many topic {self.topic!r} is created"
        if self.partitions:
            message = (
                f"topic {self.topic!r} is a pattern of topics, each of which has its own partitions; remove partitions"
            )
        raise ValueError(message)

    def _decimals_finding(self) -> str | None:
        """Return why decimals cannot be exact, or None."""
        if self.decimals == "exact" and self.format != "json":
            return f"decimals: exact is for JSON; a decimal of {self.format} has its own scale; remove it"
        wide = [name for name in self.exact_decimals if decimal_digits(self.schema_[name])[0] > MOST_EXACT]
        if wide:
            return (
                f"decimals: exact needs decimals of at most {MOST_EXACT} digits, so that further ones can be seen, but {wide[0]} is "
                f"{self.schema_[wide[0]]}; declare fewer digits, or remove it"
            )
        return None

    def _role_finding(self) -> str | None:
        """Return why the fields do not fit the source's role, or None."""
        if not self.is_table:
            if self.table_keys:
                return f"table_keys is {self.table_keys}, but the source is not a table; remove it, or say role: table"
            return None
        if self.has_watermark:
            return "a table moves no watermark: its records are versions, and none is dropped; remove watermark"
        if not self.table_keys:
            return "a table needs table_keys: the fields that name the row which a record is a version of"
        wrong = [name for name in self.table_keys if name not in self.required_fields or self.schema_[name] == "double"]
        if wrong:
            return f"table_keys has {wrong[0]!r}, which must be a required field of the schema and no double"
        if self.tombstones == "delete" and sorted(self.table_keys) != sorted(self.key_fields):
            return f"a tombstone deletes the row that its Kafka key names, but table_keys is {self.table_keys} and key_field {self.key_field!r}; make them one, or leave out tombstones"
        return None

    @property
    def exact_decimals(self) -> list[str]:
        """The decimal fields whose numbers are not rounded."""
        kinds = self.schema_.items() if self.decimals == "exact" else ()
        return [name for name, kind in kinds if kind.startswith("decimal")]

    @property
    def has_watermark(self) -> bool:
        """Whether records move a watermark; records of folds and tables do not."""
        return self.watermark != NO_WATERMARK

    @property
    def is_table(self) -> bool:
        """Whether records are versions of rows."""
        return self.role == "table"

    def _check_rule_type(self, rule: RecordRule) -> None:
        kind = self.schema_[rule.field]
        numeric = kind in ("int", "bigint", "double") or kind.startswith("decimal")
        if isinstance(rule, Range) and not numeric:
            message = f"rule {rule.name!r} is a range over {rule.field!r} of type {kind}; ranges judge numbers"
            raise ValueError(message)
        if isinstance(rule, Pattern) and kind != "string":
            message = f"rule {rule.name!r} is a pattern over {rule.field!r} of type {kind}; patterns judge strings"
            raise ValueError(message)
        if isinstance(rule, InSet):
            expected_type = str if kind == "string" else bool if kind == "boolean" else int if numeric else None
            wrong = [value for value in rule.values if type(value) is not expected_type]
            if wrong:
                message = f"rule {rule.name!r}: {wrong[0]!r} is not a value of {rule.field!r}, whose type is {kind}"
                raise ValueError(message)

    def with_pins(self, pins: Pins) -> Self:
        """Return the source with the schemas that were pinned for it."""
        source = self.model_copy()
        source._pins = pins
        return source

    @property
    def pins(self) -> Pins:
        """The schemas that Avro records are decoded by."""
        assert self._pins is not None, "the definition was loaded with its files"
        return self._pins

    def with_message(self, message: ProtoSchema) -> Self:
        """Return the source with the Protobuf message that was pinned for it."""
        source = self.model_copy()
        source._message = message
        return source

    @property
    def message_type(self) -> ProtoSchema:
        """The message that Protobuf records are decoded by."""
        assert self._message is not None, "the definition was loaded with its files"
        return self._message

    @property
    def key_fields(self) -> list[str]:
        """The fields that a tombstone's Kafka key names; empty if tombstones delete no rows."""
        if isinstance(self.key_field, list):
            return self.key_field
        return [] if self.key_field is None else [self.key_field]

    @property
    def reads_headers(self) -> bool:
        """Whether a record is judged by a header: its schema id, if it is not before the value."""
        return bool(self.schema_ids) and self.framing == "none"

    @property
    def marks(self) -> dict[str, str]:
        """The columns that decoding adds to the fields: name, with a leading underscore, to type."""
        return marks_of(self)

    @property
    def required_fields(self) -> tuple[str, ...]:
        """Fields that must have a value, the event time among them, in the schema's order."""
        return tuple(name for name in self.schema_ if name in self.required or name == self.event_time)

    def json_path(self, name: str) -> str:
        """Return the path to a field as `get_json_object` reads it."""
        if name not in self.paths:
            return f"$.{name}"
        return "$" + "".join(f"['{part}']" for part in self.parts_of(name))

    def nested_type(self, kinds: Mapping[str, str]) -> str:
        """Return the fields of a record as Spark's DDL, with the objects that paths lead through.

        Args:
            kinds: field to type; each is where its path says.
        """
        tree: dict[str, object] = {}
        for name, kind in kinds.items():
            *outer, last = self.parts_of(name)
            inner: dict[str, object] = tree
            for part in outer:
                inner = inner.setdefault(part, {})  # type: ignore[assignment]  # `find_paths_conflict` excludes a text here
            inner[last] = kind
        return _ddl(tree)

    def parts_of(self, name: str) -> list[str]:
        """Return the names that lead to a field in a JSON record, outermost first."""
        return self.paths.get(name, name).split(".")
