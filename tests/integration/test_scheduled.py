"""Streams by schedule: runs to the log's end in turn, killed at work with their agent, and as exact as a stream that runs all the time."""

from __future__ import annotations

import functools
import json
import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from homes.project import FLIGHTS, TO_RUN, edit_yaml, make_project, rename, replace_text
from rivertwice.agent.launch import agent_status, start_agent
from rivertwice.cli.main import cli
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import ensure_topic
from rivertwice.stream.lease import lease_owner
from rivertwice.timeline.intent import Intent
from rivertwice.timeline.ledger import read_ledger
from running.waiting import wait_for
from servers.groups import end_streams
from streams.synthetic import flights, produce

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
BY_SCHEDULE = ("first", "second")
NAMES = (*BY_SCHEDULE, "always")


@pytest.fixture
def world(broker: BrokerInfo, tmp_path: Path, topic: str) -> Iterator[Settings]:
    """Two pipelines by schedule and one that runs all the time, of one group, over one topic; what runs at the end is ended, by pid."""
    made = make_project(tmp_path, dict.fromkeys(NAMES, FLIGHTS), links=TO_RUN, bootstrap=broker.bootstrap)
    for name in NAMES:
        rename(made, FLIGHTS.name, name)
        file = made.definitions / name / "pipeline.yaml"
        replace_text(file, "topic: flights", f"topic: {topic}")
        replace_text(
            file, "watermark: 1 hour", "watermark: 2 days"
        )  # nothing is late, however the records are cut into batches
        by_schedule = {"mode": "scheduled", "schedule": "none"} if name in BY_SCHEDULE else {}
        pins = {"group": "small", "max_offsets_per_trigger": 12, **by_schedule}
        edit_yaml(made.definitions / name, functools.partial(dict.update, stream=pins))
    ensure_topic(made, topic, 4, {})
    start_agent(made)
    yield made
    end_streams(made, NAMES)


def invoke(world: Settings, *words: str) -> Result:
    """Run a verb; return how it ended."""
    address = {"RIVERTWICE_BOOTSTRAP": world.bootstrap}
    return CliRunner().invoke(cli, ["--project", str(world.project), "--home", str(world.home), *words], env=address)


def run(world: Settings, *words: str) -> str:
    """Run a verb that must succeed; return its output."""
    result = invoke(world, *words)
    assert result.exit_code == 0, (result.output, seen(world))
    return result.stdout


def seen(world: Settings) -> object:
    """Return what is known when a wait ends too late."""
    logs = [
        *world.home.glob("pipelines/*/logs/driver.log"),
        *world.home.glob("groups/*/log"),
        world.home / "agent" / "log",
    ]
    return agent_status(world), {str(log): log.read_text()[-1500:] for log in logs if log.exists()}


def read(world: Settings, name: str) -> int:
    """Return how many records a pipeline has committed."""
    return sum(row.read for row in read_ledger(world.pipeline(name)))


def state(world: Settings, name: str) -> str:
    """Return the state that `status` shows."""
    (view,) = json.loads(run(world, "--output", "json", "status", name))["pipelines"]
    return str(view["state"])


def events(world: Settings) -> list[tuple[str, str]]:
    """Return what the agent did, as (pipeline, what)."""
    lines = (world.home / "agent" / "events.jsonl").read_text().splitlines()
    return [(event["pipeline"], event["kind"]) for event in map(json.loads, lines) if event["pipeline"]]


def rows(world: Settings, name: str) -> list[Any]:
    """Return the rows that readers see, without the batches that they came from."""
    shown = json.loads(run(world, "--output", "json", "show", name, "--limit", "1000"))
    values = [{key: value for key, value in row.items() if not key.startswith("_")} for row in shown["rows"]]
    return sorted(values, key=json.dumps)


@pytest.mark.proves("howto-stream.md#run-a-stream-by-schedule")
def test_runs_by_schedule_give_what_a_stream_gives_through_kills_of_driver_and_agent(
    world: Settings, topic: str
) -> None:
    def wait(what: str, condition: object, seconds: float = 120) -> None:
        wait_for(what, condition, seconds, every=0.05, seen=lambda: seen(world))  # type: ignore[arg-type]

    produce(world, topic, flights(40))
    run(world, "start", "always", "--wait")
    told = run(world, "start", "first", "--wait")
    assert "read 40 records" in told
    wait("the end of its driver", lambda: lease_owner(world.pipeline("first")) is None)
    assert state(world, "first") == "scheduled"
    assert "y schedule: runs when it is asked to, newest run from" in run(world, "status", "first")
    assert read(world, "second") == 0
    run(world, "start", "second", "--once")
    wait("rest", lambda: state(world, "second") == "scheduled")

    # Two are asked for at once: they run in turn, in the JVM of their group.
    produce(world, topic, flights(10, seed=4))
    begun = len(events(world))
    run(world, "start", "second")
    run(world, "start", "first")
    wait("the runs", lambda: all(read(world, each) == 50 and state(world, each) == "scheduled" for each in BY_SCHEDULE))
    turns = [each for each in events(world)[begun:] if each[0] in BY_SCHEDULE and each[1] in ("start", "drained")]
    assert turns == [("second", "start"), ("second", "drained"), ("first", "start"), ("first", "drained")]

    # Its driver is killed at work: the agent makes the run again.
    produce(world, topic, flights(240, seed=2))
    Intent.ask_run(world.pipeline("first"), "test", utc_now())
    wait("its second batch", lambda: read(world, "first") > 62)
    os.kill(lease_owner(world.pipeline("first")).pid, signal.SIGKILL)
    assert read(world, "first") < 290
    wait("the run after the kill", lambda: read(world, "first") == 290 and state(world, "first") == "scheduled")

    # The agent is killed at work, and the next one sees the run end.
    produce(world, topic, flights(30, seed=3))
    Intent.ask_run(world.pipeline("second"), "test", utc_now())
    wait("its second batch", lambda: read(world, "second") > 62)
    agent = agent_status(world)
    assert agent is not None
    os.kill(agent.pid, signal.SIGKILL)
    wait("the end of the agent", lambda: agent_status(world) is None)
    start_agent(world)
    wait(
        "the run after the agent's end", lambda: read(world, "second") == 320 and state(world, "second") == "scheduled"
    )

    # What is stopped does not run, whoever asks; a start resumes.
    run(world, "stop", "first", "--wait")
    assert "is stopped, so no run was made" in run(world, "start", "first", "--once")
    assert read(world, "first") == 290
    assert "--once is for a stream by schedule" in invoke(world, "start", "always", "--once").output
    produce(world, topic, flights(20, seed=5, start=datetime(2013, 7, 5, tzinfo=UTC)))
    run(world, "start", "first", "--wait")
    assert read(world, "first") == 340

    # A savepoint, reconciles and what readers see, while no driver runs: all is as with the stream that runs all the time.
    wait("the stream that runs all the time", lambda: read(world, "always") == 340)
    savepoint = json.loads(run(world, "--output", "json", "savepoint", "take", "first"))["id"]
    run(world, "savepoint", "prove", "first", savepoint)
    for name in NAMES:
        run(world, "start", name, "--wait")
        report = json.loads(run(world, "--output", "json", "reconcile", name))
        assert not {"DEFECT", "LATE", "NOT_COMPARABLE"} & {
            key for key, count in report["counts"]["stream"].items() if count
        }, report
    assert rows(world, "first") == rows(world, "second") == rows(world, "always") != []
    assert not (world.home / "alerts.jsonl").exists(), (world.home / "alerts.jsonl").read_text()
