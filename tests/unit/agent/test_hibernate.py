"""When a driver ends because no record comes, and what starts it again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from rivertwice.agent.decide import ActionKind, DrainMarker, Quiet, decide, runs_as_wanted
from rivertwice.agent.health import Condition, StreamObservation, find_state
from rivertwice.agent.memory import Memory, load_memory, save_memory
from rivertwice.core.settings import Settings
from rivertwice.definition.stream_pins import StreamPins
from simulated.supervision import AGENT_DRAIN, DRIVER, KNOWN, NOW, RUNNING, STOPPED, Case, S, beat, check_case, seen

HALF_HOUR = timedelta(minutes=30)
IDLE = replace(beat(1), state="idle")
NOTHING = Quiet(HALF_HOUR, 0, NOW - 10 * S)
ASLEEP = Memory(asleep_since=NOW - 600 * S)
LONG = NOW - 31 * 60 * S
OLD = replace(DRIVER, since=NOW - 7200 * S)


def quiet(**changes: Any) -> Any:
    """A driver to whom no record has come for 31 minutes."""
    usual = {
        "owner": OLD,
        "memory": replace(KNOWN, driver=OLD),
        "heartbeat": IDLE,
        "position_since": LONG,
        "quiet": NOTHING,
    }
    return seen(**{**usual, **changes})


CASES: list[Case] = [
    ("no record for longer than it says", RUNNING, quiet(), ActionKind.HIBERNATE, "no record came for 31 min"),
    ("it never hibernates", RUNNING, quiet(quiet=replace(NOTHING, after=None)), ActionKind.WAIT, "runs"),
    ("not for long enough", RUNNING, quiet(position_since=NOW - 29 * 60 * S), ActionKind.WAIT, "runs"),
    ("it has just been started", RUNNING, quiet(owner=replace(OLD, since=NOW - 60 * S)), ActionKind.WAIT, "runs"),
    ("a batch is at work", RUNNING, quiet(heartbeat=replace(IDLE, state="running")), ActionKind.WAIT, "runs"),
    ("records wait, by its own word", RUNNING, quiet(heartbeat=replace(IDLE, lag=3)), ActionKind.PAGE, "no batch was committed"),
    ("it does not know its lag", RUNNING, quiet(heartbeat=replace(IDLE, lag=None)), ActionKind.WAIT, "runs"),
    ("records wait, by the log", RUNNING, quiet(quiet=replace(NOTHING, lag=3)), ActionKind.WAIT, "runs"),
    ("the log was not looked at", RUNNING, quiet(quiet=None), ActionKind.WAIT, "runs"),
    ("the log cannot be looked at", RUNNING, quiet(quiet=replace(NOTHING, lag=None)), ActionKind.WAIT, "runs"),
    ("the heartbeat is another driver's", RUNNING, quiet(owner=replace(OLD, since=NOW - 100 * S), heartbeat=replace(IDLE, epoch=6)), ActionKind.WAIT, "runs"),
    ("it drains already", RUNNING, quiet(drain=AGENT_DRAIN), ActionKind.WAIT, "runs"),
    ("nothing came", RUNNING, seen(memory=ASLEEP, quiet=NOTHING), ActionKind.WAIT, "hibernates since"),
    ("the agent has just started", RUNNING, seen(memory=ASLEEP), ActionKind.WAIT, "hibernates since"),
    ("Kafka is away", RUNNING, seen(memory=ASLEEP, quiet=replace(NOTHING, lag=None)), ActionKind.WAIT, "hibernates"),
    ("records came", RUNNING, seen(memory=ASLEEP, quiet=replace(NOTHING, lag=2)), ActionKind.START, "2 records came since"),
    (
        "a look from before it slept", RUNNING, seen(memory=ASLEEP, quiet=Quiet(HALF_HOUR, 2, NOW - 601 * S)), ActionKind.WAIT, "hibernates",
    ),
    ("the setting is gone", RUNNING, seen(memory=ASLEEP, quiet=replace(NOTHING, after=None)), ActionKind.START, "was removed"),
    ("somebody starts it", replace(RUNNING, updated_at=NOW - S), seen(memory=ASLEEP, quiet=NOTHING), ActionKind.START, "no driver is running"),
    ("somebody stops it", STOPPED, seen(memory=ASLEEP, quiet=NOTHING), ActionKind.WAIT, "stopped"),
    ("an operation is at work", RUNNING, seen(memory=ASLEEP, quiet=replace(NOTHING, lag=2), drain=DrainMarker(NOW, by_agent=False, held=True)), ActionKind.WAIT, "an operation"),
]  # fmt: skip


@pytest.mark.proves("howto-stream.md#let-a-quiet-stream-rest")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_what_is_decided(case: Case) -> None:
    check_case(case)


def test_a_stream_that_hibernates_is_in_its_desired_state() -> None:
    observed = seen(memory=ASLEEP, quiet=NOTHING)
    assert runs_as_wanted(decide(RUNNING, observed, NOW), observed)
    away = seen()
    assert not runs_as_wanted(decide(RUNNING, away, NOW), away)


def test_every_surface_shows_it_as_well_unless_no_agent_would_wake_it() -> None:
    state = find_state(None, None, ASLEEP, NOW, given_up=False, asleep=True)
    assert state == "hibernating"
    known = StreamObservation(RUNNING, NOW, None, IDLE, None, state, memory=ASLEEP)
    assert known.classify(NOW).word == Condition.OK
    alone = replace(known, agent_at=NOW - 60 * S)
    assert alone.classify(NOW).word == Condition.AGENT


def test_it_is_remembered_by_the_next_agent(settings: Settings) -> None:
    save_memory(settings, "p", ASLEEP)
    assert load_memory(settings, "p") == ASLEEP
    save_memory(settings, "p", Memory())
    assert load_memory(settings, "p").asleep_since is None


def test_a_time_shorter_than_a_start_is_refused() -> None:
    assert StreamPins.model_validate({"hibernate": "30 minutes"}).hibernate == HALF_HOUR
    with pytest.raises(ValidationError, match="write '1 minute' or more"):
        StreamPins.model_validate({"hibernate": "20 s"})
