"""Which days a passed reconcile announces."""

from __future__ import annotations

from typing import Any

import pytest

from rivertwice.definition.windows import Window
from rivertwice.tasks.announce import (
    DAY_MS,
    MOST,
    Announced,
    closed_days,
    range_text,
    select_days,
    touched_days,
)
from rivertwice.timeline.serving import Publication

HOUR_MS = 3_600_000


def publication(seq: int, start_ms: int, end_ms: int) -> Publication:
    return Publication(seq, f"bf-{seq}", ((start_ms, end_ms),), "s", "b", {})


def selected(
    announced: Announced, closed_ms: int, *publications: Publication, **other: Any
) -> tuple[Any, Any, Announced]:
    given: dict[str, Any] = {
        "version": "p",
        "sequence": 9,
        "first_ms": 10 * DAY_MS + 4 * HOUR_MS,
        "last_end_ms": Window(size="1 hour").last_end_ms,
        "first_open_ms": None,
    }
    days = select_days(announced, closed_ms=closed_ms, publications=publications, **given | other)
    return days.new, days.again, days.after


def test_each_day_is_announced_once_when_it_is_closed() -> None:
    new, again, after = selected(Announced(), 12 * DAY_MS - 1)
    assert (new, again, after) == ((10,), (), Announced(11, 9, "p"))
    new, _, after = selected(after, 12 * DAY_MS)
    assert new == (11,)
    assert selected(after, 12 * DAY_MS + 5 * HOUR_MS)[:2] == ((), ())


def test_a_day_that_a_publication_changed_is_announced_again_and_no_other() -> None:
    known = Announced(12, 3, "p")
    change = publication(4, 10 * DAY_MS + HOUR_MS, 10 * DAY_MS + 3 * HOUR_MS)
    assert selected(known, 12 * DAY_MS, change)[:2] == ((), (10,))
    assert selected(known, 12 * DAY_MS, publication(3, 10 * DAY_MS, 11 * DAY_MS))[1] == ()  # announced with it


def test_what_the_reconcile_did_not_judge_waits_for_the_next() -> None:
    later = publication(10, 10 * DAY_MS, 11 * DAY_MS)
    _, again, after = selected(Announced(12, 3, "p"), 12 * DAY_MS, later)
    assert again == ()
    assert selected(after, 12 * DAY_MS, later, sequence=10)[1] == (10,)


def test_another_version_that_serves_announces_all_its_days() -> None:
    assert selected(Announced(12, 3, "p"), 12 * DAY_MS, version="p@v2") == ((10, 11), (), Announced(12, 9, "p@v2"))


def test_a_long_history_is_announced_part_by_part() -> None:
    new, _, after = selected(Announced(), 1_000 * DAY_MS)
    assert len(new) == MOST
    assert selected(after, 1_000 * DAY_MS)[0][0] == new[-1] + 1


def test_an_open_session_holds_its_day_back() -> None:
    assert selected(Announced(), 14 * DAY_MS, first_open_ms=12 * DAY_MS + 5)[0] == (10, 11)


def test_without_a_served_row_there_is_no_day() -> None:
    assert selected(Announced(), 14 * DAY_MS, first_ms=None) == ((), (), Announced(None, 9, "p"))


@pytest.mark.parametrize(
    ("closed_ms", "window", "day"),
    [
        (10 * DAY_MS, {"size": "1 hour"}, 10),
        (10 * DAY_MS - 1, {"size": "1 hour"}, 9),
        (10 * DAY_MS, {"size": "2 hours", "slide": "1 hour"}, 9),  # the window of 23:00 ends an hour after midnight
        (10 * DAY_MS + HOUR_MS, {"size": "2 hours", "slide": "1 hour"}, 10),
        (10 * DAY_MS, {"size": "7 days"}, 7),  # the week that begins with day 7 is open until day 14
        (14 * DAY_MS, {"size": "7 days"}, 14),
        (10 * DAY_MS + HOUR_MS - 2, {"session": "1 hour"}, 9),  # a session of the day's last millisecond is open
        (10 * DAY_MS + HOUR_MS - 1, {"session": "1 hour"}, 10),
    ],
)
def test_a_day_is_closed_with_the_last_window_that_starts_in_it(
    closed_ms: int, window: dict[str, Any], day: int
) -> None:
    assert closed_days(closed_ms, Window(**window).last_end_ms) == day


def test_a_fold_has_no_window_that_a_watermark_closes() -> None:
    assert Window(fold="1 day", at="t").last_end_ms(10 * DAY_MS) is None


def test_days_are_half_open() -> None:
    assert touched_days([publication(1, 10 * DAY_MS, 11 * DAY_MS)]) == {10}
    assert range_text([10, 12]) == {"from": "1970-01-11T00:00:00Z", "to": "1970-01-14T00:00:00Z"}
    assert range_text([]) is None
