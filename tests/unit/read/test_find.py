"""The key as a person writes it, and the windows nearest to an instant."""

from __future__ import annotations

from typing import Any

import pytest

from homes.project import FLIGHTS
from rivertwice.core.errors import RequestError
from rivertwice.core.instants import iso_of_ms, parse_iso
from rivertwice.definition.definition import load_definition
from rivertwice.read.explain_find import describe_nearest, parse_key, refuse_key

HOUR_MS = 3_600_000
BEGIN_MS = 1_767_225_600_000


@pytest.mark.parametrize(
    ("text", "names", "key"),
    [
        ('{"origin": "JFK"}', ["origin"], {"origin": "JFK"}),
        ("JFK", ["origin"], {"origin": "JFK"}),
        ("42", ["account"], {"account": 42}),
        ('"42"', ["account"], {"account": "42"}),
        ("null", ["origin"], {"origin": "null"}),
        ('{"origin": null}', ["origin"], {"origin": None}),
        ('{"a": 1, "b": "x"}', ["a", "b"], {"a": 1, "b": "x"}),
        (None, [], {}),
    ],
)
def test_a_key_is_json_or_the_value_of_the_only_column(text: str | None, names: list[str], key: dict[str, Any]) -> None:
    assert parse_key(text, names) == key


@pytest.mark.parametrize(
    ("text", "names", "why"),
    [
        (None, ["origin"], "the key is missing"),
        ("JFK", ["a", "b"], "there are 2 key columns"),
        ("JFK", [], "there are 0 key columns"),
        ('{"orgin": "JFK"}', ["origin"], "the key columns are origin"),
        ("{}", ["origin"], "names nothing"),
    ],
)
def test_another_key_is_refused_with_the_form_it_has(text: str | None, names: list[str], why: str) -> None:
    with pytest.raises(RequestError, match=why):
        parse_key(text, names)


def test_the_nearest_windows_are_two_before_and_two_after() -> None:
    definition = load_definition(FLIGHTS)
    known = [BEGIN_MS + number * HOUR_MS for number in range(8)]
    text = describe_nearest(known, known[4] + 60_000, definition)
    assert text.startswith(f"the nearest start at {', '.join(iso_of_ms(ms) for ms in known[3:7])}")
    assert f"it lies in the one that starts at {iso_of_ms(known[4])}" in text
    assert "it lies in" not in describe_nearest(known, known[7] + HOUR_MS, definition)
    assert "no window has a row yet" in describe_nearest([], BEGIN_MS, definition)


def test_an_unknown_key_is_answered_with_those_most_like_it() -> None:
    known = [f'{{"origin": "{name}"}}' for name in ("JFK", "LGA", "EWR")]
    message = str(refuse_key("flights", parse_iso("2026-01-01T00:00:00Z"), {"origin": "JFKK"}, known))
    assert 'keys there: {"origin": "JFK"}' in message
    assert "(of 3)" in message or "LGA" in message
