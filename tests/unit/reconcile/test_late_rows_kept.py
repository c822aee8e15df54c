"""Kept late rows are compared with those the log says must have been, by address and window."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import pyarrow as pa
import pytest

from histories.kinds import make_definition
from rivertwice.core.instants import EPOCH
from rivertwice.log.addresses import Part
from rivertwice.reconcile.model import LateRow, RowId
from rivertwice.reconcile.recorded import check_late_rows
from rivertwice.reconcile.view import DefinitionVersion, HeadView

TOPIC = "events"
MINUTE_MS = 60_000
Kept = tuple[str, int, int, int]
"""(timeline, batch, offset, minute at which the window starts), all in partition 0."""


@dataclass
class Row:
    timeline: str
    batch: int


def view(
    kept: list[Kept], kind: str = "tumbling", policy: str = "side_output", groups: tuple[int, ...] = (0, 0)
) -> Any:
    definition = make_definition(kind)
    late = definition.late.model_copy(update={"policy": policy})
    versions = [DefinitionVersion(definition.model_copy(update={"late": late}), "s", "d")] * (max(groups) + 1)
    rows = [Row("t1", 5), Row("t2", 6)]
    plain = [
        {
            "_timeline": timeline,
            "_batch": batch,
            "window_start": EPOCH + minute * timedelta(minutes=1),
            "window_end": EPOCH + (minute + 1) * timedelta(minutes=1),
            "topic": TOPIC,
            "partition": 0,
            "offset": offset,
        }
        for timeline, batch, offset, minute in kept
    ]
    fields: dict[str, Any] = {
        "rows": rows,
        "groups": groups,
        "versions": versions,
        "newest": versions[groups[-1]],
        "index": {(row.timeline, row.batch): number for number, row in enumerate(rows)},
        "late": pa.Table.from_pylist(plain) if plain else None,
    }
    return cast(HeadView, type("View", (), fields)())


def expected_row(batch: int, offset: int, minute: int, topic: str = TOPIC) -> LateRow:
    row = RowId(minute * MINUTE_MS, (minute + 1) * MINUTE_MS, '{"k": "a"}')
    return LateRow(row, topic, 0, offset, batch, 0, EPOCH)


KEPT = [("t1", 5, 10, 1), ("t2", 6, 20, 2)]
EXPECTED = [expected_row(5, 10, 1), expected_row(6, 20, 2)]


def said(found: Any) -> list[tuple[int, int, str]]:
    return [(one.batch, one.offset, one.message) for one in found]


def test_rows_that_had_to_be_kept_raise_nothing() -> None:
    assert check_late_rows(view(KEPT), EXPECTED) == []
    assert check_late_rows(view([]), []) == []


def test_rows_of_a_batch_that_was_never_committed_do_not_count() -> None:
    assert check_late_rows(view([*KEPT, ("t1", 6, 21, 2), ("t2", 7, 30, 3)]), EXPECTED) == []


@pytest.mark.proves("guarantees.md#late-rows")
@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (
            KEPT[:1],
            "events/0@20 for the window at 1970-01-01T00:02:00Z (batch 6) is not in the late rows as it must be",
        ),
        (
            [*KEPT, ("t2", 6, 22, 2)],
            "events/0@22 for the window at 1970-01-01T00:02:00Z (batch 6) is in the late rows but was not late",
        ),
        ([*KEPT, KEPT[0]], "events/0@10 for the window at 1970-01-01T00:01:00Z (batch 5) is in the late rows 2 times"),
    ],
    ids=["missing", "too many", "twice"],
)
def test_a_row_that_is_missing_or_too_many_is_named(kept: list[Kept], message: str) -> None:
    (one,) = check_late_rows(view(kept), EXPECTED)
    assert message in one.message
    assert (one.kind, one.topic, one.partition) == ("late_rows", TOPIC, 0)


def test_one_record_may_be_late_for_one_window_of_several() -> None:
    kept = [("t1", 5, 10, 1), ("t1", 5, 10, 2)]
    assert check_late_rows(view(kept, "hopping"), [expected_row(5, 10, 1), expected_row(5, 10, 2)]) == []
    assert len(check_late_rows(view(kept, "hopping"), [expected_row(5, 10, 1)])) == 1


def test_late_rows_of_sessions_are_compared_by_address() -> None:
    assert check_late_rows(view([("t1", 5, 10, 7)], "session"), [expected_row(5, 10, 1)]) == []


@pytest.mark.proves("guarantees.md#late-rows")
def test_policy_drop_keeps_nothing_and_owes_nothing() -> None:
    assert check_late_rows(view([], policy="drop"), EXPECTED) == []


def test_batches_of_another_definition_are_not_looked_at() -> None:
    assert check_late_rows(view(KEPT[1:], groups=(0, 1)), EXPECTED) == []


@pytest.mark.proves("howto-correct.md#the-table-is-exact")
def test_table_versions_are_no_late_rows_and_lost_ones_are_incomparable() -> None:
    assert check_late_rows(view(KEPT, "as-of intervals"), [*EXPECTED, expected_row(6, 3, 2, topic="names")]) == []
    assert check_late_rows(view(KEPT), EXPECTED[:1], [(Part(TOPIC, 0), 20, 21)]) == []
