"""Figures from ledger rows, against numbers worked out by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rivertwice.agent.figures import BatchFigures
from rivertwice.agent.metrics import (
    backpressure_seconds,
    batch_quantiles,
    checkpoint_seconds,
    disorder_seconds,
    newest_event_ms,
    quantile,
    read_per_second,
)
from rivertwice.timeline.dead_summary import dead_share

START = datetime(2026, 1, 1, tzinfo=UTC)


def batch(at_s: float, took_s: float = 1.0, read: int = 10, bad: int = 0, event_ms: int | None = None) -> BatchFigures:
    begun = START + timedelta(seconds=at_s)
    committed = begun + timedelta(seconds=took_s)
    return BatchFigures(begun, committed, read, bad, read - bad, 0, 0, event_ms, event_ms, "t1", int(at_s))


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2.0), (0.51, 3.0), (0.95, 4.0), (0.0, 1.0), (1.0, 4.0)])
def test_a_quantile_is_the_smallest_value_that_enough_are_not_above(share: float, expected: float) -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], share) == expected


def test_without_values_there_is_no_quantile() -> None:
    assert quantile([], 0.5) is None
    assert batch_quantiles([batch(0, read=0)]) == (None, None, None)


def test_batches_that_read_nothing_do_not_make_the_stream_look_fast() -> None:
    batches = [batch(0, 2.0), *(batch(n, 0.1, read=0) for n in range(1, 50))]
    assert batch_quantiles(batches) == (2.0, 2.0, 2.0)


def test_only_the_newest_hundred_batches_count() -> None:
    batches = [*(batch(n, 60.0) for n in range(200)), *(batch(n, 1.0) for n in range(200, 300))]
    assert batch_quantiles(batches) == (1.0, 1.0, 1.0)


def test_backpressure_begins_with_the_first_of_the_newest_full_batches() -> None:
    batches = [
        batch(0, read=100),
        batch(10, read=50),
        batch(20, read=100),
        batch(30, read=96),
        batch(40, 5.0, read=100),
    ]
    assert backpressure_seconds(batches, cap=100) == 25.0


def test_one_batch_that_is_not_full_ends_backpressure() -> None:
    assert backpressure_seconds([batch(0, read=100), batch(10, read=94)], cap=100) == 0.0
    assert backpressure_seconds([], cap=100) == 0.0


def test_the_dead_share_is_over_records_not_over_batches() -> None:
    assert dead_share([batch(0, read=90, bad=0), batch(1, read=10, bad=5)]) == 0.05
    assert dead_share([batch(0, read=0)]) is None


@pytest.mark.parametrize(
    ("newest", "share"),
    [
        ([(200, 200)], 1.0),  # a producer renamed a field
        ([(60, 60), (60, 0)], 0.5),  # and was mended
        ([(99, 99)], 99 / 339),  # too few to judge by themselves: with the batch before
        ([(100, 9)], 9 / 23_860),  # a share that happens by chance
        ([(100, 10)], 0.1),
        ([(0, 0), (200, 200), (0, 0)], 1.0),
    ],
)
def test_what_breaks_the_newest_records_is_not_lost_among_all(newest: list[tuple[int, int]], share: float) -> None:
    before = [batch(n, read=240, bad=0) for n in range(100)]
    found = dead_share([*before, *(batch(100 + n, read=read, bad=bad) for n, (read, bad) in enumerate(newest))])
    assert found == pytest.approx(share, rel=0.02)


def test_the_pace_counts_what_was_committed_in_the_last_minute() -> None:
    batches = [batch(0, read=600), batch(100, read=60), batch(130, read=60)]
    assert read_per_second(batches, START + timedelta(seconds=150)) == 2.0


def test_the_newest_event_time_is_the_largest_of_any_recent_batch() -> None:
    assert newest_event_ms([batch(0, event_ms=7), batch(1, event_ms=9), batch(2, event_ms=None)]) == 9
    assert newest_event_ms([batch(0)]) is None


def test_disorder_is_how_far_behind_the_newest_event_most_batches_begin() -> None:
    in_order = [batch(n, event_ms=1000 * n) for n in range(5)]
    assert disorder_seconds(in_order) == 0.0
    assert disorder_seconds([*in_order, batch(5, event_ms=0)]) == 0.0  # one straggler is not disorder
    ahead = batch(0, event_ms=60_000)  # of a partition that is read first; the others come a minute behind it
    assert disorder_seconds([ahead, *(batch(n, event_ms=1000) for n in range(1, 6))]) == 59.0
    assert disorder_seconds([batch(0, event_ms=5), batch(1)]) is None


def test_a_checkpoint_is_timed_from_its_batchs_commit_and_waited_for_while_it_has_no_end() -> None:
    batches = [batch(n) for n in range(4)]
    ends = {each.batch: each.committed_at + timedelta(seconds=0.2 * each.batch) for each in batches}
    now = START + timedelta(seconds=64)
    assert checkpoint_seconds(batches, "t1", ends.get, now) == (0.2, 0.0)
    del ends[3]  # it failed, or hangs
    assert checkpoint_seconds(batches, "t1", ends.get, now) == (0.2, 60.0)
    assert checkpoint_seconds(batches, "t2", ends.get, now) == (None, 0.0)  # the head has no batch of its own yet
    assert checkpoint_seconds([], "t1", ends.get, now) == (None, 0.0)
