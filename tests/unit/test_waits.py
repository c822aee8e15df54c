"""Waits end: a deadline is shared, and what is waited for is looked at before and after it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest

from rivertwice.core.waits import Deadline


@dataclass
class Clock:
    """A monotonic clock that only sleeping moves."""

    now: float = 100.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    return clock


def test_a_condition_is_looked_at_when_the_deadline_has_passed(clock: Clock) -> None:
    deadline = Deadline.after(-1)
    assert deadline.wait_until(lambda: True)
    assert not deadline.wait_until(lambda: False)
    assert clock.slept == []


def test_polls_begin_at_once_and_end_with_the_deadline(clock: Clock) -> None:
    assert len(list(Deadline.after(1.0).polls(every=0.4))) == 4
    assert clock.slept == pytest.approx([0.4, 0.4, 0.2])


def test_waits_that_share_a_deadline_end_together(clock: Clock) -> None:
    deadline = Deadline.after(1.0)
    assert not deadline.wait_until(lambda: False)
    assert not deadline.wait_until(lambda: False)
    assert (clock.now, deadline.left()) == (pytest.approx(101.0), 0.0)
