"""A value is replaced in the named fields and nowhere else, whatever the record looks like; all other bytes stay."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivertwice.privacy.redact import Redactor, columns_with

TEXT = Redactor("u42", "erased-1", frozenset({"user"}))
NUMBER = Redactor(42, 7_000_000_001, frozenset({"user"}))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"user": "u42", "amount": 1.50}', b'{"user": "erased-1", "amount": 1.50}'),
        (b'{"user":"u42","friend":"u42"}', b'{"user":"erased-1","friend":"u42"}'),
        (b'{"user": "u421"}', b'{"user": "u421"}'),
        (b'{"after": {"user" : "u42"}, "before": null}', b'{"after": {"user" : "erased-1"}, "before": null}'),
        (b'{"user": ["u42", "u1"], "n": ["u42"]}', b'{"user": ["erased-1", "u1"], "n": ["u42"]}'),
        (b'{"user": "\\u00752"}', b'{"user": "\\u00752"}'),
        (b'{"amount": 1.0, "user": "\\u007542"}', b'{"amount": 1.0, "user": "erased-1"}'),
        (b'{"user": "u42", "amou', b'{"user": "erased-1", "amou'),
        (b"no json of u42, nor of u421", b"no json of erased-1, nor of u421"),
        (b"", b""),
    ],
)
def test_records_of_a_text(before: bytes, after: bytes) -> None:
    assert TEXT.text(before) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"user": 42, "n": 42}', b'{"user": 7000000001, "n": 42}'),
        (b'{"user": 421}', b'{"user": 421}'),
        (b'{"user": 42.5}', b'{"user": 42.5}'),
        (b'{"user": "42"}', b'{"user": "42"}'),
        (b'{"user": true}', b'{"user": true}'),
        (b'{"user": 42', b'{"user": 7000000001'),
    ],
)
def test_records_of_a_number(before: bytes, after: bytes) -> None:
    assert NUMBER.text(before) == after


@given(
    st.dictionaries(st.sampled_from(["user", "a", "b"]), st.one_of(st.text(), st.integers(), st.just("u42"))),
    st.booleans(),
)
def test_any_object_has_the_value_in_no_named_field_afterwards(record: dict[str, object], ascii_only: bool) -> None:
    found = json.loads(TEXT.text(json.dumps(record, ensure_ascii=ascii_only).encode()))
    wanted = {name: "erased-1" if (name, item) == ("user", "u42") else item for name, item in record.items()}
    assert found == wanted


@given(st.binary())
def test_bytes_without_the_value_stay_as_they_are(data: bytes) -> None:
    if b"u42" not in data and b"\\u" not in data:
        assert TEXT.text(data) == data


def test_a_table_is_rewritten_in_columns_keys_headers_and_json_texts() -> None:
    rows = pa.table(
        {
            "user": ["u42", "u1", None],
            "other": ["u42", "x", "y"],
            "verdict_key": ['{"user": "u42"}', '{"user": "u1"}', "{}"],
            "key": pa.array([b"u42", b'"u42"', b"u421"]),
            "value": pa.array([b"{}", b'{"user":"u42"}', None]),
            "headers": pa.array(
                [None, None, [{"key": "who", "value": b"u42"}]],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    found, changed = TEXT.table(rows)
    assert changed == [0, 1, 2]
    assert found.schema == rows.schema
    assert found.to_pylist() == [
        {
            "user": "erased-1",
            "other": "u42",
            "verdict_key": '{"user": "erased-1"}',
            "key": b"erased-1",
            "value": b"{}",
            "headers": None,
        },
        {
            "user": "u1",
            "other": "x",
            "verdict_key": '{"user": "u1"}',
            "key": b'"erased-1"',
            "value": b'{"user":"erased-1"}',
            "headers": None,
        },
        {
            "user": None,
            "other": "y",
            "verdict_key": "{}",
            "key": b"u421",
            "value": None,
            "headers": [{"key": "who", "value": b"erased-1"}],
        },
    ]
    assert TEXT.table(found)[1] == []
    assert columns_with(rows, "u42", TEXT.names) == {"other": 1}


def test_numbers_are_rewritten_in_their_columns_only() -> None:
    rows = pa.table({"user": pa.array([42, 1], pa.int64()), "n": pa.array([42, 42], pa.int64())})
    found, changed = NUMBER.table(rows)
    assert (found.to_pylist(), changed) == ([{"user": 7_000_000_001, "n": 42}, {"user": 1, "n": 42}], [0])
