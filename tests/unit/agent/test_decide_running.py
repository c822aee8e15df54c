"""What the agent does about a driver that lives, starts, leaves or is not wanted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rivertwice.agent.decide import ActionKind
from rivertwice.agent.memory import Memory
from simulated.supervision import AGENT_DRAIN, DRIVER, KNOWN, NOW, RUNNING, STOPPED, Case, S, beat, check_case, seen

CASES: list[Case] = [
    ("nobody ever asked for anything", None, seen(), ActionKind.WAIT, "stopped"),
    ("stopped and nothing lives", STOPPED, seen(), ActionKind.WAIT, "stopped"),
    (
        "the desired state is stopped, a driver runs",
        STOPPED,
        seen(owner=DRIVER, memory=KNOWN),
        ActionKind.DRAIN,
        "pid 100",
    ),
    (
        "the desired state is stopped, a driver starts",
        STOPPED,
        seen(launched=DRIVER, memory=KNOWN),
        ActionKind.DRAIN,
        "pid 100",
    ),
    ("it drains already", STOPPED, seen(owner=DRIVER, memory=KNOWN, drain=AGENT_DRAIN), ActionKind.WAIT, "drains"),
    (
        "it drains for ever",
        STOPPED,
        seen(owner=DRIVER, memory=KNOWN, drain=replace(AGENT_DRAIN, since=NOW - 301 * S)),
        ActionKind.PAGE,
        "still runs",
    ),
    ("it runs", RUNNING, seen(owner=DRIVER, memory=KNOWN, heartbeat=beat(1)), ActionKind.WAIT, "epoch 7"),
    (
        "a driver that this agent does not know",
        RUNNING,
        seen(owner=DRIVER, heartbeat=beat(1)),
        ActionKind.ADOPT,
        "pid 100",
    ),
    (
        "a driver that took the lease just now",
        RUNNING,
        seen(owner=DRIVER, memory=Memory(driver=replace(DRIVER, epoch=None))),
        ActionKind.ADOPT,
        "epoch 7",
    ),
    (
        "a recycled pid is another driver",
        RUNNING,
        seen(owner=DRIVER, memory=Memory(driver=replace(DRIVER, pid_started=0.5))),
        ActionKind.ADOPT,
        "pid 100",
    ),
    ("it hangs", RUNNING, seen(owner=DRIVER, memory=KNOWN, heartbeat=beat(121)), ActionKind.PAGE, "said nothing"),
    (
        "it hangs and was paged",
        RUNNING,
        seen(owner=DRIVER, memory=replace(KNOWN, paged=("hung",)), heartbeat=beat(121)),
        ActionKind.WAIT,
        "said nothing",
    ),
    (
        "an older epoch's heartbeat does not make a fresh driver hang",
        RUNNING,
        seen(
            owner=replace(DRIVER, since=NOW - 10 * S),
            memory=KNOWN,
            heartbeat=beat(500, epoch=6),
        ),
        ActionKind.WAIT,
        "runs",
    ),
    (
        "it beats but commits nothing although records wait",
        RUNNING,
        seen(
            owner=replace(DRIVER, since=NOW - 900 * S),
            memory=KNOWN,
            heartbeat=beat(1, lag=9),
            position_since=NOW - 601 * S,
        ),
        ActionKind.PAGE,
        "9 records wait",
    ),
    (
        "a zombie of an older epoch beats, the owner itself has been silent",
        RUNNING,
        seen(owner=DRIVER, memory=KNOWN, heartbeat=beat(1, epoch=6)),
        ActionKind.PAGE,
        "said nothing for 600 s",
    ),
    (
        "a driver that took the lease just now has not stalled, however old its position is",
        RUNNING,
        seen(
            owner=replace(DRIVER, since=NOW - 60 * S),
            memory=Memory(driver=replace(DRIVER, since=NOW - 60 * S)),
            heartbeat=beat(1, lag=9),
            position_since=NOW - 5000 * S,
        ),
        ActionKind.WAIT,
        "runs",
    ),
    (
        "it is at its limits: silent for as long as it may be, no batch for as long as it may be",
        RUNNING,
        seen(owner=DRIVER, memory=KNOWN, heartbeat=beat(120, lag=9), position_since=NOW - 600 * S),
        ActionKind.WAIT,
        "runs",
    ),
    (
        "the clock was set back: its last beat lies in the future",
        RUNNING,
        seen(owner=replace(DRIVER, since=NOW + 3000 * S), memory=KNOWN, heartbeat=beat(-3600, lag=9)),
        ActionKind.WAIT,
        "runs",
    ),
    (
        "it drains for as long as it may",
        STOPPED,
        seen(owner=DRIVER, memory=KNOWN, drain=replace(AGENT_DRAIN, since=NOW - 300 * S)),
        ActionKind.WAIT,
        "drains",
    ),
    (
        "it starts for as long as it may",
        RUNNING,
        seen(launched=replace(DRIVER, epoch=None, since=NOW - 180 * S)),
        ActionKind.WAIT,
        "starts",
    ),
    (
        "it commits nothing because nothing waits",
        RUNNING,
        seen(owner=DRIVER, memory=KNOWN, heartbeat=beat(1, lag=0), position_since=NOW - 601 * S),
        ActionKind.WAIT,
        "runs",
    ),
    ("it starts", RUNNING, seen(launched=replace(DRIVER, epoch=None, since=NOW - 5 * S)), ActionKind.WAIT, "starts"),
    (
        "it starts for ever",
        RUNNING,
        seen(launched=replace(DRIVER, epoch=None, since=NOW - 181 * S)),
        ActionKind.PAGE,
        "no lease",
    ),
    ("one that had the lease for long leaves", RUNNING, seen(launched=DRIVER), ActionKind.WAIT, "leaves"),
]


@pytest.mark.proves("failure-modes.md#two-drivers-and-halves-of-one", "howto-stream.md#how-a-failure-is-answered")
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_a_case_gives_its_action_with_its_reason(case: Case) -> None:
    check_case(case)
