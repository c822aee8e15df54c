"""One Avro schema: read strictly, limited so that no record can abuse it, narrowed to the fields in use."""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

from avro import schema as avro_schema
from avro.errors import AvroException, IgnoredLogicalType
from avro.name import Names

from rivertwice.errors import DefinitionError
from rivertwice.schemas.pinned_files import MAX_BYTES

MAX_DEPTH = 16
MAX_NODES = 5_000
MAX_FIXED = 1_048_576


@dataclass(frozen=True)
class AvroSchema:
    """A record's schema.

    Attributes:
        text: the schema as canonical JSON.
        record: the same, parsed.
    """

    text: str
    record: avro_schema.RecordSchema

    def field(self, name: str) -> avro_schema.Field | None:
        """Return the field of exactly this name, or None."""
        return cast("avro_schema.Field | None", self.record.fields_dict.get(name))


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
        DefinitionError: it is no schema of a record, or exceeds a limit.
    """
    require_size(data, where)
    try:
        value = json.loads(data)
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IgnoredLogicalType)
            parsed = avro_schema.parse(text)
    except (ValueError, AvroException, RecursionError, TypeError, KeyError, AttributeError) as error:
        message = f"{where} is no Avro schema ({type(error).__name__}: {str(error)[:300]}); correct it or take another"
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


def wide_decimals(schema: AvroSchema) -> AvroSchema:
    """Return the schema with the greatest precision for every decimal; scales are kept.

    Spark takes the unscaled value of a decimal of at most 18 digits modulo 2^64: a value of nine bytes would be read as a
    small, wrong amount. It reads wider decimals exactly, so that a value that does not fit is noticed.
    """
    value = json.loads(schema.text)
    for field in value["fields"]:
        kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
        for kind in kinds:
            if isinstance(kind, dict) and kind.get("logicalType") == "decimal":
                size = kind.get("size")
                kind["precision"] = 38 if size is None else min(38, len(str(2 ** (8 * size - 1) - 1)) - 1)
    return parse_avro(json.dumps(value), str(schema.record.fullname))


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
