"""Verdicts on rows of folds: final at once, held to the order the stream had, in doubt behind whatever is missing."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from rivertwice.core.instants import from_ms
from rivertwice.definition.definition import Definition, parse_files
from rivertwice.definition.folds import NO_WATERMARK
from rivertwice.definition.kinds.stateful import FOREVER_MS
from rivertwice.engine.folds import AS_READ, NUMBER
from rivertwice.log.addresses import Part
from rivertwice.reconcile.evidence import ServedEvidence, StatefulEvidence
from rivertwice.reconcile.frames import verdict_frame
from rivertwice.reconcile.gaps import LostRecordEffects, LostRecordsDoubt, without_end
from rivertwice.reconcile.gate import GateInput, decide_gate
from rivertwice.reconcile.kinds.stateful import is_read_by, place_of, select_order_dependent
from rivertwice.reconcile.model import (
    OLDER,
    Account,
    OrderDependentRows,
    PairCount,
    RowColumns,
    RowId,
    RowVerdict,
    ServedRow,
    StreamRow,
    balance_partitions,
)
from rivertwice.reconcile.recorded import check_order
from rivertwice.reconcile.rederive import BatchCounts, derive_chain
from rivertwice.reconcile.verdict import judge_served, judge_stream
from rivertwice.timeline.digest import key_text
from rivertwice.timeline.verdicts import Verdict

SHAPE = RowColumns(("record", "row", "k"), ("n",))
DAY_MS = 86_400_000
PLACE = 3 << 44 | 17


def address(record: int = PLACE, row: int = 0) -> RowId:
    return RowId(0, DAY_MS, key_text(SHAPE.keys, (record, row, "a")))


def evidence(got: int | None = 1, expected: int | None = 1) -> StatefulEvidence:
    emitted = [StreamRow((got,), "t1", 0, is_due=True)]
    rows = {} if expected is None else {address(): (expected,)}
    return StatefulEvidence(SHAPE, FOREVER_MS, rows, rows, {} if got is None else {address(): emitted}, {})


def only(found: list[RowVerdict]) -> RowVerdict:
    (one,) = found
    return one


def served(given: StatefulEvidence) -> ServedEvidence:
    rows = {row: [ServedRow(one.values, "stream", None) for one in found] for row, found in given.stream.items()}
    return ServedEvidence(rows, FOREVER_MS)


def test_a_fold_s_watermarks_are_nought_whatever_its_events_say() -> None:
    counts = [BatchCounts(1, 0, 1, 0, 253_402_300_799_999)] * 3
    assert derive_chain(counts, [int(NO_WATERMARK.total_seconds() * 1000)] * 3).batch == (0, 0, 0)


SOURCE = (
    "{topic: %s, partitions: 4, schema: {k: string, at: timestamp}, required: [k], event_time: at, max_future: 1 h}"
)
YAML = """
name: p
description: test
sources: {SOURCES}
window: {fold: 1 day, at: at}
by: [k]
state: {n: bigint}
keys: [k]
columns: {n: {}, at: {}}
types: {n: bigint, at: timestamp}
"""


def define(*topics: str) -> Definition:
    sources = ", ".join(f"of_{topic}: {SOURCE % topic}" for topic in topics)
    files = {
        "pipeline.yaml": YAML.replace("SOURCES", sources),
        "fold.py": "def fold(state, event):\n    return None, []\n",
    }
    return parse_files({name: text.encode() for name, text in files.items()}, "p")


def test_a_row_s_address_holds_the_place_of_its_record() -> None:
    only = define("events")
    assert place_of(address(), only) == (Part("events", 3), 17)
    assert is_read_by(address(), only, {Part("events", 3): (17, 18)})
    assert not is_read_by(address(), only, {Part("events", 3): (16, 17)})
    assert not is_read_by(address(), only, {Part("events", 0): (0, 100)})
    assert not is_read_by(address(), define("others"), {Part("events", 3): (17, 18)})


def test_an_address_names_its_topic_and_an_unknown_name_has_no_place() -> None:
    both = define("events", "others")

    def of(source: str) -> RowId:
        return RowId(0, DAY_MS, key_text(("source", *SHAPE.keys), (source, PLACE, 0, "a")))

    assert place_of(of("of_others"), both) == (Part("others", 3), 17)
    assert is_read_by(of("of_others"), both, {Part("others", 3): (17, 18), Part("events", 3): (0, 9)})
    assert not is_read_by(of("of_events"), both, {Part("others", 3): (17, 18), Part("events", 3): (0, 9)})
    assert not is_read_by(of("planted"), both, {Part("others", 3): (17, 18), Part("events", 3): (17, 18)})


@pytest.mark.parametrize(
    ("given", "verdict", "words"),
    [
        (evidence(), Verdict.AGREES, ""),
        (evidence(got=2), Verdict.DEFECT, "n is 2, must be 1|differs"),
        (evidence(got=None), Verdict.DEFECT, "did not emit"),
        (evidence(expected=None), Verdict.DEFECT, "no record explains"),
    ],
)
def test_every_row_is_judged_at_once(given: StatefulEvidence, verdict: str, words: str) -> None:
    found = only(judge_stream(given))
    assert found.verdict == verdict
    assert any(word in found.reason for word in words.split("|"))


def test_a_row_that_another_batch_emitted_than_read_its_record_is_a_defect() -> None:
    given = evidence()
    wrong = {address(): [replace(given.stream[address()][0], is_due=False)]}
    found = only(judge_stream(replace(given, stream=wrong)))
    assert found.verdict == Verdict.DEFECT
    assert "read its record" in found.reason


@pytest.mark.proves("guarantees.md#folds-and-views")
def test_a_row_of_a_key_in_several_partitions_is_not_comparable() -> None:
    given = replace(evidence(), order_dependent=OrderDependentRows({address(): "records of the key lie apart"}))
    for found in (only(judge_stream(given)), only(judge_served(given, served(given)))):
        assert (found.verdict, found.reason) == (Verdict.NOT_COMPARABLE, "records of the key lie apart")
    wrong = replace(evidence(got=2), order_dependent=given.order_dependent)
    assert only(judge_stream(wrong)).verdict == Verdict.DEFECT
    assert only(judge_served(wrong, served(wrong))).verdict == Verdict.DEFECT
    assert (
        only(judge_stream(replace(given, order_dependent=OrderDependentRows({address(PLACE + 1): "another"})))).verdict
        == Verdict.AGREES
    )


def test_an_older_row_that_need_not_be_compared_alerts_nobody() -> None:
    older = OrderDependentRows({address(): "an older row"}, older={address()})
    for given, presence in (
        (replace(evidence(), order_dependent=older), OLDER),
        (replace(evidence(got=2), order_dependent=older), "both"),
    ):
        (stream,), (shown,) = judge_stream(given), judge_served(given, served(given))
        assert (stream.presence, shown.presence) == (presence, presence)
        assert len(verdict_frame([stream, shown])) == (0 if presence == OLDER else 2)
    counts = {"stream": {Verdict.AGREES: 1, Verdict.NOT_COMPARABLE: 3}}
    quiet = GateInput(counts, Account(), {}, 0.05, older={"stream": 3})
    assert decide_gate(quiet).alerts == ()
    (alert,) = decide_gate(replace(quiet, older={"stream": 1})).alerts
    assert (alert.kind, alert.message) == ("not_comparable", "2 rows of the pair stream cannot be compared")


def test_of_order_any_newest_rows_stand_that_are_the_same_in_all_orders() -> None:
    yaml = YAML.replace("by: [k]", "by: [k]\norder: any\ndeleted: gone").replace(
        "{n: {}, at: {}}", "{n: {}, at: {}, gone: {}}"
    )
    yaml = yaml.replace("at: timestamp}\n", "at: timestamp, gone: boolean}\n").replace("SOURCES", f"e: {SOURCE % 'e'}")
    files = {"pipeline.yaml": yaml, "fold.py": "def fold(state, event):\n    return None, []\n"}
    definition = parse_files({name: text.encode() for name, text in files.items()}, "p")

    def table(*rows: tuple[int, str, int, bool, int]) -> pa.Table:
        names = ("record", "k", "n", "gone", NUMBER)
        at = from_ms(0)
        frame = {"window_start": at, "window_end": from_ms(DAY_MS), "row": 0, "at": at}
        return pa.Table.from_pylist([{**frame, **dict(zip(names, row, strict=True))} for row in rows])

    def at(record: int, key: str) -> RowId:
        return RowId(0, DAY_MS, key_text(SHAPE.keys, (record, 0, key)))

    read = table(
        (1, "a", 1, False, 0), (2, "a", 2, False, 1), (3, "b", 1, False, 0), (4, "c", 1, True, 0), (5, "d", 1, True, 0)
    )
    other = table((8, "a", 2, False, 0), (3, "b", 2, False, 0), (4, "c", 1, True, 0), (5, "d", 2, True, 0))
    spread = {at(record, key): f"of {key}" for record, key in ((1, "a"), (2, "a"), (3, "b"), (4, "c"), (5, "d"))}
    found = select_order_dependent(
        definition, RowColumns(SHAPE.keys, ("n", "at", "gone")), spread, {AS_READ: read, "turned": other}
    )
    assert set(found.rows) == {at(1, "a"), at(3, "b"), at(5, "d")}
    assert found.older == {at(1, "a"), at(5, "d")}
    assert found.unsettled == {'{"k": "b"}': f"n is 1 {AS_READ}, 2 turned"}
    assert found.rows[at(1, "a")].startswith("an older row of its key")
    assert found.rows[at(3, "b")].startswith("the newest row of its key depends on the order: n is 1")
    assert found.rows[at(5, "d")].startswith("its key is gone in every order")


@pytest.mark.proves("guarantees.md#folds-and-views")
def test_keys_whose_newest_row_depends_on_order_are_named_and_counted() -> None:
    keys = {f'{{"k": {number:04}}}': "n is 1 as it was read, 2 folded b, then a" for number in range(102)}
    found = check_order(OrderDependentRows(unsettled=keys))
    assert len(found) == 101
    assert {one.kind for one in found} == {"order"}
    assert '{"k": 0000}' in found[0].message
    assert "n is 1 as it was read, 2 folded b" in found[0].message
    assert "2 more keys" in found[-1].message
    assert check_order(OrderDependentRows()) == []


def test_after_a_missing_record_no_row_of_a_fold_can_be_judged() -> None:
    doubts = without_end(LostRecordEffects((LostRecordsDoubt(5, 6, "gone", unread=True),)))
    assert only(judge_stream(replace(evidence(), doubts=doubts))).verdict == Verdict.NOT_COMPARABLE


def test_records_without_a_row_are_counted_by_themselves() -> None:
    part = Part("events", 0)
    pairs = [PairCount(part, 0, False, 3)]
    accounts = balance_partitions({part: 6}, {part: 1}, {part: 5}, pairs, FOREVER_MS, without_output={part: 2})
    assert accounts[part] == Account(read=6, emitted=3, dead=1, excluded=2)
    assert accounts[part].unexplained == 0
    unnamed = balance_partitions({part: 6}, {part: 1}, {part: 5}, pairs, FOREVER_MS, without_output={})
    assert unnamed[part].unexplained == 2
