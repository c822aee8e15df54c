"""The estimate of when a lag is gone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from rivertwice.stream.heartbeat import Pace, PaceSample, keep_recent, measure_pace

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float, committed: int, end: int) -> PaceSample:
    return PaceSample(T0 + timedelta(seconds=seconds), committed, end)


def test_a_shrinking_lag_ends_by_the_difference_of_the_two_rates():
    #  0 s: 0 of 1000      20 s: 600 of 1200      30 a second read, 10 arriving, 600 wait: 30 s
    assert measure_pace([at(0, 0, 1000), at(20, 600, 1200)]) == Pace(30.0, 10.0, 30.0)


def test_a_lag_that_grows_or_stands_is_never_gone():
    assert measure_pace([at(0, 0, 100), at(50, 250, 850)]) == Pace(5.0, 15.0, None)
    assert measure_pace([at(0, 0, 100), at(50, 0, 100)]) == Pace(0.0, 0.0, None)


def test_a_stream_that_has_just_started_is_not_said_to_fall_behind():
    assert measure_pace([at(0, 0, 100), at(44, 0, 400)]) is None
    assert measure_pace([at(0, 0, 100), at(44, 300, 400)]) is None


def test_without_lag_nothing_is_to_be_caught_up():
    assert measure_pace([at(0, 50, 50), at(20, 50, 50)]) == Pace(0.0, 0.0, 0.0)


def test_nothing_is_guessed_from_less_than_ten_seconds():
    assert measure_pace([at(0, 0, 9)]) is None
    assert measure_pace([at(0, 0, 9), at(9.9, 5, 9)]) is None


def test_only_the_last_minute_counts_and_another_timeline_begins_a_new_row():
    samples = (at(0, 0, 10), at(30, 5, 10), at(60, 8, 10))
    assert keep_recent(samples, at(70, 9, 10)) == (at(30, 5, 10), at(60, 8, 10), at(70, 9, 10))
    assert keep_recent(samples, at(70, 3, 10)) == (at(70, 3, 10),)
    assert keep_recent(samples, at(70, 9, 4)) == (at(70, 9, 4),)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 500), st.integers(0, 500)), min_size=1, max_size=30))
def test_an_estimate_exists_only_if_the_stream_is_the_faster(steps):
    seconds, committed, end, samples = 0, 0, 10_000, (at(0, 0, 10_000),)
    for wait, read, arrived in steps:
        seconds, end = seconds + wait, end + arrived
        committed = min(end, committed + read)
        samples = keep_recent(samples, at(seconds, committed, end))
        pace = measure_pace(samples)
        if pace is not None and pace.catch_up_s is not None:
            assert pace.catch_up_s >= 0
            assert pace.catch_up_s == 0 or pace.read_per_s >= pace.arriving_per_s
