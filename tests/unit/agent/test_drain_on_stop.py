"""SIGTERM to `rivertwice agent run`: on a host the driver outlives the agent, in a container it is drained first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from homes.project import make_project
from rivertwice.core.instants import utc_now
from rivertwice.stream.lease import Owner, lease_owner
from rivertwice.timeline.intent import Exit, Intent, write_intent
from running.waiting import wait_for

pytestmark = pytest.mark.long

DRIVER = """
import time
from rivertwice.core.settings import Settings
from rivertwice.core.instants import utc_now
from rivertwice.stream.lease import acquire_lease
from rivertwice.timeline.intent import Exit, Heartbeat
home = Settings.from_env().pipeline("p")
lease = acquire_lease(home, "t1", utc_now())
busy = home.root / "busy"
while not home.drain.exists() or busy.exists():
    Heartbeat(lease.epoch, lease.owner.pid, "t1", "idle", utc_now(), batch=lease.epoch).save(home)
    time.sleep(0.02)
Exit(lease.epoch, utc_now(), "drained", "drained", clean=True).save(home)
"""
AGENT = """
import sys
from rivertwice.agent import act
from rivertwice.cli.main import main
act.DRIVER = (sys.executable, "-c", sys.argv.pop(1))
act.java_env = lambda settings: {}
main()
"""
PATIENCE_S = 60


class Host:
    """A home with one pipeline, the command line's agent as a process, and a stand-in that takes the real lease."""

    def __init__(self, root: Path) -> None:
        self.settings = make_project(root, {"p": {"pipeline.yaml": "name: p\n"}})
        self.home = self.settings.pipeline("p")
        self.agents: list[subprocess.Popen[bytes]] = []
        write_intent(self.home, "running", "test", utc_now())

    def run_agent(self, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", AGENT, DRIVER, "agent", "run", *options]
        log = (self.settings.home / "agent.log").open("ab")
        with log:
            made = subprocess.Popen(command, env={**os.environ, **self.settings.to_env()}, stdout=log, stderr=log)
        self.agents.append(made)
        return made

    def until_owner(self) -> Owner:
        log = self.settings.home / "agent.log"
        return wait_for(
            "a driver",
            lambda: lease_owner(self.home) if self.home.heartbeat.exists() else None,
            PATIENCE_S,
            every=0.05,
            seen=log.read_text,
        )

    def stops(self) -> list[str]:
        lines = (self.settings.home / "agent" / "events.jsonl").read_text().splitlines()
        return [event["message"] for event in map(json.loads, lines) if event["kind"] == "agent_stop"]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    owner = lease_owner(made.home)
    for pid in [*(agent.pid for agent in made.agents if agent.poll() is None), *([owner.pid] if owner else [])]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_sigterm_in_a_container_drains_the_driver_and_keeps_the_intent(host: Host) -> None:
    agent = host.run_agent("--drain-on-stop")
    host.until_owner()
    agent.terminate()
    assert agent.wait(PATIENCE_S) == 0, (host.settings.home / "agent.log").read_text()
    assert lease_owner(host.home) is None
    told, intent = Exit.load(host.home), Intent.load(host.home)
    assert told is not None
    assert told.clean
    assert intent is not None
    assert intent.desired == "running"
    assert not host.home.drain.exists()
    assert host.stops() == ["agent stops; drained: p"]


@pytest.mark.proves("howto-stream.md#how-a-failure-is-answered")
def test_the_next_agent_starts_what_was_drained(host: Host) -> None:
    first = host.run_agent("--drain-on-stop")
    host.until_owner()
    first.terminate()
    assert first.wait(PATIENCE_S) == 0
    host.run_agent("--drain-on-stop")
    assert host.until_owner().epoch == 2


def test_on_a_host_sigterm_leaves_the_driver_running(host: Host) -> None:
    agent = host.run_agent()
    owner = host.until_owner()
    agent.terminate()
    assert agent.wait(PATIENCE_S) == 0
    assert lease_owner(host.home) == owner
    assert host.stops() == ["agent stops; drivers are left running"]


@pytest.mark.proves("howto-stream.md#how-a-failure-is-answered")
def test_a_driver_that_does_not_drain_in_time_is_named_and_not_killed(host: Host) -> None:
    (host.home.root / "busy").touch()
    agent = host.run_agent("--drain-on-stop", "--drain-seconds", "1")
    owner = host.until_owner()
    agent.terminate()
    assert agent.wait(PATIENCE_S) == 1
    assert (
        f"still draining after 1 s: {{'p': {owner.pid}}}; nothing was killed"
        in (host.settings.home / "agent.log").read_text()
    )
    assert lease_owner(host.home) == owner
