"""Every way in which a stream or a served table can differ gets its verdict, and no other row is touched by it.

window  10:00 -------- 11:00 -------- 12:00 -------- 13:00
closed by watermark 12:00:          ^
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rivertwice.core.instants import from_ms
from rivertwice.reconcile.evidence import Evidence, IntervalEvidence, ServedEvidence
from rivertwice.reconcile.model import AmendedRow, LateRow, RowColumns, RowId, RowVerdict, ServedRow, StreamRow
from rivertwice.reconcile.verdict import judge_served, judge_stream, select_dirty_windows, select_stale_published

HOUR = 3_600_000
SHAPE = RowColumns(keys=("origin",), columns=("flights", "mean"), tolerances={"mean": 0.01}, count_column="flights")


def at(hour: int, key: str = "JFK") -> RowId:
    return RowId(hour * HOUR, (hour + 1) * HOUR, key)


def emitted(flights: int, mean: float, hour: int) -> StreamRow:
    return StreamRow((flights, mean), "t1", hour, is_due=True)


def late(row: RowId, offset: int = 7) -> LateRow:
    return LateRow(row, "flights", 0, offset, 3, row.end_ms, from_ms(row.start_ms))


TRUTH = {at(10): (3, 1.0), at(10, "LGA"): (5, 2.0), at(11): (4, 2.5), at(12): (2, 9.0)}
EXPECTED = {at(10): (3, 1.0), at(10, "LGA"): (5, 2.0), at(11): (3, 2.0), at(12): (2, 9.0)}
STREAM = {at(10): [emitted(3, 1.0, 10)], at(10, "LGA"): [emitted(5, 2.0, 10)], at(11): [emitted(3, 2.0, 11)]}
RIGHT = Evidence(SHAPE, 12 * HOUR, TRUTH, EXPECTED, STREAM, {at(11): [late(at(11))]})


def verdicts(found: list[RowVerdict]) -> dict[RowId, str]:
    return {one.row: one.verdict for one in found}


CLEAN = {at(10): "AGREES", at(10, "LGA"): "AGREES", at(11): "LATE", at(12): "OPEN"}


def test_a_rightful_stream_agrees_is_late_by_address_or_open() -> None:
    found = judge_stream(RIGHT)
    assert verdicts(found) == CLEAN
    assert [one.late for one in found] == [0, 0, 1, 0]
    assert found[2].late_share == 0.25
    assert all(one.unexplained == 0 for one in found)


def test_digests_name_only_the_windows_that_differ() -> None:
    assert select_dirty_windows(RIGHT) == {11 * HOUR, 12 * HOUR}


def without(row: RowId) -> dict[RowId, list[StreamRow]]:
    return {address: rows for address, rows in STREAM.items() if address != row}


PLANTED: list[tuple[str, dict[RowId, list[StreamRow]], RowId, str, int]] = [
    ("altered count", {**STREAM, at(10): [emitted(4, 1.0, 10)]}, at(10), "flights (4 instead of 3)", 1),
    ("altered value", {**STREAM, at(10): [emitted(3, 1.5, 10)]}, at(10), "mean (1.5 instead of 1.0)", 0),
    ("altered in a late window", {**STREAM, at(11): [emitted(4, 2.5, 11)]}, at(11), "flights (4 instead", 1),
    ("deleted", without(at(10)), at(10), "did not emit", 3),
    ("deleted in a late window", without(at(11)), at(11), "did not emit", 3),
    ("added key", {**STREAM, at(10, "ZZZ"): [emitted(1, 1.0, 10)]}, at(10, "ZZZ"), "no record explains", 1),
    ("added window", {**STREAM, at(9): [emitted(1, 1.0, 9)]}, at(9), "no record explains", 1),
    ("added in an open window", {**STREAM, at(12): [emitted(2, 9.0, 12)]}, at(12), "not closed", 0),
    ("duplicated", {**STREAM, at(10): [emitted(3, 1.0, 10)] * 2}, at(10), "2 times", 3),
    (
        "another batch",
        {**STREAM, at(10): [replace(emitted(3, 1.0, 11), is_due=False)]},
        at(10),
        "another batch closed",
        0,
    ),
    (
        "unknown batch",
        {**STREAM, at(10): [replace(emitted(3, 1.0, 10), is_due=None)]},
        at(10),
        "not in the ledger",
        0,
    ),
]


@pytest.mark.parametrize(
    ("stream", "row", "reason", "unexplained"), [p[1:] for p in PLANTED], ids=[p[0] for p in PLANTED]
)
def test_a_planted_wrong_row_is_a_defect_and_no_other_row_is(
    stream: dict[RowId, list[StreamRow]], row: RowId, reason: str, unexplained: int
) -> None:
    found = judge_stream(replace(RIGHT, stream=stream))
    assert verdicts(found) == {**CLEAN, row: "DEFECT"}
    defect = next(one for one in found if one.row == row)
    assert reason in defect.reason
    assert defect.unexplained == unexplained


def test_a_difference_within_the_tolerance_agrees() -> None:
    assert verdicts(judge_stream(replace(RIGHT, stream={**STREAM, at(10): [emitted(3, 1.009, 10)]}))) == CLEAN


def test_a_difference_to_the_truth_without_a_late_record_is_a_defect() -> None:
    found = judge_stream(replace(RIGHT, late={}))
    assert verdicts(found) == {**CLEAN, at(11): "DEFECT"}
    assert found[2].unexplained == 1


def test_more_late_records_than_missing_ones_are_a_defect() -> None:
    found = judge_stream(replace(RIGHT, late={at(11): [late(at(11)), late(at(11), 8)]}))
    assert verdicts(found) == {**CLEAN, at(11): "DEFECT"}


def test_late_records_of_another_key_explain_nothing() -> None:
    found = judge_stream(replace(RIGHT, late={at(11, "LGA"): [late(at(11, "LGA"))]}))
    assert verdicts(found)[at(11)] == "DEFECT"


def test_a_row_whose_records_were_all_late_is_late() -> None:
    missing = {at(10, "EWR"): (2, 3.0)}
    evidence = replace(
        RIGHT,
        truth={**TRUTH, **missing},
        late={**RIGHT.late, at(10, "EWR"): [late(at(10, "EWR"), 1), late(at(10, "EWR"), 2)]},
    )
    found = judge_stream(evidence)
    assert verdicts(found) == {**CLEAN, at(10, "EWR"): "LATE"}
    assert next(one for one in found if one.row == at(10, "EWR")).presence == "truth only"


def test_a_null_differs_from_zero() -> None:
    truth: dict[RowId, Any] = {**TRUTH, at(10): (3, None)}
    found = judge_stream(replace(RIGHT, truth=truth, expected={**EXPECTED, at(10): (3, None)}))
    assert verdicts(found) == {**CLEAN, at(10): "DEFECT"}


def test_a_ledger_defect_blames_all_keys_of_its_windows_and_nothing_else() -> None:
    found = judge_stream(replace(RIGHT, blamed={10 * HOUR: "ledger of batch 4: read is 1"}))
    assert verdicts(found) == {**CLEAN, at(10): "DEFECT", at(10, "LGA"): "DEFECT"}
    assert found[0].reason == "ledger: ledger of batch 4: read is 1"


def test_a_row_of_an_older_definition_is_not_an_unexplained_row() -> None:
    older = replace(RIGHT, stream={**STREAM, at(11, "OLD"): [emitted(1, 1.0, 11)]}, mixed={11 * HOUR: "mixed"})
    found = {one.row: one for one in judge_stream(older)}
    assert (found[at(11, "OLD")].verdict, found[at(11, "OLD")].presence) == ("NOT_COMPARABLE", "not compared")
    assert found[at(11)].presence == "both"


@pytest.mark.proves("guarantees.md#verdicts")
def test_windows_of_two_definitions_are_not_comparable() -> None:
    found = judge_stream(replace(RIGHT, mixed={11 * HOUR: "mixed: two"}))
    assert verdicts(found) == {**CLEAN, at(11): "NOT_COMPARABLE"}


def served(**changes: Any) -> ServedEvidence:
    rows = {row: [ServedRow(one[0].values, "stream", None)] for row, one in STREAM.items()}
    return replace(ServedEvidence(rows, 12 * HOUR), **changes)


def publish(row: RowId, values: tuple[Any, ...] | None) -> ServedEvidence:
    rows = dict(served().rows)
    rows.pop(row)
    if values is not None:
        rows[row] = [ServedRow(values, "published", "b1")]
    return served(rows=rows, published=frozenset({row.start_ms}))


def test_served_before_a_publication_is_late_where_the_stream_is() -> None:
    assert verdicts(judge_served(RIGHT, served())) == CLEAN


def test_a_publication_makes_the_served_row_agree_and_leaves_the_stream() -> None:
    assert verdicts(judge_served(RIGHT, publish(at(11), (4, 2.5)))) == {**CLEAN, at(11): "AGREES"}
    assert verdicts(judge_stream(RIGHT)) == CLEAN


@pytest.mark.parametrize("values", [(5, 2.5), (3, 2.0), None], ids=["other values", "the stream's row", "no row"])
def test_a_publication_that_serves_something_else_is_a_defect(values: tuple[Any, ...] | None) -> None:
    assert verdicts(judge_served(RIGHT, publish(at(11), values))) == {**CLEAN, at(11): "DEFECT"}


def test_a_record_after_the_publication_makes_the_served_row_late() -> None:
    evidence = replace(RIGHT, truth={**TRUTH, at(11): (5, 3.0)}, late={at(11): [late(at(11)), late(at(11), 90)]})
    published = publish(at(11), (4, 2.5))
    assert select_stale_published(evidence, published) == {11 * HOUR}
    since = replace(published, publication_truth={at(11): (4, 2.5)}, late_since={at(11): [late(at(11), 90)]})
    found = judge_served(evidence, since)
    assert verdicts(found) == {**CLEAN, at(11): "LATE"}
    assert next(one.late for one in found if one.row == at(11)) == 1


def test_a_served_table_that_lags_leaves_its_windows_open() -> None:
    behind = {row: one for row, one in served().rows.items() if row.start_ms == 10 * HOUR}
    found = judge_served(RIGHT, served(rows=behind, closed_ms=11 * HOUR))
    assert verdicts(found) == {**CLEAN, at(11): "OPEN"}


@pytest.mark.parametrize(
    ("row", "rows"),
    [
        (at(10), [ServedRow((9, 1.0), "stream", None)]),
        (at(10), []),
        (at(10), [ServedRow((3, 1.0), "stream", None)] * 2),
        (at(10, "ZZZ"), [ServedRow((1, 1.0), "stream", None)]),
        (at(12), [ServedRow((2, 9.0), "stream", None)]),
    ],
    ids=["altered", "deleted", "twice", "added", "not closed"],
)
def test_a_wrong_served_row_is_a_defect_and_no_other_row_is(row: RowId, rows: list[ServedRow]) -> None:
    kept = {address: one for address, one in served().rows.items() if address != row}
    found = judge_served(RIGHT, served(rows={**kept, row: rows} if rows else kept))
    assert verdicts(found) == {**CLEAN, row: "DEFECT"}


def window_of(row: RowId) -> RowId:
    return row._replace(key="{}")


INTERVALS = replace(
    RIGHT.of_kind(IntervalEvidence),
    shape=replace(SHAPE, count_column=None),
    late={window_of(at(11)): [late(window_of(at(11)))]},
    truth={**TRUTH, at(11, "LGA"): (1, 1.0), at(11, "EWR"): (2, 2.0)},
    expected={**EXPECTED, at(11, "EWR"): (2, 2.0), at(11, "BOS"): (1, 1.0)},
    stream={**STREAM, at(11, "EWR"): [emitted(2, 2.0, 11)], at(11, "BOS"): [emitted(1, 1.0, 11)]},
)


def test_rows_of_an_interval_are_late_where_late_records_changed_them() -> None:
    found = {one.row: one for one in judge_stream(INTERVALS)}
    assert found[at(11)].verdict == "LATE"
    assert (found[at(11, "LGA")].verdict, found[at(11, "LGA")].presence) == ("LATE", "truth only")
    assert (found[at(11, "BOS")].verdict, found[at(11, "BOS")].presence) == ("LATE", "superseded")
    assert (found[at(11, "EWR")].verdict, found[at(11, "EWR")].presence) == ("AGREES", "both")
    assert found[at(10)].verdict == "AGREES"
    assert {one.unexplained for one in found.values()} == {0}


def test_a_row_of_an_interval_that_no_late_record_changed_is_a_defect() -> None:
    found = verdicts(judge_stream(replace(INTERVALS, late={})))
    assert {row for row, verdict in found.items() if verdict == "DEFECT"} == {at(11), at(11, "LGA"), at(11, "BOS")}


def test_what_is_served_of_an_interval_is_late_by_its_window_s_records() -> None:
    rows = {row: [ServedRow(one.values, "stream", None) for one in found] for row, found in INTERVALS.stream.items()}
    found = {one.row: one for one in judge_served(INTERVALS, ServedEvidence(rows, 12 * HOUR))}
    assert {row for row, one in found.items() if one.verdict == "LATE"} == {at(11), at(11, "LGA"), at(11, "BOS")}
    assert found[at(11, "BOS")].presence == "superseded"
    rows[at(11, "EWR")] = [ServedRow((9, 9.0), "stream", None)]
    assert verdicts(judge_served(INTERVALS, ServedEvidence(rows, 12 * HOUR)))[at(11, "EWR")] == "DEFECT"


def amended(row: RowId, offset: int = 20, first: int = 1, until: int | None = None) -> AmendedRow:
    return AmendedRow(row, "flights", 0, offset, from_ms(row.start_ms), first, until)


CURED = replace(RIGHT, truth={**TRUTH, at(10): (4, 1.2)}, amended={at(10): [amended(at(10))]})


def test_a_dead_letter_that_was_amended_makes_its_row_late_by_address() -> None:
    found = {one.row: one for one in judge_stream(CURED)}
    assert verdicts(list(found.values())) == {**CLEAN, at(10): "LATE"}
    one = found[at(10)]
    assert (one.late, one.dead, one.unexplained) == (0, 1, 0)
    assert one.reason == "1 of 4 were dead letters and have been amended"


def test_late_and_amended_records_of_one_row_are_told_apart() -> None:
    both = replace(CURED, truth={**CURED.truth, at(11): (5, 3.0)}, amended={**CURED.amended, at(11): [amended(at(11))]})
    one = next(one for one in judge_stream(both) if one.row == at(11))
    assert (one.verdict, one.late, one.dead) == ("LATE", 1, 1)
    assert one.reason == "1 of 5 records came after the window closed; 1 of 5 were dead letters and have been amended"


@pytest.mark.parametrize(
    "cures",
    [{}, {at(10): [amended(at(10)), amended(at(10), 21)]}, {at(10, "LGA"): [amended(at(10, "LGA"))]}],
    ids=["none", "more than are missing", "of another key"],
)
def test_amendments_explain_just_the_records_that_they_added(cures: dict[RowId, list[AmendedRow]]) -> None:
    assert verdicts(judge_stream(replace(CURED, amended=cures)))[at(10)] == "DEFECT"


def test_what_is_served_is_stale_until_a_backfill_applies_the_amendment() -> None:
    before = judge_served(
        CURED, served(rows={row: [ServedRow(one[0].values, "stream", None)] for row, one in STREAM.items()})
    )
    assert verdicts(before)[at(10)] == "LATE"
    cured = {
        at(10): [ServedRow((4, 1.2), "published", "bf-1")],
        at(10, "LGA"): [ServedRow((5, 2.0), "published", "bf-1")],
    }
    after = judge_served(CURED, served(rows={**served().rows, **cured}, published=frozenset({10 * HOUR})))
    assert verdicts(after)[at(10)] == "AGREES"


def test_a_cure_changed_after_the_publication_is_late() -> None:
    rows = {**served().rows, at(10): [ServedRow((4, 1.1), "published", "bf-1")]}
    since = {at(10): [amended(at(10), first=1, until=2), amended(at(10), first=2)]}
    told = served(
        rows=rows, published=frozenset({10 * HOUR}), publication_truth={at(10): (4, 1.1), at(10, "LGA"): (5, 2.0)}
    )
    (one,) = [one for one in judge_served(CURED, replace(told, amended_since=since)) if one.row == at(10)]
    assert (one.verdict, one.dead, one.late, one.unexplained) == ("LATE", 2, 0, 0)
    (one,) = [one for one in judge_served(CURED, told) if one.row == at(10)]
    assert one.verdict == "DEFECT"


def test_which_amendments_changed_since_a_decision() -> None:
    kept, ended, later = amended(at(10), first=1), amended(at(10), first=1, until=3), amended(at(10), first=3)
    assert [one.changed_since(2) for one in (kept, ended, later)] == [False, True, True]
    assert [one.changed_since(3) for one in (kept, ended, later)] == [False, False, False]
    assert [one.changed_since(0) for one in (kept, ended, later)] == [True, False, True]


UPDATING = replace(RIGHT, updates=True, stream={**STREAM, at(12): [emitted(2, 9.0, 12)]})


def test_a_stream_of_updates_must_show_the_newest_row_of_open_windows() -> None:
    assert verdicts(judge_stream(UPDATING)) == CLEAN
    assert verdicts(judge_stream(replace(UPDATING, stream=STREAM)))[at(12)] == "DEFECT"
    wrong = {**UPDATING.stream, at(12): [emitted(3, 9.0, 12)]}
    assert verdicts(judge_stream(replace(UPDATING, stream=wrong)))[at(12)] == "DEFECT"
    assert verdicts(judge_stream(replace(UPDATING, stream=wrong, updates=False)))[at(12)] == "DEFECT"


def test_a_defect_of_the_ledger_hides_no_defect_of_the_row_itself() -> None:
    wrong = replace(RIGHT, stream={**STREAM, at(10): [emitted(4, 1.0, 10)]}, blamed={10 * HOUR: "ledger of batch 10"})
    found = {one.row: one for one in judge_stream(wrong)}
    assert {row for row, one in found.items() if one.verdict == "DEFECT"} == {at(10), at(10, "LGA")}
    assert found[at(10, "LGA")].defects == [("ledger", "ledger: ledger of batch 10")]
    assert found[at(10, "LGA")].unexplained == 0
    ledger, own = found[at(10)].defects
    assert ledger == ("ledger", "ledger: ledger of batch 10")
    assert own[0] == "unexplained"
    assert "flights (4 instead of 3)" in own[1]
    assert found[at(10)].reason == f"{ledger[1]}; and {own[1]}"
    assert found[at(10)].unexplained == 1
