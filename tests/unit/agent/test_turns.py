"""Runs by schedule in turn: real processes of a stand-in for the driver, one agent, no Spark."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from homes.project import make_project
from rivertwice.agent import act, agent
from rivertwice.agent.memory import load_memory
from rivertwice.core.instants import utc_now
from rivertwice.stream.lease import lease_owner
from rivertwice.timeline.intent import Intent, write_intent
from running.waiting import wait_for

pytestmark = pytest.mark.long
NAMES = ("a", "b", "c", "d")
STAND_IN = """
import sys, time
from rivertwice.core.settings import Settings
from rivertwice.core.instants import utc_now
from rivertwice.stream.lease import acquire_lease
from rivertwice.timeline.intent import Exit, Heartbeat
home = Settings.from_env().pipeline(sys.argv[2])
lease = acquire_lease(home, "t1", utc_now())
if (home.root / "fault").exists():
    Exit(lease.epoch, utc_now(), "store", "as told", clean=False).save(home)
    sys.exit(1)
while not home.drain.exists() and not (home.root / "read").exists():
    Heartbeat(lease.epoch, lease.owner.pid, "t1", "running", utc_now(), batch=lease.epoch, lag=0).save(home)
    time.sleep(0.02)
Exit(lease.epoch, utc_now(), "drained", "", clean=True, at_end=not home.drain.exists()).save(home)
"""


class World:
    """One home with four pipelines by schedule, three of them one group, and its agent."""

    def __init__(self, root: Path) -> None:
        files = {
            name: {"pipeline.yaml": DEFINITION.format(name=name, group="" if name == "d" else ", group: small")}
            for name in NAMES
        }
        self.settings = make_project(root, files)
        self.agent = agent.Agent(self.settings)
        for name in NAMES:
            write_intent(self.settings.pipeline(name), "running", "test", utc_now() - timedelta(minutes=1))

    def root(self, name: str) -> Path:
        return self.settings.pipeline(name).root

    def ask(self, *names: str) -> None:
        for name in names:
            Intent.ask_run(self.settings.pipeline(name), "test", utc_now())

    def at_work(self) -> list[str]:
        self.agent.run_pass(utc_now())
        return [name for name in NAMES if load_memory(self.settings, name).driver is not None]

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        def seen() -> object:
            return {name: (each.kind, each.reason) for name, each in self.agent.actions.items()}

        wait_for(what, lambda: self.at_work() is not None and condition(), 60, every=0.02, seen=seen)

    def has_read(self, name: str) -> bool:
        run = load_memory(self.settings, name).run
        return run is not None and run.ended_at is not None


DEFINITION = """\
name: {name}
description: Records by key.
sources:
  records:
    topic: {name}
    partitions: 1
    schema: {{k: string, at: timestamp}}
    event_time: at
    watermark: 1 minute
    max_future: 1 hour
window: {{size: 1 minute}}
keys: [k]
count_column: n
columns: {{n: {{compare: exact}}}}
stream: {{mode: scheduled, schedule: none{group}}}
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(act, "DRIVER", (sys.executable, "-c", STAND_IN))
    made = World(tmp_path)
    yield made
    for name in NAMES:
        (made.root(name) / "read").touch()  # one that still starts ends by itself
        owner = lease_owner(made.settings.pipeline(name))
        if owner is not None:
            os.kill(owner.pid, signal.SIGKILL)


@pytest.mark.proves("howto-stream.md#run-a-stream-by-schedule")
def test_runs_of_a_group_come_in_turn_in_the_order_in_which_they_were_asked_for(world: World) -> None:
    world.until("rest", lambda: len(world.agent.actions) == len(NAMES))
    assert {each.reason.partition(":")[0] for each in world.agent.actions.values()} == {"by schedule"}
    world.ask("c", "b", "a", "d")
    for name, waiting in (("c", "ab"), ("b", "a"), ("a", "")):
        world.until(f"the turn of {name}", lambda name=name: lease_owner(world.settings.pipeline(name)) is not None)  # type: ignore[misc]
        assert world.at_work() == [name, "d"]  # which is of no group
        for other in waiting:
            assert world.agent.actions[other].reason == f"waits for its turn: {name} comes first"
        (world.root(name) / "read").touch()
        world.until(f"the end of {name}", lambda name=name: world.has_read(name))  # type: ignore[misc]
    write_intent(world.settings.pipeline("d"), "stopped", "test", utc_now())
    world.until("the end of d", lambda: lease_owner(world.settings.pipeline("d")) is None)
    assert not world.has_read("d")


@pytest.mark.proves("howto-stream.md#run-a-stream-by-schedule")
def test_a_run_that_fails_lets_the_others_go_and_is_made_again(world: World) -> None:
    world.until("rest", lambda: len(world.agent.actions) == len(NAMES))
    for name in "abc":
        (world.root(name) / ("fault" if name == "a" else "read")).touch()
    world.ask("a", "b", "c")
    world.until("b and c", lambda: world.has_read("b") and world.has_read("c"))
    assert load_memory(world.settings, "a").failures
    assert not world.has_read("a")
    (world.root("a") / "fault").unlink()
    (world.root("a") / "read").touch()
    world.until("a", lambda: world.has_read("a"))


@pytest.mark.proves("howto-stream.md#run-a-stream-by-schedule")
def test_a_driver_that_is_killed_at_work_is_started_again_also_by_the_next_agent(world: World) -> None:
    world.ask("a")
    world.until("a driver", lambda: lease_owner(world.settings.pipeline("a")) is not None)
    world.agent = agent.Agent(world.settings)
    owner = lease_owner(world.settings.pipeline("a"))
    assert owner is not None
    os.kill(owner.pid, signal.SIGKILL)
    (world.root("a") / "read").touch()
    world.until("the run", lambda: world.has_read("a"))
    assert [str(each.failure) for each in load_memory(world.settings, "a").failures] == []


def test_a_driver_that_ran_all_the_time_is_drained_once_the_definition_says_scheduled(world: World) -> None:
    file = world.settings.definitions / "a" / "pipeline.yaml"
    by_schedule = file.read_text()
    file.write_text(by_schedule.replace("mode: scheduled, schedule: none, ", ""))
    world.until("a driver", lambda: lease_owner(world.settings.pipeline("a")) is not None)
    file.write_text(by_schedule)
    world.until("its end", lambda: lease_owner(world.settings.pipeline("a")) is None)
    world.until("rest", lambda: world.agent.actions["a"].reason.startswith("by schedule"))
    assert not world.settings.pipeline("a").drain.exists()
