"""When a stream by schedule runs, waits, and is overdue."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from rivertwice.agent.alert_kinds import STREAM_KINDS
from rivertwice.agent.backoff import FailureClass
from rivertwice.agent.by_schedule import (
    LATE_START,
    SKEW,
    Plan,
    Run,
    is_answered,
    is_open,
    missed_since,
    next_due,
    overdue_since,
)
from rivertwice.agent.decide import MISSED, ActionKind, DrainMarker, decide, runs_as_wanted
from rivertwice.agent.figures import Measures
from rivertwice.agent.health import Condition, StreamObservation, find_state
from rivertwice.agent.memory import Ended, Memory, load_memory, remember_end, save_memory
from rivertwice.agent.prometheus import FIRING, judge_alerts
from rivertwice.core.settings import Settings
from rivertwice.definition.model import AlertLimits
from rivertwice.definition.stream_pins import StreamPins
from rivertwice.timeline.intent import Intent
from simulated.supervision import DRIVER, KNOWN, NOW, RUNNING, STOPPED, Case, S, beat, check_case, failed, seen

M = 60 * S
PLAN = Plan("*/15 * * * *", "small", NOW - 86_400 * S)
READ = Run(NOW - 20 * S, NOW - 5 * S)
"""A run of the tick at noon, which is `NOW` less a few seconds of what follows."""
REST = Memory(plan=PLAN, run=Run(NOW - 15 * M, NOW - 14 * M))
ASKED = replace(RUNNING, run_asked_at=NOW - S)
AT_WORK = replace(KNOWN, plan=PLAN, run=Run(DRIVER.since))
BROKEN = replace(REST, run=Run(NOW - 300 * S), broken_at=NOW - 60 * S, broken_because="the log is gone")

CASES: list[Case] = [
    ("between two runs", RUNNING, seen(memory=REST), ActionKind.WAIT, "by schedule: next run at 2026-01-01T12:15:00Z"),
    ("nobody asked yet", RUNNING, seen(memory=replace(REST, run=None, plan=replace(PLAN, since=NOW - 60 * S))), ActionKind.WAIT, "none was made yet"),
    ("a run is asked for", ASKED, seen(memory=REST), ActionKind.START, "a run by schedule was asked for"),
    ("it was asked for before the newest began", replace(RUNNING, run_asked_at=NOW - 16 * M), seen(memory=REST), ActionKind.WAIT, "by schedule"),
    ("the newest was interrupted", RUNNING, seen(memory=replace(REST, run=Run(NOW - M))), ActionKind.START, "a run by schedule was asked for"),
    ("another of its group runs", ASKED, seen(memory=REST, ahead="other"), ActionKind.WAIT, "waits for its turn: other comes first"),
    ("an operation is at work", ASKED, seen(memory=REST, drain=DrainMarker(NOW, by_agent=False, held=True)), ActionKind.WAIT, "an operation"),
    ("it is stopped", replace(STOPPED, run_asked_at=NOW), seen(memory=REST), ActionKind.WAIT, "stopped"),
    ("it is at work", ASKED, seen(owner=DRIVER, memory=AT_WORK, heartbeat=beat(1)), ActionKind.WAIT, "runs with epoch"),
    ("a driver from before it ran by schedule", RUNNING, seen(owner=DRIVER, memory=replace(AT_WORK, run=None)), ActionKind.DRAIN, "is not a run"),
    ("it failed a moment ago", ASKED, seen(memory=replace(AT_WORK, driver=None, failures=(failed(FailureClass.KILLED, 0.1),))), ActionKind.WAIT, "backoff until"),
    ("it was given up", RUNNING, seen(memory=BROKEN), ActionKind.WAIT, "not retried until"),
    ("the next run tries again", ASKED, seen(memory=BROKEN), ActionKind.START, "asked again"),
    ("the next run has its turn later", ASKED, seen(memory=BROKEN, ahead="other"), ActionKind.WAIT, "waits for its turn"),
    ("a run was missed", RUNNING, seen(memory=replace(REST, run=Run(NOW - 45 * M, NOW - 44 * M))), ActionKind.PAGE, "no run was asked for since one was due at 2026-01-01T11:45:00Z"),
    ("that is said once", RUNNING, seen(memory=replace(REST, run=Run(NOW - 45 * M, NOW - 44 * M), paged=(MISSED,))), ActionKind.WAIT, "no run was asked for"),
    ("the schedule was resumed since", replace(RUNNING, updated_at=NOW - 5 * M), seen(memory=replace(REST, run=Run(NOW - 45 * M, NOW - 44 * M))), ActionKind.WAIT, "by schedule"),
]  # fmt: skip


@pytest.mark.proves("howto-stream.md#run-a-stream-by-schedule")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_what_is_decided(case: Case) -> None:
    check_case(case)


def test_a_stream_between_two_runs_is_in_its_desired_state_and_one_that_missed_a_run_is_not() -> None:
    rest, missed = seen(memory=REST), seen(memory=replace(REST, run=None, paged=(MISSED,)))
    assert runs_as_wanted(decide(RUNNING, rest, NOW), rest)
    assert not runs_as_wanted(decide(RUNNING, missed, NOW), missed)
    assert MISSED in STREAM_KINDS


def observed(memory: Memory, intent: Intent = RUNNING) -> StreamObservation:
    state = find_state(None, None, memory, NOW, given_up=False, asleep=False, intent=intent)
    return StreamObservation(intent, NOW, None, None, None, state, memory=memory)


@pytest.mark.parametrize(
    ("memory", "intent", "state", "word", "said"),
    [
        (
            REST,
            RUNNING,
            "scheduled",
            Condition.OK,
            "next run at 2026-01-01T12:15:00Z; the newest ran from 2026-01-01T11:45:00Z to",
        ),
        (REST, ASKED, "queued", Condition.OK, "waits for its turn"),
        (replace(REST, run=None), RUNNING, "scheduled", Condition.MISSED, "one was due at"),
        (
            replace(AT_WORK, driver=None, failures=(failed(FailureClass.KILLED, 1),)),
            RUNNING,
            "down",
            Condition.DRIVER,
            "no driver holds",
        ),
        (REST, STOPPED, "down", Condition.OK, "stopped, as desired"),
    ],
)
def test_every_surface_says_by_schedule(memory: Memory, intent: Intent, state: str, word: str, said: str) -> None:
    known = observed(memory, intent)
    assert known.state == state
    assert known.classify(NOW).word == word
    assert said in known.classify(NOW).message


def test_a_run_ends_only_with_a_driver_that_read_to_the_end() -> None:
    drained = Ended(DRIVER, FailureClass.DRAINED, clean=True, message="", position=("t1", 5))
    assert remember_end(AT_WORK, drained, NOW).run == AT_WORK.run
    assert remember_end(AT_WORK, replace(drained, at_end=True), NOW).run == Run(DRIVER.since, NOW)
    killed = Ended(DRIVER, FailureClass.KILLED, clean=False, message="", position=None)
    assert is_open(RUNNING, remember_end(AT_WORK, killed, NOW).run)


def test_a_run_answers_all_that_asked_before_its_newest_driver_began() -> None:
    again = Run.begin(Run(NOW - 60 * S, None, NOW - 900 * S), RUNNING, NOW)
    assert again == Run(NOW, None, NOW - 900 * S)
    done = replace(again, ended_at=NOW + S)
    assert is_answered(done, NOW - S)
    assert not is_answered(done, NOW + S)
    assert not is_answered(again, NOW - S)
    assert not is_open(replace(RUNNING, run_asked_at=NOW), done)
    within = replace(RUNNING, run_asked_at=NOW + S)  # while the agent looked
    assert not is_open(within, replace(Run.begin(None, within, NOW), ended_at=NOW + 9 * S))
    ahead = replace(RUNNING, run_asked_at=NOW + 3600 * S)  # by a clock that is wrong: later requests must count
    assert Run.begin(None, ahead, NOW).begun_at == NOW + SKEW


CRONS = st.sampled_from(["*/5 * * * *", "0 * * * *", "15 3 * * *", "5 minutes", "1 hour"])
AT = st.integers(0, 500_000).map(lambda seconds: datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=seconds))


@given(CRONS, AT, st.integers(0, 100_000), st.integers(1, 300))
def test_a_run_that_answers_each_tick_is_never_missed_or_overdue(
    schedule: str, since: datetime, later: int, took: int
) -> None:
    """The runs begin at their tick, by a clock that is a little ahead, and end before the next."""
    plan, now = Plan(schedule, None, since), since + later * S
    run: Run | None = None
    while (due := next_due(plan, run, since if run is None else run.begun_at + SKEW)) is not None and due <= now:
        run = Run(due - SKEW / 2 if run is None or due - SKEW / 2 > run.begun_at else due)
        ended = due + min(took, 240) * S
        if ended > now:
            break
        run = replace(run, ended_at=ended)
    if run is not None and run.ended_at is None:  # at work
        run = replace(run, before=run.begun_at)
    assert missed_since(plan, run, since, now) is None
    assert overdue_since(plan, run, since, now) is None


@given(CRONS, AT)
@example("0 * * * *", datetime(2026, 3, 1, 0, 59, 30, tzinfo=UTC))
def test_without_a_run_one_is_missed_and_then_overdue(schedule: str, since: datetime) -> None:
    plan = Plan(schedule, None, since)
    due = next_due(plan, None, since)
    assert due is not None
    assert missed_since(plan, None, since, due) is None
    assert missed_since(plan, None, since, due + LATE_START + SKEW + S) is not None
    assert overdue_since(plan, None, since, due + 2 * timedelta(days=1) + S) is not None
    assert missed_since(replace(plan, schedule="none"), None, since, due + timedelta(days=9)) is None
    assert overdue_since(replace(plan, schedule="none"), None, since, due + timedelta(days=9)) is None


def test_records_that_wait_between_two_runs_are_no_alert_and_an_overdue_run_is() -> None:
    limits = AlertLimits.model_validate({"lag": 100, "latency": "1 minute"})
    rest = Measures("p", NOW, desired="running", state="scheduled", lag_records=5_000, latency_s=0.0, overdue_s=0.0)
    late = replace(rest, overdue_s=90.0, latency_s=90.0)
    assert [each.rule.name for each in judge_alerts(rest, limits) if each.state == FIRING] == []
    assert [each.rule.name for each in judge_alerts(late, limits) if each.state == FIRING] == ["lag", "latency"]


def test_the_plan_and_the_run_are_remembered_and_an_older_memory_has_none(settings: Settings) -> None:
    known = replace(REST, run=Run(NOW, None, NOW - M))
    save_memory(settings, "p", known)
    assert load_memory(settings, "p") == known
    save_memory(settings, "p", Memory())
    assert (load_memory(settings, "p").plan, load_memory(settings, "p").run) == (None, None)


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        ({"mode": "scheduled"}, "has no schedule"),
        ({"mode": "scheduled", "schedule": "1 hour", "hibernate": "5 minutes"}, "does not hibernate"),
        ({"schedule": "1 hour"}, "are for mode scheduled"),
        ({"assets": ["landing"]}, "are for mode scheduled"),
        ({"mode": "scheduled", "schedule": "often"}, "is not a valid schedule"),
    ],
)
def test_a_schedule_that_cannot_be_meant_is_refused(stream: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        StreamPins.model_validate(stream)


def test_a_stream_runs_at_its_schedule_or_when_it_is_asked_to() -> None:
    assert StreamPins().runs_at is None
    assert StreamPins.model_validate({"mode": "scheduled", "schedule": "1 hour"}).runs_at == "1 hour"
    assert StreamPins.model_validate({"mode": "scheduled", "assets": ["landing"]}).runs_at == "none"
