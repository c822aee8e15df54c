"""Edges of the served verdicts: what an older definition serves, what is open, and how often a row may be there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rivertwice.core.instants import from_ms
from rivertwice.reconcile.evidence import Evidence, IntervalEvidence, ServedEvidence
from rivertwice.reconcile.model import LateRow, RowColumns, RowId, RowVerdict, ServedRow, StreamRow
from rivertwice.reconcile.rederive import Chain
from rivertwice.reconcile.verdict import judge_served, judge_stream, select_stale_published

HOUR = 3_600_000
SHAPE = RowColumns(keys=("origin",), columns=("flights",), tolerances={}, count_column="flights")


def at(hour: int, key: str = "JFK") -> RowId:
    return RowId(hour * HOUR, (hour + 1) * HOUR, key)


def emitted(flights: int, hour: int, **changes: Any) -> StreamRow:
    return replace(StreamRow((flights,), "t1", hour, is_due=True), **changes)


ROWS = {at(10): (3,), at(11): (4,)}
RIGHT = Evidence(
    SHAPE, 12 * HOUR, ROWS, ROWS, {row: [emitted(n, row.start_ms // HOUR)] for row, (n,) in ROWS.items()}, {}
)
SERVED = ServedEvidence({row: [ServedRow(values, "stream", None)] for row, values in ROWS.items()}, 12 * HOUR)


def only(found: list[RowVerdict], row: RowId) -> RowVerdict:
    return next(one for one in found if one.row == row)


def test_what_an_older_definition_published_is_not_comparable() -> None:
    wrong = {**SERVED.rows, at(10): [ServedRow((9,), "stream", None)], at(11): [ServedRow((9,), "stream", None)]}
    found = judge_served(RIGHT, replace(SERVED, rows=wrong, older=frozenset({10 * HOUR})))
    assert only(found, at(10)).verdict == "NOT_COMPARABLE"
    assert "older definition" in only(found, at(10)).reason
    assert only(found, at(11)).verdict == "DEFECT"
    found = judge_served(RIGHT, replace(SERVED, rows=wrong, older_rows=frozenset({at(11)})))
    assert [one.verdict for one in found] == ["DEFECT", "NOT_COMPARABLE"]


def test_a_window_that_ends_at_the_watermark_is_closed() -> None:
    assert [one.verdict for one in judge_stream(RIGHT)] == ["AGREES", "AGREES"]
    assert [one.verdict for one in judge_served(RIGHT, SERVED)] == ["AGREES", "AGREES"]
    earlier = replace(RIGHT, closed_ms=12 * HOUR - 1, stream={at(10): RIGHT.stream[at(10)]})
    assert only(judge_stream(earlier), at(11)).verdict == "OPEN"
    waiting = replace(SERVED, rows={at(10): SERVED.rows[at(10)]}, closed_ms=12 * HOUR - 1)
    assert only(judge_served(RIGHT, waiting), at(11)).reason == "the window is not served yet"
    assert (
        only(judge_served(replace(RIGHT, closed_ms=12 * HOUR - 1), waiting), at(11)).reason
        == "the window is not closed yet"
    )


def test_a_row_of_a_window_that_is_not_closed_may_not_be_served() -> None:
    found = judge_served(RIGHT, replace(SERVED, closed_ms=11 * HOUR))
    assert [one.verdict for one in found] == ["AGREES", "DEFECT"]


def test_the_batch_that_emits_a_row_is_the_one_that_closes_its_window() -> None:
    """Its late watermark is before the window's end, its watermark at or after it."""
    end = 11 * HOUR
    for late_ms, watermark_ms, verdict in (
        (end - 1, end, "AGREES"),
        (end, end + 1, "DEFECT"),
        (end - 2, end - 1, "DEFECT"),
    ):
        row = emitted(3, 10, is_due=Chain((late_ms,), (watermark_ms,)).closes(0, end))
        found = judge_stream(replace(RIGHT, stream={**RIGHT.stream, at(10): [row]}))
        assert only(found, at(10)).verdict == verdict


def test_a_row_that_is_served_twice_is_a_defect_although_both_are_right() -> None:
    found = judge_served(RIGHT, replace(SERVED, rows={**SERVED.rows, at(10): SERVED.rows[at(10)] * 2}))
    assert [one.verdict for one in found] == ["DEFECT", "AGREES"]
    assert "served 2 times" in only(found, at(10)).reason


def test_a_late_row_counts_only_where_it_is_missing() -> None:
    """One late record, and one record less is served: LATE. Two less: DEFECT. None less: as it must be."""
    late = {at(10): [LateRow(at(10), "flights", 0, 7, 3, 11 * HOUR, from_ms(10 * HOUR))]}
    for served, verdict in (((2,), "LATE"), ((1,), "DEFECT"), ((3,), "AGREES")):
        evidence = replace(RIGHT, expected={**ROWS, at(10): (2,)}, late=late)
        found = judge_served(
            evidence, replace(SERVED, rows={**SERVED.rows, at(10): [ServedRow(served, "stream", None)]})
        )
        one = only(found, at(10))
        assert one.verdict == verdict
        assert (one.late, round(one.late_share, 3)) == ((1, 0.333) if verdict == "LATE" else (0, 0.0))


def test_only_published_windows_that_differ_from_the_truth_are_stale() -> None:
    wrong = replace(SERVED, rows={**SERVED.rows, at(10): [ServedRow((9,), "stream", None)]})
    assert select_stale_published(RIGHT, wrong) == set()
    assert select_stale_published(RIGHT, replace(wrong, published=frozenset({10 * HOUR, 11 * HOUR}))) == {10 * HOUR}
    gone = replace(SERVED, rows={at(11): SERVED.rows[at(11)]}, published=frozenset({10 * HOUR}))
    assert select_stale_published(RIGHT, gone) == {10 * HOUR}


def test_an_unexplained_served_row_of_an_interval_is_a_defect() -> None:
    evidence = replace(RIGHT.of_kind(IntervalEvidence), expected={**ROWS, at(10): (2,)})
    one = only(
        judge_served(evidence, replace(SERVED, rows={**SERVED.rows, at(10): [ServedRow((2,), "stream", None)]})), at(10)
    )
    assert (one.verdict, one.unexplained) == ("DEFECT", 1)
    assert "no cause explains it" in one.reason
