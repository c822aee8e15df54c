"""The agent's pass over real files and real processes; the driver is a small stand-in that takes the real lease."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from homes.project import make_project
from rivertwice.agent import act, agent, alert_store
from rivertwice.agent.alerting import AlertScan
from rivertwice.agent.decide import ActionKind
from rivertwice.agent.figures import Measures
from rivertwice.agent.memory import load_memory
from rivertwice.core.instants import utc_now
from rivertwice.storage.lease_terms import Terms
from rivertwice.storage.leases import take_claim
from rivertwice.storage.log_files import LogFile
from rivertwice.storage.places import open_store
from rivertwice.stream.lease import Owner, lease_owner
from rivertwice.timeline.intent import Exit, write_intent
from running.waiting import wait_for
from servers.alert_receivers import SECRET, Hook, MailServer

pytestmark = pytest.mark.long

PATIENCE_S = 60
T = TypeVar("T")
STAND_IN = """
import sys, time
from rivertwice.core.settings import Settings
from rivertwice.core.errors import LeaseLostError
from rivertwice.core.instants import utc_now
from rivertwice.stream.lease import acquire_lease
from rivertwice.timeline.intent import Exit, Heartbeat
home = Settings.from_env().pipeline("p")
try:
    lease = acquire_lease(home, "t1", utc_now())
except LeaseLostError as error:
    Exit(0, utc_now(), "lease_lost", str(error), clean=False).save(home)
    sys.exit(1)
fault = home.root / "fault"
if fault.exists():
    Exit(lease.epoch, utc_now(), fault.read_text(), "as told", clean=False).save(home)
    sys.exit(1)
while not home.drain.exists():
    Heartbeat(lease.epoch, lease.owner.pid, "t1", "idle", utc_now(), batch=lease.epoch, lag=0).save(home)
    time.sleep(0.02)
Exit(lease.epoch, utc_now(), "drained", "drained", clean=True).save(home)
"""


FALL_BACK = """
import os, sys
from rivertwice.core.settings import Settings
from rivertwice.core.instants import utc_now
from rivertwice.core.processes import own_start
from rivertwice.savepoint.operations.record import FallBackReport, write_fall_back
home = Settings.from_env().pipeline("p")
how = (home.root / "how").read_text()
if how != "dies":
    if how == "restores":
        (home.root / "fault").unlink()
    done = how == "restores"
    write_fall_back(home, FallBackReport(os.getpid(), own_start(), utc_now(), done, how, 1.0, "sp", "t2", 6, 3))
"""


class World:
    """One home with one pipeline `p`, its agent, and hands to turn time and kill."""

    def __init__(self, root: Path) -> None:
        self.settings = make_project(root, {"p": {"pipeline.yaml": "name: p\n"}})
        self.home = self.settings.pipeline("p")
        self.agent = agent.Agent(self.settings)
        self.pids: set[int] = set()

    def ask(self, desired: str) -> None:
        write_intent(self.home, desired, "test", utc_now())

    def turn(self) -> ActionKind:
        self.agent.run_pass(utc_now())
        driver = load_memory(self.settings, "p").driver
        if driver is not None:
            self.pids.add(driver.pid)
        return self.agent.actions["p"].kind

    def until_owner(self, epoch: int) -> Owner:
        def owner_of_epoch() -> Owner | None:
            self.turn()
            owner = lease_owner(self.home)
            known = load_memory(self.settings, "p").driver
            both = owner is not None and owner.epoch == epoch and known is not None and known.epoch == epoch
            return owner if both else None

        return self.until(f"a driver of epoch {epoch}", owner_of_epoch)

    def until_gone(self) -> None:
        def is_gone() -> bool:
            self.turn()
            return load_memory(self.settings, "p").driver is None

        self.until("the end of the driver", is_gone)

    def until(self, what: str, condition: Callable[[], T | None]) -> T:
        return wait_for(what, condition, PATIENCE_S, every=0.02, seen=lambda: (self.agent.actions, self.events()))

    def events(self) -> list[str]:
        lines = (self.settings.home / "agent" / "events.jsonl").read_text().splitlines()
        return [json.loads(line)["kind"] for line in lines]

    def alerts(self) -> list[str]:
        path = self.settings.home / "alerts.jsonl"
        return [json.loads(line)["kind"] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(act, "DRIVER", (sys.executable, "-c", STAND_IN))
    monkeypatch.setattr(act, "FALL_BACK", (sys.executable, "-c", FALL_BACK))
    monkeypatch.setattr(act, "java_env", lambda settings: {})
    made = World(tmp_path)
    yield made
    for pid in made.pids:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            continue


def test_a_killed_driver_comes_back_with_the_next_epoch(world: World) -> None:
    world.ask("running")
    assert world.turn() is ActionKind.START
    owner = world.until_owner(1)
    os.kill(owner.pid, signal.SIGKILL)
    assert world.until_owner(2).pid != owner.pid
    assert world.events() == ["start", "lease", "exit", "backoff", "start", "lease"]
    assert [failure.failure for failure in load_memory(world.settings, "p").failures] == ["killed"]


def test_a_new_agent_adopts_the_running_driver(world: World) -> None:
    world.ask("running")
    world.turn()
    owner = world.until_owner(1)
    (world.settings.home / "agent" / "pipelines" / "p.json").unlink()  # even one that lost its memory
    world.agent = agent.Agent(world.settings)
    assert world.turn() is ActionKind.ADOPT
    assert world.events()[-1] == "adopt"
    assert world.turn() is ActionKind.WAIT
    assert lease_owner(world.home) == owner


def test_a_death_while_no_agent_lived_is_counted_by_the_next_one(world: World) -> None:
    world.ask("running")
    world.turn()
    owner = world.until_owner(1)
    os.kill(owner.pid, signal.SIGKILL)
    os.waitpid(owner.pid, 0)
    world.agent = agent.Agent(world.settings)
    world.until_owner(2)
    failures = load_memory(world.settings, "p").failures
    assert [(failure.epoch, failure.progressed) for failure in failures] == [(1, True)]


def test_a_stop_drains_and_leaves_no_marker_and_a_start_begins_at_once(world: World) -> None:
    world.ask("running")
    world.turn()
    world.until_owner(1)
    world.ask("stopped")
    assert world.turn() is ActionKind.DRAIN
    world.until_gone()
    world.turn()
    assert not world.home.drain.exists()
    record = Exit.load(world.home)
    assert record is not None
    assert record.clean
    world.ask("running")
    world.until_owner(2)
    assert load_memory(world.settings, "p").failures == ()


@pytest.mark.proves("howto-stream.md#how-a-failure-is-answered")
def test_a_failure_that_a_restart_worsens_stops_and_pages_once(world: World) -> None:
    world.home.root.mkdir(parents=True)
    (world.home.root / "fault").write_text("range_mismatch")
    world.ask("running")
    world.turn()
    world.until_gone()
    for _ in range(5):
        world.turn()
    assert world.alerts() == ["range_mismatch"]
    assert world.agent.actions["p"].reason.startswith("not retried until")
    (world.home.root / "fault").unlink()
    world.ask("running")
    world.until_owner(2)
    assert load_memory(world.settings, "p").broken_at is None


def test_somebody_elses_drain_marker_keeps_the_stream_down_while_they_live(world: World) -> None:
    world.ask("running")
    act.ask_to_drain(world.home, "restore", utc_now())
    assert world.turn() is ActionKind.WAIT
    marker = json.loads(world.home.drain.read_text())
    world.home.drain.write_text(json.dumps({**marker, "pid_started": 1.0}))
    assert world.turn() is ActionKind.START


def test_one_pipeline_that_cannot_be_supervised_does_not_stop_the_others(world: World) -> None:
    broken = world.settings.pipeline("broken")
    broken.root.mkdir(parents=True)
    broken.intent.write_text("{")
    world.ask("running")
    assert world.turn() is ActionKind.START
    assert world.agent.actions["broken"].reason.startswith("supervision failed")
    world.until_owner(1)


def test_a_long_log_is_rotated_when_a_driver_starts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogFile.rotate, "__defaults__", (10, 3))
    world.home.logs.mkdir(parents=True)
    for number in range(6):
        (world.home.logs / "driver.log").write_text(f"log {number} " + "x" * 20)
        LogFile(world.home.logs / "driver.log").open().close()
    assert sorted(path.name for path in world.home.logs.iterdir()) == [
        "driver.log",
        "driver.log.1",
        "driver.log.2",
        "driver.log.3",
    ]


def damage(world: World, how: str) -> None:
    world.home.root.mkdir(parents=True)
    (world.home.root / "fault").write_text("checkpoint")
    (world.home.root / "how").write_text(how)
    world.ask("running")
    world.turn()


def turn_until(world: World, *, alerts: list[str]) -> None:
    def is_alerted() -> bool:
        world.turn()
        return world.alerts() == alerts

    world.until(f"the alerts {alerts}", is_alerted)


@pytest.mark.proves("failure-modes.md#a-lost-host", "howto-deploy.md#a-host-is-lost", "guarantees.md#changelog")
def test_a_damaged_checkpoint_is_replaced_once_and_the_stream_goes_on(world: World) -> None:
    damage(world, "restores")
    turn_until(world, alerts=["fell_back"])
    world.until_owner(2)
    told = [kind for kind in world.events() if kind not in {"lease", "backoff"}]
    assert told == ["start", "exit", "restore", "fall_back_restored", "start"]
    alert = json.loads((world.settings.home / "alerts.jsonl").read_text())
    assert (alert["severity"], alert["message"]) == ("warning", "restores")
    memory = load_memory(world.settings, "p")
    assert (memory.failures, memory.position) == ((), ("t2", 6))


@pytest.mark.proves("howto-savepoints.md#when-the-live-checkpoint-is-damaged", "guarantees.md#restore-fall-back-rewind")
def test_a_refused_fall_back_pages_with_its_reason_until_a_new_start(world: World) -> None:
    damage(world, "none is proved")
    turn_until(world, alerts=["checkpoint"])
    for _ in range(5):
        world.turn()
    assert world.events().count("restore") == 1
    assert "none is proved" in world.agent.actions["p"].reason
    (world.home.root / "how").write_text("restores")
    world.ask("running")
    turn_until(world, alerts=["checkpoint", "fell_back"])


@pytest.mark.proves("howto-savepoints.md#when-the-live-checkpoint-is-damaged")
def test_a_dead_fall_back_is_resumed_by_the_next_agent_a_few_times(world: World) -> None:
    damage(world, "dies")

    def alerts() -> list[str]:
        world.turn()
        world.agent = agent.Agent(world.settings)  # every pass is another agent
        return world.alerts()

    world.until("an alert", alerts)
    assert world.alerts() == ["checkpoint"]
    assert world.events().count("restore") == 3


@pytest.mark.proves("howto-deploy.md#the-lease", "howto-stream.md#how-a-failure-is-answered")
def test_drivers_refused_by_another_hosts_lease_page_once_with_its_name(world: World, tmp_path: Path) -> None:
    world.settings = replace(world.settings, leases=tmp_path / "leases")
    world.home = world.settings.pipeline("p")
    world.agent = agent.Agent(world.settings)
    by = {"host": "blue", "pid": 4711, "timeline": "t1"}
    other = take_claim(
        open_store(tmp_path / "leases" / "p"), home="h-blue", by=by, floor=6, terms=Terms(0.2, 6), now=utc_now
    )
    other.start()
    try:
        world.ask("running")
        turn_until(world, alerts=["contended"])
        failures = len(load_memory(world.settings, "p").failures)

        def has_failed_again() -> bool:
            world.turn()
            return len(load_memory(world.settings, "p").failures) != failures

        world.until("another failure", has_failed_again)
        assert world.alerts() == ["contended"]
    finally:
        other.release()
    told = (world.settings.home / "alerts.jsonl").read_text()
    assert "epoch 7 (process 4711 on host blue)" in told
    assert world.until_owner(8).epoch == 8  # the stand-by takes over as soon as the other has gone


def test_the_agents_own_loop_sends_each_message_once_over_a_restart(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hook, mail = Hook(), MailServer()
    monkeypatch.setenv("OPS", hook.url)
    (world.settings.project / "alerts.yaml").write_text(
        "settle: 1 s\nroutes:\n  ops: {to: webhook, url_env: OPS}\n"
        f"  mail: {{to: email, host: 127.0.0.1, port: {mail.port}, security: none, sender: a@b.example, recipients: [c@d.example]}}\n"
    )
    (world.home.root / "fault").parent.mkdir(parents=True, exist_ok=True)
    (world.home.root / "fault").write_text("fingerprint")
    world.ask("running")
    with caplog.at_level("INFO"):
        with looping(world):
            world.until("the messages", lambda: len(hook.taken) == len(mail.mails) == 1)
        alert_store._STORES.clear()  # another process
        (world.home.root / "fault").unlink()
        with looping(world):
            world.ask("running")
            world.until("the messages", lambda: len(hook.taken) == len(mail.mails) == 2)
            driver = load_memory(world.settings, "p").driver
            assert driver is not None
            world.pids.add(driver.pid)
    assert hook.told() == [("fingerprint", "firing"), ("fingerprint", "resolved")]
    assert [one["Subject"] for one in mail.mails] == ["[CRITICAL] p: fingerprint", "[RESOLVED] p: fingerprint"]
    first, last = hook.taken
    assert "a start would mix the two" in first["message"]
    assert last["resolution"] == f"driver pid {driver.pid} runs with epoch 2"
    assert SECRET not in caplog.text
    hook.close()
    mail.close()


@contextmanager
def looping(world: World) -> Iterator[None]:
    """Run the agent's own loop with all its threads."""
    stop = threading.Event()
    thread = threading.Thread(target=agent.run_agent, args=(world.settings, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_an_unreadable_record_pages_once_and_other_pipelines_go_on(world: World) -> None:
    world.ask("stopped")
    world.home.intent.write_bytes(b"")
    world.turn()
    world.turn()
    alerts = [json.loads(line) for line in (world.settings.home / "alerts.jsonl").read_text().splitlines()]
    assert [(one["kind"], one["pipeline"]) for one in alerts] == [("damaged_file", "p")]
    assert f"remove it (`rm {world.home.intent}`)" in alerts[0]["message"]
    world.home.intent.unlink()
    world.ask("stopped")
    assert world.turn() is ActionKind.WAIT


@pytest.mark.proves("howto-stream.md#let-a-quiet-stream-rest")
def test_a_quiet_driver_ends_and_comes_back_with_the_first_record(world: World) -> None:
    """The wait is cut short; an operation in between, and another agent, change nothing of it."""
    lag, after = [0], timedelta(milliseconds=200)

    def look_at(name: str) -> AlertScan:
        now = utc_now()
        return AlertScan(Measures(name, now, lag_records=lag[0]), [], now, after)

    world.agent = agent.Agent(world.settings, look_at)
    world.ask("running")
    world.turn()
    world.until_owner(1)
    world.until("it to end", lambda: world.turn() is ActionKind.HIBERNATE)
    world.until_gone()
    for _ in range(3):
        assert world.turn() is ActionKind.WAIT
        assert world.agent.actions["p"].reason.startswith("hibernates since")
    assert not world.home.drain.exists()
    assert world.alerts() == []
    world.agent = agent.Agent(world.settings, look_at)
    assert world.turn() is ActionKind.WAIT
    lag[0] = 3
    assert world.turn() is ActionKind.START
    lag[0] = 0
    world.until_owner(2)
    assert load_memory(world.settings, "p").failures == ()
