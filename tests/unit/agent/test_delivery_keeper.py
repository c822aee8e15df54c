"""The agent's deliverers: started when wanted, ended at the end when not, patient with a sink that fails."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from homes.delivered_versions import SecondVersion, serve
from homes.delivery import DeliveryHome, TakingSink, fill
from rivertwice.agent.alert_routes import WEBHOOK
from rivertwice.agent.alert_sender import Sender
from rivertwice.agent.delivery import PAGE_AT, DeliveryKeeper
from rivertwice.cli.main import cli
from rivertwice.core.instants import utc_now
from rivertwice.definition.bundle import build_bundle
from rivertwice.deliver.aside import read_aside
from rivertwice.deliver.note import read_note
from rivertwice.timeline.intent import write_intent
from running.waiting import wait_for
from servers.alert_receivers import Hook

SINK = "{out: {to: postgres, table: rows, dsn_env: TEST_POSTGRES, guarantee: effectively_once}}"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeliveryHome:
    monkeypatch.delenv("TEST_POSTGRES", raising=False)
    found = DeliveryHome(tmp_path, SINK)
    fill(found, "t1", range(2), keys=1)
    return found


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> TakingSink:
    made = TakingSink()
    monkeypatch.setattr("rivertwice.deliver.deliver.make_sink", lambda *_: made)
    return made


def want(world: DeliveryHome, desired: str) -> None:
    write_intent(world.home, desired, by="test", now=utc_now())


def keeper_of(world: DeliveryHome) -> DeliveryKeeper:
    return DeliveryKeeper(world.settings, lambda: ["p"], threading.Event())


def status(world: DeliveryHome) -> tuple[int, list[dict]]:
    options = ["--output", "json", "--project", str(world.settings.project), "--home", str(world.settings.home)]
    result = CliRunner().invoke(cli, [*options, "deliver", "status", "p"])
    return result.exit_code, json.loads(result.stdout)["p"]


def test_nothing_is_delivered_that_is_not_wanted(world: DeliveryHome) -> None:
    keeper = keeper_of(world)
    keeper.look("p", utc_now())
    want(world, "stopped")
    keeper.look("p", utc_now())
    assert keeper.workers == {}
    code, (sink,) = status(world)
    assert (code, sink["lag_batches"], sink["batch"], sink["error"]) == (0, 2, None, None)


def test_a_version_that_runs_beside_delivers_nothing(world: DeliveryHome) -> None:
    bundle = build_bundle(world.settings.definitions / "p").renamed("p@v2")
    bundle.write_folder(world.settings.frozen_definitions / "p@v2")
    write_intent(world.settings.pipeline("p@v2"), "running", by="test", now=utc_now())
    want(world, "running")
    keeper = keeper_of(world)
    keeper.look("p@v2", utc_now())
    assert keeper.workers == {}
    keeper.look("p", utc_now())
    assert list(keeper.workers) == [("p", "out")]
    keeper.end()


def test_sinks_follow_the_version_that_serves(world: DeliveryHome) -> None:
    world.served()
    new = SecondVersion(world, {"transform.sql": ("count(*)", "count(*) + 100")})
    fill(new, "t1", range(2), keys=1)
    serve(world, "p@v2")
    want(world, "stopped")  # the first version has done its part
    write_intent(new.home, "running", by="test", now=utc_now())
    keeper = keeper_of(world)
    for name in ("p", "p@v2"):
        keeper.look(name, utc_now())
    try:
        assert list(keeper.workers) == [("p", "out")]
    finally:
        keeper.end()


@pytest.mark.proves("guarantees.md#all-sinks")
def test_a_sink_that_fails_is_noted_with_its_next_attempt_and_paged_once(world: DeliveryHome) -> None:
    want(world, "running")
    keeper = keeper_of(world)
    now = utc_now()
    for number in range(1, PAGE_AT + 2):
        now += timedelta(hours=1)
        keeper.look("p", now)
        keeper.workers[("p", "out")].join(30)
        note = read_note(world.home, "out")
        assert (note.failures, "TEST_POSTGRES is not set" in note.error) == (number, True)
        keeper.look("p", note.failed_at)  # too early: nothing is started
        assert keeper.workers == {}
    code, (sink,) = status(world)
    assert (code, sink["consecutive_failures"], sink["lag_batches"]) == (3, PAGE_AT + 1, 2)
    alerts = (world.settings.home / "alerts.jsonl").read_text().splitlines()
    assert len(alerts) == 1
    events = (world.settings.home / "agent" / "events.jsonl").read_text().splitlines()
    assert len([line for line in events if "delivery_failed" in line]) == 1


@pytest.mark.proves("guarantees.md#all-sinks")
def test_open_refusals_of_a_sink_are_one_message_and_one_at_their_end(
    world: DeliveryHome, sink: TakingSink, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the agent's own look and `deliver retry`: a destination refuses records, and is corrected later."""
    hook = Hook()
    sink.refuse = lambda _: True
    (tmp_path / "alerts.yaml").write_text("settle: 0 s")
    world.settings = replace(world.settings, alerts=tmp_path / "alerts.yaml")
    monkeypatch.setenv(WEBHOOK, hook.url)
    want(world, "running")
    keeper, now = keeper_of(world), utc_now()

    def look() -> None:
        nonlocal now
        now += timedelta(minutes=1)
        keeper.look("p", now)
        Sender(world.settings, now=lambda: now).run_pass()

    look()
    wait_for("two refusals", lambda: len(open_refusals(world)) == 2, 30)
    for _ in range(5):
        look()
    assert hook.told() == [("delivery_refused", "firing")]
    assert "2 deliveries that its destination refused are set aside at sink out" in hook.taken[0]["message"]
    assert (hook.taken[0]["subject"], hook.taken[0]["severity"]) == ("out", "warning")
    assert hook.taken[0]["next"].endswith(" deliver refused p")
    sink.refuse = lambda _: False
    options = ["--project", str(world.settings.project), "--home", str(world.settings.home)]
    CliRunner().invoke(cli, [*options, "deliver", "retry", "p", "--sink", "out"], catch_exceptions=False)
    wait_for("the retry", lambda: not open_refusals(world), 30)
    for _ in range(3):
        look()
    assert hook.told() == [("delivery_refused", "firing"), ("delivery_refused", "resolved")]
    keeper.end()
    hook.close()


def open_refusals(world: DeliveryHome) -> list[str]:
    return read_aside(world.home, "out", read_note(world.home, "out").position).open_keys()


@pytest.mark.usefixtures("sink")
def test_a_definition_that_drops_a_sink_ends_its_deliverer(world: DeliveryHome) -> None:
    want(world, "running")
    keeper = keeper_of(world)
    keeper.look("p", utc_now())
    worker = keeper.workers[("p", "out")]
    path = world.settings.definitions / "p" / "pipeline.yaml"
    path.write_text(path.read_text().replace(f"deliver: {SINK}", ""))
    keeper.look("p", utc_now())
    worker.join(30)
    assert not worker.is_alive()
    keeper.look("p", utc_now())
    assert keeper.workers == {}


def test_a_stream_that_is_stopped_is_delivered_to_its_end(world: DeliveryHome, sink: TakingSink) -> None:
    want(world, "running")
    keeper = keeper_of(world)
    keeper.look("p", utc_now())
    want(world, "stopped")
    keeper.look("p", utc_now())
    keeper.workers[("p", "out")].join(30)
    assert [one["from"]["batch"] for one in sink.taken] == [0, 1]
    code, (shown,) = status(world)
    assert (code, shown["lag_batches"], shown["batch"], shown["on_head_path"]) == (0, 0, 1, True)
