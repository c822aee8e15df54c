"""What must hold of the agent's decision whatever it sees, and over whole histories."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivertwice.agent.backoff import Failure, FailureClass
from rivertwice.agent.decide import ActionKind, DrainMarker, Observed, decide
from rivertwice.agent.memory import DIED, REFUSED, RESTORED, DriverRef, Ended, FallBack, Intended, Memory, remember_end
from rivertwice.timeline.intent import Intent
from simulated.supervision import NOW, S, beat, start_within

instants = st.integers(-100_000, 100).map(lambda s: NOW + s * S)
refs = st.builds(DriverRef, st.integers(1, 9), st.floats(0, 9), st.none() | st.integers(1, 9), instants)
failures = st.lists(
    st.builds(
        Failure, instants, st.sampled_from(FailureClass), st.booleans(), st.none() | st.integers(1, 9), st.just("m")
    ),
    max_size=8,
).map(lambda items: tuple(sorted(items, key=lambda item: item.at)))
memories = st.builds(
    Memory,
    driver=st.none() | refs,
    failures=failures,
    broken_at=st.none() | instants,
    last_start_at=st.none() | instants,
    intended=st.none()
    | st.builds(Intended, st.sampled_from([str(kind) for kind in ActionKind]), st.just("r"), instants, st.booleans()),
    paged=st.sampled_from([(), ("hung",)]),
    position=st.none() | st.just(("t2", 9)),
    fall_back=st.none()
    | st.builds(
        FallBack,
        st.integers(1, 9),
        st.floats(0, 9),
        instants,
        st.integers(1, 3),
        st.sampled_from(["", RESTORED, REFUSED, DIED]),
        st.just("m"),
        st.none() | st.just(("t2", 9)),
    ),
)
observations = st.builds(
    Observed,
    owner=st.none() | refs,
    launched=st.none() | refs,
    heartbeat=st.none()
    | st.builds(beat, st.integers(0, 999), epoch=st.integers(1, 9), lag=st.none() | st.integers(0, 5)),
    drain=st.none() | st.builds(DrainMarker, instants, st.booleans(), st.booleans()),
    defined=st.booleans(),
    memory=memories,
    position_since=st.none() | instants,
    restoring=st.none() | st.integers(1, 9),
)
intents = st.none() | st.builds(Intent, st.sampled_from(["running", "stopped"]), st.just("t"), instants)


@given(intents, observations)
def test_a_second_driver_is_never_started_while_one_lives(desired: Intent | None, observed: Observed) -> None:
    action = decide(desired, observed, NOW)
    if observed.owner is not None or observed.launched is not None or observed.restoring is not None:
        assert action.kind not in {ActionKind.START, ActionKind.RESTORE}
    if desired is None or desired.desired == "stopped":
        assert action.kind in {ActionKind.WAIT, ActionKind.DRAIN, ActionKind.PAGE}


@given(intents, observations)
def test_the_same_sight_gives_the_same_action_and_always_a_reason(desired: Intent | None, observed: Observed) -> None:
    first = decide(desired, observed, NOW)
    assert first == decide(desired, observed, NOW)
    assert first.reason


@settings(max_examples=200)
@given(
    st.lists(
        st.sampled_from([FailureClass.KILLED, FailureClass.UNKNOWN, FailureClass.POISON, FailureClass.STORE]),
        max_size=4,
    ),
    st.integers(0, 1000),
)
def test_a_wanted_driver_with_patience_left_always_starts_again(kinds: list[FailureClass], wait_s: int) -> None:
    """A driver that fails again and again is started again after each backoff, until the breaker's limit."""
    memory, now = Memory(), NOW
    for kind in kinds:
        now, action = start_within(memory, now, 62)
        assert action.kind is ActionKind.START
        driver = DriverRef(1, 1.0, 1, now)
        now += wait_s * S
        memory = remember_end(
            replace(memory, driver=driver, last_start_at=now), Ended(driver, kind, False, "m", None), now
        )
    assert start_within(memory, now, 62)[1].kind is ActionKind.START


@pytest.mark.proves("howto-stream.md#how-a-failure-is-answered")
@settings(max_examples=50)
@given(st.lists(st.integers(3, 30), min_size=20, max_size=20))
def test_twenty_kills_with_progress_are_each_answered_within_three_seconds(lives_s: list[int]) -> None:
    memory, now = Memory(), NOW
    for number, life in enumerate(lives_s):
        asked = now
        now, action = start_within(memory, now, 3)
        assert action.kind is ActionKind.START, (number, asked)
        driver = DriverRef(number, 1.0, number, now)
        memory = replace(memory, driver=driver, last_start_at=now)
        now += life * S
        memory = remember_end(memory, Ended(driver, FailureClass.KILLED, False, "m", ("t1", number)), now)
