"""The clock is set while a driver, an agent and Airflow's services run: each is known for what it is, by every door.

The step is made where it comes from: the kernel derives `btime` of `/proc/stat` from the wall clock, and adds it to a process's
ticks to give its creation time. Here `btime` is another from one call to the next, as after `date --set`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner, Result

from homes.project import REPOSITORY
from rivertwice.agent import act, agent
from rivertwice.agent.memory import load_memory
from rivertwice.cli.main import cli
from rivertwice.core.errors import LeaseLostError, LostRaceError
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.local.airflow import is_alive as service_lives
from rivertwice.local.airflow import mark_of
from rivertwice.storage.local import read_json, replace_json
from rivertwice.stream.lease import acquire_lease, at_rest, lease_owner
from rivertwice.timeline.intent import Exit
from running.waiting import wait_for

pytestmark = pytest.mark.skipif(
    not Path("/proc/stat").exists(), reason="creation times move with the clock on Linux only"
)
NAME = "flight_delays"
PATIENCE_S = 60
STAND_IN = """
import time
from rivertwice.core.settings import Settings
from rivertwice.core.instants import utc_now
from rivertwice.stream.lease import acquire_lease
from rivertwice.timeline.intent import Exit, Heartbeat
home = Settings.from_env().pipeline("flight_delays")
lease = acquire_lease(home, "t1", utc_now())
while not home.drain.exists():
    Heartbeat(lease.epoch, lease.owner.pid, "t1", "idle", utc_now(), batch=3).save(home)
    time.sleep(0.02)
Exit(lease.epoch, utc_now(), "drained", "drained", clean=True).save(home)
lease.release()
"""


class World:
    """One home whose agent passes run in a thread of this process, as `rivertwice agent` runs them."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.settings = Settings(project=REPOSITORY, home=root / "home")
        self.home = self.settings.pipeline(NAME)
        self._patch = patch
        self._agent = agent.Agent(self.settings)
        (self.settings.home / "agent").mkdir(parents=True)
        agent._beat(self.settings.home / "agent" / "heartbeat.json", self._agent, utc_now())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            self._agent.run_pass(utc_now())

    def step(self, seconds: float) -> None:
        """Set the clock: `btime` moves by so much."""
        before = psutil._pslinux.boot_time()
        self._patch.setattr(psutil._pslinux, "boot_time", lambda: before + seconds)

    def rivertwice(self, *words: str) -> Result:
        options = ["--output", "json", "--project", str(REPOSITORY), "--home", str(self.settings.home)]
        return CliRunner().invoke(cli, [*options, *words])

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = next(
            one for one in json.loads(self.rivertwice("status").stdout)["pipelines"] if one["name"] == NAME
        )
        return found

    def until_owned(self) -> int:
        return self.until(lambda: (owner := lease_owner(self.home)) and self.known() == owner.pid and owner.pid)

    def known(self) -> int | None:
        driver = load_memory(self.settings, NAME).driver
        return None if driver is None or driver.epoch is None else driver.pid

    def until(self, ask: Any) -> Any:
        return wait_for("the agent", ask, PATIENCE_S, every=0.02, seen=lambda: self._agent.actions)

    def events(self) -> list[str]:
        lines = (self.settings.home / "agent" / "events.jsonl").read_text().splitlines()
        return [json.loads(line)["kind"] for line in lines]

    def end(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(act, "DRIVER", (sys.executable, "-c", STAND_IN))
    monkeypatch.setattr(act, "java_env", lambda settings: {})
    made = World(tmp_path, monkeypatch)
    yield made
    made.end()
    found = read_json(made.home.lease / "owner.json")
    if found is not None and psutil.pid_exists(found["pid"]):
        os.kill(found["pid"], 9)
        os.waitpid(found["pid"], 0)


@pytest.mark.proves("guarantees.md#what-everything-needs")
@pytest.mark.parametrize("seconds", [-2, 2])
def test_a_stop_drains_a_driver_though_the_clock_was_set(world: World, seconds: float) -> None:
    assert world.rivertwice("start", NAME).exit_code == 0
    world.until_owned()
    world.step(seconds)
    stopped = world.rivertwice("stop", NAME, "--wait", "--timeout", "30")
    assert stopped.exit_code == 0
    ended = Exit.load(world.home)
    assert ended is not None, "stopped was said of a driver that runs on"
    assert ended.clean
    assert world.events() == ["start", "lease", "drain", "drained"]


def test_a_driver_is_seen_and_left_alone_though_the_clock_was_set(world: World) -> None:
    assert world.rivertwice("start", NAME).exit_code == 0
    pid = world.until_owned()
    world.step(3600)
    assert ((status := world.status())["driver"], status["state"]) == ({"pid": pid, "epoch": 1}, "idle")
    assert world.rivertwice("start", NAME).exit_code == 0
    time.sleep(0.2)  # some passes
    assert world.status()["driver"] == {"pid": pid, "epoch": 1}
    assert world.events() == ["start", "lease"]


def test_no_operation_begins_beside_a_driver_after_a_step(world: World) -> None:
    assert world.rivertwice("start", NAME).exit_code == 0
    pid = world.until_owned()
    world.step(2)
    with pytest.raises(LeaseLostError, match=f"pid {pid}"), at_rest(world.home, "er-1", utc_now(), running="x"):
        pytest.fail("two owners")


def test_two_operations_do_not_both_keep_a_pipeline_at_rest_after_a_step(world: World) -> None:
    world.home.root.mkdir(parents=True)
    with at_rest(world.home, "er-1", utc_now(), running="x"):
        world.step(-2)
        with pytest.raises(LostRaceError, match="at rest"), at_rest(world.home, "er-2", utc_now(), running="x"):
            pytest.fail("two owners")


def test_a_service_of_airflow_lives_on_after_a_step(world: World) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True) as child:
        mark = mark_of(child.pid)
        world.step(1)
        assert service_lives(mark), "what is dead is ended, with its whole session"
        child.kill()
        child.wait()
        assert not service_lives(mark)


def test_what_0_1_recorded_of_a_living_driver_is_decided_by_the_lock(world: World) -> None:
    assert world.rivertwice("start", NAME).exit_code == 0
    pid = world.until_owned()
    path = world.home.lease / "owner.json"
    recorded = psutil.Process(pid).create_time()
    replace_json(path, {**(read_json(path) or {}), "pid_started": recorded})  # as 0.1 has it
    assert world.status()["driver"] == {"pid": pid, "epoch": 1}
    world.step(3600)
    assert world.status()["driver"] == {"pid": pid, "epoch": 1}
    with pytest.raises(LeaseLostError, match="owns the stream"):
        acquire_lease(world.home, "t1", datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=1))
    assert world.rivertwice("stop", NAME, "--wait", "--timeout", "30").exit_code == 0
    assert lease_owner(world.home) is None
