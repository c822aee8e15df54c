"""A value is replaced in the named fields and nowhere else, whatever the record looks like; all other bytes stay."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rivertwice.upkeep.redact import Redactor, columns_around, columns_with

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
        (b'{"user": "u4\\u0032', b'{"user": "erased-1'),
        (
            b'{"us\\u0065r": "\\u007542", "n": 1.50, "n": 12345678901234567.89}',
            b'{"us\\u0065r": "erased-1", "n": 1.50, "n": 12345678901234567.89}',
        ),
        (
            b'{"user": "\\u007542", "half": "\\ud800", "x" : [ 1e5,-0 ] }',
            b'{"user": "erased-1", "half": "\\ud800", "x" : [ 1e5,-0 ] }',
        ),
        (b'["u42", "u421", "x\\nu42"]', b'["erased-1", "u421", "x\\nerased-1"]'),
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
        (b'{"user": "42"}', b'{"user": "7000000001"}'),  # a dead letter, and the person
        (b'{"user": 42.0}', b'{"user": 42.0}'),
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


def spelt(draw: st.DrawFn, text: str) -> bytes:
    """Return a JSON string of a text, each sign in a spelling by chance."""
    pieces = []
    for sign in text:
        units = sign.encode("utf-16-be", "surrogatepass")
        escapes = "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
        short = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\n": "\\n", "\t": "\\t"}.get(sign)
        plain = None if sign in '"\\' or ord(sign) < 32 else sign
        ways = [escapes, escapes.upper().replace("\\U", "\\u"), *(way for way in (short, plain) if way is not None)]
        pieces.append(draw(st.sampled_from(ways)))
    return ('"' + "".join(pieces) + '"').encode()


PERSON = st.one_of(
    st.sampled_from(
        [
            "bob+x@a.de",
            "dept/eve",
            "Jörg",
            "it's",
            'q"uote',
            "back\\slash",
            "😀",
            "line\nfeed",
            "42",
            "1.5",
            "true",
            "1",
            "NaN",
            "-inf",
        ]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
)


@st.composite
def records_of_a_person(draw: st.DrawFn) -> tuple[str, bytes, bytes]:
    """Return a value, a record that has it in any spelling among other fields, and what must be left of that record."""
    value = draw(PERSON)
    space = draw(st.sampled_from([b"", b" ", b"\n\t"]))
    others = draw(
        st.lists(
            st.sampled_from(
                [
                    b'"n":12345678901234567.89',
                    b'"n" : 1e5',
                    b'"half":"\\ud800"',
                    b'"user2":"x"',
                    b'"d":{"user":null}',
                    b'"n":[1,{}]',
                ]
            ),
            max_size=4,
        )
    )
    at = draw(st.integers(0, len(others)))
    written = spelt(draw, value)
    if value in ("42", "1.5", "true") and draw(st.booleans()):
        written = value.encode()  # a string field takes the text of a number
    name = spelt(draw, "user")

    def record(item: bytes) -> bytes:
        fields = [*others[:at], name + space + b":" + space + item, *others[at:]]
        return b"{" + space + (b"," + space).join(fields) + space + b"}"

    return value, record(written), record(b'"erased-1"')


@pytest.mark.proves("guarantees.md#erasure")
@given(records_of_a_person())
def test_every_spelling_of_a_value_is_replaced_and_all_other_bytes_stay(case: tuple[str, bytes, bytes]) -> None:
    value, before, after = case
    redactor = Redactor(value, "erased-1", frozenset({"user"}))
    assert redactor.text(before) == after
    rows = pa.table({"value": pa.array([before, b"{}"], pa.binary())})
    found, changed = redactor.table(rows)
    assert (found["value"].to_pylist(), changed) == ([after, b"{}"], [0])


@given(PERSON, st.data())
def test_a_key_of_a_record_in_any_spelling_is_replaced(value: str, data: st.DataObject) -> None:
    redactor = Redactor(value, "erased-1", frozenset({"user"}))
    assert redactor.record_key(data.draw(st.composite(spelt)(value))) == b'"erased-1"'
    assert redactor.record_key(value.encode()) == b"erased-1"


@given(PERSON, st.data())
def test_what_holds_a_value_elsewhere_is_named_by_its_place(value: str, data: st.DataObject) -> None:
    assume(not set(value) <= set('{}[]:,"'))  # JSON's own signs are in every record
    redactor = Redactor(value, "erased-1", frozenset({"user"}))
    text = data.draw(st.composite(spelt)(value))
    cells = [
        b'{"note": ' + text + b"}",
        b'{"a": {' + text + b": {}}}",
        json.dumps({"inner": json.dumps({"n": value})}).encode(),
        b"\x00\x02" + value.encode() + b"\x00",
        b"{}",
    ]
    rows = pa.table(
        {
            "value": pa.array(cells, pa.binary()),
            "headers": pa.array(
                [[{"key": "who", "value": b"by " + value.encode()}], None, [], None, [{"key": value, "value": None}]],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    assert columns_around(rows, redactor) == {
        "value.note": 1,
        "value (name of a field)": 1,
        "value.inner": 1,
        "value": 1,
        "headers.key": 1,
        "headers.value": 1,
    }


def test_texts_for_people_lose_the_value_and_stay_what_programs_read() -> None:
    redactor = Redactor("late", "erased-1", frozenset({"user"}))
    rows = pa.table(
        {
            "gate": ['[{"kind": "late", "message": "the key {\\"user\\": \\"l\\u0061te\\"} is late, later"}]', None],
            "detail": ["rows of 'late' (batch 3)", "later"],
            "user2": ["late", "late"],
        }
    )
    found, changed = redactor.table(rows, prose=("gate", "detail"))
    assert changed == [0]
    assert found.to_pylist()[0] == {
        "gate": '[{"kind": "late", "message": "the key {\\"user\\": \\"erased-1\\"} is erased-1, later"}]',
        "detail": "rows of 'erased-1' (batch 3)",
        "user2": "late",
    }
