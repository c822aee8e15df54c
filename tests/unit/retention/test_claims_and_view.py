"""Claims on offsets, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from homes.backfill import asked, make_home, write_chunk
from homes.savepoint import savepoint
from rivertwice.backfill.audit import audit_backfill
from rivertwice.backfill.model import BackfillPlan
from rivertwice.backfill.observe import observe_backfill
from rivertwice.backfill.plan import plan_backfill, plan_id
from rivertwice.backfill.publish import publish_backfill
from rivertwice.backfill.store import save_plan
from rivertwice.core.errors import RequestError
from rivertwice.core.instants import from_ms
from rivertwice.core.settings import Settings
from rivertwice.log.gaps import Gap, GapReason
from rivertwice.log.leases import LogState, RetentionClaim, view_leases
from rivertwice.retention import view
from rivertwice.retention.accept import decide_acceptance
from rivertwice.retention.summary import summary_of
from rivertwice.retention.view import (
    RetentionView,
    TopicView,
    _nothing_left,
    claim_backfill,
    claim_dead_letters,
    claim_savepoint,
    claim_stream,
    claim_truth,
    observe_claims,
    unarchived_clock,
)
from rivertwice.timeline.dead_letters import Amendment, DeadLetter, RecordAddress
from rivertwice.timeline.stream_load import StreamLoad

NOW = from_ms(1_000_000_000)
GAP = Gap("p", "t1", 7, "events", "id", GapReason.EXPIRED, {0: (70, 90)}, {}, 500, None, NOW)


def test_each_claims_what_it_will_read() -> None:
    assert claim_stream("t1", {0: 5}).ranges == {0: (5, None)}
    assert claim_truth({0: 2}, {0: 9, 1: 4}).ranges == {0: (2, 9), 1: (0, 4)}
    assert claim_savepoint("sp", {0: 5, 1: 7}, {0: 9}).ranges == {0: (5, 9), 1: (7, 7)}
    assert claim_backfill("bf", {"events": {0: ((3, 5), (8, 9)), 1: ()}}, "events").ranges == {0: (3, 9)}
    assert claim_dead_letters([(0, 5), (1, 2), (0, 9)]).ranges == {0: (5, 10), 1: (2, 3)}  # type: ignore[union-attr]
    assert claim_dead_letters([]) is None


def test_the_claims_of_a_home_are_read_without_asking_kafka(tmp_path) -> None:  # type: ignore[no-untyped-def]
    settings, _, _ = make_home(tmp_path, batches=10)
    ((topic, topic_id, view),) = observe_claims(settings, "p")
    assert (topic, topic_id) == ("flights", "id")
    assert [(claim.kind, claim.ranges) for claim in view] == [("stream", {0: (0, None)}), ("truth", {0: (0, 100)})]


def test_a_stream_that_loads_from_the_archive_needs_kafka_for_no_record_of_it(tmp_path) -> None:  # type: ignore[no-untyped-def]
    settings, home, _ = make_home(tmp_path, batches=10)
    ((_, _, before),) = observe_claims(settings, "p")
    ends = {"flights": {"0": 5000}}
    load = StreamLoad("p", "b", "c", {"flights": "id"}, {"flights": {"0": 0}}, ends, "test", NOW)
    load.record(home)
    ((_, _, found),) = observe_claims(settings, "p")
    assert [one.kafka_only for one in before] == [True, False]
    assert [one.kafka_only for one in found] == [False, False]


def test_a_claim_goes_from_the_first_needed_offset_to_the_last() -> None:
    assert claim_stream("t1", {0: 5}).kafka_only
    assert not claim_truth({}, {0: 9}).kafka_only
    assert claim_backfill("bf", {"other": {0: ((3, 5),)}}, "events").ranges == {}
    newest_first = claim_dead_letters([(0, 9), (0, 0), (0, 5)])
    assert newest_first is not None
    assert newest_first.ranges == {0: (0, 10)}


LETTER = DeadLetter("flights", RecordAddress("id", 0, 41), "t1", 4, "decode", None, NOW, None, None, None)
DECISION = Amendment(1, "discard", "flights", LETTER.address, None, "why", "test", NOW)


def test_what_is_finished_or_of_another_topic_claims_nothing(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Of each kind one that needs the log, and one that does not: published, discarded, of a deleted topic."""
    monkeypatch.setattr("rivertwice.backfill.observe._in_kafka", lambda *_: {0: (0, 200)})
    settings, home, _ = make_home(tmp_path, batches=10)
    waiting, published = (
        save_plan(home, plan_backfill(asked(hour, hour + 1), observe_backfill(settings, "p"))) for hour in (1, 3)
    )
    other = replace(waiting, topic_ids={"flights": "deleted"})
    save_plan(home, replace(other, id=plan_id(other)))
    write_chunk(home, published, 0, (3, "a", 12))
    audit_backfill(settings, published)
    publish_backfill(settings, published)
    here, gone = (
        replace(savepoint(2), manifest=replace(savepoint(2).manifest, savepoint=name, topic_ids={"flights": topic_id}))
        for name, topic_id in (("sp-here", "id"), ("sp-gone", "deleted"))
    )
    monkeypatch.setattr(view, "list_savepoints", lambda _: [here, gone])
    letters = [
        LETTER,
        replace(LETTER, address=RecordAddress("id", 0, 7), amendment=DECISION),
        replace(LETTER, address=RecordAddress("deleted", 0, 3)),
    ]
    monkeypatch.setattr(view, "read_brief", lambda *_: letters)
    ((_, _, found),) = observe_claims(settings, "p")
    assert {one.holder: one.ranges for one in found} == {
        "stream t1": {0: (0, None)},
        "reconcile": {0: (0, 100)},
        "savepoint sp-here": {0: (30, 100)},
        f"backfill {waiting.id}": waiting_ranges(waiting),
        "dead letters": {0: (41, 42)},
    }


def waiting_ranges(plan: BackfillPlan) -> dict[int, tuple[int, int]]:
    return {p: (pairs[0][0], pairs[-1][1]) for p, pairs in plan.offsets["flights"].items()}


def test_a_pipeline_that_never_ran_needs_nothing(settings) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(RequestError, match="never ran"):
        observe_claims(settings, "p")


def test_the_worst_is_told_in_one_line_and_nothing_if_all_is_well() -> None:
    log = LogState("events", "id", {0: 20}, {0: 100}, {})
    clock, waiting = unarchived_clock(log, NOW)
    lost = view_leases([claim_stream("t1", {0: 5})], log, NOW)
    plain = RetentionView("p", [TopicView(log, True, lost, clock, waiting)], []).to_plain(NOW)
    assert (waiting, plain["unarchived"]["deadline"]) == (80, None)
    assert plain["worst"]["lost"] == 15
    assert "topic" not in plain["leases"][0]
    assert RetentionView("p", [TopicView(log, True, (), clock, waiting)], []).to_plain(NOW)["worst"] is None
    assert summary_of(plain) == "stream t1 needs events/0 [5, 100]: 15 records are lost"
    well = view_leases([claim_stream("t1", {0: 25})], log, NOW)
    assert summary_of(RetentionView("p", [TopicView(log, True, well, clock, waiting)], []).to_plain(NOW)) is None


def test_only_the_very_gap_that_was_named_can_be_accepted() -> None:
    assert decide_acceptance(GAP, GAP, "t1") is None
    grown = Gap(**{**vars(GAP), "ranges": {0: (70, 91)}})
    assert "more is gone" in str(decide_acceptance(GAP, grown, "t1"))
    assert "no longer there" in str(decide_acceptance(GAP, None, "t1"))
    assert "the head is t2" in str(decide_acceptance(GAP, GAP, "t2"))
    back = Gap(**{**vars(GAP), "cause": GapReason.BACKWARDS})
    assert "ends before the stream's place" in str(decide_acceptance(back, back, "t1"))


HOUR = timedelta(hours=1)


def stamped(offset: int, age: timedelta, partition: int = 0) -> dict[tuple[int, int], int]:
    return {(partition, offset): int((NOW - age).timestamp() * 1000)}


def view_of(log: LogState, *needs: RetentionClaim, same: bool = True) -> TopicView:
    return TopicView(log, same, view_leases(needs, log, NOW), *unarchived_clock(log, NOW))


def plain_of(*topics: TopicView, gaps: tuple[dict[str, object], ...] = ()) -> dict[str, Any]:
    return RetentionView("p", topics, gaps).to_plain(NOW)


def test_what_the_archive_lacks_is_counted_with_its_shortest_clock() -> None:
    stamps = stamped(40, HOUR) | stamped(20, 6 * HOUR, 1)
    log = LogState(
        "t", "id", {0: 20, 1: 20, 2: 5}, {0: 100, 1: 30, 2: 5}, {0: (0, 40)}, retention=10 * HOUR, stamps=stamps
    )
    clock, waiting = unarchived_clock(log, NOW)
    assert (waiting, clock.left, clock.share) == (60 + 10, 4 * HOUR, 0.4)
    everything = LogState("t", "id", {0: 20}, {0: 100}, {0: (0, 100)}, retention=10 * HOUR)
    clock, waiting = unarchived_clock(everything, NOW)
    assert (waiting, clock.deadline, clock.share) == (0, None, 1.0)


def test_a_race_that_runs_is_said_with_the_time_that_is_left() -> None:
    log = LogState("t", "id", {0: 20}, {0: 100}, {}, retention=10 * HOUR, stamps=stamped(30, 9.5 * HOUR))
    plain = plain_of(view_of(log, claim_truth({0: 30}, {0: 90})))
    assert plain["worst"]["level"] == "critical"
    assert (plain["worst"]["left_s"], plain["worst"]["left_share"]) == (1800.0, 0.05)
    assert (
        summary_of(plain)
        == "reconcile needs t/0 [30, 90], which only Kafka has: 1800.0 s, 5% of its time or bytes left"
    )


def test_without_a_pace_no_time_is_made_up() -> None:
    log = LogState("t", "id", {0: 20}, {0: 100}, {}, retention_bytes=8000, record_bytes={0: 100.0})
    plain = plain_of(view_of(log, claim_truth({0: 30}, {0: 90})))
    assert (plain["worst"]["left_s"], plain["worst"]["deadline"]) == (None, None)
    assert "no pace is known, 12% of its time or bytes left" in str(summary_of(plain))


def test_an_open_gap_comes_first_and_an_accepted_one_is_not_spoken_of() -> None:
    gaps: tuple[dict[str, object], ...] = tuple(
        {"id": f"gap-{n}", "topic": "t", "ranges": {"0": [n, n + 1]}, "accepted": accepted}
        for n, accepted in ((1, None), (2, None), (3, {"by": "test"}))
    )
    log = LogState("t", "id", {0: 20}, {0: 100}, {})
    lost = view_of(log, claim_stream("t1", {0: 5}))
    assert summary_of(plain_of(lost, gaps=gaps)) == "gap gap-2: t {'0': [2, 3]} is gone from Kafka"
    assert summary_of(plain_of(lost, gaps=gaps[2:])) == "stream t1 needs t/0 [5, 100]: 15 records are lost"


def test_a_topic_that_was_created_again_is_reported_on_its_own() -> None:
    log = LogState("t", "id", {0: 20}, {0: 100}, {})
    well = view_of(log, claim_stream("t1", {0: 25}))
    again = view_of(log, claim_stream("t1", {0: 25}), same=False)
    assert summary_of(plain_of(well)) is None
    assert str(summary_of(plain_of(again))).startswith("topic t was deleted and created again")


def test_the_worst_of_a_view_is_first_whatever_topic_it_is_of() -> None:
    log = LogState("a", "id", {0: 20}, {0: 100}, {}, retention=10 * HOUR, stamps=stamped(30, 9.5 * HOUR))
    other = LogState("b", "id", {0: 20}, {0: 100}, {}, retention=10 * HOUR, stamps=stamped(30, 6 * HOUR))
    found = RetentionView(
        "p", [view_of(other, claim_truth({0: 30}, {0: 90})), view_of(log, claim_truth({0: 30}, {0: 90}))], []
    )
    assert [one.topic for one in found.leases] == ["a", "b"]
    together = found.to_plain(NOW)
    assert together["worst"] == together["leases"][0]
    assert (together["same_topic"], together["unarchived"]["records"]) == (True, 160)


def test_before_the_first_committed_batch_only_the_stream_needs_the_log(tmp_path) -> None:  # type: ignore[no-untyped-def]
    settings, _, _ = make_home(tmp_path, batches=0)
    ((_, _, found),) = observe_claims(settings, "p")
    assert [one.kind for one in found] == ["stream"]


def test_the_shortest_clock_of_several_unarchived_topics_is_shown() -> None:
    short, long = (
        LogState(name, "id", {0: 20}, {0: 100}, {}, retention=10 * HOUR, stamps=stamped(20, age))
        for name, age in (("a", 9 * HOUR), ("b", HOUR))
    )
    need = claim_truth({0: 30}, {0: 90})
    for topics in ((view_of(short, need), view_of(long, need)), (view_of(long, need), view_of(short, need))):
        assert plain_of(*topics)["unarchived"]["left_share"] == 0.1
        assert plain_of(*topics)["unarchived"]["records"] == 160


def test_of_a_topic_that_was_deleted_there_is_what_its_archive_has(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = [{0: (0, 10)}, {0: (20, 40), 1: (0, 5)}]
    monkeypatch.setattr("rivertwice.retention.view.archived_segments", lambda *_: segments)
    left = _nothing_left(settings, LogState("t", "new", {0: 3}, {0: 9}, {}), "old")
    assert (left.topic_id, left.begin, left.end) == ("old", {0: 40, 1: 5}, {0: 40, 1: 5})
    assert (left.archived, list(left.older)) == (segments[1], segments[:1])
    monkeypatch.setattr("rivertwice.retention.view.archived_segments", lambda *_: [])
    none = _nothing_left(settings, LogState("t", "new", {0: 3}, {0: 9}, {}), "old")
    assert (none.begin, none.end, none.archived) == ({}, {}, {})
