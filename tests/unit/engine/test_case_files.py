from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from homes.project import FLIGHTS
from rivertwice.core.errors import DefinitionError
from rivertwice.core.instants import parse_iso
from rivertwice.definition.definition import load_definition
from rivertwice.definition.parts import OutputColumn, same_value
from rivertwice.engine.case_files import load_cases
from rivertwice.engine.cases import diff_batches, diff_names, diff_rows, newest_rows

AT = "2013-06-30T16:00:00Z"
ROW = {"window_start": parse_iso(AT), "origin": "EWR", "flights": 3, "delay_mean": Decimal("8.6667"), "delay_max": None}


def diff(expected: list[dict[str, object]], found: list[dict[str, object]]) -> list[str]:
    return diff_rows(load_definition(FLIGHTS), "stream", expected, found)


def test_rows_that_agree_in_the_named_columns_have_no_difference() -> None:
    expected = {"window_start": AT, "origin": "EWR", "flights": 3, "delay_mean": 8.6667, "delay_max": None}
    assert diff([expected], [ROW]) == []


def test_a_difference_names_window_key_column_and_both_values() -> None:
    expected = {"window_start": AT, "origin": "EWR", "flights": 4}
    assert diff([expected], [ROW]) == [f"stream: window_start {AT}, origin EWR: flights is 3, expected 4"]


def test_null_equals_only_null() -> None:
    assert len(diff([{"window_start": AT, "origin": "EWR", "delay_max": 0}], [ROW])) == 1
    assert len(diff([{"window_start": AT, "origin": "EWR", "flights": None}], [ROW])) == 1


@given(st.floats(), st.floats(), st.none() | st.floats(0, allow_infinity=False))
@example(float("nan"), float("nan"), None)
@example(float("inf"), float("inf"), 0.5)
@example(0.8, 0.7, 0.1)
def test_a_case_compares_the_values_of_a_column_as_a_reconcile_does(
    expected: float, actual: float, tolerance: float | None
) -> None:
    compare = OutputColumn(compare="exact" if tolerance is None else "tolerance", tolerance=tolerance)
    definition = load_definition(FLIGHTS).model_copy(update={"columns": {"delay": compare}})
    key = {"window_start": AT, "origin": "EWR"}
    lines = diff_rows(definition, "stream", [{**key, "delay": expected}], [{**key, "delay": actual}])
    assert (lines == []) == same_value(expected, actual, tolerance)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (True, 1),
        (1, True),
        ("3", 3),
        (8.6668, Decimal("8.6667")),
        (3, parse_iso(AT)),
        ("2013-06-30T17:00:00Z", parse_iso(AT)),
        ("a", "b"),
    ],
)
def test_a_value_of_another_type_or_text_is_a_difference(expected: object, actual: object) -> None:
    key = {"window_start": AT, "origin": "EWR"}
    assert len(diff([{**key, "flights": expected}], [{**key, "flights": actual}])) == 1


def test_missing_and_unexpected_rows_are_told_apart() -> None:
    lines = diff([{"window_start": AT, "origin": "JFK", "flights": 1}], [ROW])
    assert "origin EWR: the row was not expected" in lines[0]
    assert "origin JFK: the row is missing; expected flights=1" in lines[1]


def test_a_row_that_comes_twice_is_a_difference() -> None:
    expected = {"window_start": AT, "origin": "EWR", "flights": 3}
    label = f"stream: window_start {AT}, origin EWR"
    assert diff([expected], [ROW, ROW]) == [
        f"{label}: the row was not expected; it is flights=3, delay_mean=8.6667, delay_max=None; "
        "such a row came 2 times, expected once"
    ]
    assert diff([expected, expected], [ROW]) == [
        f"{label}: the row is missing; expected flights=3; such a row came once, expected 2 times"
    ]
    assert diff([expected, expected], [ROW, ROW]) == []


def test_rows_of_one_window_and_key_are_paired_by_their_values() -> None:
    four = {**ROW, "flights": 4}
    expected = [{"window_start": AT, "origin": "EWR", "flights": count} for count in (4, 3)]
    assert diff(expected, [ROW, four]) == []
    assert diff(expected, [ROW, ROW]) == [f"stream: window_start {AT}, origin EWR: flights is 3, expected 4"]


def test_the_last_batch_of_a_window_counts_and_a_double_row_in_it_shows() -> None:
    definition = load_definition(FLIGHTS)
    updates = definition.model_copy(update={"emit": "updates"})
    four = {**ROW, "flights": 4}
    assert newest_rows(definition, [[ROW], [four]]) == [ROW, four]
    assert newest_rows(updates, [[ROW], [four]]) == [four]
    assert newest_rows(updates, [[ROW], [four, four]]) == [four, four]


def test_what_each_micro_batch_emits_is_compared_batch_by_batch() -> None:
    updates = load_definition(FLIGHTS).model_copy(update={"emit": "updates"})
    four = {**ROW, "flights": 4}
    before, again = ([{"window_start": AT, "origin": "EWR", "flights": count}] for count in (3, 4))
    assert diff_batches(updates, [before, [], again], [[ROW], [], [four], []]) == []
    assert diff_batches(updates, [[], again], [[ROW], [four]]) == [
        f"emitted by micro-batch 0: window_start {AT}, origin EWR: the row was not expected; it is "
        + ", ".join(f"{name}={value}" for name, value in ROW.items() if name not in ("window_start", "origin"))
    ]
    assert diff_batches(updates, [before, again], [[ROW]]) == [
        f"emitted by micro-batch 1: window_start {AT}, origin EWR: the row is missing; expected flights=4"
    ]


def test_an_expected_row_needs_its_keys() -> None:
    with pytest.raises(DefinitionError, match="has no 'origin'"):
        diff([{"window_start": AT}], [])


def test_names_on_one_side_only_are_differences() -> None:
    assert diff_names("dead", {"a": "json"}, {"b": "utf8"}) == [
        "dead: event 'a' is not dead, expected json",
        "dead: event 'b' is utf8, expected not dead",
    ]


def test_the_flight_pipeline_has_cases() -> None:
    assert len(load_cases(FLIGHTS)) >= 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("description: x\nbatches: []\nexpect: {batch: [], stream: []}", "batches"),
        ("description: x\nbatches: [[{id: a, at: soon, raw: x}]]\nexpect: {batch: [], stream: []}", "batches.0.0.at"),
        (
            "description: x\nbatches: [[{id: a, at: '2013-01-01T00:00:00Z'}]]\nexpect: {batch: [], stream: []}",
            "exactly one of",
        ),
        (
            "description: x\nbatches: [[{id: a, at: '2013-01-01T00:00:00Z', raw: x}]]\n"
            "expect: {batch: [], stream: [], late: [b]}",
            "'b', which is the id of no event",
        ),
        (
            "description: x\nbatches: [[{id: a, at: '2013-01-01T00:00:00Z', raw: x}]]\n"
            "expect: {batch: [], stream: [], dead: {a: odd}}",
            "not a valid reason of a dead letter",
        ),
        ("[1]", "is not a case in YAML"),
    ],
)
def test_a_wrong_case_is_refused_with_file_and_field(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases" / "wrong.yaml").write_text(text)
    with pytest.raises(DefinitionError, match="wrong") as caught:
        load_cases(tmp_path)
    assert words in str(caught.value)
