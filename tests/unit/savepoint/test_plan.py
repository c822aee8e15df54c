from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homes.savepoint import row, savepoint
from rivertwice.core.errors import FingerprintError, LedgerError, LogGapError, SavepointError
from rivertwice.savepoint.plan import (
    KAFKA,
    REPLAY_TOPIC,
    ReplayTopic,
    ReplayTopics,
    is_on_path,
    plan_replay,
    require_fingerprint,
    require_on_path,
    require_one_definition,
    require_reach,
    require_recorded,
    select_proof_end,
    span,
)
from rivertwice.savepoint.proof import describe_proof
from rivertwice.stream.checkpoint import parse_offsets
from rivertwice.timeline.lineage import Segment

AT_2 = savepoint(2).manifest


def plan(rows, *, until=5, begin=0, manifest=AT_2):
    return plan_replay(manifest, rows, until=until, begin={"flights": {0: begin}}, bundles={"b"})


def test_batches_after_the_savepoint_are_replayed_to_the_end_exactly():
    made = plan([row(batch) for batch in range(9)])
    assert [r.batch for r in made.rows] == [3, 4, 5]
    assert (made.source, made.ranges) == (KAFKA, {"flights": {0: (30, 60)}})


def test_nothing_after_the_savepoint_is_an_empty_plan():
    made = plan([row(batch) for batch in range(3)], until=2, begin=1000)
    assert (made.rows, made.source, made.ranges) == ((), KAFKA, {"flights": {}})


def test_a_replay_goes_on_across_a_fork():
    rows = [row(0), row(1), row(2), row(3), row(4, "t2"), row(5, "t2")]
    assert [(r.timeline, r.batch) for r in plan(rows).rows] == [("t1", 3), ("t2", 4), ("t2", 5)]


def test_what_kafka_lost_is_taken_from_a_replay_topic():
    rows = [row(batch) for batch in range(6)]
    assert plan(rows, begin=30).source == KAFKA
    assert plan(rows, begin=31).source == REPLAY_TOPIC


def test_a_hole_in_the_ledger_is_refused_by_its_batch():
    with pytest.raises(LedgerError, match="batch 4 of timeline t1 starts"):
        plan([row(3), row(4, start_offsets={"flights": {"0": 41}}), row(5)])
    with pytest.raises(LedgerError, match="batch 5"):
        plan([row(3), row(5)])


def test_a_manifest_that_the_ledger_contradicts_is_refused():
    same = row(2, offsets_text=AT_2.offsets_text, batch_watermark_ms=AT_2.watermark_ms)
    require_recorded(AT_2, [row(1), same])
    with pytest.raises(
        SavepointError, match=r"timeline t1 ended at .*, but the ledger has no such batch: the manifest"
    ):
        require_recorded(AT_2, [row(1), row(3)])
    with pytest.raises(
        SavepointError, match=r"but the ledger recorded the end \{'flights': \{'0': 99\}\}: the manifest"
    ):
        require_recorded(AT_2, [replace(same, end_offsets={"flights": {"0": 99}})])


def test_a_batch_of_another_definition_or_another_topic_is_refused():
    with pytest.raises(FingerprintError, match="bundle other"):
        plan([row(3), row(4, bundle="other")])
    with pytest.raises(LogGapError, match="deleted and created again"):
        plan([row(3, topic_ids={"flights": "new"})])


@pytest.mark.parametrize(
    ("wanted", "committed", "retained", "end"),
    [
        (3, 100, 0, 13),  # as asked
        (3, 12, 0, 12),  # the stream has not got so far
        (3, 10, 0, 10),  # nothing followed
        (3, 300, 150, 152),  # the state of batch 13 is purged: go on to one that is not
        (3, 300, 5, 13),  # purged, but before the savepoint
        (500, 300, 150, 300),
    ],
)
def test_a_proof_ends_where_the_state_can_still_be_compared(wanted, committed, retained, end):
    assert select_proof_end(10, wanted=wanted, committed=committed, retained=retained) == end


def test_a_log_that_begins_after_the_fork_is_refused():
    require_reach({0: 10}, {0: 10}, batch=5, topic="flights")
    with pytest.raises(LogGapError, match="5 records are gone"):
        require_reach({0: 10, 1: 3}, {0: 15, 1: 0}, batch=5, topic="flights")


def test_another_definition_is_refused_by_what_changed():
    require_fingerprint(AT_2, AT_2.fingerprint)
    with pytest.raises(FingerprintError, match="semantics"):
        require_fingerprint(AT_2, {**AT_2.fingerprint, "semantics": "x"})


def test_a_savepoint_off_the_heads_path_would_be_a_rewind():
    path = [Segment("t1", 0, 4), Segment("t2", 5, None)]
    assert is_on_path(AT_2, path)
    with pytest.raises(SavepointError, match="rewind"):
        require_on_path(AT_2, [Segment("t1", 0, 1), Segment("t2", 2, None)])


@pytest.mark.proves("guarantees.md#savepoints")
def test_a_proof_over_no_batches_counts_only_at_the_end_of_the_log():
    assert describe_proof(0, 2, 5, exhausted=False).startswith("not proved")
    assert describe_proof(0, 2, 5, exhausted=True).startswith("proved")
    assert describe_proof(3, 5, 5, exhausted=False).startswith("proved: 3")


OFFSETS = st.dictionaries(st.sampled_from("0123"), st.integers(0, 10_000), min_size=1)


@given(OFFSETS, st.integers(0, 500))
def test_a_shifted_offsets_file_says_the_same_of_the_replay_topic(offsets, base):
    override = ReplayTopics((ReplayTopic("scratch", "flights", dict.fromkeys(offsets, base)),))
    text = f'v1\n{{"batchWatermarkMs":7,"batchTimestampMs":8,"conf":{{}}}}\n{str({"flights": offsets})!s}'.replace(
        "'", '"'
    )
    shifted = parse_offsets(override.shift_text(text), 3)
    assert shifted.batch_watermark_ms == 7
    assert shifted.end_offsets == {"scratch": {p: max(0, o - base) for p, o in offsets.items()}}
    assert shifted.text.split("\n")[:2] == text.split("\n")[:2]


def test_the_span_of_rows_is_from_the_first_start_to_the_last_end():
    assert span([row(3), row(4)], "flights") == {0: (30, 50)}
    assert span([], "flights") == {}


def test_a_partition_added_on_the_way_is_covered_from_its_first_record() -> None:
    grown = row(4, start_offsets={"flights": {"0": 40}}, end_offsets={"flights": {"0": 50, "1": 7}})
    assert span([row(3), grown], "flights") == {0: (30, 50), 1: (0, 7)}


def test_a_batch_is_on_a_path_if_any_segment_holds_it() -> None:
    assert is_on_path(AT_2, [Segment("t0", 0, 1), Segment("t1", 2, 2), Segment("t2", 3, None)])
    assert not is_on_path(AT_2, [Segment("t1", 0, 1), Segment("t2", 2, None)])
    assert not is_on_path(AT_2, [])


def test_a_stream_needs_the_first_offset_behind_its_batch_and_none_before() -> None:
    require_reach({0: 30, 1: 5}, {0: 30}, batch=2, topic="flights")
    with pytest.raises(
        LogGapError, match="continues at offset 30 of flights-0, but Kafka begins at 31: 1 records are gone"
    ):
        require_reach({0: 30}, {0: 31}, batch=2, topic="flights")


def test_a_partition_of_which_nothing_is_replayed_is_no_loss() -> None:
    rows = [row(3, start_offsets={"flights": {"0": 30, "1": 7}}, end_offsets={"flights": {"0": 40, "1": 7}})]
    manifest = replace(AT_2, offsets={"flights": {"0": 30, "1": 7}})
    made = plan_replay(manifest, rows, until=3, begin={"flights": {0: 30, 1: 99}}, bundles={"b"})
    assert made.source == KAFKA


def test_a_proof_waits_for_the_state_that_is_still_there() -> None:
    assert select_proof_end(10, wanted=3, committed=99, retained=0) == 13
    assert select_proof_end(10, wanted=3, committed=99, retained=1) == 13
    assert select_proof_end(10, wanted=3, committed=99, retained=20) == 22
    assert select_proof_end(10, wanted=3, committed=11, retained=20) == 11


def test_all_batches_of_one_definition_can_be_replayed_from_the_beginning() -> None:
    require_one_definition(AT_2, [row(0), row(1)], {"b"})
    with pytest.raises(SavepointError, match="committed no batch yet"):
        require_one_definition(AT_2, [], {"b"})
    with pytest.raises(FingerprintError, match="batch 1 of p was made by bundle new"):
        require_one_definition(AT_2, [row(0), row(1, bundle="new")], {"b"})


def test_offsets_without_a_record_move_later_ones_up_and_no_earlier_ones():
    topic = ReplayTopic("scratch", "flights", {"0": 10}, {"0": [(20, 3), (30, 5)]})
    assert [topic.place("0", offset) for offset in (5, 15, 20, 25, 30, 40)] == [0, 5, 7, 12, 15, 25]
    assert ReplayTopics((topic,)).has_absent
    assert not ReplayTopics((replace(topic, absent={}),)).has_absent


def test_a_proof_replays_what_is_asked_where_nothing_was_purged():
    assert select_proof_end(0, wanted=1, committed=9, retained=0) == 1
    assert select_proof_end(0, wanted=1, committed=9, retained=1) == 3
