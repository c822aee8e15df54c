"""Which windows a trial runs over: whole, closed and retained. Batch n of the view has the records of hour n, at offsets [10n, 10n + 10).

hours      0   1   2   3   4   5   6   7 | 8   9      closed until hour 8
retained           [ 25 .. 100)                       hour 2 is retained in part, so it is not compared
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from homes.backfill import HOUR, asked, hours, make_home, view, zone
from rivertwice.backfill.model import Component, SessionsView, Span
from rivertwice.core.errors import LogGapError, RequestError
from rivertwice.core.instants import TimeRange, from_ms
from rivertwice.versions.try_stretch import (
    choose_ranges,
    newest_stretch,
    plan_settled,
    plan_windows,
    view_of,
    without_unknown_losses,
)

TWO_HOURS = timedelta(hours=2)
PARTLY = {"kafka": {"flights": {0: (25, 100)}}}


def times(start: float, end: float) -> TimeRange:
    return TimeRange(from_ms(int(start * HOUR)), from_ms(int(end * HOUR)))


def test_the_newest_stretch_ends_with_the_newest_closed_window() -> None:
    assert newest_stretch(view(closed_ms=8 * HOUR + 1), TWO_HOURS) == times(6, 8)
    assert newest_stretch(view(closed_ms=8 * HOUR + 1, window_ms=2 * HOUR, step_ms=HOUR), TWO_HOURS) == times(6, 8)
    assert newest_stretch(view(closed_ms=8 * HOUR, sessions=SessionsView()), TWO_HOURS) == times(5, 7)


@pytest.mark.parametrize("closed_ms", [None, 0])
def test_without_a_closed_window_there_is_nothing_to_compare(closed_ms: int | None) -> None:
    with pytest.raises(RequestError, match="no window of p is closed yet"):
        newest_stretch(view(closed_ms=closed_ms), TWO_HOURS)


def test_a_window_that_is_not_retained_whole_is_left_out_and_named() -> None:
    ranges, cut = choose_ranges(asked(1, 9), view(**PARTLY))
    assert ranges == hours((3, 8))
    assert cut == [(HOUR, 3 * HOUR, "not retained"), (8 * HOUR, 9 * HOUR, "open")]


def test_what_the_archive_has_is_retained() -> None:
    archived = view(**PARTLY, archive={"flights": {0: (15, 30)}}, older={"flights": {0: ((0, 5),)}})
    assert choose_ranges(asked(0, 8), archived) == (hours((2, 8)), [(0, 2 * HOUR, "not retained")])


def test_nothing_retained_is_said_with_what_is() -> None:
    with pytest.raises(RequestError) as caught:
        choose_ranges(asked(0, 3), view(**PARTLY))
    assert "what is retained has event times from 1970-01-01T03:00:00" in str(caught.value)
    with pytest.raises(RequestError, match="no batch that the stream read is retained"):
        choose_ranges(asked(0, 3), view(kafka={}))


def test_a_plan_reads_the_records_of_its_windows_alone() -> None:
    plan = plan_windows(asked(3, 5), view(), hours((3, 5)))
    assert (plan.windows, plan.records, plan.offsets) == (2, 20, {"flights": {0: ((30, 50),)}})
    assert len(plan.chunks) == 1


def test_a_hole_in_what_must_be_read_is_never_passed_over() -> None:
    """Batch 4 has no record of the hours 3 and 5, but is read with them, because a hole costs less than another scan."""
    holed = view(archive={"flights": {0: (0, 40)}}, kafka={"flights": {0: (50, 100)}})
    with pytest.raises(LogGapError):
        plan_windows(asked(3, 6), holed, hours((3, 4), (5, 6)))


@pytest.mark.parametrize(
    ("alike", "keeps_zones", "read"),
    [
        (True, True, {"flights": {0: ((30, 50),)}}),
        (False, True, {"flights": {0: ((0, 10), (30, 50))}}),
        (False, False, {"flights": {0: ((0, 100),)}}),
    ],
)
def test_a_batch_is_read_if_the_change_may_accept_a_record_of_it(
    alike: bool, keeps_zones: bool, read: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch 0 alone has dead letters, which the changed definition may accept for any hour."""
    monkeypatch.setattr("rivertwice.backfill.zones.SCAN_GAP", 0)
    _, _, bundle = make_home(tmp_path)
    clean = {("t1", batch) for batch in range(1, 10)}
    changed = view_of(
        view(),
        bundle,
        (HOUR, HOUR),
        clean=clean,
        alike=alike,
        keeps_zones=keeps_zones,
        has_sessions=False,
    )
    assert changed.bundle == bundle.id
    assert plan_windows(asked(3, 5), changed, hours((3, 5))).offsets == read


def test_lost_batches_of_unknown_event_times_are_left_out_and_counted() -> None:
    batches = (zone(0, 0, 1, trusted=False), *(zone(n, n, n + 1) for n in range(1, 9)), zone(9, 9, 10, trusted=False))
    kept, records = without_unknown_losses(view(batches=batches, kafka={"flights": {0: (10, 100)}}))
    assert (records, [each.batch for each in kept.batches]) == (10, list(range(1, 10)))


def test_sessions_that_are_not_settled_are_not_compared() -> None:
    def of(*spans: Span) -> SessionsView:
        return SessionsView(components=tuple(Component(span.key, (), (span,)) for span in spans))

    settled, open_one = Span("a", 3_000 * HOUR, 4_000 * HOUR, 3), Span("b", 7_000 * HOUR, 8_000 * HOUR, 2)
    plan = plan_settled(asked(0, 8), view(sessions=of(settled, open_one)))
    assert plan is not None
    assert plan.windows == 1
    assert plan_settled(asked(0, 8), view(sessions=of(open_one))) is None
    assert replace(plan, attempt=1).id == "the trial"
