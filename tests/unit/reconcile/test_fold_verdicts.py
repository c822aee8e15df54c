"""Verdicts on rows of folds: final at once, held to the order the stream had, in doubt behind whatever is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rivertwice.log.addresses import Part
from rivertwice.pipeline.fold_model import NO_WATERMARK
from rivertwice.pipeline.windows import FOREVER_MS
from rivertwice.reconcile.balance import Account, PairCount, balance_partitions
from rivertwice.reconcile.fold_rule import is_read_by, record_of
from rivertwice.reconcile.gaps import Doubt, Doubts, without_end
from rivertwice.reconcile.late_rule import NEVER_MS
from rivertwice.reconcile.model import (
    AGREES,
    DEFECT,
    NOT_COMPARABLE,
    RowId,
    ServedRow,
    Shape,
    StreamRow,
    Verdict,
    key_text,
)
from rivertwice.reconcile.rederive import BatchCounts, derive_chain
from rivertwice.reconcile.verdict import Evidence, ServedEvidence, judge_served, judge_stream

SHAPE = Shape(("record", "row", "k"), ("n",))
DAY_MS = 86_400_000
PLACE = 3 << 44 | 17


def address(record: int = PLACE, row: int = 0) -> RowId:
    return RowId(0, DAY_MS, key_text(SHAPE.keys, (record, row, "a")))


def evidence(got: int | None = 1, owed: int | None = 1) -> Evidence:
    emitted = [StreamRow((got,), "t1", 0, NEVER_MS, FOREVER_MS)]
    rows = {} if owed is None else {address(): (owed,)}
    return Evidence(SHAPE, FOREVER_MS, rows, rows, {} if got is None else {address(): emitted}, {})


def only(found: list[Verdict]) -> Verdict:
    (one,) = found
    return one


def served(given: Evidence) -> ServedEvidence:
    rows = {row: [ServedRow(one.values, "stream", None) for one in found] for row, found in given.stream.items()}
    return ServedEvidence(rows, FOREVER_MS)


def test_a_fold_s_watermarks_are_nought_whatever_its_events_say() -> None:
    counts = [BatchCounts(1, 0, 1, 0, 253_402_300_799_999)] * 3
    assert derive_chain(counts, [int(NO_WATERMARK.total_seconds() * 1000)] * 3).batch == (0, 0, 0)


def test_a_row_s_address_holds_the_place_of_its_record() -> None:
    assert record_of(address()) == PLACE
    assert is_read_by(address(), "events", {Part("events", 3): (17, 18)})
    assert not is_read_by(address(), "events", {Part("events", 3): (16, 17)})
    assert not is_read_by(address(), "events", {Part("events", 0): (0, 100)})
    assert not is_read_by(address(), "others", {Part("events", 3): (17, 18)})


@pytest.mark.parametrize(
    ("given", "verdict", "words"),
    [
        (evidence(), AGREES, ""),
        (evidence(got=2), DEFECT, "n is 2, must be 1|differs"),
        (evidence(got=None), DEFECT, "did not emit"),
        (evidence(owed=None), DEFECT, "no record explains"),
    ],
)
def test_every_row_is_judged_at_once(given: Evidence, verdict: str, words: str) -> None:
    found = only(judge_stream(given))
    assert found.verdict == verdict
    assert any(word in found.reason for word in words.split("|"))


def test_a_row_that_another_batch_emitted_than_read_its_record_is_a_defect() -> None:
    given = evidence()
    wrong = {address(): [replace(given.stream[address()][0], late_watermark_ms=FOREVER_MS)]}
    found = only(judge_stream(replace(given, stream=wrong)))
    assert found.verdict == DEFECT
    assert "read its record" in found.reason


def test_a_row_of_a_key_in_several_partitions_is_not_comparable_unless_it_is_wrong_anyhow() -> None:
    given = replace(evidence(), apart={PLACE: "records of the key lie apart"})
    for found in (only(judge_stream(given)), only(judge_served(given, served(given)))):
        assert (found.verdict, found.reason) == (NOT_COMPARABLE, "records of the key lie apart")
    wrong = replace(evidence(got=2), apart=given.apart)
    assert only(judge_stream(wrong)).verdict == DEFECT
    assert only(judge_served(wrong, served(wrong))).verdict == DEFECT
    assert only(judge_stream(replace(given, apart={PLACE + 1: "another"}))).verdict == AGREES


def test_behind_what_is_missing_nothing_of_a_fold_can_be_told_whatever_its_time() -> None:
    doubts = without_end(Doubts((Doubt(5, 6, "gone", unread=True),)))
    assert only(judge_stream(replace(evidence(), doubts=doubts))).verdict == NOT_COMPARABLE


def test_records_without_a_row_are_counted_by_themselves() -> None:
    part = Part("events", 0)
    pairs = [PairCount(part, 0, False, 3)]
    accounts = balance_partitions({part: 6}, {part: 1}, {part: 5}, pairs, FOREVER_MS, silent={part: 2})
    assert accounts[part] == Account(read=6, emitted=3, dead=1, excluded=2)
    assert accounts[part].unexplained == 0
    unnamed = balance_partitions({part: 6}, {part: 1}, {part: 5}, pairs, FOREVER_MS, silent={})
    assert unnamed[part].unexplained == 2
