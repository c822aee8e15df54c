"""Avro: a schema read strictly and limited, records encoded, compatibility of two schemas."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, TypeVar, cast, get_args

from avro import schema as avro_schema
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.errors import AvroException, IgnoredLogicalType
from avro.io import BinaryEncoder, DatumWriter
from avro.name import Names

from rivertwice.core import DefinitionError, parse_iso
from rivertwice.definition.pinned_files import MAX_BYTES

MAX_DEPTH = 16
MAX_NODES = 5_000
MAX_FIXED = 1_048_576


@dataclass(frozen=True)
class AvroSchema:
    """A record's schema.

    Attributes:
        text: the schema as canonical JSON.
    """

    text: str
    record: avro_schema.RecordSchema

    def field(self, name: str) -> avro_schema.Field | None:
        """Return the field of exactly this name, or None."""
        return cast("avro_schema.Field | None", self.record.fields_dict.get(name))

    def encode(self, value: Mapping[str, Any]) -> bytes:
        """Return the record's bytes; fields that `value` leaves out take their default.

        Raises:
            DefinitionError: the value does not fit the schema.
        """
        whole: dict[str, Any] = {}
        for field in self.record.fields:
            field_value = value.get(field.name, field.default if field.has_default else None)
            whole[field.name] = _fitting(field.type, field_value)
        unknown = sorted(set(value) - set(whole))
        if unknown:
            message = f"the record has no field {unknown[0]!r}; its schema has {sorted(whole)}"
            raise DefinitionError(message)
        buffer = io.BytesIO()
        try:
            DatumWriter(self.record).write(whole, BinaryEncoder(buffer))
        except AvroException as error:
            message = (
                f"{str(value)[:200]} is not a record of {self.record.fullname}: {str(error)[:200]}; correct the value"
            )
            raise DefinitionError(message) from None
        return buffer.getvalue()

    def wide_decimals(self) -> AvroSchema:
        """Return the schema with the greatest precision for every decimal; scales are kept.

        Spark takes the unscaled value of a decimal of at most 18 digits modulo 2^64: a value of nine bytes would be read as a
        small, wrong amount. It reads wider decimals exactly, so that a value that does not fit is noticed.
        """
        value = json.loads(self.text)
        for field in value["fields"]:
            kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
            for kind in kinds:
                if isinstance(kind, dict) and kind.get("logicalType") == "decimal":
                    size = kind.get("size")
                    kind["precision"] = 38 if size is None else min(38, len(str(2 ** (8 * size - 1) - 1)) - 1)
        return parse_avro(json.dumps(value), str(self.record.fullname))


def require_size(data: bytes | str, where: str) -> None:
    """Check that the text of a schema, Avro's or Protobuf's, is not too large to be parsed.

    Raises:
        DefinitionError: it is.
    """
    if len(data) > MAX_BYTES:
        message = f"{where} has {len(data)} bytes, more than the {MAX_BYTES} that a schema may have; shorten it"
        raise DefinitionError(message)


def parse_avro(data: bytes | str, where: str) -> AvroSchema:
    """Return the schema in `data`.

    Raises:
        DefinitionError: it is not a schema of a record, or exceeds a limit.
    """
    require_size(data, where)
    try:
        value = json.loads(data)
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IgnoredLogicalType)
            parsed = avro_schema.parse(text)
    except (ValueError, AvroException, RecursionError, TypeError, KeyError, AttributeError) as error:
        message = (
            f"{where} is not an Avro schema ({type(error).__name__}: {str(error)[:300]}); correct it or take another"
        )
        raise DefinitionError(message) from None
    if not isinstance(parsed, avro_schema.RecordSchema):
        message = f"{where} is a schema of {str(parsed.type)[:40]}, not of a record; a source's values must be records"
        raise DefinitionError(message)
    _Walk(where).visit(parsed, ())
    return AvroSchema(text, parsed)


def narrow(schema: AvroSchema, fields: Collection[str]) -> AvroSchema:
    """Return the same record with only these fields, in the schema's order: no other field is decoded."""
    record = schema.record
    names = Names(default_namespace=record.namespace)
    fields_json = [field.to_json(names) for field in record.fields if field.name in fields]
    value: dict[str, Any] = {"type": "record", "name": record.name, "fields": fields_json}
    for extra in ("namespace", "aliases"):
        if record.props.get(extra):
            value[extra] = record.props[extra]
    return parse_avro(json.dumps(value), record.fullname)


class _Walk:
    """Follows a schema to its leaves and refuses parts by which a small record, or a small schema, could become huge."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._nodes = 0

    def visit(self, node: avro_schema.Schema, inside: tuple[str, ...]) -> int:
        """Return the fewest bytes that a value of `node` takes."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self._refuse(f"has more than {MAX_NODES} parts once its names are spelt out", "split or flatten it")
        if len(inside) > MAX_DEPTH:
            self._refuse(f"nests deeper than {MAX_DEPTH} levels", "flatten it")
        if isinstance(node, avro_schema.RecordSchema):
            name = str(node.fullname)
            if name in inside:
                self._refuse(f"contains itself (record {name[:80]})", "records cannot be recursive here: flatten it")
            return sum(self.visit(field.type, (*inside, name)) for field in node.fields)
        if isinstance(node, avro_schema.UnionSchema):
            for branch in node.schemas:
                self.visit(branch, (*inside, "|"))
            return 1
        if isinstance(node, avro_schema.ArraySchema):
            if self.visit(node.items, (*inside, "[]")) == 0:
                self._refuse(
                    "has an array whose items take no bytes", "a record of ten bytes could hold millions of them"
                )
            return 1
        if isinstance(node, avro_schema.MapSchema):
            self.visit(node.values, (*inside, "{}"))
            return 1
        if isinstance(node, avro_schema.FixedSchema):
            if int(node.size) > MAX_FIXED:
                self._refuse(f"has a fixed of {node.size} bytes, more than {MAX_FIXED}", "use bytes")
            return int(node.size)
        return 0 if node.type == "null" else 1

    def _refuse(self, fact: str, remedy: str) -> None:
        message = f"{self._where} {fact}, so records of it are not decoded: {remedy}"
        raise DefinitionError(message)


# Can one schema read the records of another? Uses Apache Avro's own checker, and adds what it leaves out: meanings.
#
# Avro resolves an `int` into a `long`, and treats a timestamp in milliseconds and one in microseconds as the same `long`.
# A record would then be wrong by a factor of a thousand, without an error: such a change is refused here.

Parsed = TypeVar("Parsed")
Compatibility = Literal["none", "backward", "forward", "full"]
RULES: tuple[Compatibility, ...] = get_args(Compatibility)
_MEANINGS = ("date", "time-", "timestamp-", "local-timestamp-", "decimal", "duration")
_PROMOTED = {"int": {"long", "float", "double"}, "long": {"float", "double"}, "float": {"double"}}
_PROMOTED |= {"string": {"bytes"}, "bytes": {"string"}}


def read_findings(reader: AvroSchema, writer: AvroSchema) -> list[str]:
    """Return why records of `writer` cannot be read as `reader`; empty if they can."""
    checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    result = checker.get_compatibility(reader.record, writer.record)
    if result.compatibility is not SchemaCompatibilityType.compatible:
        kinds = ", ".join(sorted({kind.value for kind in result.incompatibilities}))
        reasons, at = "; ".join(sorted(result.messages)), ", ".join(sorted(result.locations))
        return [f"{kinds} at {at}: {reasons}"]
    return _meaning_findings(reader.record, writer.record, "")


def rule_findings(
    rule: Compatibility, new: Parsed, old: Mapping[int, Parsed], read: Callable[[Parsed, Parsed], list[str]]
) -> list[str]:
    """Return how `new` breaks `rule`, given every earlier version of its subject by number.

    Every earlier version is compared, not only the last: the log has records of all of them.

    Args:
        read: takes reader and writer, and returns why the writer's records cannot be read.
    """
    findings = []
    for version, schema in sorted(old.items()):
        if rule in ("backward", "full"):
            findings += [f"cannot read version {version}: {reason}" for reason in read(new, schema)]
        if rule in ("forward", "full"):
            findings += [f"cannot be read by version {version}: {reason}" for reason in read(schema, new)]
    return findings


def _meaning_findings(reader: avro_schema.Schema, writer: avro_schema.Schema, path: str) -> list[str]:
    if isinstance(reader, avro_schema.UnionSchema) or isinstance(writer, avro_schema.UnionSchema):
        findings = []
        for branch in _branches(writer):
            fitting = [each for each in _branches(reader) if _same_kind(each, branch)]
            fitting = fitting or [each for each in _branches(reader) if each.type in _PROMOTED.get(branch.type, ())]
            findings += _meaning_findings(fitting[0], branch, path) if fitting else []
        return findings
    if isinstance(reader, avro_schema.RecordSchema) and isinstance(writer, avro_schema.RecordSchema):
        findings = []
        for field in reader.fields:
            names = (field.name, *(field.props.get("aliases") or ()))
            written = next((writer.fields_dict[name] for name in names if name in writer.fields_dict), None)
            findings += [] if written is None else _meaning_findings(field.type, written.type, f"{path}/{field.name}")
        return findings
    if isinstance(reader, avro_schema.ArraySchema) and isinstance(writer, avro_schema.ArraySchema):
        return _meaning_findings(reader.items, writer.items, f"{path}[]")
    if isinstance(reader, avro_schema.MapSchema) and isinstance(writer, avro_schema.MapSchema):
        return _meaning_findings(reader.values, writer.values, f"{path}{{}}")
    before, after = meaning_of(writer), meaning_of(reader)
    if before == after or _wider_decimal(before, after):
        return []
    meanings = [each.get("logicalType", "a plain value") for each in (before, after)]
    detail = f" {before} and {after}" if meanings[0] == meanings[1] else ""
    return [
        f"meaning changed at {path}: written as {meanings[0]}, read as {meanings[1]}{detail}, so values would be wrong"
    ]


def meaning_of(schema: avro_schema.Schema) -> dict[str, Any]:
    """Return the logical type that decides what a value means, with its parameters; empty for a plain value."""
    props: Mapping[str, Any] = getattr(schema, "props", {})
    logical = str(props.get("logicalType", ""))
    if not logical.startswith(_MEANINGS):
        return {}
    extra = {key: int(props.get(key) or 0) for key in ("precision", "scale")} if logical == "decimal" else {}
    return {"logicalType": logical, **extra}


def _wider_decimal(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    both = before.get("logicalType") == after.get("logicalType") == "decimal"
    return both and before["scale"] == after["scale"] and before["precision"] <= after["precision"]


def _branches(schema: avro_schema.Schema) -> list[avro_schema.Schema]:
    return list(schema.schemas) if isinstance(schema, avro_schema.UnionSchema) else [schema]


def _same_kind(first: avro_schema.Schema, second: avro_schema.Schema) -> bool:
    names = [each.name for each in (first, second) if isinstance(each, avro_schema.NamedSchema)]
    return bool(first.type == second.type and len(set(names)) <= 1)


# Encode values as Avro records: for a user's cases and for tests. Instants and decimals may be given as text.

PREFIX = b"\x00"
PREFIX_BYTES = 5
"""Confluent's prefix: a zero byte and a schema id of four."""


def prefixed(schema_id: int, body: bytes) -> bytes:
    """Return `body` after Confluent's prefix: one zero byte and the schema's id."""
    return PREFIX + schema_id.to_bytes(4, "big") + body


def _fitting(schema: avro_schema.Schema, value: Any) -> Any:
    if isinstance(schema, avro_schema.UnionSchema):
        branches = [branch for branch in schema.schemas if branch.type != "null"]
        return _fitting(branches[0], value) if value is not None and len(branches) == 1 else value
    logical = meaning_of(schema).get("logicalType", "")
    if logical.startswith("timestamp-") and isinstance(value, str):
        return parse_iso(value)
    if logical == "decimal" and isinstance(value, str | int):
        return Decimal(value).quantize(Decimal(1).scaleb(-meaning_of(schema)["scale"]))
    if schema.type == "string" and isinstance(value, datetime):
        return value.isoformat()
    return value
