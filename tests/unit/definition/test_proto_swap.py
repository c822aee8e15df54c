"""In Protobuf records a value is replaced in the named fields and nowhere else; all other bytes stay as they were."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pb2, json_format, wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st

from rivertwice.definition.avro import prefixed
from rivertwice.definition.protobuf import compiled_proto
from rivertwice.definition.protobuf_read import indexes_of
from rivertwice.definition.protobuf_swap import ProtoRecords
from rivertwice.definition.schema_swap import Swap
from rivertwice.upkeep.redact import Redactor

KINDS = ("int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64")
NAMES = frozenset({"user", "friends", "wrapped", "tags", "ids", *(f"n_{kind}" for kind in KINDS)})


def made() -> ProtoRecords:
    """`message ship {string user}`, and an order with a field of each type, lists, a map and a message of the same names."""
    file = descriptor_pb2.FileDescriptorProto(name="o.proto", package="shop", syntax="proto3")
    ship = file.message_type.add(name="ship")
    ship.field.add(name="user", number=1, type="TYPE_STRING", label="LABEL_OPTIONAL")
    order = file.message_type.add(name="order")
    entry = order.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), 1):
        entry.field.add(name=name, number=number, type="TYPE_STRING", label="LABEL_OPTIONAL")
    fields = [
        ("user", "TYPE_STRING", ""), ("other", "TYPE_STRING", ""), ("friends", "TYPE_STRING", "s"), ("ids", "TYPE_SINT64", "s"),
        ("ship", ".shop.ship", ""), ("wrapped", ".google.protobuf.StringValue", ""), ("tags", ".shop.order.TagsEntry", "s"),
        *((f"n_{kind}", f"TYPE_{kind.upper()}", "") for kind in KINDS), ("score", "TYPE_DOUBLE", ""), ("raw", "TYPE_BYTES", ""),
    ]  # fmt: skip
    for number, (name, kind, many) in enumerate(fields, 1):
        field = order.field.add(name=name, number=number, label="LABEL_REPEATED" if many else "LABEL_OPTIONAL")
        if kind.startswith("."):
            field.type_name, field.type = kind, descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
        else:
            field.type = descriptor_pb2.FieldDescriptorProto.Type.Value(kind)
    known = descriptor_pb2.FileDescriptorProto()
    wrappers_pb2.DESCRIPTOR.CopyToProto(known)
    file.dependency.append(known.name)
    files = descriptor_pb2.FileDescriptorSet(file=[known, file])
    return ProtoRecords(compiled_proto(files.SerializeToString(), "shop.order", "the test"), framed=False)


PLAIN = made()
FRAMED = ProtoRecords(PLAIN.schema, framed=True)
TEXT = Swap("u42", "erased-1", NAMES)
NUMBER = Swap(42, 990_001, NAMES)
WORDS = st.sampled_from(["u42", "u421", "", "x" * 200])
INTS = st.just(42) | st.integers(0, 2**31 - 1)
RECORDS = st.fixed_dictionaries(
    {
        "user": WORDS,
        "other": WORDS,
        "friends": st.lists(WORDS, max_size=4),
        "ids": st.lists(INTS | st.just(-42), max_size=4),
        "ship": st.fixed_dictionaries({"user": WORDS}),
        "wrapped": WORDS,
        "tags": st.dictionaries(st.sampled_from(["a", "b"]), WORDS),
        **{f"n_{kind}": INTS for kind in KINDS},
        "score": st.floats(allow_nan=False, allow_infinity=False, width=32),
    }
)
UNKNOWN = st.sampled_from([b"", b"\xc2\x3e\x03u42", b"\xc0\x3e\x2a", b"\xc3\x3e\x0a\x03u42\xc4\x3e"])
"""Fields that the message does not know: a text, a number, a group."""


def encoded(record: Any) -> bytes:
    return json_format.ParseDict(record, PLAIN.schema.reader()).SerializeToString(deterministic=True)


def deep(item: Any, swap: Swap, *, named: bool = False) -> Any:
    if isinstance(item, dict):
        return {key: deep(one, swap, named=named or key in swap.names) for key, one in item.items()}
    if isinstance(item, list):
        return [deep(one, swap, named=named) for one in item]
    return swap.pseudonym if named and type(item) is type(swap.value) and item == swap.value else item


@pytest.mark.parametrize("swap", [TEXT, NUMBER])
@given(RECORDS, UNKNOWN)
def test_the_named_fields_alone_are_written_anew(swap: Swap, record: dict[str, Any], unknown: bytes) -> None:
    data = encoded(record) + unknown
    new = PLAIN.replaced(data, swap)
    assert new == encoded(deep(record, swap)) + unknown
    assert PLAIN.replaced(new, swap) == new


@given(st.binary(max_size=40))
def test_what_is_no_message_and_unnamed_values_are_left_alone(data: bytes) -> None:
    found = PLAIN.replaced(data, Swap("no such value", "x", NAMES))
    assert found in (None, data)


@pytest.mark.parametrize(
    "data", [b"\x0a\x05ab", b"\xff" * 12, b"\x0b\x0a\x00", b"\x0c", b"\x0f", b"\x0d\x00", b'{"user": "u42"}']
)
def test_broken_bytes_are_no_message(data: bytes) -> None:
    assert PLAIN.replaced(data, TEXT) is None


def test_a_framed_record_is_one_only_behind_its_prefix_and_indexes() -> None:
    body = encoded({"user": "u42"})
    whole = prefixed(7, indexes_of(PLAIN.schema) + body)
    assert FRAMED.replaced(whole, TEXT) == prefixed(7, indexes_of(PLAIN.schema) + encoded({"user": "erased-1"}))
    for other in (body, prefixed(7, b"\x00" + body), whole[:5], b""):
        assert FRAMED.replaced(other, TEXT) is None
    assert FRAMED.replaced_key(whole, TEXT) is None


def test_a_redactor_takes_each_record_as_what_it_is() -> None:
    redactor = Redactor("u42", "erased-1", NAMES, (PLAIN,))
    assert redactor.record(encoded({"user": "u42", "other": "u42"})) == encoded({"user": "erased-1", "other": "u42"})
    assert redactor.record(b'{"user": "u42"}') == b'{"user": "erased-1"}'
    assert redactor.record(b"\x0a\x05u42") == b"\x0a\x05erased-1"  # cut off: the text goes wherever it stands
