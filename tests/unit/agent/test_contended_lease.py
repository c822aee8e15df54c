"""A lease that is lost again and again: two agents run one pipeline. Back off, page once with the holder, stand by."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from rivertwice.agent.backoff import Failure, FailureClass, lease_losses, next_attempt
from rivertwice.agent.decide import ActionKind, decide
from rivertwice.agent.memory import DriverRef, Ended, Memory, lasting_pages, remember_end
from simulated.supervision import NOW, RUNNING, S, failed, seen, start_within

LOST = FailureClass.LEASE_LOST
HOLDER = "epoch 12 (process 4711 on host other), home h-1, holds the lease in s3://b/leases/p and renews it"


def lost(age_s: float, *, progressed: bool = False) -> Failure:
    return replace(failed(LOST, age_s, progressed=progressed), message=HOLDER)


@pytest.mark.parametrize(
    "progressed", [False, True], ids=["refused at each start", "each commits something in between"]
)
def test_the_third_loss_is_paged_with_the_holder_and_later_ones_are_not(progressed: bool) -> None:
    twice = Memory(failures=(lost(300, progressed=progressed), lost(200, progressed=progressed)))
    assert decide(RUNNING, seen(memory=twice), NOW).kind is ActionKind.START
    thrice = replace(twice, failures=(*twice.failures, lost(100, progressed=progressed)))
    action = decide(RUNNING, seen(memory=thrice), NOW)
    assert (action.kind, action.page) == (ActionKind.PAGE, "contended")
    for word in ("epoch 12", "process 4711", "host other", "stop it on one of the hosts"):
        assert word in action.reason
    paged = replace(thrice, paged=("contended",))
    assert decide(RUNNING, seen(memory=paged), NOW).kind is ActionKind.START


def test_the_page_outlives_starts_and_is_news_after_a_quiet_window() -> None:
    memory = Memory(failures=(lost(300), lost(200), lost(100)), paged=("contended", "hung"))
    assert lasting_pages(memory) == ("contended",)
    driver = DriverRef(1, 1.0, None, NOW)
    again = remember_end(memory, Ended(driver, LOST, False, HOLDER, None), NOW)
    assert again.paged == ("contended",)
    much_later = remember_end(memory, Ended(driver, LOST, False, HOLDER, None), NOW + timedelta(hours=1))
    assert much_later.paged == ()
    other = remember_end(memory, Ended(driver, FailureClass.KILLED, False, "m", None), NOW)
    assert other.paged == ()
    assert remember_end(memory, Ended(driver, FailureClass.DRAINED, True, "m", None), NOW).paged == ()


def test_progress_does_not_shorten_the_wait_of_a_repeated_loser() -> None:
    row = [lost(age, progressed=True) for age in (50, 40, 30, 20)]
    assert lease_losses(row) == 4
    assert next_attempt(row) == NOW - 20 * S + 8 * S
    assert lease_losses([*row, failed(FailureClass.STORE, 10)]) == 0
    assert lease_losses([lost(5000), lost(10)]) == 1


@pytest.mark.proves("howto-stream.md#how-a-failure-is-answered")
def test_a_stand_by_tries_for_ever_at_least_once_a_minute_and_pages_once() -> None:
    memory, now, pages = Memory(), NOW, 0
    for number in range(40):
        now, kind, memory, paged = next_start(memory, now)
        pages += paged
        assert kind is ActionKind.START, number
        driver = DriverRef(number, 1.0, None, now)
        memory = replace(memory, driver=driver, last_start_at=now, paged=lasting_pages(memory))
        now += 14 * S  # a start that watches the lease, sees it renewed, and ends
        memory = remember_end(memory, Ended(driver, LOST, False, HOLDER, None), now)
    assert pages == 1


def next_start(memory: Memory, now: datetime) -> tuple[datetime, ActionKind, Memory, int]:
    """Return when and how the next wait ends, and whether it was paged meanwhile."""
    now, action = start_within(memory, now, 62)
    if action.kind is not ActionKind.PAGE:
        return now, action.kind, memory, 0
    memory = replace(memory, paged=(*memory.paged, action.page))
    now, action = start_within(memory, now, 62)
    return now, action.kind, memory, 1
