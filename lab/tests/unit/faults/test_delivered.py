"""The judgement of a sink: each kind of fault of a deliverer is counted as what it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from lab.oracle.delivered import Holding, Place, Sent, Values, judge_records, judge_rows

STARTS = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:10Z")
FIRST_MS = 1_767_225_600_000
SERVED: dict[Place, Values] = {
    (FIRST_MS, FIRST_MS + 10_000, "a"): (2, 30, 20),
    (FIRST_MS, FIRST_MS + 10_000, "b"): (1, 7, 7),
}


def record(
    key: str,
    values: Values | None,
    *,
    op: str = "emit",
    batch: int = 1,
    replaces: Values | None = None,
    partition: int = 0,
    change: Mapping[str, Any] | None = None,
) -> Sent:
    place = {"pipeline": "lab_sums", "window": list(STARTS), "keys": {"k": key}}
    body = {
        **place,
        "op": op,
        "values": _named(values),
        "from": {"timeline": "t1", "batch": batch},
        "replaces": None if replaces is None else {"timeline": "t1", "batch": 0, "values": _named(replaces)},
        **(change or {}),
    }
    return Sent(partition, json.dumps(place).encode(), json.dumps(body).encode())


def _named(values: Values | None) -> dict[str, Any] | None:
    return None if values is None else dict(zip(("n", "total", "top"), values, strict=True))


A, B = record("a", (2, 30, 20)), record("b", (1, 7, 7))


def counts(holding: Holding) -> tuple[int, int, int, int]:
    return holding.lost, holding.duplicated, holding.wrong, holding.unexplained


@pytest.mark.parametrize(
    ("records", "wanted"),
    [
        ([A, B], (0, 0, 0, 0)),
        ([A], (1, 0, 0, 0)),
        ([], (2, 0, 0, 0)),
        ([A, B, A], (0, 1, 0, 0)),
        ([A, record("b", (1, 8, 8))], (0, 0, 1, 0)),
        ([A, B, record("c", (1, 1, 1))], (0, 0, 0, 1)),
        ([record("a", (1, 1, 1)), record("a", (2, 30, 20), op="correct", replaces=(1, 1, 1)), B], (0, 0, 0, 0)),
        ([record("a", (1, 1, 1)), record("a", (2, 30, 20), op="correct", replaces=(9, 9, 9)), B], (0, 0, 1, 0)),
        ([record("a", (2, 30, 20), op="correct", replaces=(1, 1, 1)), B], (0, 0, 1, 0)),
        ([A, B, record("c", (1, 1, 1)), record("c", None, op="withdraw", replaces=(1, 1, 1))], (0, 0, 0, 0)),
        ([A, B, record("b", None, op="withdraw", replaces=(1, 7, 7))], (1, 0, 0, 0)),
        ([record("a", (1, 1, 1), partition=1), record("a", (2, 30, 20), op="correct", replaces=(1, 1, 1)), B],
         (0, 0, 1, 0)),
        ([Sent(0, B.key, A.value), B], (0, 0, 1, 0)),
    ],
)  # fmt: skip
def test_records_of_a_topic_are_folded_and_compared(records: list[Sent], wanted: tuple[int, int, int, int]) -> None:
    holding = judge_records(records, SERVED)
    assert counts(holding) == wanted, holding
    assert holding.is_sound == (wanted[1:] == (0, 0, 0))
    assert (holding.served, holding.received) == (2, len(records))
    assert bool(holding.findings) == any(wanted)


ROWS = [(*place, *values) for place, values in SERVED.items()]
INSERTED = [("INSERT", "a"), ("INSERT", "b")]


@pytest.mark.parametrize(
    ("rows", "changes", "wanted"),
    [
        (ROWS, INSERTED, (0, 0, 0, 0)),
        (ROWS[:1], INSERTED[:1], (1, 0, 0, 0)),
        ([*ROWS, ROWS[0]], INSERTED, (0, 1, 0, 0)),
        (ROWS, [*INSERTED, ("UPDATE", "a")], (0, 1, 0, 0)),
        (ROWS, [*INSERTED, ("DELETE", "a"), ("INSERT", "a")], (0, 2, 0, 0)),
        ([ROWS[0], (*ROWS[1][:3], 1, 8, 8)], INSERTED, (0, 0, 1, 0)),
        ([*ROWS, (0, 10_000, "a", 1, 1, 1)], INSERTED, (0, 0, 0, 1)),
    ],
)
def test_rows_of_a_table_and_their_changes_are_compared(
    rows: list[tuple[int, int, str, int, int, int]],
    changes: list[tuple[str, str]],
    wanted: tuple[int, int, int, int],
) -> None:
    assert counts(judge_rows(rows, changes, SERVED)) == wanted
