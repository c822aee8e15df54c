"""How long rows wait for a sink: from their commit or the sink's last step on, whichever is later; batches without rows do not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from homes.delivery import DeliveryHome
from homes.ledger import NOW
from rivertwice.agent.metrics import measure
from rivertwice.agent.prometheus import firing, judge_alerts
from rivertwice.agent.view import view_pipeline
from rivertwice.core.instants import to_iso
from rivertwice.core.plain import to_plain
from rivertwice.definition.model import AlertLimits
from rivertwice.deliver.model import Committed, Position
from rivertwice.deliver.note import Note, read_note, write_note
from rivertwice.deliver.plan import waiting_since
from rivertwice.deliver.source import StoredSource
from rivertwice.deliver.status import view_delivery
from rivertwice.timeline.intent import write_intent

SINK = "{board: {to: kafka, topic: out, guarantee: exactly_once}, lake: {to: iceberg, table: n.t, guarantee: effectively_once}}"


@pytest.fixture
def world(tmp_path: Path) -> DeliveryHome:
    return DeliveryHome(tmp_path, SINK)


def waits(world: DeliveryHome) -> dict[str, str | None]:
    return {
        each["sink"]: each["waits_since"]
        for each in to_plain(view_delivery(world.settings, "p", world.definition.deliver))
    }


@pytest.mark.proves("guarantees.md#all-sinks", "howto-delivery.md#look-and-begin-again")
def test_rows_wait_from_their_commit_or_the_last_step_on(world: DeliveryHome) -> None:
    assert waits(world) == {"board": None, "lake": None}
    world.commit("t1", 0, 1, [])
    assert waits(world) == {"board": None, "lake": None}, "a batch without rows lets nobody wait"
    world.commit("t1", 1, 2, [(1, "a", 1)])
    minute = timedelta(minutes=1)
    assert waits(world) == {"board": to_iso(NOW), "lake": to_iso(NOW + minute)}, "Iceberg collects rows for a minute"
    view = StoredSource(world.home).look(None)
    taken = Position("t1", 0, view.seq, view.head.born, 1)
    write_note(world.home, "board", Note(position=taken, rows=1, delivered_at=NOW + 5 * minute))
    assert waits(world)["board"] == to_iso(NOW + 5 * minute)
    write_note(world.home, "board", replace(read_note(world.home, "board"), position=replace(taken, batch=1)))
    assert waits(world)["board"] is None
    world.publish(1, 2, [(1, "a", 2)])
    assert waits(world)["board"] == to_iso(NOW + 5 * minute)


def test_another_head_lets_rows_wait_from_its_move_on(world: DeliveryHome) -> None:
    for batch in range(3):
        world.commit("t1", batch, batch + 1, [(batch, "a", 1)])
    source = StoredSource(world.home)
    view = source.look(None)
    at = Position("t1", 2, view.seq, view.head.born, 1)
    world.begin("t2", ("t1", 0))
    world.move_head("t2")
    moved = source.look(at)
    assert waiting_since(at, moved) == moved.seq_at == NOW
    assert Committed("t1", 0, 0, 0).at is None


@pytest.mark.proves("howto-watch.md#limits")
def test_a_sink_that_takes_nothing_fires_after_its_limit_and_is_named(world: DeliveryHome) -> None:
    world.commit("t1", 0, 1, [(0, "a", 1)])
    write_intent(world.home, "running", "test", NOW)
    for minutes, fires in ((15, False), (16, True)):
        now = NOW + timedelta(minutes=minutes)
        measures = measure(world.settings, "p", view_pipeline(world.settings, "p", now), now)
        fired = {each.rule.name: each.message for each in firing(judge_alerts(measures, AlertLimits()))}
        assert ("delivery_lag" in fired) == fires
        if fires:
            assert "the sink is board" in fired["delivery_lag"]
            assert "taken none for 0:16:00" in fired["delivery_lag"]
