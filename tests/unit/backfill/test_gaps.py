"""What an accepted gap means for a recompute: what the archive has is read, what is lost is never guessed."""

from __future__ import annotations

import pytest

from homes.backfill import HOUR, asked, hours, make_home, view, zone
from homes.ledger import NOW, ledger_row
from rivertwice.backfill.model import BatchZone, DoubtfulWindows
from rivertwice.backfill.observe import observe_backfill
from rivertwice.backfill.plan import plan_backfill
from rivertwice.core.errors import LogGapError
from rivertwice.log.gaps import Acceptance, Gap, GapReason, record_acceptance
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.lineage import Fork, Timeline, create_timeline
from rivertwice.timeline.sequence import move_head

FILLED = BatchZone("t2", -1, {"flights": {0: (40, 44)}}, 0, None, None, trusted=False)


def batches():
    """Ten hours; between hour 3 and hour 4 the stream went past offsets [40, 50)."""
    later = [zone(n + 1, n, n + 1) for n in range(4, 9)]
    return tuple([zone(n, n, n + 1) for n in range(4)] + later)


def test_what_the_archive_has_of_a_gap_is_read_for_every_window():
    seen = view(batches=(*batches(), FILLED), kafka={"flights": {0: (0, 100)}})
    plan = plan_backfill(asked(1, 2), seen)
    assert plan.offsets["flights"][0] == ((10, 44),)


@pytest.mark.proves("howto-log.md#what-can-be-repaired", "lab/docs/scenarios.md#scenarios")
def test_what_is_lost_is_not_read_and_windows_it_may_belong_to_are_refused():
    lost = {"flights": {0: ((40, 50),)}}
    doubt = DoubtfulWindows(4 * HOUR, 6 * HOUR, "flights/0 [40, 50) of gap-1")
    seen = view(
        batches=batches(),
        archive={"flights": {0: (0, 40)}},
        kafka={"flights": {0: (50, 100)}},
        lost=lost,
        doubts=(doubt,),
    )
    plan = plan_backfill(asked(0, 4), seen)
    assert plan.ranges == hours((0, 4))
    assert plan_backfill(asked(7, 8), seen).ranges == hours((7, 8))
    for start, end in ((3, 5), (6, 7), (0, 8)):
        with pytest.raises(LogGapError, match=r"flights/0 \[40, 50\) of gap-1 is lost for ever"):
            plan_backfill(asked(start, end), seen)


def test_where_kafka_has_other_records_now_the_archive_alone_is_a_source():
    seen = view(
        archive={"flights": {0: (0, 40)}}, kafka={"flights": {}}, forks=("flights/0@79 (Kafka's log ends at 60)",)
    )
    assert plan_backfill(asked(0, 3), seen).archive["flights"][0] == ((0, 30),)
    with pytest.raises(LogGapError, match=r"flights/0@79 \(Kafka's log ends at 60\).*savepoint rewind"):
        plan_backfill(asked(5, 6), seen)


def test_older_segments_of_the_archive_are_a_source_too():
    seen = view(
        archive={"flights": {0: (60, 80)}},
        older={"flights": {0: ((0, 30), (40, 60))}},
        kafka={"flights": {0: (70, 100)}},
    )
    plan = plan_backfill(asked(4, 8), seen)
    assert plan.archive["flights"][0] == ((40, 80),)
    with pytest.raises(LogGapError, match=r"flights/0 \[30, 40\)"):
        plan_backfill(asked(2, 5), seen)


def test_gaps_of_the_heads_path_are_observed_with_the_archive_of_now(tmp_path, monkeypatch):
    settings, home, bundle = make_home(tmp_path, batches=4)
    monkeypatch.setattr("rivertwice.backfill.observe._in_kafka", lambda *_: {0: (50, 60)})
    monkeypatch.setattr("rivertwice.backfill.observe.archived_segments", lambda *_: [{0: (0, 44)}])
    gap = Gap("p", "t1", 3, "flights", "id", GapReason.EXPIRED, {0: (40, 50)}, {0: (40, 44)}, 3 * HOUR, 6 * HOUR, NOW)
    gap.record(home)
    parent = Timeline.load(home, "t1")
    genesis = {"flights": {"0": 50}}
    child = Timeline("p", "t2", Fork("t1", 3), 4, genesis, bundle.id, parent.fingerprint, "c", parent.topic_ids, NOW)
    create_timeline(home, child)
    move_head(home, "t2", reason="test", expected_seq=1, now=NOW)
    append_ledger(
        home,
        [
            ledger_row(
                4,
                "t2",
                bundle=bundle.id,
                start_offsets=genesis,
                end_offsets={"flights": {"0": 60}},
                batch_watermark_ms=8 * HOUR,
            )
        ],
    )
    assert observe_backfill(settings, "p").lost == {}  # nobody accepted it
    record_acceptance(home, Acceptance(gap.id, "t2", "test", NOW))
    seen = observe_backfill(settings, "p")
    assert seen.batches[-1] == FILLED
    assert seen.lost == {"flights": {0: ((44, 50),)}}
    assert seen.doubts == (DoubtfulWindows(3 * HOUR, 6 * HOUR, f"flights/0 [44, 50) of {gap.id}"),)
