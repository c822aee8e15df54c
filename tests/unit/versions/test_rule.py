"""The late rule for any delay: from the batches that ran, without another run."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homes.ledger import ledger_row
from homes.project import EXAMPLES, FLIGHTS
from rivertwice.definition.definition import load_definition
from rivertwice.timeline.lineage import late_watermarks_ms
from rivertwice.versions.advise import (
    NEVER_MS,
    choose_step,
    chosen_delays,
    closing_batches,
    largest_before,
    late_marks,
    most_open,
    refusal_of,
    select_newest,
    suggest,
)

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


def rows_of(largest: list[int | None]) -> list:
    return [ledger_row(number, max_event_ms=value) for number, value in enumerate(largest)]


def test_marks_give_the_watermarks_of_the_stream_less_the_delay() -> None:
    # batch           0      1     2     3
    # largest event  50     20    90     -
    # own watermark   0     45    45    85   (delay 5)
    # late by         0      0    45    45
    rows = rows_of([50, 20, 90, None])
    largest = largest_before(rows)
    assert largest.tolist() == [NEVER_MS, 50, 50, 90]
    assert late_marks(largest).tolist() == [NEVER_MS, NEVER_MS, 50, 50]


@given(st.lists(st.one_of(st.none(), st.integers(0, 10_000)), min_size=1, max_size=12), st.integers(0, 3_000))
def test_marks_less_any_delay_are_what_the_stream_would_have_had(events: list[int | None], delay: int) -> None:
    watermark, own = 0, []
    for event in events:
        own.append(watermark)
        watermark = max(watermark, -1 if event is None else event - delay)
    rows = [
        ledger_row(number, max_event_ms=event, batch_watermark_ms=mark)
        for number, (event, mark) in enumerate(zip(events, own, strict=True))
    ]
    by_rule = np.maximum(0, late_marks(largest_before(rows)) - delay)
    assert by_rule.tolist() == late_watermarks_ms(rows)


def test_the_first_batch_whose_watermark_reaches_its_end_closes_a_window() -> None:
    largest = np.array([NEVER_MS, 100, 160, 160], np.int64)
    assert closing_batches(np.array([90, 91, 150, 151]), largest, 10).tolist() == [1, 2, 2, 4]


@pytest.mark.proves("howto-correct.md#choose-the-watermark")
def test_the_state_holds_what_was_begun_and_is_not_closed() -> None:
    first, closing, rows = np.array([0, 0, 2]), np.array([1, 3, 9]), np.array([5, 2, 4])
    # at the end of batch 0: 5 + 2; 1: 2; 2: 2 + 4; 3: 4
    assert most_open(first, closing, rows, 4) == 7
    assert most_open(np.array([], np.int64), np.array([], np.int64), np.array([], np.int64), 4) == 0


def test_a_window_that_its_own_first_batch_closes_is_not_held() -> None:
    assert most_open(np.array([1]), np.array([1]), np.array([9]), 3) == 0


def test_suggestions_are_the_smallest_delays_that_keep_a_share() -> None:
    # 1,000 pairs; a delay of 1 step keeps all but 12, of 3 steps all but 2, of 8 steps all
    needed = {0: 500, 1: 4, 2: 6, 7: 2}
    one_percent, a_tenth, none = suggest(1_000, 60_000, needed)
    assert (one_percent.delay, one_percent.dropped) == (2 * MINUTE, 8)
    assert (a_tenth.delay, a_tenth.dropped) == (8 * MINUTE, 0)
    assert (none.delay, none.dropped) == (8 * MINUTE, 0)


def test_without_late_records_no_delay_is_needed() -> None:
    assert {suggestion.delay for suggestion in suggest(10, 1_000, {})} == {timedelta(0)}


def test_the_grid_is_whole_seconds_and_not_longer_than_its_limit() -> None:
    assert choose_step(-5) == 1_000
    assert choose_step(9_999_000) == 1_000
    assert choose_step(10 * 24 * 3_600_000) == 87_000


def test_delays_that_were_asked_for_are_judged_beside_the_present_one() -> None:
    assert chosen_delays(HOUR, [2 * HOUR], [5 * MINUTE]) == [HOUR, 2 * HOUR]
    assert chosen_delays(HOUR, [], [5 * MINUTE]) == [
        timedelta(0),
        5 * MINUTE,
        15 * MINUTE,
        30 * MINUTE,
        HOUR,
        2 * HOUR,
        4 * HOUR,
    ]


def test_the_newest_batches_are_those_since_a_stretch_of_event_time() -> None:
    rows = rows_of([1_000, None, 2_000, 9_000, 8_500])
    assert select_newest(rows, None) == 0
    assert select_newest(rows, timedelta(seconds=7)) == 2
    assert select_newest(rows, timedelta(milliseconds=1)) == 3
    assert select_newest(rows, timedelta(days=1)) == 0


def test_a_pipeline_of_one_stream_with_windows_gets_advice() -> None:
    assert refusal_of(load_definition(FLIGHTS)) is None


@pytest.mark.parametrize(("name", "why"), [("shopping_cart", "no watermark"), ("ad_clicks", "2 streams")])
def test_why_no_advice_can_be_given_is_said(name: str, why: str) -> None:
    refusal = refusal_of(load_definition(EXAMPLES / name))
    assert refusal is not None
    assert why in refusal
