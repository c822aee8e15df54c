"""Protobuf values to Arrow columns, and back for a user's cases. Pure: turns bytes into values or a reason; no record raises an error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from rivertwice.core import DefinitionError, Row, to_iso
from rivertwice.definition.protobuf import TIMESTAMP, ProtoSchema

REASON, DETAIL = "_why", "_about"
# The same seconds that a timestamp in JSON may have: no offset can carry one out of the years 1 to 9999.
_FIRST_S, _LAST_S = -62_104_060_800, 253_370_764_800
_ARROW = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "decimal(20,0)": pa.decimal128(20, 0),
}


class _BeyondError(Exception):
    """A field has a value that its declared type cannot hold."""


@dataclass(frozen=True)
class ProtoReader:
    """How the records of one source are read.

    Attributes:
        fields: field name to SQL type, as declared.
        framed: Confluent's list of message indexes comes before the message.
    """

    schema: ProtoSchema
    fields: Mapping[str, str]
    framed: bool

    @property
    def arrow_type(self) -> pa.StructType:
        """The fields, the reason why a record cannot be read (null: it can), and a detail."""
        columns = [pa.field(name, _ARROW[kind]) for name, kind in self.fields.items()]
        return pa.struct([*columns, pa.field(REASON, pa.string()), pa.field(DETAIL, pa.string())])

    def read(self, values: Iterable[bytes | None]) -> pa.Array:
        """Return one struct for each value; a value that is null or cannot be read has no fields."""
        return pa.array([self._row(value) for value in values], self.arrow_type)

    def _row(self, data: bytes | None) -> Row | None:
        if data is None:
            return None
        if self.framed:
            start = after_indexes(data, self.schema.index_path)
            if start is None:
                return {REASON: "framing", DETAIL: f"the prefix does not name {self.schema.message}"}
            data = data[start:]
        message = self.schema.reader()
        try:
            message.ParseFromString(data)
            return {name: _value(message, name, kind) for name, kind in self.fields.items()}
        except DecodeError as error:
            return {REASON: "protobuf", DETAIL: str(error)[-200:]}
        except UnicodeDecodeError:
            return {REASON: "utf8", DETAIL: f"a text of {self.schema.message} is not UTF-8"}
        except _BeyondError as error:
            return {REASON: "schema", DETAIL: str(error)}


def _value(message: Message, name: str, kind: str) -> Any:
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.has_presence and not message.HasField(name):
        return None
    value = getattr(message, name)
    if field.message_type is not None:
        if field.message_type.full_name == TIMESTAMP:
            return _instant(value, name)
        value = value.value
    if kind == "double" and not math.isfinite(value):
        detail = f"{name} is beyond what its type can hold"
        raise _BeyondError(detail)
    if field.type == FieldDescriptor.TYPE_ENUM:
        symbol = field.enum_type.values_by_number.get(value)
        if symbol is None:
            detail = f"{name} has the number {value}, which its enum gives no name"
            raise _BeyondError(detail)
        return symbol.name
    return Decimal(value) if kind.startswith("decimal") else value


def _instant(value: Any, name: str) -> int:
    if not (_FIRST_S <= value.seconds < _LAST_S and 0 <= value.nanos < 1_000_000_000):
        detail = f"{name} is beyond what its type can hold"
        raise _BeyondError(detail)
    return int(value.seconds * 1_000_000 + value.nanos // 1000)


def after_indexes(data: bytes, wanted: tuple[int, ...]) -> int | None:
    """Return where the message begins after Confluent's indexes; None if they are invalid, or name another message.

    Source: Confluent's wire format: a count and the indexes, each a zigzag varint; a single 0 means the first message.
    """
    index_and_end = _zigzag(data, 0)
    if index_and_end is None:
        return None
    count, at = index_and_end
    if count == 0:
        return at if wanted == (0,) else None
    if count != len(wanted):
        return None
    for index in wanted:
        index_and_end = _zigzag(data, at)
        if index_and_end is None or index_and_end[0] != index:
            return None
        at = index_and_end[1]
    return at


def _zigzag(data: bytes, at: int) -> tuple[int, int] | None:
    number = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            return None
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    return None


def indexes_of(schema: ProtoSchema) -> bytes:
    """Return the bytes between Confluent's prefix and the message."""
    path = schema.index_path
    return b"\x00" if path == (0,) else b"".join(varint(number << 1) for number in (len(path), *path))


def varint(number: int) -> bytes:
    """Return a natural number in its wire format."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def encode_proto(schema: ProtoSchema, value: Mapping[str, Any]) -> bytes:
    """Return the record's bytes; instants may be given as text.

    Raises:
        DefinitionError: the value does not fit the message.
    """
    plain = {name: _plain(item) for name, item in value.items() if item is not None}
    try:
        return bytes(json_format.ParseDict(plain, schema.reader()).SerializeToString(deterministic=True))
    except json_format.ParseError as error:
        message = f"{str(value)[:200]} is not a {schema.message}: {str(error)[:200]}; correct the value"
        raise DefinitionError(message) from None


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return to_iso(value if value.tzinfo else value.replace(tzinfo=UTC))
    return int(value) if isinstance(value, Decimal) else value
