"""Replace one value of some fields in the bytes of Avro records. Pure.

A record is read with its writer's schema and copied piece by piece. Only the value of a named field is written new. Blocks of arrays
and maps lose their optional byte counts, which readers do not need. All other bytes stay the same.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Protocol

from avro import schema as avro_schema
from avro.errors import AvroException
from avro.io import BinaryDecoder, BinaryEncoder

from rivertwice.definition.avro import PREFIX, PREFIX_BYTES, AvroSchema

_WHOLE = ("int", "long")
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


@dataclass(frozen=True)
class Swap:
    """A value, its replacement, and the fields in which it is replaced."""

    value: str | int
    pseudonym: str | int
    names: Set[str]


class Records(Protocol):
    """How the records of a source are written, if they are not JSON."""

    def replaced(self, data: bytes, swap: Swap) -> bytes | None:
        """Return a record's bytes with the value replaced; None if the bytes are not such a record."""

    def replaced_key(self, key: bytes, swap: Swap) -> bytes | None:
        """Return a record's key with the value replaced; None if it is not such a key."""


@dataclass(frozen=True)
class AvroRecords:
    """How the records of a source are written: schema id to schema; None is the id of records without one."""

    writers: Mapping[int | None, AvroSchema]

    def replaced(self, data: bytes, swap: Swap) -> bytes | None:
        """Return a record's bytes with the value replaced; None if the bytes are not such a record."""
        framed = None not in self.writers
        if framed and (data[:1] != PREFIX or len(data) < PREFIX_BYTES):
            return None
        start = PREFIX_BYTES if framed else 0
        schema = self.writers.get(int.from_bytes(data[1:PREFIX_BYTES], "big") if framed else None)
        body = None if schema is None else _replaced(schema.record, data[start:], swap)
        return None if body is None else data[:start] + body

    def replaced_key(self, key: bytes, swap: Swap) -> bytes | None:
        """Return a record's key with the value replaced, if it is a text or number after an id; None if it is not such a key."""
        if None in self.writers or key[:1] != PREFIX or len(key) <= PREFIX_BYTES:
            return None
        kind = avro_schema.parse('"string"' if isinstance(swap.value, str) else '"long"')
        body = _replaced(kind, key[PREFIX_BYTES:], swap, named=True)
        return None if body is None else key[:PREFIX_BYTES] + body


def _replaced(schema: avro_schema.Schema, body: bytes, swap: Swap, *, named: bool = False) -> bytes | None:
    walk = _Walk(body, swap)
    try:
        walk.copy(schema, named=named)
    except (AvroException, ValueError, IndexError, TypeError):
        return None
    return walk.written if walk.is_done else None


class _Walk:
    """Copies one value after another from the old bytes to the new."""

    def __init__(self, body: bytes, swap: Swap) -> None:
        self._body, self._swap = body, swap
        self._from, self._to = io.BytesIO(body), io.BytesIO()
        self._decoder, self._encoder = BinaryDecoder(self._from), BinaryEncoder(self._to)

    @property
    def is_done(self) -> bool:
        """Whether the record used all bytes."""
        return self._from.tell() == len(self._body)

    @property
    def written(self) -> bytes:
        """The new bytes."""
        return self._to.getvalue()

    def copy(self, schema: avro_schema.Schema, *, named: bool) -> None:
        """Copy a value of `schema`; `named`: the value belongs to a named field.

        Raises:
            ValueError, AvroException, IndexError, TypeError: the bytes do not fit the schema.
        """
        if isinstance(schema, avro_schema.RecordSchema):
            for field in schema.fields:
                self.copy(field.type, named=str(field.name) in self._swap.names)
        elif isinstance(schema, avro_schema.UnionSchema):
            branch = self._natural()
            self._encoder.write_long(branch)
            self.copy(schema.schemas[branch], named=named)
        elif isinstance(schema, avro_schema.ArraySchema):
            for _ in self._items():
                self.copy(schema.items, named=named)
        elif isinstance(schema, avro_schema.MapSchema):
            for _ in self._items():
                name = self._decoder.read_utf8()
                self._encoder.write_utf8(name)
                self.copy(schema.values, named=name in self._swap.names)
        elif isinstance(schema, avro_schema.FixedSchema):
            self._to.write(self._decoder.read(int(schema.size)))
        else:
            self._copy_plain(str(schema.type), named)

    def _copy_plain(self, kind: str, named: bool) -> None:
        value, pseudonym = self._swap.value, self._swap.pseudonym
        if kind in ("string", "bytes"):
            data = self._decoder.read(self._natural())
            swapped = named and kind == "string" and isinstance(value, str) and data == value.encode()
            self._encoder.write_bytes(str(pseudonym).encode() if swapped else data)
        elif kind in _WHOLE or kind == "enum":
            number = self._decoder.read_long()
            swapped = named and kind != "enum" and isinstance(value, int) and number == value
            self._encoder.write_long(int(pseudonym) if swapped else number)
        else:
            self._to.write(self._decoder.read(_SIZES[kind]))

    def _items(self) -> Iterable[None]:
        while count := self._decoder.read_long():
            if count < 0:
                self._decoder.read_long()  # bytes of the block
            self._encoder.write_long(abs(count))
            for _ in range(abs(count)):
                yield
        self._encoder.write_long(0)

    def _natural(self) -> int:
        number = self._decoder.read_long()
        if number < 0:
            message = "no length or branch is below 0"
            raise ValueError(message)
        return number
