"""What `rivertwice advise` says of a delay is what a stream with that delay drops: three delays on two logs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from homes.project import edit_yaml
from lab.faults.events import Event, produce_events
from lab.flights.plan import STORM
from lab.flights.replay import ReplayRequest, replay
from rivertwice.core.instants import from_ms, parse_iso, to_iso
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.definition.parts import parse_duration
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import ensure_topic
from rivertwice.storage.table import Table
from rivertwice.timeline.lineage import path_ledger
from running.warm_spark import invoke_warm, run_driver_warm
from streams.flights import make_flights_project
from streams.keyed import BEGIN_MS, HOUR_MS, MINUTE_MS, NAME, make_keyed_project

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
DELAYS = ("20 minutes", "1 hour", "3 hours")
PINS = {"max_offsets_per_trigger": 200, "catch_up_share": 0, "shuffle_partitions": 1}
"""Batches that are placed by event time end where the watermark says; split by what waits they are the same for each delay."""
MakeProject = Callable[[Path], Settings]


def advised(settings: Settings, *options: str) -> dict[str, Any]:
    asked = [word for delay in DELAYS for word in ("--delay", delay)]
    (name,) = (path.name for path in settings.definitions.iterdir())
    result = invoke_warm(settings, "--output", "json", "advise", name, *asked, *options)
    assert result.exit_code == 0, result.output
    advice: dict[str, Any] = json.loads(result.stdout)
    return advice


def dropped_by(make: MakeProject, folder: Path, delay: str) -> int:
    """Stream the log under a delay, and return how many late rows the stream itself kept."""
    settings = make(folder)
    (definition,) = settings.definitions.iterdir()

    def change(document: dict[str, Any]) -> None:
        (source,) = document["sources"].values()
        source["watermark"] = delay
        document["late"] = {"policy": "side_output"}

    edit_yaml(definition, change)
    run_driver_warm(settings, definition.name, folder / "driver.log")
    return sum(row.late_rows or 0 for row in path_ledger(settings.pipeline(definition.name)))


def check(make: MakeProject, folder: Path, *options: str) -> dict[str, Any]:
    """Compare what is said of each delay, after one stream, with a stream of each delay; return the advice."""
    assert dropped_by(make, folder / "1 hour", "1 hour") > 0
    advice = advised(make(folder / "1 hour"), *options)
    said = {outcome["delay"]: outcome["dropped"] for outcome in advice["outcomes"]}
    streamed = {seconds(delay): dropped_by(make, folder / delay, delay) for delay in DELAYS if delay != "1 hour"}
    streamed[3600.0] = advice["kept"]
    assert said == streamed
    assert len(set(said.values())) >= 3
    for outcome in advice["outcomes"]:
        assert sum(outcome["by_partition"].values()) == outcome["dropped"]
    return advice


def emitted(settings: Settings) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return what a stream emitted: window and key to the columns."""
    (folder,) = settings.definitions.iterdir()
    definition = load_definition(folder)
    names = (definition.window.start_column, definition.window.end_column, *definition.keys)
    rows = Table(settings.pipeline(folder.name).tables.changelog).read().to_pylist()
    return {
        tuple(row[name] for name in names): {
            name: round(row[name], 6) if isinstance(row[name], float) else row[name] for name in definition.columns
        }
        for row in rows
    }


def check_trial(make: MakeProject, folder: Path, delay: str) -> None:
    """Compare the rows that differ by what is said with those that the streams of both delays emitted."""
    settings = make(folder / "1 hour")
    (name,) = (path.name for path in settings.definitions.iterdir())
    words = ("try", name, "--watermark", delay, "--last", "9999 days", "--limit", "1000")
    result = invoke_warm(settings, "--output", "json", *words)
    assert result.exit_code == 0, result.output
    trial: dict[str, Any] = json.loads(result.stdout)
    start, end = parse_iso(trial["stretch"]["start"]), parse_iso(trial["stretch"]["end"])
    old, new = (
        {row: values for row, values in emitted(make(folder / each)).items() if row[0] >= start and row[1] <= end}
        for each in ("1 hour", delay)
    )
    both = [row for row in old if row in new]
    changed = {row for row in both if old[row] != new[row]}
    found = trial["rows"]
    assert (found["equal"], found["changed"]) == (len(both) - len(changed), len(changed))
    assert (found["only_old"], found["only_new"]) == (len(old) - len(both), len(new) - len(both))
    assert changed
    shown = {
        (parse_iso(each["window_start"]), parse_iso(each["window_end"]), *each["key"].values())
        for each in found["examples"]
    }
    assert shown <= {row for row in {*old, *new} if old.get(row) != new.get(row)}


def seconds(delay: str) -> float:
    return parse_duration(delay) / timedelta(seconds=1)


@pytest.mark.proves("howto-correct.md#choose-the-watermark")
def test_flights_lose_by_a_delay_what_is_said_of_it(tmp_path: Path, broker: BrokerInfo, topic: str) -> None:
    def make(folder: Path) -> Settings:
        return make_flights_project(folder, bootstrap=broker.bootstrap, topic=topic, pins=PINS)

    replay(make(tmp_path / "sender"), ReplayRequest(topic=topic, days=STORM))
    advice = check(make, tmp_path, "--by", "origin")
    for delay in ("20 minutes", "3 hours"):
        check_trial(make, tmp_path, delay)
    assert {value["value"] for value in advice["values"]} == {"EWR", "JFK", "LGA"}
    assert sum(value["pairs"] for value in advice["values"]) == advice["pairs"]
    waits = [outcome["event_wait_p50"] for outcome in advice["outcomes"] if outcome["event_wait_p50"] is not None]
    assert waits == sorted(waits)
    state = [outcome["most_state"] for outcome in advice["outcomes"]]
    assert state == sorted(state)
    (none,) = (each for each in advice["suggestions"] if each["share"] == 0)
    assert dropped_by(make, tmp_path / "none", f"{int(none['delay'])} s") == 0
    assert dropped_by(make, tmp_path / "less", f"{int(none['delay'] - advice['step'])} s") > 0


@pytest.mark.proves("howto-correct.md#choose-the-watermark")
@pytest.mark.faults
def test_hopping_windows_lose_pairs_as_it_is_said(tmp_path: Path, broker: BrokerInfo, topic: str) -> None:
    def make(folder: Path) -> Settings:
        settings = make_keyed_project(folder, broker.bootstrap, topic, **PINS)
        definition = settings.definitions / NAME
        edit_yaml(definition, lambda document: document["window"].update({"size": "2 hours", "slide": "30 minutes"}))
        sql = (definition / "transform.sql").read_text()
        (definition / "transform.sql").write_text(sql.replace("'1 hour'", "'2 hours', '30 minutes'"))
        return settings

    dice = random.Random(3)
    settings = make(tmp_path / "sender")
    ensure_topic(settings, topic, 4)
    events = []
    for number in range(1_500):
        event_ms = BEGIN_MS + number * 2 * MINUTE_MS - (dice.randrange(9 * HOUR_MS) if dice.random() < 0.1 else 0)
        value = json.dumps({"k": f"k{number % 3}", "at": to_iso(from_ms(event_ms))}).encode()
        events.append(Event(number % 4, b"k", value, BEGIN_MS + number * 2 * MINUTE_MS))
    produce_events(settings, topic, events)
    check(make, tmp_path)
    check_trial(make, tmp_path, "3 hours")
