"""Windows of a first load: no verdict about the stream but a DEFECT, and what is served of them is judged as of its publication."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rivertwice.core.instants import EPOCH, from_ms
from rivertwice.log.addresses import Part
from rivertwice.reconcile.evidence import Evidence, ServedEvidence
from rivertwice.reconcile.gaps import SkippedRange, find_doubts, gaps_of
from rivertwice.reconcile.model import SERVED, STREAM, LateRow, RowColumns, RowId, RowVerdict, ServedRow, StreamRow
from rivertwice.reconcile.rederive import Chain
from rivertwice.reconcile.seals.look import NotIncrementalError, require_no_loaded
from rivertwice.reconcile.seals.scope import Scope
from rivertwice.reconcile.seals.touched import SettledRows, judge_touched
from rivertwice.reconcile.verdict import NOT_LOADED, judge_served, judge_stream
from rivertwice.timeline.first_load import FirstLoad
from rivertwice.timeline.verdicts import Verdict

SHAPE = RowColumns(("k",), ("n",), count_column="n")
LOAD = FirstLoad("p", "t1", "b", {"semantics": "s"}, "c", "t", "id", {0: (0, 9)}, 0, 2000, 2000, 9, {}, "test", EPOCH)


def at(start: int) -> RowId:
    return RowId(start, start + 1000, "a")


def emitted(n: int, *, due: bool = True) -> list[StreamRow]:
    return [StreamRow((n,), "t1", 1, due)]


EVIDENCE = Evidence(
    SHAPE,
    3000,
    truth={at(0): (9,), at(1000): (9,), at(2000): (9,)},
    expected={at(1000): (2,), at(2000): (9,)},
    stream={at(1000): emitted(2), at(2000): emitted(9)},
    late={},
    load=LOAD,
)
"""Of window 0 the stream read nothing, of window 1 two records of nine, of window 2 all."""


def found(verdicts: list[RowVerdict]) -> list[tuple[int, str]]:
    return [(verdict.row.start_ms, verdict.verdict) for verdict in verdicts]


def test_what_the_stream_makes_of_a_part_of_a_window_is_not_compared() -> None:
    assert found(judge_stream(EVIDENCE)) == [(2000, Verdict.AGREES)]
    without = replace(EVIDENCE, load=None)
    assert found(judge_stream(without)) == [(0, Verdict.DEFECT), (1000, Verdict.DEFECT), (2000, Verdict.AGREES)]


@pytest.mark.parametrize(
    "stream",
    [
        {at(1000): emitted(3)},
        {at(1000): emitted(2) * 2},
        {at(1000): emitted(2, due=False)},
        {at(0): emitted(9), at(1000): emitted(2)},
        {},
    ],
)
def test_a_stream_that_emits_anything_else_of_them_is_a_defect(stream: dict[RowId, list[StreamRow]]) -> None:
    judged = judge_stream(replace(EVIDENCE, stream={**stream, at(2000): emitted(9)}))
    assert [verdict for _, verdict in found(judged)].count(Verdict.DEFECT) == 1
    blamed = judge_stream(replace(EVIDENCE, blamed={1000: "batch 1: read is 8"}))
    assert found(blamed) == [(1000, Verdict.DEFECT), (2000, Verdict.AGREES)]


def served(*rows: tuple[int, int], **changes: object) -> ServedEvidence:
    held = {at(start): [ServedRow((n,), "published", "bf")] for start, n in rows}
    held[at(2000)] = [ServedRow((9,), "stream", None)]
    return replace(ServedEvidence(held, 3000, published=frozenset({0, 1000})), **changes)  # type: ignore[arg-type]


def test_a_loaded_window_is_open_until_a_backfill_publishes_it() -> None:
    judged = judge_served(EVIDENCE, served((1000, 9), unloaded=[(0, 1000)]))
    assert found(judged) == [(0, Verdict.OPEN), (1000, Verdict.AGREES), (2000, Verdict.AGREES)]
    assert judged[0].reason == NOT_LOADED
    early = judge_served(EVIDENCE, served((0, 1), (1000, 9), unloaded=[(0, 1000)]))
    assert found(early)[0] == (0, Verdict.DEFECT)


def test_a_record_after_the_publication_is_late_by_its_address() -> None:
    late = LateRow(at(0), "t", 0, 12, 2, 1000, from_ms(10))
    truth = {**EVIDENCE.truth, at(0): (10,)}
    table = served((0, 9), (1000, 9), publication_truth={at(0): (9,)}, late_since={at(0): [late]})
    judged = judge_served(replace(EVIDENCE, truth=truth, late={at(0): [late]}), table)
    assert found(judged) == [(0, Verdict.LATE), (1000, Verdict.AGREES), (2000, Verdict.AGREES)]
    assert judged[0].late == 1


def test_records_of_a_load_that_are_lost_put_its_windows_alone_in_doubt() -> None:
    part = Part("t", 0)
    jump = SkippedRange(0, LOAD, {part: 9})
    assert (gaps_of([jump]), jump.text) == ([], f"{LOAD.id}, t partition 0 [0, 9)")
    doubts = find_doubts([], {}, [jump], [(part, 3, 5)], Chain((0,), (0,)))
    assert [doubts.of(start, start + 1000) is not None for start in (0, 1000, 2000)] == [True, True, False]


def test_a_late_record_after_a_seal_changes_what_a_loaded_window_serves() -> None:
    late = {row: [LateRow(row, "t", 0, 12, 2, 1000, from_ms(10))] for row in (at(0), at(2000))}
    settled = SettledRows({STREAM: {}, SERVED: {}}, emitted={at(2000): 9}, served={at(0): 9, at(2000): 9}, load=LOAD)
    judged = judge_touched(late, settled)
    assert [(verdict.pair, verdict.row.start_ms, verdict.verdict) for verdict in judged.verdicts] == [
        (STREAM, 2000, Verdict.LATE),
        (SERVED, 0, Verdict.LATE),
        (SERVED, 2000, Verdict.LATE),
    ]


def test_a_run_from_a_seal_does_not_judge_loaded_windows() -> None:
    require_no_loaded(LOAD, Scope(5000, 1000, ((2000, 3000),)))
    require_no_loaded(None, Scope(5000, 1000, ((0, 3000),)))
    with pytest.raises(NotIncrementalError, match="windows of the first load"):
        require_no_loaded(LOAD, Scope(5000, 1000, ((1000, 3000),)))
