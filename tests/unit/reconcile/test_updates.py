"""Every update that a batch emitted is compared with what the batch had to emit, and the newest row of each is what is served."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, cast

import pyarrow as pa
import pytest

from histories.kinds import make_definition
from homes.ledger import ledger_row
from rivertwice.core.instants import EPOCH
from rivertwice.reconcile.kinds.judge import Judge
from rivertwice.reconcile.recorded import UPDATES_CHECKED, check_updates
from rivertwice.reconcile.view import DefinitionVersion, HeadView
from rivertwice.timeline.served_rows import newest_rows

UPDATING = make_definition("tumbling updates")
Update = tuple[int, str, int]
"""(batch, key, count) of the window at 1970-01-01T00:00:00Z."""


def table(updates: list[Update]) -> pa.Table:
    rows = [
        {
            "_timeline": "t1", "_batch": batch, "window_start": EPOCH, "window_end": EPOCH + timedelta(minutes=1), "k": key,
            "n": count, "total": count, "top": 1,
        }
        for batch, key, count in updates
    ]  # fmt: skip
    schema = pa.schema(
        [
            ("_timeline", pa.string()), ("_batch", pa.int64()), ("window_start", pa.timestamp("us", "UTC")),
            ("window_end", pa.timestamp("us", "UTC")), ("k", pa.string()), ("n", pa.int64()), ("total", pa.int64()),
            ("top", pa.int64()),
        ]
    )  # fmt: skip
    return pa.Table.from_pylist(rows, schema=schema)


class KnownUpdates:
    """A judge that knows by heart what each batch had to emit."""

    def __init__(self, expected: list[Update]) -> None:
        self.expected = expected
        self.asked: list[int] = []

    def updates(self, index: int) -> pa.Table:
        self.asked.append(index)
        return table([one for one in self.expected if one[0] == index])


def view(came: list[Update], batches: int = 3, kind: str = "tumbling updates") -> HeadView:
    meaning = DefinitionVersion(make_definition(kind), "s", "d")
    fields: dict[str, Any] = {
        "rows": [ledger_row(number) for number in range(batches)],
        "groups": [0] * batches,
        "newest": meaning,
        "stream": table(came),
    }
    return cast(HeadView, type("View", (), fields)())


RIGHT = [(0, "a", 1), (0, "b", 2), (1, "a", 3), (2, "b", 4)]


def found(came: list[Update]) -> list[str]:
    return [one.message for one in check_updates(view(came), cast(Judge, KnownUpdates(RIGHT)))]


def test_updates_that_had_to_be_raise_nothing() -> None:
    assert found(RIGHT) == []


@pytest.mark.parametrize(
    ("came", "words"),
    [
        (RIGHT[:3], "batch 2 of t1: the row .* was not emitted, but had to be"),
        ([*RIGHT, (2, "a", 3)], "batch 2 of t1: the row .* no record of the batch changed it"),
        ([*RIGHT, RIGHT[0]], "batch 0 of t1: the row .* was emitted 2 times"),
        (
            [(0, "a", 9), *RIGHT[1:]],
            "batch 0 of t1: the row .* differs in n, total from what had been read of it by then",
        ),
    ],
    ids=["missing", "too many", "twice", "other"],
)
def test_an_update_that_is_not_as_it_had_to_be_is_named_with_its_batch(came: list[Update], words: str) -> None:
    (one,) = check_updates(view(came), cast(Judge, KnownUpdates(RIGHT)))
    assert one.kind == "updates"
    assert re.search(words, one.message), one.message


def test_only_the_newest_batches_are_looked_at_one_by_one() -> None:
    rule = KnownUpdates([])
    check_updates(view([], batches=UPDATES_CHECKED + 7), cast(Judge, rule))
    assert rule.asked == list(range(7, UPDATES_CHECKED + 7))


def test_a_stream_that_emits_once_has_no_updates() -> None:
    assert check_updates(view(RIGHT, kind="tumbling"), cast(Judge, KnownUpdates([]))) == []


def test_of_a_row_that_was_emitted_more_than_once_the_newest_is_served() -> None:
    mixed = [RIGHT[3], RIGHT[0], RIGHT[2], RIGHT[1]]
    kept = newest_rows(table(mixed), UPDATING).to_pylist()
    assert sorted((row["_batch"], row["k"], row["n"]) for row in kept) == [(1, "a", 3), (2, "b", 4)]
    assert newest_rows(table(RIGHT), make_definition("tumbling")).num_rows == 4
