"""Recorded dead letters are compared with those the log says must exist, by address and reason."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from rivertwice.log.addresses import Part
from rivertwice.reconcile.recorded import RecordedDeadLetter, check_dead_letters
from rivertwice.reconcile.view import HeadView

TOPIC = "flights"


class View:
    """The things of a head view that the check looks at."""

    index = {("t1", 5): 0, ("t2", 6): 1}  # noqa: RUF012 (a fixed table)

    class _Row:
        def __init__(self, batch: int) -> None:
            self.batch = batch

    rows = (_Row(5), _Row(6))

    def __init__(self, rows: list[tuple[str, int, int, int, str]]) -> None:
        names = ("_timeline", "_batch", "partition", "offset", "reason")
        plain = [{**dict(zip(names, row, strict=True)), "topic": TOPIC} for row in rows]
        self.dead = pa.Table.from_pylist(plain) if rows else None


RIGHT = [("t1", 5, 0, 10, "json"), ("t2", 6, 1, 20, "rule")]
P0, P1 = Part(TOPIC, 0), Part(TOPIC, 1)
DERIVED = [(0, P0, 10, "json"), (1, P1, 20, "rule")]


def check(rows: list[tuple[str, int, int, int, str]], derived: list[RecordedDeadLetter]) -> Any:
    return check_dead_letters(cast(HeadView, View(rows)), derived)


def test_rightful_dead_letters_raise_nothing_and_are_counted_by_partition() -> None:
    assert check(RIGHT, DERIVED) == ([], {P0: 1, P1: 1})


def test_rows_of_a_batch_that_was_never_committed_do_not_count() -> None:
    assert check([*RIGHT, ("t1", 99, 0, 11, "json"), ("t9", 5, 0, 11, "json")], DERIVED) == ([], {P0: 1, P1: 1})


@pytest.mark.proves("guarantees.md#dead-letters")
@pytest.mark.parametrize(
    ("rows", "batch", "message"),
    [
        (RIGHT[:1], 6, "is not in the dead letters"),
        ([*RIGHT, ("t1", 5, 3, 4, "utf8")], 5, "must not be"),
        ([*RIGHT, RIGHT[1]], 6, "recorded twice"),
        ([], 5, "is not in the dead letters"),
    ],
    ids=["missing", "extra", "twice", "no table"],
)
def test_each_difference_is_a_finding_with_its_address(
    rows: list[tuple[str, int, int, int, str]], batch: int, message: str
) -> None:
    findings, _ = check(rows, DERIVED)
    assert findings[0].batch == batch
    assert message in findings[0].message
    assert f"{findings[0].topic}/{findings[0].partition}@{findings[0].offset}" in findings[0].message


def test_another_reason_is_one_missing_and_one_extra() -> None:
    findings, _ = check([RIGHT[0], ("t2", 6, 1, 20, "future")], DERIVED)
    assert len(findings) == 2
