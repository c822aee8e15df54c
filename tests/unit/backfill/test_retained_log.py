"""Which windows can be recomputed: whole, closed and retained. Batch n of the view has the records of hour n, at offsets [10n, 10n + 10).

hours      0   1   2   3   4   5   6   7 | 8   9      closed until hour 8
retained           [ 25 .. 100)                       hour 2 is retained in part, so it is left out
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from homes.backfill import HOUR, SQL, YAML, hours, view, zone
from rivertwice.backfill.model import Component, SessionsView, Span
from rivertwice.backfill.recompute import RetainedLog
from rivertwice.core.errors import LogGapError, RequestError
from rivertwice.core.instants import TimeRange, from_ms
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import Bundle
from rivertwice.definition.definition import parse_files
from rivertwice.definition.fingerprint import fingerprint_of

TWO_HOURS = timedelta(hours=2)
PARTLY = {"kafka": {"flights": {0: (25, 100)}}}


def times(start: float, end: float) -> TimeRange:
    return TimeRange(from_ms(int(start * HOUR)), from_ms(int(end * HOUR)))


def bundle(*changes: tuple[str, str]) -> Bundle:
    files = {"pipeline.yaml": YAML, "transform.sql": SQL}
    for old, new in changes:
        files = {name: text.replace(old, new) for name, text in files.items()}
    definition = parse_files({name: text.encode() for name, text in files.items()}, "test")
    return Bundle("c" * 64, {}, fingerprint_of(definition), definition)


def log(**changes: Any) -> RetainedLog:
    return RetainedLog(Settings(Path("project"), Path("home")), bundle(), view(**changes))


def test_the_newest_stretch_ends_with_the_newest_closed_window() -> None:
    assert log(closed_ms=8 * HOUR + 1).newest(TWO_HOURS) == times(6, 8)
    assert log(closed_ms=8 * HOUR + 1, window_ms=2 * HOUR, step_ms=HOUR).newest(TWO_HOURS) == times(6, 8)
    assert log(closed_ms=8 * HOUR, sessions=SessionsView()).newest(TWO_HOURS) == times(5, 7)


@pytest.mark.parametrize("closed_ms", [None, 0])
def test_without_a_closed_window_there_is_nothing_to_compare(closed_ms: int | None) -> None:
    with pytest.raises(RequestError, match="no window of p is closed yet"):
        log(closed_ms=closed_ms).newest(TWO_HOURS)


def test_a_window_that_is_not_retained_whole_is_left_out_and_named() -> None:
    ranges, cut = log(**PARTLY).choose(times(1, 9))
    assert ranges == hours((3, 8))
    assert cut == [(HOUR, 3 * HOUR, "not retained"), (8 * HOUR, 9 * HOUR, "open")]


def test_what_the_archive_has_is_retained() -> None:
    archived = log(**PARTLY, archive={"flights": {0: (15, 30)}}, older={"flights": {0: ((0, 5),)}})
    assert archived.choose(times(0, 8)) == (hours((2, 8)), [(0, 2 * HOUR, "not retained")])


def test_nothing_retained_is_said_with_what_is() -> None:
    with pytest.raises(RequestError) as caught:
        log(**PARTLY).choose(times(0, 3))
    assert "what is retained has event times from 1970-01-01T03:00:00" in str(caught.value)
    with pytest.raises(RequestError, match="no batch that the stream read is retained"):
        log(kafka={}).choose(times(0, 3))


def test_a_plan_reads_the_records_of_its_windows_alone() -> None:
    plan = log().plan_windows(hours((3, 5)))
    assert (plan.windows, plan.records, plan.offsets) == (2, 20, {"flights": {0: ((30, 50),)}})
    assert len(plan.chunks) == 1


def test_a_hole_in_what_must_be_read_is_never_passed_over() -> None:
    """Batch 4 has no record of the hours 3 and 5, but is read with them, because a hole costs less than another scan."""
    holed = log(archive={"flights": {0: (0, 40)}}, kafka={"flights": {0: (50, 100)}})
    with pytest.raises(LogGapError):
        holed.plan_windows(hours((3, 4), (5, 6)))


@pytest.mark.parametrize(
    ("changes", "read"),
    [
        ([], {"flights": {0: ((30, 50),)}}),
        ([("max_future: 1 hour", "max_future: 2 hours")], {"flights": {0: ((0, 10), (30, 50))}}),
        ([("at: timestamp", "at: timestamp, t: timestamp"), ("event_time: at", "event_time: t"), ("(at,", "(t,")],
         {"flights": {0: ((0, 100),)}}),
    ],
)  # fmt: skip
def test_a_batch_is_read_if_the_change_may_accept_a_record_of_it(
    changes: list[tuple[str, str]], read: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch 0 alone has dead letters, which the changed definition may accept for any hour."""
    monkeypatch.setattr("rivertwice.backfill.zones.SCAN_GAP", 0)
    ledger = [SimpleNamespace(timeline="t1", batch=number, bad=int(number == 0)) for number in range(10)]
    monkeypatch.setattr("rivertwice.backfill.recompute.path_ledger", lambda _: ledger)
    changed = log().by(bundle(*changes))
    assert changed.view.bundle == changed.bundle.id
    assert changed.plan_windows(hours((3, 5))).offsets == read


def test_lost_batches_of_unknown_event_times_are_left_out_and_counted() -> None:
    batches = (zone(0, 0, 1, trusted=False), *(zone(n, n, n + 1) for n in range(1, 9)), zone(9, 9, 10, trusted=False))
    kept = log(batches=batches, kafka={"flights": {0: (10, 100)}}).without_unknown()
    assert (kept.unread, [each.batch for each in kept.view.batches]) == (10, list(range(1, 10)))


def test_sessions_that_are_not_settled_are_not_compared() -> None:
    def of(*spans: Span) -> RetainedLog:
        return log(sessions=SessionsView(components=tuple(Component(span.key, (), (span,)) for span in spans)))

    settled, open_one = (
        Span('{"k": "a"}', 3_000 * HOUR, 4_000 * HOUR, 3),
        Span('{"k": "b"}', 7_000 * HOUR, 8_000 * HOUR, 2),
    )
    both = of(settled, open_one)
    assert both.plan_sessions(times(0, 8)).windows == 1
    noted = SimpleNamespace(createDataFrame=lambda values, _: values)
    assert both.open_sessions(noted) == [("b", open_one.start_us, open_one.end_us)]
    assert of(settled).open_sessions(noted) is None
    nothing = of(open_one).plan_sessions(times(0, 8))
    assert (nothing.ranges, nothing.records) == ((), 0)
