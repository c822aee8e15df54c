"""Encode values as Avro records: for a user's cases and for tests. Instants and decimals may be given as text."""

from __future__ import annotations

import io
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from avro import schema as avro_schema
from avro.errors import AvroException
from avro.io import BinaryEncoder, DatumWriter

from rivertwice.errors import DefinitionError
from rivertwice.instants import parse_iso
from rivertwice.schemas.avro_schema import AvroSchema
from rivertwice.schemas.compatibility import meaning_of

PREFIX = b"\x00"
PREFIX_BYTES = 5
"""Confluent's prefix: a zero byte and a schema id of four."""


def prefixed(schema_id: int, body: bytes) -> bytes:
    """Return `body` after Confluent's prefix: one zero byte and the schema's id."""
    return PREFIX + schema_id.to_bytes(4, "big") + body


def encode_avro(schema: AvroSchema, value: Mapping[str, Any]) -> bytes:
    """Return the record's bytes; fields that `value` leaves out take their default.

    Raises:
        DefinitionError: the value does not fit the schema.
    """
    whole: dict[str, Any] = {}
    for field in schema.record.fields:
        field_value = value.get(field.name, field.default if field.has_default else None)
        whole[field.name] = _fitting(field.type, field_value)
    unknown = sorted(set(value) - set(whole))
    if unknown:
        message = f"the record has no field {unknown[0]!r}; its schema has {sorted(whole)}"
        raise DefinitionError(message)
    buffer = io.BytesIO()
    try:
        DatumWriter(schema.record).write(whole, BinaryEncoder(buffer))
    except AvroException as error:
        message = f"{str(value)[:200]} is no record of {schema.record.fullname}: {str(error)[:200]}; correct the value"
        raise DefinitionError(message) from None
    return buffer.getvalue()


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
