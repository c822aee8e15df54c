"""A replay over several topics: where records come from, what its offsets say, where queries begin, which watermarks it has."""

from __future__ import annotations

import json
from typing import Any

from homes.savepoint import row, savepoint
from rivertwice.savepoint.operations.rewind_plan import Reread, plan_reread
from rivertwice.savepoint.plan import (
    KAFKA,
    REPLAY_TOPIC,
    ReplayTopic,
    ReplayTopics,
    count_one_run,
    plan_replay,
    plan_watermarks,
)
from rivertwice.stream.checkpoint import parse_offsets
from rivertwice.timeline.counts import BatchCounts
from rivertwice.timeline.watermarks import WatermarkRule

IDS = {"flights": "id", "weather": "iw"}
RULE = WatermarkRule({"flights": 0, "weather": 0})


def two(batch: int, timeline: str = "t1", **changes: Any):  # type: ignore[no-untyped-def]
    offsets = {
        "start_offsets": {"flights": {"0": 10 * batch}, "weather": {"0": batch}},
        "end_offsets": {"flights": {"0": 10 * batch + 10}, "weather": {"0": batch + 1}},
    }
    return row(batch, timeline, **{**offsets, "topic_ids": IDS, **changes})


def manifest(batch: int) -> Any:
    return savepoint_at(batch).manifest


def savepoint_at(batch: int) -> Any:
    from dataclasses import replace

    found = savepoint(batch)
    return replace(found, manifest=replace(found.manifest, offsets=two(batch).end_offsets, topic_ids=IDS))


def plan(begin: dict[str, dict[int, int]]):  # type: ignore[no-untyped-def]
    rows = [two(batch) for batch in range(6)]
    return plan_replay(manifest(2), rows, until=4, begin=begin, bundles={"b"})


def test_one_topic_that_lost_its_range_is_enough_for_replay_topics() -> None:
    made = plan({"flights": {0: 30}, "weather": {0: 3}})
    assert (made.source, made.ranges) == (KAFKA, {"flights": {0: (30, 50)}, "weather": {0: (3, 5)}})
    assert plan({"flights": {0: 30}, "weather": {0: 4}}).source == REPLAY_TOPIC
    assert plan({"flights": {0: 31}, "weather": {0: 0}}).source == REPLAY_TOPIC


def test_each_replay_topic_is_shifted_by_its_own_base() -> None:
    topics = ReplayTopics((ReplayTopic("s", "flights", {"0": 30}), ReplayTopic("s-2", "weather", {"0": 3})))
    assert topics.names == {"flights": "s", "weather": "s-2"}
    line = json.dumps(two(3).end_offsets)
    text = "\n".join(["v1", '{"batchWatermarkMs":7,"batchTimestampMs":8}', line, line])
    shifted = parse_offsets(topics.shift_text(text), 3)
    assert (shifted.batch_watermark_ms, shifted.end_offsets) == (7, {"s": {"0": 10}, "s-2": {"0": 1}})
    assert topics.shift(two(0).end_offsets) == {"s": {"0": 0}, "s-2": {"0": 0}}  # before the base


def test_of_several_sources_a_query_replays_what_one_driver_ran() -> None:
    rows = [two(3, epoch=4), two(4, epoch=4), two(5, epoch=6), two(6, "t2", epoch=7)]
    assert [count_one_run(rows[at:], several=True) for at in range(4)] == [2, 1, 1, 1]
    assert count_one_run(rows, several=False) == 4


def shares(flights: int | None, weather: int | None) -> dict[str, BatchCounts]:
    return {
        topic: BatchCounts(1, 0, 1, at, at) if at is not None else BatchCounts()
        for topic, at in (("flights", flights), ("weather", weather))
    }


def test_a_replay_gets_recorded_watermarks_and_then_the_ledgers() -> None:
    path = [
        two(0, epoch=1, batch_watermark_ms=0, by_topic=shares(10, 20)),
        two(1, epoch=1, batch_watermark_ms=10, by_topic=shares(30, None)),
        two(2, epoch=1, batch_watermark_ms=20, by_topic=shares(None, 25)),
    ]
    # The savepoint stands at 0: a replay's query begins at 1, and never hears of weather's 20 nor, at 2, of anything else.
    assert plan_watermarks(path, path[1:], RULE) == {1: 20, 2: 25}
    assert plan_watermarks(path, path[1:2], RULE) == {1: 20}
    assert plan_watermarks([row(0)], [row(0)], WatermarkRule({"flights": 0})) == {}


def test_a_rewind_reads_again_from_every_topic() -> None:
    found = plan_reread(manifest(2), two(5), {"flights": {0: 0}, "weather": {0: 4}})
    assert found == (Reread("flights", 0, 30, 60, 0), Reread("weather", 0, 3, 6, 4))
