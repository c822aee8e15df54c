"""The ledger is re-derived: one altered field is named, and blames exactly the windows it can have changed.

batch            0      1      2      3
offsets        0-10  10-20  20-30  30-40
max event        10h    11h    12h    13h       delay 1 h
watermark          0     9h    10h    11h
late watermark     0      0     9h    10h
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivertwice.log.addresses import Part
from rivertwice.reconcile.rederive import (
    BatchCounts,
    LedgerDefect,
    blame_windows,
    check_ledger,
    derive_chain,
    derive_ranges,
    parse_offsets_text,
    select_touching,
)
from rivertwice.timeline.ledger import LedgerRow

HOUR = 3_600_000
P0, P1 = Part("flights", 0), Part("flights", 1)
COUNTS = [BatchCounts(10, 1, 9, n * HOUR, (10 + n) * HOUR) for n in range(4)]
WATERMARKS = [0, 9 * HOUR, 10 * HOUR, 11 * HOUR]


def text(watermark: int, end: int) -> str:
    return "\n".join(
        ("v1", json.dumps({"batchWatermarkMs": watermark, "conf": {}}), json.dumps({"flights": {"0": end}}))
    )


def row(batch: int) -> LedgerRow:
    return LedgerRow(
        pipeline="p",
        timeline="t1",
        batch=100 + batch,
        epoch=1,
        bundle="b",
        cluster_id="c",
        topic_ids={"flights": "id"},
        start_offsets={"flights": {"0": 10 * batch}},
        end_offsets={"flights": {"0": 10 * batch + 10}},
        offsets_text=text(WATERMARKS[batch], 10 * batch + 10),
        batch_watermark_ms=WATERMARKS[batch],
        batch_timestamp_ms=0,
        read=10,
        bad=1,
        accepted=9,
        min_event_ms=batch * HOUR,
        max_event_ms=(10 + batch) * HOUR,
        emitted=0,
        digest="",
        references={},
        committed_at=datetime(2013, 7, 1, tzinfo=UTC),
    )


ROWS = [row(batch) for batch in range(4)]
CHAIN = derive_chain(COUNTS, [HOUR] * 4)


def altered(batch: int, **changes: Any) -> list[LedgerRow]:
    return [replace(one, **changes) if number == batch else one for number, one in enumerate(ROWS)]


def test_the_verbatim_offsets_are_read() -> None:
    assert parse_offsets_text(text(5, 10), ["flights"]) == (5, {P0: 10})
    assert parse_offsets_text("v1\n{}\n-", ["flights"]) == (None, None)


def test_a_rightful_ledger_has_no_defect() -> None:
    ranges, defects = derive_ranges(ROWS, ["flights"], {P0: 0})
    assert ranges == [{P0: (0, 10)}, {P0: (10, 20)}, {P0: (20, 30)}, {P0: (30, 40)}]
    assert defects == [] == check_ledger(ROWS, ["flights"], COUNTS, CHAIN)


def test_the_late_watermark_is_the_previous_batchs() -> None:
    assert list(CHAIN.batch) == WATERMARKS
    assert CHAIN.late == (0, 0, 9 * HOUR, 10 * HOUR)
    assert CHAIN.closed_ms == 11 * HOUR


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("end_offsets", {"end_offsets": {"flights": {"0": 25}}}),
        ("start_offsets", {"start_offsets": {"flights": {"0": 15}}}),
        ("offsets_text", {"offsets_text": text(WATERMARKS[1], 25)}),
    ],
)
def test_one_altered_boundary_is_outvoted_and_named(field: str, changes: dict[str, Any]) -> None:
    ranges, defects = derive_ranges(altered(1, **changes), ["flights"], {P0: 0})
    assert ranges == derive_ranges(ROWS, ["flights"], {P0: 0})[0]
    assert [(one.batch, one.field) for one in defects] == [(101, field)]


def test_a_path_that_does_not_begin_at_its_genesis_is_a_defect() -> None:
    ranges, defects = derive_ranges(ROWS[1:], ["flights"], {P0: 0})
    assert ranges[0] == {P0: (0, 20)}
    assert [(one.batch, one.field) for one in defects] == [(101, "start_offsets")]


def test_a_missing_batch_leaves_no_gap_unseen() -> None:
    _, defects = derive_ranges([ROWS[0], ROWS[2], ROWS[3]], ["flights"], {P0: 0})
    assert [(one.batch, one.field) for one in defects] == [(102, "start_offsets")]


def test_a_partition_that_appears_later_begins_at_zero() -> None:
    late_row = replace(
        ROWS[1],
        end_offsets={"flights": {"0": 20, "1": 3}},
        offsets_text="v1\n{}\n" + json.dumps({"flights": {"0": 20, "1": 3}}),
    )
    ranges, defects = derive_ranges([ROWS[0], late_row], ["flights"], {P0: 0})
    assert ranges[1] == {P0: (10, 20), P1: (0, 3)}
    assert defects == []


@pytest.mark.parametrize("field", ["read", "bad", "accepted", "min_event_ms", "max_event_ms", "batch_watermark_ms"])
def test_every_altered_number_is_named(field: str) -> None:
    defects = check_ledger(altered(2, **{field: 77}), ["flights"], COUNTS, CHAIN)
    assert [(one.index, one.batch, one.field, one.recorded) for one in defects] == [(2, 102, field, 77)]


def test_an_altered_maximum_does_not_move_the_derived_watermarks() -> None:
    defects = check_ledger(altered(1, max_event_ms=99 * HOUR), ["flights"], COUNTS, CHAIN)
    assert {one.field for one in defects} == {"max_event_ms"}


TOUCHED = {0: {9 * HOUR}, 1: {10 * HOUR}, 2: {11 * HOUR}, 3: {9 * HOUR, 12 * HOUR}}
WINDOWS = [(hour * HOUR, (hour + 1) * HOUR) for hour in range(7, 14)]


def blame(defect: LedgerDefect) -> set[int]:
    touched = {index: TOUCHED[index] for index in select_touching([defect]) if index in TOUCHED}
    starts = blame_windows([defect], CHAIN, WINDOWS, lambda index: touched.get(index, ()))
    return {start // HOUR for start in starts}


@pytest.mark.parametrize(
    ("recorded", "windows"),
    [
        (11, {9, 10} | {9, 12}),  # closed too much: 9-10 by the true one, 10-11 by the recorded one
        (9, {9} | {9, 12}),  # closed too little: 9-10 was due
    ],
)
def test_a_wrong_watermark_blames_its_batch_and_what_the_next_touched(recorded: int, windows: set[int]) -> None:
    assert blame(LedgerDefect(2, 102, "batch_watermark_ms", recorded * HOUR, 10 * HOUR)) == windows


def test_a_wrong_watermark_of_the_last_batch_has_no_next_batch() -> None:
    assert blame(LedgerDefect(3, 103, "batch_watermark_ms", 12 * HOUR, 11 * HOUR)) == {10, 11}


def test_a_wrong_count_blames_what_its_own_rows_touched() -> None:
    assert blame(LedgerDefect(3, 103, "read", 9, 10)) == {9, 12}


EVENTS = st.lists(st.lists(st.integers(-(10**6), 10**9), max_size=4), max_size=12)


@given(EVENTS, st.integers(0, 10**6))
def test_watermarks_never_fall_and_follow_the_largest_event_so_far(batches: list[list[int]], delay: int) -> None:
    counts = [BatchCounts(len(b), 0, len(b), min(b, default=None), max(b, default=None)) for b in batches]
    chain = derive_chain(counts, [delay] * len(batches))
    seen: list[int] = []
    for number, batch in enumerate(batches):
        assert chain.batch[number] == max([0, *(event - delay for event in seen)])
        assert chain.late[number] == (chain.batch[number - 1] if number else 0)
        seen += batch
