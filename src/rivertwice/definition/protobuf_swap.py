"""Replace one value of some fields in the bytes of Protobuf records. Pure.

A record is read field by field on the wire and copied. Only the value of a named field, and the lengths around it, are written new. All
other bytes stay the same: the order of fields, and fields that the pinned message does not know.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from rivertwice.definition.avro import PREFIX, PREFIX_BYTES
from rivertwice.definition.protobuf import ProtoSchema
from rivertwice.definition.protobuf_read import after_indexes, varint
from rivertwice.definition.schema_swap import Swap

_VARINT, _FIXED64, _LEN, _GROUP, _GROUP_END, _FIXED32 = range(6)
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_PLAIN = {
    FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64,
}  # fmt: skip
_ZIGZAG = {FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64}
_FIXED = {
    FieldDescriptor.TYPE_FIXED32: 4, FieldDescriptor.TYPE_SFIXED32: 4, FieldDescriptor.TYPE_FIXED64: 8, FieldDescriptor.TYPE_SFIXED64: 8,
}  # fmt: skip
_WRAPPED = "google.protobuf."


@dataclass(frozen=True)
class ProtoRecords:
    """How the records of a source are written."""

    schema: ProtoSchema
    framed: bool

    def replaced(self, data: bytes, swap: Swap) -> bytes | None:
        """Return a record's bytes with the value replaced; None if the bytes are not such a record."""
        start = 0
        if self.framed:
            if data[:1] != PREFIX or len(data) < PREFIX_BYTES:
                return None
            indexes_end = after_indexes(data[PREFIX_BYTES:], self.schema.index_path)
            if indexes_end is None:
                return None
            start = PREFIX_BYTES + indexes_end
        try:
            return data[:start] + _Walk(data[start:], swap).message(self.schema.descriptor, named=False)
        except (ValueError, IndexError):
            return None

    def replaced_key(self, key: bytes, swap: Swap) -> bytes | None:
        """Return None: a record's key is not a message here."""
        del key, swap
        return None


class _Walk:
    """Copies one field after another from the old bytes to the new."""

    def __init__(self, data: bytes, swap: Swap) -> None:
        self._data, self._swap, self._at = data, swap, 0

    def message(self, kind: Descriptor | None, *, named: bool, group: int | None = None) -> bytes:
        """Return the new bytes of a message, to the end of the bytes or of its group.

        `named`: the message wraps the value of a named field, or is an entry of a named map field.

        Raises:
            ValueError, IndexError: the bytes are not a message.
        """
        out = bytearray()
        while self._at < len(self._data):
            begun = self._at
            tag = self._varint()
            number, wire = tag >> 3, tag & 7
            out += self._data[begun : self._at]
            if wire == _GROUP_END:
                if number != group:
                    message = f"the end of a group {number} that did not begin"
                    raise ValueError(message)
                return bytes(out)
            field = None if kind is None else kind.fields_by_number.get(number)
            is_named = field is not None and (named or field.name in self._swap.names)
            out += self._field(field, wire, number, named=is_named)
        if group is not None:
            message = f"a group {group} without its end"
            raise ValueError(message)
        return bytes(out)

    def _field(self, field: FieldDescriptor | None, wire: int, number: int, *, named: bool) -> bytes:
        begun = self._at
        if wire == _VARINT:
            value = self._varint()
            new = self._number(field, value) if named and field is not None else None
            return self._data[begun : self._at] if new is None else varint(new)
        if wire in _SIZES:
            data = self._take(_SIZES[wire])
            return self._fixed(field, data) if named and field is not None else data
        if wire == _LEN:
            data = self._take(self._varint())
            new_data = self._sized(field, data, named=named)
            return self._data[begun : self._at] if new_data == data else varint(len(new_data)) + new_data
        if wire == _GROUP:
            return self.message(None if field is None else field.message_type, named=False, group=number)
        message = f"wire type {wire}"
        raise ValueError(message)

    def _sized(self, field: FieldDescriptor | None, data: bytes, *, named: bool) -> bytes:
        if field is None:
            return data
        if field.message_type is not None:
            inner = field.message_type
            passed = named and (inner.full_name.startswith(_WRAPPED) or inner.GetOptions().map_entry)
            return _Walk(data, self._swap).message(inner, named=passed)
        if field.type == FieldDescriptor.TYPE_STRING:
            value = self._swap.value
            same = named and isinstance(value, str) and data == value.encode()
            return str(self._swap.pseudonym).encode() if same else data
        return self._packed(field, data) if named and field.is_repeated else data

    def _packed(self, field: FieldDescriptor, data: bytes) -> bytes:
        walk, out = _Walk(data, self._swap), bytearray()
        while walk._at < len(data):
            begun = walk._at
            if field.type in _FIXED:
                out += walk._fixed(field, walk._take(_FIXED[field.type]))
                continue
            new = walk._number(field, walk._varint())
            out += data[begun : walk._at] if new is None else varint(new)
        return bytes(out)

    def _number(self, field: FieldDescriptor, raw: int) -> int | None:
        """Return the wire value of the pseudonym, if `raw` is the value; else None."""
        value, pseudonym = self._swap.value, self._swap.pseudonym
        if isinstance(value, str):
            return None
        if field.type in _ZIGZAG:
            return _zigzag(int(pseudonym)) if raw == _zigzag(value) else None
        if field.type in _PLAIN:
            return int(pseudonym) % 2**64 if raw == value % 2**64 else None
        return None

    def _fixed(self, field: FieldDescriptor, data: bytes) -> bytes:
        value, pseudonym = self._swap.value, self._swap.pseudonym
        if isinstance(value, str) or _FIXED.get(field.type) != len(data):
            return data
        size = 8 * len(data)
        same = int.from_bytes(data, "little") == value % 2**size and -(2 ** (size - 1)) <= value < 2**size
        return (int(pseudonym) % 2**size).to_bytes(len(data), "little") if same else data

    def _take(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            message = f"{count} bytes are not there"
            raise ValueError(message)
        self._at += count
        return self._data[self._at - count : self._at]

    def _varint(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        message = "a varint of more than ten bytes"
        raise ValueError(message)


def _zigzag(number: int) -> int:
    return number * 2 if number >= 0 else -number * 2 - 1
