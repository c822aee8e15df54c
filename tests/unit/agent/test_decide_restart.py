"""When the agent starts a driver, waits, or gives up: drain markers, backoff, the breaker, a new ask."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rivertwice.agent.backoff import Failure, FailureClass
from rivertwice.agent.decide import ActionKind, DrainMarker, decide
from rivertwice.agent.memory import Intended, Memory
from simulated.supervision import AGENT_DRAIN, NOW, RUNNING, UNKNOWN5, Case, S, check_case, failed, seen

CASES: list[Case] = [
    ("first start", RUNNING, seen(), ActionKind.START, "no driver is running"),
    (
        "a restore holds the drain marker",
        RUNNING,
        seen(drain=DrainMarker(NOW, by_agent=False, held=True)),
        ActionKind.WAIT,
        "holds the drain marker",
    ),
    (
        "whoever held the drain marker is dead",
        RUNNING,
        seen(drain=DrainMarker(NOW, by_agent=False, held=False)),
        ActionKind.START,
        "",
    ),
    ("stop and start again quickly", RUNNING, seen(drain=AGENT_DRAIN), ActionKind.START, ""),
    ("no definition", RUNNING, seen(defined=False), ActionKind.STOP_AND_PAGE, "no definition"),
    (
        "the agent died while it started a driver",
        RUNNING,
        seen(memory=Memory(intended=Intended("start", "r", NOW - 3 * S, done=False))),
        ActionKind.WAIT,
        "may still come up",
    ),
    (
        "and that driver never came up",
        RUNNING,
        seen(memory=Memory(intended=Intended("start", "r", NOW - 31 * S, done=False))),
        ActionKind.START,
        "",
    ),
    (
        "killed once, backoff runs",
        RUNNING,
        seen(memory=Memory(failures=(failed(FailureClass.KILLED, 0.4),))),
        ActionKind.WAIT,
        "backoff until 2026-01-01T12:00:00.6",
    ),
    (
        "killed once, backoff passed",
        RUNNING,
        seen(memory=Memory(failures=(failed(FailureClass.KILLED, 1),))),
        ActionKind.START,
        "killed",
    ),
    (
        "three in a row wait four seconds",
        RUNNING,
        seen(memory=Memory(failures=tuple(failed(FailureClass.STORE, age) for age in (30, 20, 3.9)))),
        ActionKind.WAIT,
        "backoff",
    ),
    (
        "unknown, five times without progress",
        RUNNING,
        seen(memory=Memory(failures=UNKNOWN5)),
        ActionKind.STOP_AND_PAGE,
        "again and again",
    ),
    (
        "unknown, five times, but the last one had made progress",
        RUNNING,
        seen(memory=Memory(failures=(*UNKNOWN5[:4], replace(UNKNOWN5[4], progressed=True)))),
        ActionKind.START,
        "",
    ),
    (
        "unknown, five times in a whole day",
        RUNNING,
        seen(
            memory=Memory(
                failures=tuple(replace(item, at=item.at - i * 3600 * S) for i, item in enumerate(UNKNOWN5[::-1]))
            )
        ),
        ActionKind.START,
        "",
    ),
    (
        "out of memory three times",
        RUNNING,
        seen(memory=Memory(failures=tuple(failed(FailureClass.OUT_OF_MEMORY, age) for age in (90, 60, 30)))),
        ActionKind.STOP_AND_PAGE,
        "memory",
    ),
    *[
        (
            f"{kind} stops at once",
            RUNNING,
            seen(memory=Memory(failures=(failed(kind, 100),))),
            ActionKind.STOP_AND_PAGE,
            str(kind),
        )
        for kind in (
            FailureClass.RETENTION,
            FailureClass.SCHEMA,
            FailureClass.FINGERPRINT,
            FailureClass.RANGE_MISMATCH,
            FailureClass.LEDGER,
        )
    ],
    (
        "lease lost and nobody owns it any more",
        RUNNING,
        seen(memory=Memory(failures=(failed(FailureClass.LEASE_LOST, 2),))),
        ActionKind.START,
        "",
    ),
    (
        "given up",
        RUNNING,
        seen(memory=Memory(broken_at=NOW - 10 * S, broken_because="why", failures=UNKNOWN5)),
        ActionKind.WAIT,
        "not retried until a new start is requested: why",
    ),
    (
        "given up, then asked again",
        replace(RUNNING, updated_at=NOW - 5 * S),
        seen(memory=Memory(broken_at=NOW - 10 * S, broken_because="why", failures=UNKNOWN5)),
        ActionKind.START,
        "asked again",
    ),
    (
        "given up, then the clock was set back: an ask after it looks older than it is",
        RUNNING,
        seen(memory=Memory(broken_at=NOW + 3600 * S, broken_because="why", failures=UNKNOWN5)),
        ActionKind.START,
        "asked again",
    ),
    (
        "failed, then the clock was set back: no backoff of an hour",
        RUNNING,
        seen(memory=Memory(failures=(failed(FailureClass.KILLED, -3600),), last_start_at=NOW + 3590 * S)),
        ActionKind.START,
        "killed",
    ),
    (
        "the agent died while it started a driver, then the clock was set back",
        RUNNING,
        seen(memory=Memory(intended=Intended("start", "r", NOW + 3600 * S, done=False))),
        ActionKind.START,
        "no driver is running",
    ),
    (
        "a start at this very instant may be under way",
        RUNNING,
        seen(memory=Memory(intended=Intended("start", "r", NOW, done=False))),
        ActionKind.WAIT,
        "may still come up",
    ),
    (
        "thirty seconds after its start nothing comes up any more",
        RUNNING,
        seen(memory=Memory(intended=Intended("start", "r", NOW - 30 * S, done=False))),
        ActionKind.START,
        "no driver is running",
    ),
    (
        "the start that was intended was done",
        RUNNING,
        seen(memory=Memory(intended=Intended("start", "r", NOW - 3 * S, done=True))),
        ActionKind.START,
        "no driver is running",
    ),
    (
        "another action was under way",
        RUNNING,
        seen(memory=Memory(intended=Intended("drain", "r", NOW - 3 * S, done=False))),
        ActionKind.START,
        "no driver is running",
    ),
    (
        "two starts are two seconds apart",
        RUNNING,
        seen(memory=Memory(last_start_at=NOW - 2 * S)),
        ActionKind.START,
        "no driver is running",
    ),
    (
        "two starts are never closer than two seconds",
        RUNNING,
        seen(memory=Memory(last_start_at=NOW - S)),
        ActionKind.WAIT,
        "backoff",
    ),
]


@pytest.mark.proves(
    "howto-stream.md#how-a-failure-is-answered", "howto-upgrade.md#how-to-change-a-definition-under-a-running-stream"
)
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_a_case_gives_its_action_with_its_reason(case: Case) -> None:
    check_case(case)


def test_a_stop_for_lost_records_pages_what_is_lost_by_name() -> None:
    lost = Failure(NOW, FailureClass.RETENTION, progressed=False, epoch=1, message="gap gap-1: partition 0 [3, 9)")
    action = decide(RUNNING, seen(memory=Memory(failures=(lost,))), NOW)
    assert (action.kind, action.page) == (ActionKind.STOP_AND_PAGE, "retention")
    assert "partition 0 [3, 9)" in action.reason
