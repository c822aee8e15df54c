"""Claims on offsets, and what is said of them."""

from __future__ import annotations

import pytest

from backfill_views import make_home
from rivertwice.errors import RequestError
from rivertwice.instants import from_ms
from rivertwice.log.gaps import BACKWARDS, EXPIRED, Gap
from rivertwice.log.leases import LogState, view_leases
from rivertwice.retention.accept import decide_acceptance
from rivertwice.retention.claims import (
    claim_backfill,
    claim_dead_letters,
    claim_savepoint,
    claim_stream,
    claim_truth,
    observe_claims,
)
from rivertwice.retention.view import RetentionView, TopicView, retention_to_plain, summary_of, unarchived_clock

NOW = from_ms(1_000_000_000)
GAP = Gap("p", "t1", 7, "events", "id", EXPIRED, {0: (70, 90)}, {}, 500, None, NOW)


def test_each_claims_what_it_will_read() -> None:
    assert claim_stream("t1", {0: 5}).ranges == {0: (5, None)}
    assert claim_truth({0: 2}, {0: 9, 1: 4}).ranges == {0: (2, 9), 1: (0, 4)}
    assert claim_savepoint("sp", {0: 5, 1: 7}, {0: 9}).ranges == {0: (5, 9), 1: (7, 7)}
    assert claim_backfill("bf", {"events": {0: ((3, 5), (8, 9)), 1: ()}}, "events").ranges == {0: (3, 9)}
    assert claim_dead_letters([(0, 5), (1, 2), (0, 9)]).ranges == {0: (5, 10), 1: (2, 3)}  # type: ignore[union-attr]
    assert claim_dead_letters([]) is None


def test_the_claims_of_a_home_are_read_without_asking_kafka(tmp_path) -> None:  # type: ignore[no-untyped-def]
    settings, _, _ = make_home(tmp_path, batches=10)
    ((topic, topic_id, claims),) = observe_claims(settings, "p")
    assert (topic, topic_id) == ("flights", "id")
    assert [(claim.kind, claim.ranges) for claim in claims] == [("stream", {0: (0, None)}), ("truth", {0: (0, 100)})]


def test_a_pipeline_that_never_ran_needs_nothing(settings) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(RequestError, match="never ran"):
        observe_claims(settings, "p")


def test_the_worst_is_told_in_one_line_and_nothing_if_all_is_well() -> None:
    log = LogState("events", "id", {0: 20}, {0: 100}, {})
    clock, waiting = unarchived_clock(log, NOW)
    lost = view_leases([claim_stream("t1", {0: 5})], log, NOW)
    plain = retention_to_plain(RetentionView("p", [TopicView(log, True, lost, clock, waiting)], []), NOW)
    assert (waiting, plain["unarchived"]["deadline"]) == (80, None)
    assert summary_of(plain) == "stream t1 needs events/0 [5, 100]: 15 records are lost"
    well = view_leases([claim_stream("t1", {0: 25})], log, NOW)
    assert (
        summary_of(retention_to_plain(RetentionView("p", [TopicView(log, True, well, clock, waiting)], []), NOW))
        is None
    )


def test_only_the_very_gap_that_was_named_can_be_accepted() -> None:
    assert decide_acceptance(GAP, GAP, "t1") is None
    grown = Gap(**{**vars(GAP), "ranges": {0: (70, 91)}})
    assert "more is gone" in str(decide_acceptance(GAP, grown, "t1"))
    assert "no longer there" in str(decide_acceptance(GAP, None, "t1"))
    assert "the head is t2" in str(decide_acceptance(GAP, GAP, "t2"))
    back = Gap(**{**vars(GAP), "cause": BACKWARDS})
    assert "ends before the stream's place" in str(decide_acceptance(back, back, "t1"))
