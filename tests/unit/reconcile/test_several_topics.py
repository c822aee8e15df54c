"""Re-deriving over several topics: ranges and doubts by part, counts by topic, and each part's name in the balance."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

from homes.ledger import ledger_row
from rivertwice.core.instants import from_ms
from rivertwice.log.addresses import Part
from rivertwice.log.gaps import Gap, GapReason
from rivertwice.reconcile.assess import rederive_ledger
from rivertwice.reconcile.frames import balance_frame
from rivertwice.reconcile.gaps import SkippedRange, find_doubts, with_filled
from rivertwice.reconcile.gate import GateInput, decide_gate
from rivertwice.reconcile.model import Account
from rivertwice.reconcile.rederive import BatchCounts, Chain, check_absent, derive_ranges, parse_offsets_text
from rivertwice.reconcile.view import HeadView

A0, B0 = Part("a", 0), Part("b", 0)
TOPICS = ["a", "b"]
SHARES = [
    {"a": BatchCounts(10, 0, 10, 0, 9_000), "b": BatchCounts(1, 0, 1, 0, 8_000)},
    {"a": BatchCounts(10, 1, 9, 0, 20_000), "b": BatchCounts(1)},
    {"a": BatchCounts(10, 0, 10, 0, 15_000), "b": BatchCounts(1, 0, 1, 0, 30_000)},
]
WATERMARKS = [0, 6_000, 6_000]  # delays of 1 s and 2 s; the smaller mark


def text(batch: int, watermark: int) -> str:
    offsets = json.dumps({"a": {"0": 10 * batch + 10}, "b": {"0": batch + 1}})
    return "\n".join(["v1", json.dumps({"batchWatermarkMs": watermark}), offsets, offsets])


def row(batch: int, **changes: Any) -> Any:
    shares = SHARES[batch]
    values = {
        "start_offsets": {"a": {"0": 10 * batch}, "b": {"0": batch}},
        "end_offsets": {"a": {"0": 10 * batch + 10}, "b": {"0": batch + 1}},
        "offsets_text": text(batch, WATERMARKS[batch]),
        "batch_watermark_ms": WATERMARKS[batch],
        "read": 11,
        "bad": sum(one.bad for one in shares.values()),
        "accepted": sum(one.accepted for one in shares.values()),
        "min_event_ms": 0,
        "max_event_ms": max(one.max_event_ms or 0 for one in shares.values()),
        "by_topic": shares,
    }
    return ledger_row(batch, **{**values, **changes})


ROWS = [row(batch) for batch in range(3)]
RANGES = [{A0: (10 * n, 10 * n + 10), B0: (n, n + 1)} for n in range(3)]
FOUND = {(index, Part(topic, 0)): counts for index, shares in enumerate(SHARES) for topic, counts in shares.items()}


def test_ranges_of_all_topics_are_derived_together() -> None:
    assert derive_ranges(ROWS, TOPICS, {A0: 0, B0: 0}) == (RANGES, [])
    altered = [ROWS[0], row(1, end_offsets={"a": {"0": 20}, "b": {"0": 3}}), ROWS[2]]
    ranges, defects = derive_ranges(altered, TOPICS, {A0: 0, B0: 0})
    assert ranges == RANGES
    assert [(one.field, one.recorded["b/0"], one.derived["b/0"]) for one in defects] == [("end_offsets", 3, 2)]


def test_lines_of_offsets_that_differ_are_a_defect() -> None:
    lines = text(1, WATERMARKS[1]).split("\n")
    lines[3] = lines[3].replace("20", "25")
    assert parse_offsets_text("\n".join(lines), TOPICS) == (WATERMARKS[1], {B0: 2})
    altered = [ROWS[0], row(1, offsets_text="\n".join(lines)), ROWS[2]]
    ranges, defects = derive_ranges(altered, TOPICS, {A0: 0, B0: 0})
    assert (ranges, [(one.index, one.field) for one in defects]) == (RANGES, [(1, "offsets_text")])


def source(topic: str, seconds: int) -> Any:
    return SimpleNamespace(topic=topic, watermark=timedelta(seconds=seconds))


def view(rows: list[Any]) -> HeadView:
    sources = {"a": source("a", 1), "b": source("b", 2)}
    definition = SimpleNamespace(streams=sources, watermark_policy="min")
    made = SimpleNamespace(
        rows=rows,
        topics=TOPICS,
        groups=[0] * len(rows),
        versions=[SimpleNamespace(definition=definition)],
        jumps=(),
        first_new=0,
        unread=frozenset(),
    )
    return cast(HeadView, made)


def test_a_rightful_ledger_of_two_topics_has_no_defect() -> None:
    derived = rederive_ledger(view(ROWS), RANGES, [], FOUND)
    assert derived.defects == []
    assert list(derived.chain.batch) == WATERMARKS


def test_an_altered_share_and_an_impossible_watermark_are_named() -> None:
    shares = {**SHARES[1], "b": BatchCounts(1, 0, 1, 7, 7)}
    rows = [ROWS[0], row(1, by_topic=shares), row(2, batch_watermark_ms=19_000)]
    derived = rederive_ledger(view(rows), RANGES, [], FOUND)
    assert [(one.index, one.field) for one in derived.defects] == [(1, "by_topic.b"), (2, "batch_watermark_ms")]
    assert list(derived.chain.batch) == WATERMARKS


def test_a_batch_unreadable_in_one_topic_is_taken_as_the_ledger_says() -> None:
    found = {at: counts for at, counts in FOUND.items() if at != (1, A0)}
    derived = rederive_ledger(view(ROWS), RANGES, [], found, [(A0, 10, 20)])
    assert (derived.defects, list(derived.chain.batch)) == ([], WATERMARKS)
    assert "a partition 0 [10, 20), read by batch 1" in derived.doubts.doubts[0].reason


def test_offsets_that_the_log_lost_since_are_named_by_partition() -> None:
    rows = [row(0, absent={"a": {"0": 2}}), row(1), row(2)]
    found = {**FOUND, (0, A0): replace(SHARES[0]["a"], read=7)}
    assert [(one.index, one.field, one.recorded, one.derived) for one in check_absent(rows, RANGES, found)] == [
        (0, "absent", {0: 2}, {0: 3})
    ]
    assert check_absent(rows, RANGES, found, unreadable=[0]) == check_absent(rows, RANGES, found, first=1) == []
    assert check_absent(rows, RANGES, {**FOUND, (0, A0): replace(SHARES[0]["a"], read=8)}) == []


def gap(topic: str, ranges: dict[int, tuple[int, int]]) -> Gap:
    return Gap("p", "t1", 1, topic, f"i{topic}", GapReason.EXPIRED, ranges, {}, 1000, 2500, from_ms(0))


def test_gaps_of_different_topics_are_told_apart() -> None:
    jumps = [
        SkippedRange(2, gap("a", {0: (20, 30)}), {A0: 30, B0: 2}),
        SkippedRange(2, replace(gap("b", {0: (2, 9)}), timeline="t2"), {A0: 30, B0: 9}),
    ]
    chain = Chain((0, 0, 1000), (0, 1000, 2000))
    found = find_doubts(ROWS, {}, jumps, [(B0, 4, 9)], chain)
    (lost,) = found.doubts
    assert "b partition 0 [2, 9): the stream continued past it, 5 records are lost for ever" in lost.reason
    filled = with_filled(found, jumps, [1000])
    assert "a partition 0 [20, 30); " in filled.filled[1000]
    assert "b partition 0 [2, 9)" in filled.filled[1000]


def test_parts_are_named_as_people_know_them_where_they_see_them() -> None:
    fine, lagging = Account(read=100, emitted=100), Account(read=10, emitted=4, late=6)
    two = {A0: fine, B0: lagging}
    gate = decide_gate(GateInput({}, replace(fine, read=110, emitted=104, late=6), two, alert_share=0.1))
    assert [alert.message.split(" came")[0].rpartition("of ")[2] for alert in gate.alerts] == ["partition b/0"]
    assert list(balance_frame(fine, two)["partition"]) == ["all", "a/0", "b/0"]
    assert list(balance_frame(fine, {A0: fine})["partition"]) == ["all", "0"]
