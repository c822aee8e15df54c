"""Windows that lost records may belong to are never called equal, and a gap hides no defect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from homes.ledger import ledger_row
from rivertwice.core.instants import from_ms
from rivertwice.log.addresses import Part
from rivertwice.log.gaps import REPAIRABLE, Gap, GapReason
from rivertwice.log.marks import Fork, LastRecord
from rivertwice.reconcile.evidence import Evidence, ServedEvidence
from rivertwice.reconcile.gaps import (
    LostRecordEffects,
    LostRecordsDoubt,
    SkippedRange,
    count_readable,
    doubt_after_fork,
    doubts_of_exchanged,
    find_doubts,
    find_exchanged,
    find_unreadable,
    trusted_counts,
    with_filled,
)
from rivertwice.reconcile.model import LateRow, RowColumns, RowId, ServedRow, StreamRow
from rivertwice.reconcile.rederive import BatchCounts, Chain, derive_ranges
from rivertwice.reconcile.verdict import judge_served, judge_stream
from rivertwice.timeline.verdicts import Verdict

SHAPE = RowColumns(("k",), ("n",), count_column="n")
ROWS = [ledger_row(n, min_event_ms=1000 * n, max_event_ms=1000 * n + 900) for n in range(4)]
P0 = Part("flights", 0)
RANGES = [{P0: (10 * n, 10 * n + 10)} for n in range(4)]
CHAIN = Chain((0, 0, 1000, 2000), (0, 1000, 2000, 3000))


def at(start: int, key: str = "a") -> RowId:
    return RowId(start, start + 1000, key)


def evidence(*doubts: LostRecordsDoubt, **changes: object) -> Evidence:
    """Windows of a second from 0 to 4; closed until 3; in each the stream emitted what it had to and what is true."""
    rows = {at(1000 * n): (5,) for n in range(3)}
    stream = {row: [StreamRow((5,), "t1", n + 1, is_due=True)] for n, row in enumerate(rows)}
    made = Evidence(SHAPE, 3000, rows, rows, stream, {}, doubts=LostRecordEffects(doubts))
    return replace(made, **changes)  # type: ignore[arg-type]


def verdicts(found: Evidence) -> list[str]:
    return [one.verdict for one in judge_stream(found)]


def test_without_a_gap_all_agree() -> None:
    assert verdicts(evidence()) == [Verdict.AGREES, Verdict.AGREES, Verdict.AGREES]


@pytest.mark.proves("howto-log.md#what-a-reconcile-says-then", "guarantees.md#verdicts")
def test_a_gap_touches_windows_open_at_it_up_to_its_bound() -> None:
    #  windows   [0,1) [1,2) [2,3)
    #  gap       watermark 1.0 ... latest event time 1.5
    gap = LostRecordsDoubt(1000, 1500, "gap: g")
    assert verdicts(evidence(gap)) == [Verdict.AGREES, Verdict.NOT_COMPARABLE, Verdict.AGREES]
    assert verdicts(evidence(replace(gap, until_ms=None))) == [
        Verdict.AGREES,
        Verdict.NOT_COMPARABLE,
        Verdict.NOT_COMPARABLE,
    ]
    assert verdicts(evidence(replace(gap, until_ms=2000))) == [
        Verdict.AGREES,
        Verdict.NOT_COMPARABLE,
        Verdict.NOT_COMPARABLE,
    ]


def test_a_gap_does_not_hide_that_the_stream_emitted_something_else() -> None:
    gap = LostRecordsDoubt(0, None, "gap: g")
    wrong = dict(evidence().stream) | {at(1000): [StreamRow((6,), "t1", 2, is_due=True)]}
    assert verdicts(evidence(gap, stream=wrong)) == [Verdict.NOT_COMPARABLE, Verdict.DEFECT, Verdict.NOT_COMPARABLE]


def test_where_the_streams_input_is_gone_only_a_repeat_is_a_defect() -> None:
    gone = LostRecordsDoubt(0, 1999, "gap: g", unread=True)
    known = evidence()
    twice = {**known.stream, at(1000): [*known.stream[at(1000)]] * 2}
    missing = {at(2000): (5,)}
    assert verdicts(evidence(gone, truth=missing, expected=missing)) == [
        Verdict.NOT_COMPARABLE,
        Verdict.NOT_COMPARABLE,
        Verdict.AGREES,
    ]
    assert verdicts(evidence(gone, truth=missing, expected=missing, stream=twice)) == [
        Verdict.NOT_COMPARABLE,
        Verdict.DEFECT,
        Verdict.AGREES,
    ]


def test_an_open_window_stays_open() -> None:
    rows = {**evidence().truth, at(3000): (1,)}
    assert verdicts(evidence(LostRecordsDoubt(0, None, "gap: g"), truth=rows))[-1] == Verdict.OPEN


@pytest.mark.parametrize(
    ("served", "known", "verdict"),
    [(7, True, Verdict.AGREES), (5, True, Verdict.NOT_COMPARABLE), (7, False, Verdict.NOT_COMPARABLE)],
)
def test_a_served_window_agrees_again_once_archived_losses_are_counted(served: int, known: bool, verdict: str) -> None:
    found = evidence(*([] if known else [LostRecordsDoubt(1000, 1500, "gap: g")]), truth={at(1000): (7,)})
    found = replace(found, doubts=replace(found.doubts, filled={1000: f"{REPAIRABLE}: g"}))
    table = ServedEvidence({at(1000): [ServedRow((served,), "published", "bf")]}, 3000, frozenset({1000}))
    assert [one.verdict for one in judge_served(found, table)] == [verdict]


@pytest.mark.parametrize(
    ("published", "late", "verdict"),
    [
        (5, 2, Verdict.LATE),  # two records came after a publication that had the skipped ones
        (4, 2, Verdict.NOT_COMPARABLE),  # one that was made before the gap lacks a skipped record, too
        (5, 0, Verdict.NOT_COMPARABLE),  # nothing came since
    ],
)
def test_what_came_after_a_backfill_of_skipped_records_is_late_and_not_a_gap_again(
    published: int, late: int, verdict: str
) -> None:
    found = evidence(truth={at(1000): (7,)})
    found = replace(found, doubts=replace(found.doubts, filled={1000: f"{REPAIRABLE}: g"}))
    since = [LateRow(at(1000), "flights", 0, 30 + n, 3, 2000, from_ms(1500)) for n in range(late)]
    table = ServedEvidence(
        {at(1000): [ServedRow((published,), "published", "bf")]},
        3000,
        frozenset({1000}),
        publication_truth={at(1000): (published,)},
        late_since={at(1000): since},
    )
    assert [one.verdict for one in judge_served(found, table)] == [verdict]


def test_a_batch_not_read_whole_keeps_its_counts_and_doubts_its_windows() -> None:
    missing = [(P0, 0, 15)]
    unreadable = find_unreadable(RANGES, missing)
    assert unreadable == {0: {P0: (0, 10)}, 1: {P0: (10, 15)}}
    derived = [BatchCounts() for _ in ROWS]
    assert [counts.read for counts in trusted_counts(derived, ROWS, unreadable)] == [10, 10, 0, 0]
    assert count_readable(RANGES, missing) == {P0: 25}
    doubts = find_doubts(ROWS, unreadable, [], missing, CHAIN)
    assert [doubts.of(1000 * n, 1000 * n + 1000) is not None for n in range(4)] == [True, True, False, False]


def gap(archived: dict[int, tuple[int, int]]) -> Gap:
    return Gap("p", "t1", 1, "flights", "id", GapReason.EXPIRED, {0: (20, 30)}, archived, 1000, 2500, from_ms(0))


def test_a_jump_is_in_doubt_from_its_watermark_to_its_latest_time() -> None:
    jump = SkippedRange(2, gap({}), {P0: 30})
    found = find_doubts(ROWS, {}, [jump], [(P0, 25, 30)], CHAIN)
    (lost,) = found.doubts
    assert (lost.after_ms, lost.until_ms, lost.known) == (1000, 2500, False)
    assert "5 records are lost for ever" in lost.reason
    assert "late records that may be among the lost" in found.caveat(0)
    assert found.caveat(3000) == ""


def test_an_archived_jump_puts_only_its_own_windows_in_doubt() -> None:
    jump = SkippedRange(2, gap({0: (20, 30)}), {P0: 30})
    none = find_doubts(ROWS, {}, [jump], [], CHAIN)
    assert none.doubts == ()
    filled = with_filled(none, [jump], [0])  # closed before the gap: there the record would have been late
    doubt = filled.of(0, 1000)
    assert doubt is not None
    assert doubt.known
    assert doubt.reason.startswith(REPAIRABLE)
    assert filled.of(1000, 2000) is None
    assert filled.caveat(0) == ""


def test_a_window_closed_before_a_gap_says_so_where_it_agrees() -> None:
    (first, *_) = judge_stream(evidence(LostRecordsDoubt(1000, None, "gap: g")))
    assert (first.verdict, "may be among the lost: gap: g" in first.reason) == (Verdict.AGREES, True)


def test_only_an_accepted_jump_is_no_ledger_defect() -> None:
    rows = [*ROWS[:2], ledger_row(2, "t2", start_offsets={"flights": {"0": 30}}, end_offsets={"flights": {"0": 40}})]
    _, defects = derive_ranges(rows, ["flights"], {P0: 0})
    assert [(one.index, one.field) for one in defects] == [(2, "start_offsets")]
    ranges, none = derive_ranges(rows, ["flights"], {P0: 0}, {2: {P0: 30}})
    assert none == []
    assert ranges == [{P0: (0, 10)}, {P0: (10, 20)}, {P0: (30, 40)}]


def counted(digest: int | None, low: int = 1000, high: int = 1900) -> dict[str, BatchCounts]:
    return {"flights": BatchCounts(10, 0, 10, low, high, digest)}


@pytest.mark.proves("guarantees.md#what-everything-needs")
def test_a_batch_whose_offsets_hold_other_records_is_found_by_its_digest_alone() -> None:
    rows = [replace(row, by_topic=counted(n)) for n, row in enumerate(ROWS)]
    derived = [counted(0), counted(77), counted(2), counted(3)]
    assert find_exchanged(rows, derived, RANGES, {}) == {1: {P0: (10, 20)}}
    assert find_exchanged(rows, derived, RANGES, {1: RANGES[1]}) == {}  # what cannot be read whole is another matter


def test_a_batch_without_a_digest_is_not_compared() -> None:
    rows = [replace(ROWS[0], by_topic=counted(None)), ROWS[1]]
    assert find_exchanged(rows, [counted(5), counted(6)], RANGES[:2], {}) == {}


def test_a_batch_of_no_records_that_holds_some_now_is_found() -> None:
    rows = [replace(ROWS[1], by_topic={"flights": BatchCounts()})]
    assert find_exchanged(rows, [counted(5)], RANGES[1:2], {}) == {0: {P0: (10, 20)}}


def test_windows_of_exchanged_records_are_in_doubt_but_for_those_that_were_closed() -> None:
    (doubt,) = doubts_of_exchanged(ROWS, {2: {P0: (20, 30)}}, [{}, {}, counted(5, 0, 5000), {}], CHAIN)
    assert (doubt.after_ms, doubt.until_ms, doubt.unread) == (1000, 5000, True)
    assert doubt.reason.startswith("fork: flights partition 0 [20, 30) hold other records now than batch 2")
    judged = judge_stream(evidence(doubt))
    assert {row.verdict for row in judged if row.row.end_ms > 1000} <= {Verdict.NOT_COMPARABLE, Verdict.OPEN}


@pytest.mark.proves("guarantees.md#verdicts")
def test_after_a_fork_every_window_that_was_open_is_in_doubt() -> None:
    fork = Fork(P0, LastRecord(25, 0, 1), "Kafka has another record there")
    doubt = doubt_after_fork(ROWS, 2, CHAIN, [fork])
    assert (doubt.after_ms, doubt.until_ms, doubt.unread) == (1000, None, True)
    assert "flights/0@25" in doubt.reason


def test_digests_of_parts_add_up_in_any_order_and_an_unknown_one_makes_the_sum_unknown() -> None:
    one, two = BatchCounts(3, digest=5), BatchCounts(2, digest=9)
    assert one.plus(two).digest == two.plus(one).digest == 5 ^ 9
    assert BatchCounts().plus(one).digest == 5
    assert one.plus(BatchCounts(1)).digest is None
