"""A stream over several topics: its checkpoint's files, its gaps, its dead letters, its lag."""

from __future__ import annotations

import json
from typing import Any

import pytest

from histories import two_sources as two
from homes.ledger import NOW, ledger_row
from rivertwice.core.errors import CheckpointError, LogGapError, RangeMismatchError
from rivertwice.core.settings import Settings
from rivertwice.log.addresses import Part
from rivertwice.log.gaps import Gap
from rivertwice.stream import begin, gaps
from rivertwice.stream.checkpoint import moved_to, parse_offsets
from rivertwice.stream.damage import CheckpointView, find_damage
from rivertwice.stream.heartbeat import lag_of
from rivertwice.stream.side import check_same_range, encode_ranges
from rivertwice.timeline.counts import BatchCounts
from rivertwice.timeline.lineage import Timeline, create_timeline
from rivertwice.timeline.watermarks import WatermarkRule

A, B = two.A, two.B
ENDS = {A: {"0": 10}, B: {"0": 7}}


def text(watermark: int = 0, ends: Any = ENDS, branches: int = 2) -> str:
    metadata = json.dumps({"batchWatermarkMs": watermark, "batchTimestampMs": 5, "conf": {}})
    return "\n".join(["v1", metadata, *[json.dumps(ends)] * branches])


def test_each_branch_has_a_line_of_offsets_and_all_must_be_the_same() -> None:
    assert parse_offsets(text(3), 0).end_offsets == ENDS
    assert parse_offsets(text(3, branches=1) + "\n", 0).end_offsets == ENDS
    with pytest.raises(CheckpointError, match="different lines of offsets"):
        parse_offsets(text() + "\n" + json.dumps({A: {"0": 9}, B: {"0": 7}}), 0)


def test_behind_a_gap_every_branch_goes_on_at_the_same_place() -> None:
    moved = moved_to(text(3), {A: {"0": 20}, B: {"0": 7}})
    assert parse_offsets(moved, 0).end_offsets == {A: {"0": 20}, B: {"0": 7}}
    assert moved.split("\n")[:2] == text(3).split("\n")[:2]
    assert moved.split("\n")[2] == moved.split("\n")[3]


def test_dead_letters_of_a_batch_are_noted_by_topic_and_partition() -> None:
    ranges = {Part(B, 0): (0, 7), Part(A, 0): (3, 10)}
    assert encode_ranges(ranges) == {f"{A}/0": [3, 10], f"{B}/0": [0, 7]}
    assert encode_ranges({Part(A, 0): (3, 10)}) == {"0": [3, 10]}
    check_same_range(encode_ranges(ranges), ranges, 4, "dead letters")
    with pytest.raises(RangeMismatchError, match="planned again"):
        check_same_range(encode_ranges(ranges), {**ranges, Part(B, 0): (0, 8)}, 4, "dead letters")


def test_the_lag_is_over_all_topics() -> None:
    assert lag_of(ENDS, {A: {0: 12}, B: {0: 7, 1: 4}}) == 6


RULE = WatermarkRule({A: 1_000, B: 2_000})


def damage(next_watermark: int, epochs: tuple[int, int]) -> str | None:
    """Batches 0 (a to 11 s, b to 7 s) and 1 (b to 13 s) are committed and finished, batch 2 is planned."""
    shares = [
        {A: BatchCounts(5, 0, 5, 0, 11_000), B: BatchCounts(5, 0, 5, 0, 7_000)},
        {A: BatchCounts(), B: BatchCounts(5, 0, 5, 0, 13_000)},
    ]
    marks = (0, 5_000)
    rows = [
        ledger_row(n, epoch=epochs[n], offsets_text=text(marks[n]), end_offsets=ENDS, batch_watermark_ms=marks[n], by_topic=shares[n])
        for n in range(2)
    ]  # fmt: skip
    commit = "v2\n" + json.dumps({"nextBatchWatermarkMs": next_watermark})
    texts = {"offsets/0": text(0), "offsets/1": text(5_000), "offsets/2": text(next_watermark), "commits/1": commit}
    view = CheckpointView('{"id": "q"}', frozenset({0, 1, 2}), frozenset({0, 1}), texts)
    return find_damage(view, rows, lambda _: RULE)


def test_a_checkpoint_has_a_watermark_that_some_start_explains() -> None:
    assert damage(10_000, (1, 1)) is None  # one query saw a at 10 s and b at 11 s, each less its delay
    assert damage(5_000, (1, 1)) is None  # or a start ran batch 1 once more, and knows nothing of a
    assert damage(5_000, (1, 2)) is None
    assert "5000 or 10000" in str(damage(7_000, (1, 2)))


@pytest.fixture
def lost(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    """A stream that has read nothing, of two topics that Kafka has deleted the beginning of."""
    two.lift(monkeypatch)
    settings = Settings(project=tmp_path, home=tmp_path / "home")
    line = Timeline("two", "t1", None, 0, {A: {"0": 0}, B: {"0": 0}}, "b", {}, "c", {A: "ia", B: "ib"}, NOW)
    monkeypatch.setattr(gaps.kafka, "topic_id", lambda _, topic: {A: "ia", B: "ib"}[topic])
    monkeypatch.setattr(gaps.kafka, "begin_offsets", lambda _, topic: {0: {A: 5, B: 9}[topic]})
    monkeypatch.setattr(gaps.kafka, "end_offsets", lambda *_: {0: 20})
    monkeypatch.setattr(gaps.kafka, "topic_config", lambda *_: {})
    monkeypatch.setattr(gaps, "first_stamps", lambda *_: {})
    monkeypatch.setattr(gaps, "archived_ranges", lambda *_: {})
    return settings, settings.pipeline("two"), two.two_sources(), line


@pytest.mark.proves("howto-log.md#a-gap-records-that-the-stream-had-not-read-are-gone")
def test_each_topics_gap_is_recorded_and_all_are_named(lost: tuple[Any, ...]) -> None:
    settings, home, definition, line = lost
    create_timeline(home, line)
    found = gaps.observe_gaps(settings, home, definition, line, NOW)
    assert [(gap.topic, gap.topic_id, gap.ranges) for gap in found] == [(A, "ia", {0: (0, 5)}), (B, "ib", {0: (0, 9)})]
    with pytest.raises(LogGapError) as caught:
        gaps.check_reach(settings, home, definition, line, NOW)
    assert str(caught.value) == "; and ".join(gap.message() for gap in found)
    assert {gap.id for gap in Gap.recorded(home)} == {gap.id for gap in found}


def test_a_first_start_begins_at_each_topics_first_record(
    lost: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, home, definition, _ = lost
    monkeypatch.setattr(begin.kafka, "cluster_id", lambda _: "c")

    class Fingerprint:
        def hashes(self) -> dict[str, str]:
            return {"state": "s", "semantics": "m", "decode": "d"}

    class Bundle:
        id = "b"
        fingerprint = Fingerprint()

    made = begin.resolve_timeline(settings, home, definition, Bundle(), NOW)  # type: ignore[arg-type]
    assert made.genesis == {A: {"0": 5}, B: {"0": 9}}
    assert made.topic_ids == {A: "ia", B: "ib"}
