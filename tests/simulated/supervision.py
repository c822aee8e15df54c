"""What the tests of the agent's decision look at: instants, a driver, and what was seen of a pipeline."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from rivertwice.agent.backoff import Failure, FailureClass
from rivertwice.agent.decide import Action, ActionKind, DrainMarker, Observed, decide
from rivertwice.agent.memory import DriverRef, FallBack, Memory
from rivertwice.timeline.intent import Heartbeat, Intent

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
S = timedelta(seconds=1)
DRIVER = DriverRef(pid=100, pid_started=1.0, epoch=7, since=NOW - 600 * S)
RUNNING = Intent("running", "test", NOW - 1000 * S)
STOPPED = Intent("stopped", "test", NOW - 1000 * S)


def beat(age_s: float, *, epoch: int = 7, lag: int | None = 0) -> Heartbeat:
    return Heartbeat(epoch, 100, "t1", "running", NOW - age_s * S, batch=5, lag=lag)


def failed(kind: FailureClass, age_s: float, *, progressed: bool = False) -> Failure:
    return Failure(NOW - age_s * S, kind, progressed, 6, "message")


def seen(**changes: Any) -> Observed:
    nothing = Observed(owner=None, launched=None, heartbeat=None, drain=None, defined=True, memory=Memory())
    return replace(nothing, **changes)


KNOWN = Memory(driver=DRIVER)
UNKNOWN5 = tuple(failed(FailureClass.UNKNOWN, age) for age in (300, 250, 200, 150, 100))
DAMAGED = (failed(FailureClass.CHECKPOINT, 100),)
FELL_BACK = FallBack(200, 2.0, NOW - 90 * S, 1)
AGENT_DRAIN = DrainMarker(NOW - 5 * S, by_agent=True, held=False)


Case = tuple[str, Intent | None, Observed, ActionKind, str]
"""Title, what is wanted, what is seen, the action and words of its reason."""


def check_case(case: Case) -> None:
    """Assert a case's action, its reason, and that exactly a page has a key."""
    title, desired, observed, kind, words = case
    action = decide(desired, observed, NOW)
    assert action.kind is kind, title
    assert words in action.reason
    assert bool(action.page) == (kind in {ActionKind.PAGE, ActionKind.STOP_AND_PAGE})


def start_within(memory: Memory, now: datetime, seconds: int) -> tuple[datetime, Action]:
    action = decide(RUNNING, seen(memory=memory), now)
    for _ in range(2 * seconds):
        if action.kind is not ActionKind.WAIT:
            break
        now += S / 2
        action = decide(RUNNING, seen(memory=memory), now)
    return now, action
