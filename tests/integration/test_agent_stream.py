"""The agent over a real driver: kill -9 the driver, kill -9 the agent, drain, and start again."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from homes.project import FLIGHTS, TO_RUN, edit_yaml, make_project, rename, replace_text
from rivertwice.agent.health import Condition, observe_stream
from rivertwice.agent.launch import agent_status, start_agent, stop_agent
from rivertwice.agent.memory import load_memory
from rivertwice.agent.objectives import ObjectivesView
from rivertwice.agent.ring import CURVES, LEVELS
from rivertwice.cli.main import cli
from rivertwice.core.instants import utc_now
from rivertwice.core.processes import is_alive
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import ensure_topic
from rivertwice.stream.lease import Owner, lease_owner
from rivertwice.timeline.intent import Exit, Heartbeat, write_intent
from rivertwice.timeline.ledger import read_ledger
from running.waiting import wait_for
from servers.groups import used_by
from streams.synthetic import flights, produce

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
NAME = "agent_test"


@pytest.fixture
def world(broker: BrokerInfo, tmp_path: Path, topic: str) -> Iterator[Settings]:
    """A project with one pipeline on a topic of its own; whatever still runs at the end is ended, by pid."""
    made = make_project(tmp_path, {NAME: FLIGHTS}, links=TO_RUN, bootstrap=broker.bootstrap)
    rename(made, FLIGHTS.name, NAME)
    replace_text(made.definitions / NAME / "pipeline.yaml", "topic: flights", f"topic: {topic}")
    ensure_topic(made, topic, 4, {})
    yield made
    stop_agent(made)
    owner = lease_owner(made.pipeline(NAME))
    if owner is not None:
        os.kill(owner.pid, signal.SIGKILL)


def until(what: Callable[[], bool], seconds: float, world: Settings) -> float:
    """Wait until something is true; return how long it took."""

    def seen() -> object:
        log = world.pipeline(NAME).logs / "driver.log"
        return agent_status(world), log.read_text()[-3000:] if log.exists() else "(no log)"

    began = time.monotonic()
    wait_for(what.__name__, what, seconds, every=0.05, seen=seen)
    return time.monotonic() - began


def runs(world: Settings, epoch: int) -> bool:
    owner, beat = lease_owner(world.pipeline(NAME)), Heartbeat.load(world.pipeline(NAME))
    return bool(owner and beat and owner.epoch == beat.epoch == epoch and beat.state in {"running", "idle"})


def cost_is_known(world: Settings, driver: int) -> bool:
    """Say whether the agent's newest sample has what the driver with its JVM holds, and what it used since the sample before."""
    slots = LEVELS[0].read(world.pipeline(NAME), utc_now())
    cores, memory = (float(slots[-1]["most"][CURVES.index(name)]) for name in ("cpu_cores", "memory_bytes"))
    return 0 < cores <= (psutil.cpu_count() or 1) and memory == pytest.approx(used_by(driver)[1], rel=0.2)


def owner_of(world: Settings) -> Owner:
    owner = lease_owner(world.pipeline(NAME))
    assert owner is not None
    return owner


@pytest.mark.proves("howto-watch.md#objectives")
def test_a_stream_outlives_kills_of_its_driver_and_of_its_agent(world: Settings) -> None:
    home = world.pipeline(NAME)
    first_agent = start_agent(world)
    assert start_agent(world).pid == first_agent.pid  # one per home
    write_intent(home, "running", "test", utc_now())
    until(lambda: runs(world, 1), 180, world)

    spent = used_by(owner_of(world).pid)[0]
    os.kill(owner_of(world).pid, signal.SIGKILL)
    back_s = until(lambda: runs(world, 2), 180, world)
    assert [str(failure.failure) for failure in load_memory(world, NAME).failures] == ["killed"]

    survivor = owner_of(world)
    until(lambda: cost_is_known(world, survivor.pid), 120, world)
    cost = ObjectivesView.read(home, load_definition(world.definition_folder(NAME)), utc_now()).cost
    assert cost is not None
    assert 1 < cost.cpu_s[1] <= 1.5 * (spent + used_by(survivor.pid)[0])
    os.kill(first_agent.pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(first_agent.pid)] if psutil.pid_exists(first_agent.pid) else [], timeout=10)
    assert agent_status(world) is None
    second_agent = start_agent(world)
    assert second_agent.pid != first_agent.pid
    time.sleep(3)
    assert lease_owner(home) == survivor
    kept = load_memory(world, NAME).driver
    assert kept is not None
    assert (kept.pid, kept.epoch) == (survivor.pid, 2)

    stop_agent(world)
    assert is_alive(survivor.pid, survivor.pid_started)  # SIGTERM to the agent leaves drivers running
    start_agent(world)
    write_intent(home, "stopped", "test", utc_now())
    until(lambda: lease_owner(home) is None, 60, world)
    record = Exit.load(home)
    assert record is not None
    assert (record.failure, record.clean, record.epoch) == ("drained", True, 2)
    until(lambda: not home.drain.exists(), 10, world)

    events = [json.loads(line) for line in (world.home / "agent" / "events.jsonl").read_text().splitlines()]
    assert [event["kind"] for event in events if event["pipeline"]] == [
        "start", "lease", "exit", "backoff", "start", "lease", "drain", "drained",
    ]  # fmt: skip
    print(f"back with epoch 2 after {back_s:.1f} s")  # noqa: T201


@pytest.mark.proves("howto-stream.md#let-a-quiet-stream-rest")
def test_a_stream_without_records_ends_its_driver_and_comes_back_with_one(world: Settings, topic: str) -> None:
    """Every surface calls it well meanwhile; what was sent is read once, by the next driver, on the same timeline."""
    home = world.pipeline(NAME)
    edit_yaml(world.definitions / NAME, lambda document: document.update(stream={"hibernate": "1 minute"}))
    start_agent(world)
    write_intent(home, "running", "test", utc_now())
    produce(world, topic, flights(1))
    until(lambda: runs(world, 1), 180, world)
    until(lambda: committed(world) == 1, 60, world)

    rested_s = until(lambda: lease_owner(home) is None, 200, world)
    seen = observe_stream(world, NAME, utc_now())
    assert seen.state == "hibernating"
    assert seen.classify(utc_now()).word == Condition.OK
    shown = CliRunner().invoke(cli, ["--project", str(world.project), "--home", str(world.home), "status", NAME]).output
    assert "hibernating" in shown
    assert "o record came for some time, so no driver runs" in shown

    produce(world, topic, flights(1, seed=2))
    back_s = until(lambda: committed(world) == 2, 180, world)
    assert runs(world, 2)
    events = [json.loads(line) for line in (world.home / "agent" / "events.jsonl").read_text().splitlines()]
    assert [event["kind"] for event in events if event["pipeline"]] == [
        "start", "lease", "hibernate", "drained", "start", "lease",
    ]  # fmt: skip
    assert not (world.home / "alerts.jsonl").exists()
    print(f"its driver ended after {rested_s:.1f} s, and the next record was committed after {back_s:.1f} s")  # noqa: T201


def committed(world: Settings) -> int:
    """Return how many records are in the ledger."""
    return sum(row.read for row in read_ledger(world.pipeline(NAME)))
