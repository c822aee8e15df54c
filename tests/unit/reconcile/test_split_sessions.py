"""A session that came apart is explained by named records, or it is a defect.

truth     0 ------------------- 25        five records
stream    0 ------- 10
                5 ------------- 25        the record at 5 came when [0, 10) had been emitted
"""

from __future__ import annotations

from dataclasses import replace

from rivertwice.core.instants import from_ms
from rivertwice.reconcile.evidence import ServedEvidence, SessionEvidence
from rivertwice.reconcile.model import LateRow, RowColumns, RowId, RowVerdict, ServedRow, SessionGroup, StreamRow
from rivertwice.reconcile.verdict import judge_served, judge_stream

SHAPE = RowColumns(keys=("k",), columns=("n",), count_column="n")
WHOLE, FIRST, SECOND = RowId(0, 25, "a"), RowId(0, 10, "a"), RowId(5, 25, "a")


def record(offset: int) -> LateRow:
    return LateRow(WHOLE, "clicks", 1, offset, 3, 12, from_ms(5))


def emitted(row: RowId, count: int) -> list[StreamRow]:
    return [StreamRow((count,), "t1", 4, is_due=True)]


SPLIT = SessionGroup(WHOLE, (FIRST, SECOND), split=(record(7),))
EXPECTED = {FIRST: (2,), SECOND: (3,)}
STREAM = {FIRST: emitted(FIRST, 2), SECOND: emitted(SECOND, 3)}
TORN = SessionEvidence(
    SHAPE, 30, {WHOLE: (5,)}, EXPECTED, STREAM, {}, groups=dict.fromkeys((WHOLE, FIRST, SECOND), SPLIT)
)


def by_row(found: list[RowVerdict]) -> dict[RowId, RowVerdict]:
    return {one.row: one for one in found}


def test_a_split_session_is_late_on_both_sides_and_names_the_record() -> None:
    found = by_row(judge_stream(TORN))
    assert {row: one.verdict for row, one in found.items()} == dict.fromkeys((WHOLE, FIRST, SECOND), "LATE")
    assert all("split" in one.reason and "clicks/1@7" in one.reason for one in found.values())
    assert {one.presence for one in found.values()} == {"split", "truth only"}
    assert sum(one.unexplained + one.late for one in found.values()) == 0


def test_an_open_part_is_open_and_the_emitted_one_is_still_explained() -> None:
    stream = {FIRST: emitted(FIRST, 2)}
    found = by_row(judge_stream(replace(TORN, closed_ms=20, stream=stream)))
    assert {row: one.verdict for row, one in found.items()} == {WHOLE: "OPEN", FIRST: "LATE", SECOND: "OPEN"}
    # The part that waits is on neither side yet, and the late record that explains it is named: no alarm.
    assert {row: one.presence for row, one in found.items()} == {WHOLE: "truth only", FIRST: "split", SECOND: "split"}


def test_a_part_that_is_missing_or_altered_is_a_defect() -> None:
    gone = by_row(judge_stream(replace(TORN, stream={FIRST: emitted(FIRST, 2)})))
    assert (gone[SECOND].verdict, gone[SECOND].unexplained) == ("DEFECT", 3)
    assert gone[SECOND].presence == "expected only"
    wrong = by_row(judge_stream(replace(TORN, stream={**STREAM, FIRST: emitted(FIRST, 1)})))
    assert (wrong[FIRST].verdict, wrong[FIRST].unexplained) == ("DEFECT", 1)


def test_a_record_missing_without_a_drop_is_a_defect_everywhere() -> None:
    lost = replace(TORN, truth={WHOLE: (6,)})
    assert {one.verdict for one in judge_stream(lost)} == {"DEFECT"}
    assert {one.unexplained for one in judge_stream(lost)} == {1}


def test_a_torn_session_without_a_record_to_blame_is_a_defect() -> None:
    blameless = replace(TORN, groups=dict.fromkeys((WHOLE, FIRST, SECOND), replace(SPLIT, split=())))
    assert {one.verdict for one in judge_stream(blameless)} == {"DEFECT"}


def test_dropped_and_splitting_records_are_both_named() -> None:
    family = replace(SPLIT, late=(record(9),))
    both = replace(TORN, truth={WHOLE: (6,)}, groups=dict.fromkeys((WHOLE, FIRST, SECOND), family))
    reasons = {one.reason for one in judge_stream(both)}
    assert len(reasons) == 1
    assert "1 of 6 records came too late; split:" in reasons.pop()


def test_what_is_served_of_a_split_session_is_late_and_not_a_defect() -> None:
    rows = {row: [ServedRow(one[0].values, "stream", None)] for row, one in STREAM.items()}
    found = by_row(judge_served(TORN, ServedEvidence(rows, 30)))
    assert {row: one.verdict for row, one in found.items()} == dict.fromkeys((WHOLE, FIRST, SECOND), "LATE")
    rows[FIRST] = [ServedRow((9,), "stream", None)]
    wrong = by_row(judge_served(TORN, ServedEvidence(rows, 30)))
    assert wrong[FIRST].verdict == "DEFECT"
    assert wrong[SECOND].verdict == "LATE"


def test_a_part_of_a_split_session_that_is_not_served_is_a_defect() -> None:
    rows = {SECOND: [ServedRow((3,), "stream", None)]}
    found = by_row(judge_served(TORN, ServedEvidence(rows, 30)))
    assert {row: one.verdict for row, one in found.items()} == {WHOLE: "LATE", FIRST: "DEFECT", SECOND: "LATE"}
    # One that is not closed, or not served yet, is nobody's loss.
    assert FIRST not in by_row(judge_served(TORN, ServedEvidence(rows, 9)))
