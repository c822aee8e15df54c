"""Which record of a batch a transform throws on: found by halves, named by address, with the way on."""

from __future__ import annotations

import random

import pytest

from histories.kinds import make_definition
from rivertwice.log.addresses import Part, Parts
from rivertwice.stream.failures import ANEW, CARRY_ON, VERSION, classify_failure
from rivertwice.stream.throwing import choose_way, describe_throw, find_last, first_records

PARTS: Parts = {Part("a", 0): (10, 14), Part("a", 1): (7, 7), Part("b", 0): (0, 3)}
ADDRESSES = [(part, offset) for part, (start, end) in PARTS.items() for offset in range(start, end)]


def addresses(parts: Parts) -> list[tuple[Part, int]]:
    return [(part, offset) for part, (start, end) in parts.items() for offset in range(start, end)]


@pytest.mark.parametrize("count", range(9))
def test_first_records_are_taken_part_by_part(count: int) -> None:
    assert addresses(first_records(PARTS, count)) == ADDRESSES[:count]


@pytest.mark.parametrize("place", range(len(ADDRESSES)))
def test_the_one_record_that_throws_is_found_wherever_it_lies(place: int) -> None:
    assert find_last(PARTS, lambda some: ADDRESSES[place] in addresses(some)) == ADDRESSES[place]


def test_the_last_of_records_that_throw_together_is_found_by_halves() -> None:
    parts: Parts = {Part("a", 0): (100, 100_100)}
    pair = sorted(random.Random(4).sample(range(100, 100_100), 2))
    runs = 0

    def throws(some: Parts) -> bool:
        nonlocal runs
        runs += 1
        ((start, end),) = some.values()
        return all(start <= one < end for one in pair)

    assert find_last(parts, throws) == (Part("a", 0), pair[1])
    assert runs <= 18


def test_where_the_state_is_to_blame_no_record_is_named_and_the_ranges_are() -> None:
    assert find_last(PARTS, lambda _: False) is None
    message = describe_throw("p", 3, PARTS, None, "[DIVIDE_BY_ZERO] Division by zero.", VERSION)
    assert "on the records a/0@10..13, b/0@0..2 together with the state of earlier ones" in message


def test_the_message_names_record_condition_consequence_and_remedy() -> None:
    message = describe_throw(
        "p", 3, PARTS, (Part("b", 0), 2), "[CAST_INVALID_INPUT] The value 'x' is not a number.", CARRY_ON
    )
    for word in (
        "the record b/0@2",
        "CAST_INVALID_INPUT",
        "Batch 3 was not committed",
        "`rivertwice upgrade p --yes`",
    ):
        assert word in message


@pytest.mark.parametrize(
    ("kind", "has_state", "alone", "way"),
    [
        ("tumbling", False, True, ANEW),
        ("session", False, False, ANEW),
        ("tumbling", True, True, CARRY_ON),
        ("tumbling", True, False, VERSION),
        ("session", True, True, VERSION),
        ("joined intervals", True, True, VERSION),
    ],
)
def test_the_way_on_is_one_that_the_state_and_the_kind_allow(kind: str, has_state: bool, alone: bool, way: str) -> None:
    assert choose_way(make_definition(kind), has_state=has_state, alone=alone) == way


@pytest.mark.parametrize("state", ["22003", "22012", "22018", "P0001"])
def test_a_value_that_makes_sql_throw_is_poison(state: str) -> None:
    assert classify_failure(RuntimeError(f"[ANYTHING] of Spark. SQLSTATE: {state}")) == "poison"


def test_what_no_value_did_is_not_poison() -> None:
    assert classify_failure(RuntimeError("[UNRESOLVED_COLUMN] of Spark. SQLSTATE: 42703")) == "unknown"
