"""In Avro records a value is replaced in the named fields and nowhere else; whatever is no such record is left to others."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from avro.io import BinaryDecoder, BinaryEncoder, DatumReader, DatumWriter
from hypothesis import given
from hypothesis import strategies as st

from rivertwice.definition.avro import parse_avro
from rivertwice.definition.schema_swap import AvroRecords, Swap
from rivertwice.upkeep.redact import Redactor

RECORD = parse_avro(
    json.dumps(
        {
            "type": "record",
            "name": "order",
            "fields": [
                {"name": "user", "type": ["null", "string"]},
                {"name": "friends", "type": {"type": "array", "items": "string"}},
                {"name": "user_id", "type": "long"},
                {"name": "score", "type": "double"},
                {"name": "paid", "type": "boolean"},
                {"name": "raw", "type": "bytes"},
                {"name": "tags", "type": {"type": "map", "values": "string"}},
                {"name": "size", "type": {"type": "enum", "name": "size", "symbols": ["S", "u42"]}},
                {"name": "mac", "type": {"type": "fixed", "name": "mac", "size": 2}},
                {
                    "name": "ship",
                    "type": {"type": "record", "name": "ship", "fields": [{"name": "user", "type": "string"}]},
                },
            ],
        }
    ),
    "the test",
)
SCHEMA = RECORD.record
FRAMED = AvroRecords({7: RECORD})
PLAIN = AvroRecords({None: RECORD})
NAMES = frozenset({"user", "friends"})
TEXT = Swap("u42", "erased-1", NAMES)
WORDS = st.sampled_from(["u42", "u421", "", "x" * 40])
RECORDS = st.fixed_dictionaries(
    {
        "user": st.none() | WORDS,
        "friends": st.lists(WORDS),
        "user_id": st.integers(-(2**63), 2**63 - 1) | st.just(42),
        "score": st.floats(allow_nan=False),
        "paid": st.booleans(),
        "raw": st.binary(),
        "tags": st.dictionaries(st.sampled_from(["user", "a"]), WORDS),
        "size": st.sampled_from(["S", "u42"]),
        "mac": st.binary(min_size=2, max_size=2),
        "ship": st.fixed_dictionaries({"user": WORDS}),
    }
)


def encoded(record: Any) -> bytes:
    buffer = io.BytesIO()
    DatumWriter(SCHEMA).write(record, BinaryEncoder(buffer))
    return buffer.getvalue()


def decoded(data: bytes) -> Any:
    return DatumReader(SCHEMA).read(BinaryDecoder(io.BytesIO(data)))


def swapped(value: Any) -> Any:
    return "erased-1" if value == "u42" else value


@given(RECORDS)
def test_the_named_fields_alone_are_written_anew(record: dict[str, Any]) -> None:
    wanted = {
        **record,
        "user": swapped(record["user"]),
        "friends": [swapped(one) for one in record["friends"]],
        "tags": {name: swapped(item) if name == "user" else item for name, item in record["tags"].items()},
        "ship": {"user": swapped(record["ship"]["user"])},
    }
    found = PLAIN.replaced(encoded(record), TEXT)
    assert found is not None
    assert (decoded(found), found) == (wanted, encoded(wanted))
    assert FRAMED.replaced(b"\0\0\0\0\7" + encoded(record), TEXT) == b"\0\0\0\0\7" + found
    back = Swap("erased-1", "u42", NAMES)
    assert PLAIN.replaced(found, back) == encoded(record)


@given(RECORDS)
def test_a_number_is_replaced_by_its_field_whatever_else_has_its_bytes(record: dict[str, Any]) -> None:
    found = PLAIN.replaced(encoded(record), Swap(42, 7_000_000_001, {"user_id"}))
    wanted = {**record, "user_id": 7_000_000_001 if record["user_id"] == 42 else record["user_id"]}
    assert found == encoded(wanted)


@given(st.binary(), st.booleans())
def test_other_bytes_are_no_record_of_it_or_hold_nothing(data: bytes, framed: bool) -> None:
    records = FRAMED if framed else PLAIN
    found = records.replaced(data, Swap("u42u42u42", "erased-1", NAMES))
    assert found is None or decoded(found[5 if framed else 0 :]) == decoded(data[5 if framed else 0 :])


@pytest.mark.parametrize("cut", [0, 1, 4, 5, 20])
def test_what_is_cut_short_goes_on_or_has_another_id_is_no_such_record(cut: int) -> None:
    body = encoded(
        {
            "user": "u42",
            "friends": ["u42"],
            "user_id": 1,
            "score": 1.0,
            "paid": True,
            "raw": b"r",
            "tags": {},
            "size": "S",
            "mac": b"ab",
            "ship": {"user": "x"},
        }
    )
    whole = b"\0\0\0\0\7" + body
    assert FRAMED.replaced(whole, TEXT) is not None
    assert FRAMED.replaced(whole[:cut], TEXT) is None
    assert FRAMED.replaced(whole + b"x", TEXT) is None
    assert FRAMED.replaced(b"\0\0\0\0\x08" + body, TEXT) is None


def test_blocks_with_byte_counts_are_read_and_written_without() -> None:
    arrays = parse_avro(
        '{"type": "record", "name": "r", "fields": [{"name": "user", "type": {"type": "array", "items": "string"}}]}',
        "the test",
    )
    block = b"\x03\x0a" + b"\x06u42" + b"\x00" + b"\x00"  # two items in five bytes, the end
    assert AvroRecords({None: arrays}).replaced(block, TEXT) == b"\x04" + b"\x10erased-1" + b"\x00" + b"\x00"


def test_a_redactor_takes_avro_first_and_leaves_json_and_texts_as_ever() -> None:
    redactor = Redactor("u42", "erased-1", NAMES, (FRAMED,))
    assert redactor.record(b'{"user": "u42", "other": "u42"}') == b'{"user": "erased-1", "other": "u42"}'
    assert redactor.record_key(b"\0\0\0\0\1\x06u42") == b"\0\0\0\0\1\x10erased-1"
    assert redactor.record_key(b"u42") == b"erased-1"
    assert redactor.record_key(b"u421") == b"u421"
    broken = b"\0\0\0\0\7\x02\x42u42"
    assert redactor.record(broken) == b"\0\0\0\0\7\x02\x42erased-1"
    number = Redactor(42, 43, frozenset({"user_id"}), (FRAMED,))
    assert number.record_key(b"\0\0\0\0\1\x54") == b"\0\0\0\0\1\x56"
