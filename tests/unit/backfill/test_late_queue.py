"""The late queue: which windows are due, which wait for quiet, which are beyond the horizon, and what empties it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homes.backfill import HOUR, hours, view
from rivertwice.backfill.late_queue import (
    BEYOND,
    DUE,
    WAITING,
    LateArrival,
    QueuedWindow,
    describe_queue,
    due_ranges,
    queue_windows,
)
from rivertwice.backfill.model import BackfillRequest
from rivertwice.backfill.plan import plan_backfill
from rivertwice.core.errors import RequestError
from rivertwice.core.instants import parse_iso
from rivertwice.definition.parts import LatePolicy
from rivertwice.timeline.serving import Publication

NOW = parse_iso("2013-07-02T00:00:00Z")
MINUTE = timedelta(minutes=1)
POLICY = LatePolicy(policy="correct", debounce="10 minutes", horizon="5 hours")  # type: ignore[arg-type]
SEMANTICS = "s" * 64


def arrival(hour: int, offset: int = 0, came_at: datetime = NOW) -> LateArrival:
    return LateArrival(hour * HOUR, (hour + 1) * HOUR, "flights", 0, offset, came_at)


def queue(*arrivals: LateArrival, now: datetime = NOW, published: tuple[Publication, ...] = ()) -> list[QueuedWindow]:
    return queue_windows(arrivals, published, semantics={SEMANTICS}, policy=POLICY, closed_ms=8 * HOUR, now=now)


def publication(ranges: tuple[tuple[int, int], ...], end: int, semantics: str = SEMANTICS) -> Publication:
    return Publication(1, "bf-1", ranges, semantics, "b" * 64, {"flights": {0: end}})


def test_a_window_waits_until_it_has_been_quiet_for_the_debounce() -> None:
    came = [arrival(5, 1), arrival(5, 2, NOW + 4 * MINUTE)]
    (one,) = queue(*came, now=NOW + 13 * MINUTE)
    assert (one.state, one.records, one.due_at) == (WAITING, 2, NOW + 14 * MINUTE)
    (one,) = queue(*came, now=NOW + 14 * MINUTE)
    assert one.state == DUE


def test_a_window_never_quiet_is_due_six_debounces_after_its_first_row() -> None:
    came = [arrival(5, number, NOW + 5 * number * MINUTE) for number in range(40)]
    (one,) = queue(*came, now=NOW + 60 * MINUTE)  # six debounces of 10 minutes
    assert one.state == DUE
    assert queue(*came, now=NOW + 59 * MINUTE)[0].state == WAITING


@pytest.mark.proves("guarantees.md#late-rows")
def test_a_window_that_ended_before_the_horizon_is_left_as_it_is() -> None:
    found = queue(arrival(1), arrival(2), now=NOW + 60 * MINUTE)  # closed until 8, horizon 5 hours: ends of 3 and later
    assert [(one.start_ms // HOUR, one.state) for one in found] == [(1, BEYOND), (2, DUE)]
    assert due_ranges(found, HOUR) == hours((2, 3))


def test_a_window_that_ends_at_the_horizon_is_still_corrected() -> None:
    (one,) = queue(arrival(2), now=NOW + 10 * MINUTE)  # closed until 8, horizon 5 hours
    assert one.state == DUE


def test_a_late_row_at_the_as_of_offset_was_not_counted() -> None:
    published = publication(hours((5, 6)), 4)
    (one,) = queue(arrival(5, 3), arrival(5, 4), published=(published,))
    assert (one.start_ms, one.records) == (5 * HOUR, 1)
    assert queue(arrival(5, 3), published=(published,)) == []


def test_a_publication_that_ends_where_a_window_starts_has_not_counted_it() -> None:
    assert len(queue(arrival(5, 1), published=(publication(hours((4, 5)), 9),))) == 1
    assert queue(arrival(5, 1), published=(publication(hours((5, 6)), 9),)) == []


def test_a_publication_counts_nothing_of_a_partition_it_did_not_read() -> None:
    other = replace(publication(hours((5, 6)), 9), as_of={"flights": {1: 9}})
    assert len(queue(arrival(5, 0), published=(other,))) == 1


@pytest.mark.parametrize(
    ("published", "left"),
    [
        (publication(hours((5, 6)), 3), 1),
        (publication(hours((5, 6)), 5), 0),
        (publication(hours((6, 7)), 5), 2),
        (publication(hours((5, 6)), 5, semantics="o" * 64), 2),
    ],
    ids=["counted one of two", "counted both", "another window", "other semantics"],
)
def test_a_publication_empties_the_queue_of_what_it_counted(published: Publication, left: int) -> None:
    found = queue(arrival(5, 2), arrival(5, 4), published=(published,))
    assert sum(one.records for one in found) == left


def test_the_queue_is_told_in_a_few_words() -> None:
    found = queue(arrival(1), arrival(5), arrival(6, came_at=NOW + 30 * MINUTE), now=NOW + 30 * MINUTE)
    assert describe_queue(found) == (
        "1 due, 1 waiting, the next until 2013-07-02T00:40:00Z, 1 beyond the horizon, left as they are"
    )
    assert describe_queue([]) == "0 due"


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 50), st.integers(0, 200)), max_size=30))
def test_every_arrival_is_in_the_queue_once_until_it_is_counted(given: list[tuple[int, int, int]]) -> None:
    came = {arrival(hour, offset, NOW + minute * MINUTE) for hour, offset, minute in given}
    found = queue(*came, now=NOW + 100 * MINUTE)
    assert sum(one.records for one in found) == len(came)
    assert len({one.start_ms for one in found}) == len(found)
    everything = publication(hours((0, 8)), 51)
    assert queue(*came, published=(everything,)) == []


def plan_of(*arrivals: LateArrival, now: datetime = NOW, policy: LatePolicy | None = POLICY):  # type: ignore[no-untyped-def]
    request = BackfillRequest("p", None, "late", now)
    return plan_backfill(request, view(late_policy=policy, arrivals=arrivals, semantics=SEMANTICS))


def test_a_plan_of_the_queue_has_the_due_windows_and_counts_them_late() -> None:
    plan = plan_of(arrival(3), arrival(5, 1), arrival(6, came_at=NOW + 30 * MINUTE), now=NOW + 30 * MINUTE)
    assert plan.ranges == hours((3, 4), (5, 6))
    assert plan.late == 2


def test_a_plan_when_nothing_is_due_is_refused_with_what_waits() -> None:
    with pytest.raises(
        RequestError, match=r"no window of p is due .*: 0 due, 1 waiting, the next until 2013-07-02T00:10:00Z"
    ):
        plan_of(arrival(5))


def test_a_plan_of_the_queue_of_another_policy_is_refused() -> None:
    with pytest.raises(RequestError, match=r"late\.policy of p is not `correct`"):
        plan_of(policy=None)
