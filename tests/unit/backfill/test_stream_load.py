"""What a load by the stream says beforehand, and that a fold's new version may not begin after what the old one has read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from histories.kinds import make_definition
from rivertwice.backfill.stream_load import StreamLoadPlan, explain_stream_load, find_lost
from rivertwice.backfill.stream_unread import StreamLoadProgress
from rivertwice.core.errors import LogGapError
from rivertwice.core.instants import EPOCH
from rivertwice.core.plain import to_plain
from rivertwice.log.addresses import Part
from rivertwice.timeline.lineage import Timeline
from rivertwice.timeline.stream_load import StreamLoad

PLAN = StreamLoadPlan(
    why="its windows are a fold",
    topic_ids={"t": "id"},
    genesis={"t": {"0": 3, "1": 0}},
    until={"t": {"0": 1503, "1": 1000}},
    batch=1000,
    archived={Part("t", 0): (3, 40)},
    nowhere={Part("t", 0): (0, 3)},
)


def root(first: int) -> Timeline:
    return Timeline("p", "t1", None, 0, {"t": {"0": first, "1": 0}}, "b", {}, "c", {"t": "id"}, EPOCH)


def test_what_one_timeline_has_read_before_another_begins_is_lost() -> None:
    assert find_lost(PLAN.genesis, root(0).genesis) == {Part("t", 0): (0, 3)}
    assert find_lost(PLAN.genesis, root(3).genesis) == {}
    assert find_lost({"t": {"0": 0, "2": 4}}, root(3).genesis) == {Part("t", 2): (0, 4)}


@pytest.mark.proves("howto-upgrade.md#a-new-version-beside-the-old-one")
def test_a_fold_may_not_begin_after_what_the_old_one_read() -> None:
    PLAN.require_same_past(root(3), make_definition("fold"))
    PLAN.require_same_past(root(0), make_definition("session"))
    with pytest.raises(
        LogGapError, match=r"t partition 0 \[0, 3\) was read by p and is in neither Kafka nor the archive"
    ):
        PLAN.require_same_past(root(0), make_definition("fold"))


def test_a_plan_says_how_much_why_and_from_where() -> None:
    text = explain_stream_load("p", PLAN)
    assert "2500 records in about 3 batches of at most 1000 records" in text
    assert "why        no backfill can load this past: its windows are a fold" in text
    assert "archive    37 records that Kafka has deleted: t partition 0 [3, 40)" in text
    assert "nowhere    offsets in neither Kafka nor the archive; it begins after them: t partition 0 [0, 3)" in text
    assert "archive " not in explain_stream_load("p", replace(PLAN, archived={}, nowhere={}))


def test_what_is_not_read_yet_is_said_in_numbers() -> None:
    load = StreamLoad("p", "b", "c", {"t": "id"}, PLAN.genesis, PLAN.until, "test", EPOCH)
    described = to_plain(StreamLoadProgress.of(load, 500))
    assert (described["records"], described["records_left"]) == (2500, 500)
    assert "has read 2000 of 2500 records" in str(described["message"])
