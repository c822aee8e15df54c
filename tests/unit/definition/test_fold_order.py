"""Newest rows by key in several orders: which keys depend on the order, and how that is said."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from rivertwice.definition.definition import Definition, parse_files
from rivertwice.definition.parts import same_value
from rivertwice.engine.folds import AS_READ, NUMBER, Hanging, find_hanging, select_newest

YAML = """
name: p
description: test
sources:
  events: {topic: t, partitions: 2, schema: {u: bigint, at: timestamp}, required: [u], event_time: at, max_future: 1 hour}
window: {fold: 1 day, at: at}
by: [u]
order: any
state: {n: bigint}
keys: [u, k]
deleted: gone
columns: {at: {}, n: {}, share: {compare: tolerance, tolerance: 0.5}, gone: {}}
types: {k: string, at: timestamp, n: bigint, share: double, gone: boolean}
"""
OTHER = "folded users, then orders"


def define() -> Definition:
    return parse_files(
        {"pipeline.yaml": YAML.encode(), "fold.py": b"def fold(state, event):\n    return None, []\n"}, "p"
    )


def rows(*found: tuple[int, str, int, int | None, bool]) -> pa.Table:
    """Rows (number, key, hour, n, gone) of the state 1, in any order."""
    plain: list[dict[str, Any]] = [
        {
            "u": 1,
            "k": key,
            "at": datetime(2024, 1, 1, hour, tzinfo=UTC),
            "n": n,
            "share": number / 4,
            "gone": gone,
            NUMBER: number,
        }
        for number, key, hour, n, gone in found
    ]
    schema = pa.schema([("u", pa.int64()), ("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int64()),
                        ("share", pa.float64()), ("gone", pa.bool_()), (NUMBER, pa.int64())])  # fmt: skip
    return pa.Table.from_pylist(plain, schema=schema)


def hanging(one: pa.Table, other: pa.Table) -> Hanging:
    return find_hanging(define(), {AS_READ: one, OTHER: other})


def test_the_newest_row_of_a_key_is_the_one_with_the_largest_number() -> None:
    table = rows((2, "a", 3, 2, False), (0, "a", 1, 0, False), (1, "b", 9, 1, True))
    assert select_newest(define(), table) == {'{"u": 1, "k": "a"}': 0, '{"u": 1, "k": "b"}': 2}
    assert select_newest(define(), rows()) == {}


def test_a_newest_row_of_another_event_with_the_same_values_is_the_same() -> None:
    found = hanging(rows((0, "a", 1, 5, False), (1, "a", 2, 7, False)), rows((0, "a", 9, 7, False)))
    assert found == Hanging({}, set())


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        ((0, "a", 1, 5, False), (0, "a", 1, 6, False), f"n is 5 {AS_READ}, 6 {OTHER}"),
        ((0, "a", 1, 5, False), (0, "a", 1, None, False), f"n is 5 {AS_READ}, null {OTHER}"),
        ((0, "a", 1, 5, False), (0, "a", 1, 5, True), f"it is there {AS_READ}, it is absent {OTHER}"),
        ((0, "a", 1, 5, False), (0, "b", 1, 5, False), f"it is there {AS_READ}, it is absent {OTHER}"),
        ((0, "a", 1, 5, True), (0, "a", 1, 6, True), None),
        ((0, "a", 1, 5, True), (0, "b", 1, 6, True), None),
        ((0, "a", 1, 5, False), (2, "a", 1, 5, False), None),
        ((0, "a", 1, 5, False), (3, "a", 1, 5, False), f"share is 0.0 {AS_READ}, 0.75 {OTHER}"),
    ],
)
def test_a_key_whose_newest_rows_differ_is_named_with_what_differs(one: Any, other: Any, told: str | None) -> None:
    assert hanging(rows(one), rows(other)).shown.get('{"u": 1, "k": "a"}') == told


def test_a_key_that_every_order_removes_is_no_finding() -> None:
    gone = '{"u": 1, "k": "a"}'
    assert hanging(rows((0, "a", 1, 5, True)), rows((1, "a", 9, 5, True))) == Hanging({}, set())
    assert hanging(rows((0, "a", 1, 5, True)), rows((0, "a", 1, 6, True))) == Hanging({}, {gone})
    assert hanging(rows((0, "a", 1, 5, True)), rows()) == Hanging({}, {gone})
    three = {
        AS_READ: rows((0, "a", 1, 5, True)),
        OTHER: rows(),
        "folded orders, then users": rows((0, "a", 1, 5, False)),
    }
    found = find_hanging(define(), three)
    assert set(found.shown) == {gone}
    assert found.gone == set()


def test_values_are_the_same_within_their_tolerance_only() -> None:
    assert same_value(float("nan"), float("nan"), None)
    assert same_value(1.0, 1.5, 0.5)
    assert not same_value(1.0, 1.6, 0.5)
    assert not same_value(None, 0, 5.0)
