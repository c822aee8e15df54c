"""How a DAG's run of a stream by schedule is asked for and waited for."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from rivertwice.agent.health import Condition
from rivertwice.airflow.triggers import AGENT_PATIENCE_S, RAN, RunTrigger, RunWatch
from rivertwice.core.settings import Settings
from rivertwice.tasks.run import TaskRun, TaskSkippedError
from rivertwice.tasks.steps import ask_run
from rivertwice.tasks.watched import Watched
from rivertwice.timeline.intent import Intent, write_intent

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
S = timedelta(seconds=1)
WAITING = Watched(Condition.OK, "waits for its turn", {"desired": "running", "run": None})


def ran(begun_at: str, ended_at: str | None) -> Watched:
    return replace(WAITING, seen={"desired": "running", "run": {"begun_at": begun_at, "ended_at": ended_at}})


@pytest.mark.parametrize(
    ("watched", "status"),
    [
        (WAITING, None),
        (ran("2026-01-01T12:00:01Z", None), None),
        (ran("2026-01-01T11:59:00Z", "2026-01-01T12:00:05Z"), None),  # it began before, so it may have read less
        (ran("2026-01-01T12:00:01Z", "2026-01-01T12:00:05Z"), RAN),
        (replace(WAITING, word=Condition.DRIVER), None),  # the agent makes it again
        (replace(WAITING, word=Condition.GIVEN_UP), Condition.GIVEN_UP),
        (replace(WAITING, seen={"desired": "stopped"}), Condition.OK),
    ],
)
def test_a_run_is_over_when_it_has_read_to_the_end_or_nobody_makes_it_any_more(
    watched: Watched, status: str | None
) -> None:
    event = RunWatch(NOW).judge(watched, NOW + 9 * S)
    assert (None if event is None else event.status) == status


def test_an_agent_may_be_silent_while_it_is_restarted_and_no_longer() -> None:
    watch, silent = RunWatch(NOW), Watched(Condition.AGENT, "no answer", {})
    assert watch.judge(silent, NOW) is None
    assert watch.judge(WAITING, NOW + 100 * S) is None
    assert watch.judge(silent, NOW + 101 * S) is None
    assert watch.judge(silent, NOW + (100 + AGENT_PATIENCE_S) * S) is None
    event = watch.judge(silent, NOW + (101 + AGENT_PATIENCE_S) * S)
    assert event is not None
    assert event.status == Condition.AGENT


def test_another_triggerer_makes_the_same_trigger_again() -> None:
    path, arguments = RunTrigger("p", "2026-01-01T12:00:00Z", 2.0).serialize()
    assert path == f"{RunTrigger.__module__}.{RunTrigger.__name__}"
    assert RunTrigger(**arguments).serialize() == (path, arguments)


def test_a_stream_that_is_not_to_run_is_not_asked_to(settings: Settings) -> None:
    home, run = settings.pipeline("p"), TaskRun("stream__p", "r", "ask", NOW, is_scheduled=True)
    with pytest.raises(TaskSkippedError, match="the stream of p was never started; `rivertwice start p`"):
        ask_run(settings, run, "p")
    write_intent(home, "stopped", "somebody", NOW)
    with pytest.raises(TaskSkippedError, match="was stopped by somebody"):
        ask_run(settings, run, "p")
    assert (intent := Intent.load(home)) is not None
    assert intent.run_asked_at is None
    write_intent(home, "running", "somebody", NOW)
    asked = ask_run(settings, run, "p")
    assert (intent := Intent.load(home)) is not None
    assert intent.run_asked_at == datetime.fromisoformat(asked)
