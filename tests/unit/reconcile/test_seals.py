"""Seals without an engine: what is looked at, which windows are judged, which batches are read, what late records change."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homes.seals import LOOK, NOW, P0, SEAL
from rivertwice.log.addresses import Part
from rivertwice.log.gaps import Gap, GapReason
from rivertwice.reconcile.derive import read_spans
from rivertwice.reconcile.gaps import SkippedRange
from rivertwice.reconcile.gate import Gate, GateAlert
from rivertwice.reconcile.model import SERVED, STREAM, LateRow, PairCount, RowId, RowVerdict
from rivertwice.reconcile.seals.look import (
    FOREIGN,
    FULL,
    INCREMENT,
    OWN,
    REPLACED,
    REWRITTEN,
    UNCHANGED,
    ChangesSinceSeal,
    Decision,
    TableChanges,
    classify_change,
    decide_mode,
    find_foreign,
)
from rivertwice.reconcile.seals.merge import merge_counts, replaced_verdicts, sealed_pairs, settled_parts
from rivertwice.reconcile.seals.model import SealedPart, chain_hash, seal_of
from rivertwice.reconcile.seals.observe import found_by
from rivertwice.reconcile.seals.scope import (
    FoundRecords,
    Scope,
    Zones,
    has_all,
    join_nearest,
    joined_runs,
    reaches_back,
    scanned,
    select_batches,
    select_pieces,
)
from rivertwice.reconcile.seals.settle import why_unfilled, why_unproved
from rivertwice.reconcile.seals.touched import SettledRows, judge_touched
from rivertwice.storage.table import TableChange
from rivertwice.timeline.lineage import Segment
from rivertwice.timeline.sequence import Entry, EntryKind
from rivertwice.timeline.served_stamp import ServedStamp
from rivertwice.timeline.serving import Publication

SIZE = 10


def change(
    operation: str = "WRITE", mode: str = "Append", keys: tuple[str, ...] = ("nonce",), partial: bool = False
) -> TableChange:
    return TableChange(7, operation, mode, partial, frozenset(keys))


REPLACING = change(mode="Overwrite", keys=("served",), partial=True)
FOREIGN_COMMIT = TableChanges("ledger", 7, 6, [change("UPDATE", "", ())])
UPKEEP = [change("OPTIMIZE", "", ()), change("VACUUM START", "", ()), change("VACUUM END", "", ())]


def test_a_seal_is_read_as_it_was_stored() -> None:
    names = ("run", "created_at", "timeline", "batch", "meaning", "sequence", "amendments", "settled_ms")
    row = {"_format": 1, **{name: getattr(SEAL, name) for name in names}, "state": SEAL.state()}
    assert seal_of(row) == SEAL
    assert seal_of({**row, "_format": 2}) is None
    assert "whole" not in SEAL.state()
    whole = replace(SEAL, whole=True)
    assert seal_of({**row, "state": whole.state()}) == whole


@pytest.mark.parametrize(
    ("looked", "mode", "word"),
    [
        (LOOK, UNCHANGED, "nothing new"),
        (replace(LOOK, seal=None), FULL, "no seal"),
        (replace(LOOK, last=("t1", 6)), INCREMENT, "starts at"),
        (replace(LOOK, stamp=ServedStamp(1, "t1", 6)), INCREMENT, "starts at"),
        (replace(LOOK, stamp=None), FULL, "served table came or went"),
        (replace(LOOK, amendments=1), FULL, "dead letters"),
        (replace(LOOK, path=[*LOOK.path, Segment("t2", 9, None)], gaps=["t2"]), FULL, "accepted gap"),
        (replace(LOOK, gaps=["t1"]), UNCHANGED, "nothing new"),
        (replace(LOOK, gaps=["t1"], last=("t1", 6)), INCREMENT, "starts at"),
        (
            replace(LOOK, gaps=["t1"], entries=[Entry(2, EntryKind.PUBLICATION, {}, NOW)]),
            FULL,
            "may cover windows of the gap",
        ),
        (
            replace(LOOK, entries=[*LOOK.entries, Entry(2, EntryKind.HEAD, {"timeline": "t2"}, NOW)]),
            INCREMENT,
            "starts at",
        ),
        (replace(LOOK, tables=[TableChanges("served", 9, 8, [REPLACING])]), FULL, "without a publication"),
        (replace(LOOK, entries=[*LOOK.entries, Entry(2, EntryKind.PUBLICATION, {}, NOW)]), INCREMENT, "starts at"),
        (replace(LOOK, tables=[TableChanges("ledger", 9, 5, None)]), FULL, "not kept"),
        (replace(LOOK, tables=[TableChanges("ledger", 9, 8, [change(mode="Overwrite")])]), FULL, "replaced rows"),
        (replace(LOOK, tables=[FOREIGN_COMMIT]), FULL, "another program made version 7 of the table ledger (UPDATE)"),
        (replace(LOOK, last=("t1", 6), tables=[FOREIGN_COMMIT]), FULL, "another program"),
        (replace(LOOK, amendments=1, tables=[FOREIGN_COMMIT]), FULL, "another program"),
        (replace(LOOK, tables=[TableChanges("ledger", 9, 6, UPKEEP)]), UNCHANGED, "nothing new"),
        (replace(LOOK, last=("t1", 6), tables=[TableChanges("ledger", 9, 6, UPKEEP)]), INCREMENT, "starts at"),
    ],
)
def test_how_much_is_judged_follows_from_what_changed(looked: ChangesSinceSeal, mode: str, word: str) -> None:
    decision = decide_mode(looked)
    assert decision.mode == mode
    assert word in decision.reason


@pytest.mark.parametrize(
    ("looked", "mode", "word"),
    [
        (LOOK, UNCHANGED, "nothing new"),
        (replace(LOOK, last=("t1", 6)), FULL, "judged as a whole"),
        (replace(LOOK, stamp=ServedStamp(1, "t1", 6)), FULL, "judged as a whole"),
        (replace(LOOK, amendments=1), FULL, "dead letters"),
        (replace(LOOK, tables=[FOREIGN_COMMIT]), FULL, "another program"),
        (replace(LOOK, tables=[TableChanges("ledger", 9, 6, UPKEEP)]), UNCHANGED, "nothing new"),
    ],
)
def test_a_seal_of_rows_judged_as_a_whole_holds_until_anything_is_new(
    looked: ChangesSinceSeal, mode: str, word: str
) -> None:
    decision = decide_mode(replace(looked, seal=replace(SEAL, whole=True)))
    assert decision.mode == mode
    assert word in decision.reason


@pytest.mark.parametrize(
    ("stream", "served", "proves"),
    [
        ({"AGREES": 3, "OPEN": 1}, {"LATE": 1}, True),
        ({"OPEN": 7}, {"AGREES": 9}, True),  # after a first load the stream has closed nothing of its own
        ({"OPEN": 7}, {"OPEN": 7}, False),
        ({"AGREES": 3}, {"NOT_COMPARABLE": 3}, False),
        ({"AGREES": 3}, {"AGREES": 2, "NOT_COMPARABLE": 1}, True),
        ({"AGREES": 3}, {"AGREES": 2, "DEFECT": 1}, False),
    ],
)
def test_verdicts_prove_what_could_be_compared(stream: dict[str, int], served: dict[str, int], proves: bool) -> None:
    assert (why_unproved(Gate(()), {STREAM: stream, SERVED: served}) == "") == proves
    assert why_unproved(Gate((GateAlert("critical", "x", "no"),)), {STREAM: stream, SERVED: served})


def test_a_person_who_asks_for_everything_or_a_range_gets_it() -> None:
    assert decide_mode(LOOK, full=True) == Decision(FULL, "everything was asked for")
    assert decide_mode(LOOK, has_range=True) == Decision(FULL, "a range was asked for")


def test_the_reason_names_another_program_whatever_was_asked_for() -> None:
    seen = replace(LOOK, tables=[FOREIGN_COMMIT])
    made = "another program made version 7 of the table ledger (UPDATE)"
    assert decide_mode(seen).reason == made
    assert decide_mode(seen, full=True).reason == f"everything was asked for; {made}"
    assert decide_mode(replace(seen, seal=None)).mode == FULL


def test_of_several_commits_of_another_program_the_first_is_named() -> None:
    commits = [replace(change("DELETE", "", ()), version=7), change(), replace(change("", "", ()), version=9)]
    tables = [TableChanges("changelog", 9, 6, commits), FOREIGN_COMMIT]
    assert find_foreign(tables) == "another program made version 7 of the table changelog (DELETE) and 2 more commits"
    assert find_foreign([TableChanges("served", 9, 8, [REPLACING])]) is None
    assert find_foreign([TableChanges("ledger", 9, 5, None)]) is None


@pytest.mark.parametrize(
    ("table", "made", "kind"),
    [
        ("changelog", change(), OWN),
        ("changelog", change("OPTIMIZE", "", ()), OWN),
        ("changelog", change("VACUUM END", "", ()), OWN),
        ("changelog", change(keys=()), FOREIGN),
        ("changelog", change("UPDATE", "", ()), FOREIGN),
        ("changelog", change("RESTORE", "", ()), FOREIGN),
        ("changelog", change("DELETE", "", ("nonce",)), REWRITTEN),
        ("changelog", change("FSCK", "", ()), REWRITTEN),
        ("dead_letters", change(mode="Overwrite", partial=True), REWRITTEN),
        ("served", change(keys=("served",)), OWN),
        ("served", change(mode="Overwrite", keys=("served",)), REWRITTEN),
        ("served", change(mode="Overwrite", keys=("served",), partial=True), REPLACED),
        ("served", change(mode="Overwrite", keys=()), FOREIGN),
    ],
)
def test_a_commit_is_known_by_what_it_did_and_who_made_it(table: str, made: TableChange, kind: str) -> None:
    assert classify_change(table, made) == kind


def zones(*batches: tuple[int, int | None, int | None]) -> Zones:
    """Batches of (watermark, first and last event)."""
    return Zones(
        ["t1"] * len(batches),
        np.arange(len(batches)),
        np.array([watermark for watermark, _, _ in batches]),
        np.array([1 << 60 if low is None else low for _, low, _ in batches]),
        np.array([-(1 << 60) if high is None else high for _, _, high in batches]),
    )


def test_batches_with_records_of_windows_that_are_not_settled_are_read() -> None:
    #                 settled at 20: windows that begin at 11 or later are open
    seen = zones((0, 1, 8), (3, 2, 12), (7, None, None), (20, 15, 25), (20, 3, 9))
    assert select_batches(seen, Scope(20, SIZE)) == [1, 3]


def test_batches_that_emitted_windows_that_are_judged_again_are_read() -> None:
    seen = zones((0, 1, 8), (3, 12, 14), (10, None, None), (20, 15, 25), (20, 3, 9), (20, 26, 27))
    assert select_batches(seen, Scope(20, SIZE, ((0, 10),))) == [0, 1, 2, 3, 4, 5]
    assert select_batches(zones((0, 30, 38), (40, 41, 42), (50, 60, 61)), Scope(70, SIZE, ((30, 31),))) == [0, 1, 2]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(0, 60), max_size=4)), min_size=1, max_size=12),
    st.integers(0, 60),
    st.lists(st.integers(0, 5), max_size=2),
)
def test_no_record_of_a_window_in_scope_is_in_a_batch_that_is_not_read(
    steps: list[tuple[int, list[int]]], settled: int, starts: list[int]
) -> None:
    watermark, batches = 0, []
    for rise, events in steps:
        watermark += rise
        batches.append((watermark, min(events, default=None), max(events, default=None)))
    scope = Scope(settled, SIZE, tuple((start * SIZE, start * SIZE + SIZE) for start in sorted(set(starts))))
    chosen = select_batches(zones(*batches), scope)
    for number, (_, events) in enumerate(steps):
        if any(scope.contains(event - event % SIZE) for event in events):
            assert number in chosen


@given(
    st.lists(st.lists(st.integers(-20, 80), max_size=4), min_size=1, max_size=12),
    st.integers(1, 20),
    st.integers(0, 90),
)
def test_a_look_back_ends_only_where_no_older_batch_is_needed(steps: list[list[int]], delay: int, settled: int) -> None:
    watermark, highest, batches = 0, -(1 << 60), []
    for events in steps:
        watermark = max(watermark, highest - delay)
        highest = max([highest, *events])
        batches.append((watermark, min(events, default=None), max(events, default=None)))
    scope = Scope(settled, SIZE)
    for first in range(1, len(batches)):
        if reaches_back(batches[first][0], delay, scope):
            assert [place for place in select_batches(zones(*batches), scope) if place < first] == []


@given(
    st.lists(st.lists(st.integers(0, 60), max_size=6), min_size=1, max_size=10),
    st.integers(0, 60),
    st.lists(st.integers(0, 5), max_size=3, unique=True),
    st.integers(0, 40),
    st.sampled_from(["exact", "rough", "nothing"]),
)
def test_every_record_of_a_window_in_scope_is_read_wherever_a_backfill_found_it(
    steps: list[list[int]], settled: int, starts: list[int], as_of: int, said: str
) -> None:
    """Records of one partition, in batches; what the backfill found counts below its own end alone."""
    events = [event for batch in steps for event in batch]
    ends = list(itertools.accumulate(len(batch) for batch in steps))
    batches = {n: {P0: (end - len(steps[n]), end)} for n, end in enumerate(ends)}
    scope = Scope(settled, SIZE, tuple((start * SIZE, start * SIZE + SIZE) for start in sorted(starts)))
    seen = zones(*((0, min(batch, default=None), max(batch, default=None)) for batch in steps))
    inside = [any(low <= event - event % SIZE < high for low, high in scope.ranges) for event in events]
    runs = [(at, at + 1) for at, is_inside in enumerate(inside) if is_inside and at < as_of]
    if said == "rough" and runs:
        runs = [(runs[0][0], runs[-1][1])]
    found = [FoundRecords(scope.ranges, {P0: join_nearest(runs, 100)}, {P0: as_of})] if said != "nothing" else []
    pieces = select_pieces(seen, scope, found, batches)
    read = {at for batch in pieces for low, high in batch.get(P0, ()) for at in range(low, high)}
    wanted = {at for at, event in enumerate(events) if scope.contains(event - event % SIZE)}
    assert wanted <= read
    if said == "exact":
        whole = {n for n, batch in enumerate(steps) if any(event >= scope.open_ms for event in batch)}
        others = {at for n in batches if n not in whole for at in range(*batches[n][P0]) if at < as_of}
        assert read & others <= wanted
    for n, piece in enumerate(pieces):
        assert has_all(piece, batches[n]) == (set(range(*batches[n][P0])) <= read)


def test_what_a_backfill_found_is_the_sum_of_its_chunks() -> None:
    publication = Publication(2, "bf", ((0, SIZE),), "s", "b", {"t": {0: 10}})
    found = found_by(publication, [{"t": {0: ((4, 6),)}}, {"t": {0: ((0, 4),), 1: ((1, 2),)}}])
    assert found == FoundRecords(((0, SIZE),), {P0: [(0, 6)], Part("t", 1): [(1, 2)]}, {P0: 10})
    assert found.of({P0: (5, 8)}) == {P0: ((5, 6),)}
    assert found.of({P0: (8, 12)}) == {P0: ((10, 12),)}
    assert found.of({Part("t", 2): (3, 5)}) == {
        Part("t", 2): ((3, 5),)
    }  # it had not begun when the backfill was planned


def test_many_runs_are_scanned_with_the_small_holes_between_them() -> None:
    few = {0: [(0, 1), (2, 3)], 1: [(7, 9)]}
    assert scanned(few) == few
    assert scanned({0: [(at, at + 1) for at in (0, 5, 10, 15, 1_000_000)]}) == {0: ((0, 16), (1_000_000, 1_000_001))}


@given(st.sets(st.integers(0, 200), max_size=40), st.integers(1, 6))
def test_runs_cover_what_is_asked_for_and_are_few(places: set[int], most: int) -> None:
    runs = joined_runs(sorted(places), most)
    covered = {place for low, high in runs for place in range(low, high)}
    assert places <= covered
    assert len(runs) <= most
    assert all(first[1] < second[0] for first, second in itertools.pairwise(runs))
    if len(joined_runs(sorted(places), 1000)) <= most:
        assert covered == places


def test_the_smallest_gaps_are_filled_first() -> None:
    assert join_nearest([(0, 1), (2, 3), (10, 11)], 2) == [(0, 3), (10, 11)]


def test_records_between_batches_that_do_not_meet_are_not_read() -> None:
    batches = [{0: (0, 5), 1: (0, 2)}, {0: (5, 7), 1: (2, 2)}, {0: (20, 25), 1: (9, 12)}, {0: (25, 26), 1: (12, 13)}]
    assert read_spans(batches) == [{0: (0, 7), 1: (0, 2)}, {0: (20, 26), 1: (9, 13)}]


def late(offset: int, start: int = 0, key: str = "a") -> LateRow:
    return LateRow(RowId(start, start + SIZE, key), "t", 0, offset, 6, 100, NOW)


def stored(verdict: str, records: int = 0, dead: int = 0, reason: str = "") -> dict[str, object]:
    return {"verdict": verdict, "late": records, "dead": dead, "reason": reason, "key": "a"}


ROW = RowId(0, SIZE, "a")


def test_a_settled_row_becomes_late_by_exactly_its_late_records() -> None:
    settled = SettledRows({STREAM: {ROW: stored("AGREES")}, SERVED: {ROW: stored("AGREES")}}, {ROW: 4}, {ROW: 4})
    stream, served = judge_touched({ROW: [late(9), late(11)]}, settled).verdicts
    assert (stream.verdict, stream.late, stream.reason) == ("LATE", 2, "2 of 6 records came after the window closed")
    assert (served.verdict, served.late, served.reason) == ("LATE", 2, "2 of 6 records came too late")


def test_late_records_of_before_are_counted_on() -> None:
    settled = SettledRows({STREAM: {ROW: stored("LATE", 1, 1)}, SERVED: {}}, {ROW: 4}, None)
    (stream,) = judge_touched({ROW: [late(9)]}, settled).verdicts
    assert (stream.late, stream.dead) == (2, 1)
    assert stream.reason.startswith("2 of 7 records came after the window closed")


def test_a_row_that_no_side_had_is_late_as_a_whole() -> None:
    (stream, served) = judge_touched({ROW: [late(9)]}, SettledRows({STREAM: {}, SERVED: {}}, {}, {})).verdicts
    assert (stream.presence, served.presence) == ("truth only", "truth only")
    assert stream.reason == "1 of 1 records came after the window closed"


def test_what_a_publication_counted_is_not_late_for_it() -> None:
    publication = Publication(2, "bf", ((0, SIZE),), "s", "b", {"t": {0: 10}})
    settled = SettledRows(
        {STREAM: {ROW: stored("LATE", 1)}, SERVED: {ROW: stored("AGREES")}}, {ROW: 4}, {ROW: 5}, {0: publication}, "s"
    )
    touched = judge_touched({ROW: [late(9)]}, settled)
    assert [verdict.pair for verdict in touched.verdicts] == [STREAM]
    _, served = judge_touched({ROW: [late(9), late(10)]}, settled).verdicts
    assert (served.late, served.reason) == (1, "1 of 6 records came too late after the newest publication")
    older = replace(settled, semantics="another")
    assert judge_touched({ROW: [late(10)]}, older).verdicts[1].verdict == "NOT_COMPARABLE"


def test_a_row_of_a_window_that_cannot_be_compared_stays_so() -> None:
    other = ROW._replace(key="b")
    settled = SettledRows({STREAM: {other: stored("NOT_COMPARABLE", reason="mixed")}, SERVED: {}}, {}, None)
    (stream,) = judge_touched({ROW: [late(9)]}, settled).verdicts
    assert (stream.verdict, stream.reason) == ("NOT_COMPARABLE", "mixed")


def test_counts_of_all_rows_are_the_seals_without_what_no_longer_holds() -> None:
    stored_rows = {STREAM: {ROW: stored("AGREES"), ROW._replace(start_ms=200, end_ms=210): stored("OPEN")}}
    touched = judge_touched({ROW: [late(9)]}, SettledRows(stored_rows | {SERVED: {}}, {ROW: 1}, None)).verdicts
    gone = replaced_verdicts(stored_rows, Scope(100, SIZE), touched)
    assert gone == {(STREAM, "AGREES"): 1}
    own = [(verdict.pair, verdict.verdict) for verdict in touched]
    counts = merge_counts(SEAL.counts, [*own, (STREAM, "OPEN")], gone)
    assert counts[STREAM] == {"AGREES": 2, "LATE": 2, "OPEN": 1, "DEFECT": 0, "NOT_COMPARABLE": 0}


def test_windows_that_are_judged_again_give_their_counts_back() -> None:
    stored_rows = {SERVED: {ROW: stored("LATE"), RowId(50, 60, "a"): stored("LATE")}}
    assert replaced_verdicts(stored_rows, Scope(100, SIZE, ((0, 1),)), ()) == {(SERVED, "LATE"): 1}


ALL = ROW._replace(key=None)  # type: ignore[arg-type]
AGREEING = {**stored("AGREES"), "key": None, "rows": 3, "pair": STREAM}


def test_a_row_that_agreed_with_its_window_leaves_the_others_of_it() -> None:
    settled = SettledRows({STREAM: {ALL: AGREEING}, SERVED: {}}, {ROW: 4}, None)
    touched = judge_touched({ROW: [late(9)], ROW._replace(key="new"): [late(10)]}, settled)
    assert touched.agreed == [(STREAM, ROW)]
    assert touched.remaining == [(AGREEING, 2)]
    gone = replaced_verdicts(settled.verdicts, Scope(100, SIZE), touched.verdicts, touched.agreed)
    assert gone == {(STREAM, "AGREES"): 1}


def test_windows_judged_again_give_back_all_rows_that_agreed() -> None:
    again = Scope(100, SIZE, ((0, 1),))
    assert replaced_verdicts({STREAM: {ALL: AGREEING}}, again, (), [(STREAM, ROW)]) == {(STREAM, "AGREES"): 3}


def test_a_seals_balance_is_carried_on() -> None:
    pairs = [
        PairCount(P0, 110, False, 3),
        PairCount(P0, 120, False, 2),
        PairCount(P0, 90, True, 1),
        *sealed_pairs(SEAL),
    ]
    parts = settled_parts({P0: 15}, {P0: 14}, {P0: 1}, pairs, 110)
    assert parts == {P0: SealedPart(15, 14, 1, 10, 2)}


def test_the_ledgers_chain_can_be_continued_and_sees_a_change() -> None:
    from homes.ledger import ledger_row

    rows = [ledger_row(number) for number in range(4)]
    assert chain_hash(chain_hash("x", rows[:2]), rows[2:]) == chain_hash("x", rows)
    assert chain_hash("x", [*rows[:3], replace(rows[3], read=9)]) != chain_hash("x", rows)


GAP = Gap("p", "t1", 4, "topic", "id", GapReason.HANDED_OVER, {0: (10, 20)}, {0: (10, 20)}, 0, None, NOW)


def served(start: int, verdict: str) -> RowVerdict:
    return RowVerdict(SERVED, RowId(start, start + SIZE, "k"), verdict, "", "both")


@pytest.mark.parametrize(
    ("verdicts", "word"),
    [
        ([served(10, "AGREES"), served(20, "LATE")], ""),
        ([served(10, "AGREES"), served(20, "NOT_COMPARABLE")], "no backfill is published"),
        ([served(10, "AGREES"), served(20, "OPEN")], "not closed yet"),
        ([served(10, "AGREES"), served(20, "AGREES"), served(30, "OPEN")], ""),  # a window without skipped records
        ([], "not served by a backfill yet"),
    ],
)
def test_after_a_gap_there_is_a_seal_once_its_windows_are_served(verdicts: list[RowVerdict], word: str) -> None:
    why = why_unfilled([SkippedRange(5, GAP, {})], {10, 20}, verdicts)
    assert (why == "") == (word == "")
    assert word in why
    assert why_unfilled([], {10, 20}, verdicts) == ""
