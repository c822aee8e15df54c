"""Supervision: what is a fault, how long it may last, and how an epoch ends."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from homes.project import FLIGHTS, make_project
from homes.savepoint import add_timeline
from rivertwice.agent.health import StreamObservation, choose_grace, observe_stream
from rivertwice.agent.memory import Memory, save_memory
from rivertwice.agent.view import view_stream
from rivertwice.airflow.triggers import EpochTrigger, Watch
from rivertwice.core.instants import to_iso, utc_now
from rivertwice.core.plain import to_plain
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.read.overview import describe_summary
from rivertwice.storage.local import replace_json
from rivertwice.stream.lease import Owner
from rivertwice.tasks.watched import Watched
from rivertwice.timeline.intent import Exit, Heartbeat, Intent, write_intent

pytestmark = pytest.mark.airflow
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def seen(now: datetime = NOW, **changes: Any) -> StreamObservation:
    """A stream that runs as wanted at `now`."""
    values: dict[str, Any] = {
        "intent": Intent("running", "test", NOW),
        "agent_at": now,
        "owner": Owner(3, 4711, 0.0, "t1"),
        "heartbeat": Heartbeat(3, 4711, "t1", "running", now, batch=12),
        "last_exit": None,
        "state": "running",
    }
    return StreamObservation(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "word", "said"),
    [
        ({}, "ok", "epoch 3, batch 12, running"),
        ({"intent": None, "agent_at": None, "owner": None}, "ok", "no start was requested"),
        ({"intent": Intent("stopped", "test", NOW), "agent_at": None, "owner": None}, "ok", "stopped, as desired"),
        ({"agent_at": None}, "agent_dead", "never; the driver still runs"),
        ({"agent_at": after(-31)}, "agent_dead", "31 s ago"),
        ({"agent_at": after(-29)}, "ok", "running"),
        ({"owner": None}, "driver_down", "no driver holds the lease"),
        (
            {"owner": None, "last_exit": Exit(3, NOW, "out_of_memory", "heap", clean=False)},
            "driver_down",
            "ended as out_of_memory: heap",
        ),
        ({"heartbeat": Heartbeat(3, 4711, "t1", "running", after(-121))}, "driver_down", "last spoke 121 s ago"),
        ({"given_up": "poison"}, "given_up", "the agent has stopped retrying: poison"),
    ],
)
def test_health_says_what_is_wrong(changes: dict[str, Any], word: str, said: str) -> None:
    health = seen(**changes).classify(NOW)
    assert health.word == word
    assert said in health.message


def watched(observed: StreamObservation, now: datetime) -> Watched:
    health = observed.classify(now)
    return Watched(health.word, health.message, observed.describe())


def test_a_driver_that_comes_back_within_the_grace_is_no_failure() -> None:
    """
    seconds   0      10 ......... 50     55        200
    driver    up     down         down   up        up
    grace            |<------ 60 ------->|
    """
    watch = Watch(after(300), 60)
    assert watch.judge(watched(seen(), NOW), NOW) is None
    assert watch.judge(watched(seen(after(10), owner=None), after(10)), after(10)) is None
    assert watch.judge(watched(seen(after(50), owner=None), after(50)), after(50)) is None
    assert watch.judge(watched(seen(after(55)), after(55)), after(55)) is None
    assert watch.judge(watched(seen(after(200), owner=None), after(200)), after(200)) is None


def test_a_driver_that_stays_away_fails_the_epoch() -> None:
    watch = Watch(after(300), 60)
    assert watch.judge(watched(seen(after(10), owner=None), after(10)), after(10)) is None
    event = watch.judge(watched(seen(after(70), owner=None), after(70)), after(70))
    assert event is not None
    assert event.status == "driver_down"
    assert event.seen["batch"] == 12


def test_an_epoch_ends_well_when_its_time_is_over() -> None:
    event = Watch(after(300), 60).judge(watched(seen(after(300)), after(300)), after(300))
    assert event is not None
    assert event.status == "epoch"


def test_the_grace_doubles_with_each_failed_epoch_up_to_its_length() -> None:
    assert [choose_grace(failures, 60, 600) for failures in (0, 1, 2, 3, 4, 99)] == [60, 120, 240, 480, 600, 600]


def test_the_trigger_is_all_in_its_arguments() -> None:
    path, arguments = EpochTrigger("flight_delays", to_iso(NOW), 60.0, 2.0).serialize()
    module, _, name = path.rpartition(".")
    assert (module, name) == (EpochTrigger.__module__, EpochTrigger.__name__)
    assert EpochTrigger(**arguments).serialize() == (path, arguments)


def test_the_trigger_reads_the_home_and_yields_one_event(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in settings.to_env().items():
        monkeypatch.setenv(name, value)
    write_intent(settings.pipeline("flight_delays"), "running", "test", NOW)
    replace_json(settings.home / "agent" / "heartbeat.json", {"format": 1, "at": to_iso(NOW)})
    ticks = iter(range(0, 1000, 20))
    trigger = EpochTrigger("flight_delays", to_iso(after(600)), 60.0, 0.001, clock=lambda: after(next(ticks)))

    async def events() -> list[Any]:
        return [event async for event in trigger.run()]

    (event,) = asyncio.run(events())
    # At 0 s the driver is missing, at 40 s the agent is silent too; the fault began at 0 s and has lasted 60 s.
    assert event.payload["status"] == "agent_dead"


@pytest.mark.parametrize("state", ["down", "given_up", "starting", "running", "unresponsive"])
def test_status_page_and_trigger_show_one_state_and_one_health(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    settings = make_project(tmp_path, {"flight_delays": FLIGHTS})
    home, now = settings.pipeline("flight_delays"), utc_now()
    add_timeline(home, "t1")
    write_intent(home, "running", "test", now - timedelta(minutes=5))
    replace_json(
        settings.home / "agent" / "heartbeat.json", {"at": to_iso(now), "pid": 1, "pid_started": 0.0, "pipelines": {}}
    )
    age = timedelta(seconds=30 if state == "unresponsive" else 1)
    Heartbeat(2 if state == "starting" else 3, 4711, "t1", "running", now - age, batch=12).save(home)
    owner = None if state in ("down", "given_up") else Owner(3, 4711, 0.0, "t1")
    monkeypatch.setattr("rivertwice.agent.health.lease_owner", lambda _: owner)
    if state == "given_up":
        save_memory(settings, "flight_delays", Memory(broken_at=now, broken_because="poison"))

    shown = to_plain(view_stream(settings, "flight_delays", now))
    page = to_plain(describe_summary(settings, load_definition(settings.definitions / "flight_delays"), now))
    (driver,) = [fact["text"] for fact in page["facts"] if fact["name"] == "Driver"]
    asset = observe_stream(settings, "flight_delays", now).describe()

    assert (shown["state"], re.split("[,;]", driver)[0], asset["state"]) == (state,) * 3
    assert (shown["health"]["word"] == "ok") == (page["now"]["lights"]["stream"]["tone"] != "bad"), page["now"][
        "lights"
    ]
