"""Data that nothing here was written for: readings of electricity meters, nested and in camel case, from a topic to the first verdict;
and the file of a shop, from its semicolons to results that pandas has too.

The commands are those of the tutorial, in processes of their own, in an empty folder with services of its own. What they must say is
computed from the list of readings by plain additions.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from lab.faults.events import Event
from rivertwice.core.instants import parse_iso, to_ms
from rivertwice.core.settings import Settings
from rivertwice.log.kafka import ensure_topic
from rivertwice.log.send import send_records
from running.own_folder import Run, own_folder
from running.waiting import wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.faults]
READINGS, LATE, BROKEN, PARTITIONS, METERS = 200_000, 40, 25, 4, 300
BEGIN_MS, HOUR_MS = 1_788_220_800_000, 3_600_000  # 2026-09-01T00:00:00Z
TARIFFS = ("day", "night", "weekend", "industry")


@dataclass(frozen=True)
class Reading:
    """What a meter sends, and when it came."""

    meter: int
    tariff: str
    watt_hours: int
    at_ms: int
    came_ms: int

    def value(self, number: int) -> bytes:
        return json.dumps({
            "messageId": f"m-{number:07d}",
            "meter": {"serialNumber": serial(self.meter), "firmware": {"major": 3, "minor": self.meter % 7}},
            "tariffZone": self.tariff,
            "measuredAt": self.at_ms,
            "energyWh": self.watt_hours,
            "quality": None if number % 11 else "estimated",
            "phases": [230.1, 229.8, 230.4],
        }).encode()  # fmt: skip


def serial(meter: int) -> str:
    return f"EM{meter:05d}"


def make_readings() -> list[Reading]:
    """Return readings in the order in which they came: within two minutes, but for the late ones, which came hours later."""
    dice = random.Random(77)
    readings = []
    for number in range(READINGS):
        at = BEGIN_MS + number * 430 + dice.randrange(400)
        came = at + dice.randrange(90_000)
        readings.append(Reading(dice.randrange(METERS), dice.choice(TARIFFS), dice.randrange(1, 900), at, came))
    readings.sort(key=lambda each: each.came_ms)
    late = [readings[place] for place in range(500, READINGS // 2, READINGS // 2 // LATE)][:LATE]
    end = readings[-1].came_ms
    return readings + [Reading(each.meter, each.tariff, each.watt_hours, each.at_ms, end + 1_000) for each in late]


def totals(readings: list[Reading]) -> dict[tuple[int, str], tuple[int, int]]:
    """Return hour and meter to number of readings and watt hours."""
    count: Counter[tuple[int, str]] = Counter()
    energy: Counter[tuple[int, str]] = Counter()
    for each in readings:
        cell = (each.at_ms // HOUR_MS * HOUR_MS, serial(each.meter))
        count[cell] += 1
        energy[cell] += each.watt_hours
    return {cell: (count[cell], energy[cell]) for cell in count}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Run a command line in the stranger's folder; its output is JSON."""
    with own_folder(tmp_path / "own") as command:
        yield command


def test_a_strangers_topic_is_guessed_streamed_and_explained(
    run: Run, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    began = time.monotonic()
    home = tmp_path / "own" / ".rivertwice"
    run("up")
    settings = Settings(project=tmp_path / "own", home=home)
    ensure_topic(settings, "meter-readings", PARTITIONS)
    readings = make_readings()
    events = [
        Event(each.meter % PARTITIONS, serial(each.meter).encode(), each.value(number), each.came_ms)
        for number, each in enumerate(readings)
    ]
    broken = [Event(0, None, b'{"messageId": "broken", "measuredAt": "yesterday"}', readings[-1].came_ms)] * BROKEN
    for at in range(0, READINGS, 20_000):
        send_records(settings, "meter-readings", events[at : min(at + 20_000, READINGS)])
    sent_s = time.monotonic() - began

    guess = run("init", "readings", "--from-topic", "meter-readings", "--window", "1 hour", "--watermark", "10 minutes")
    text = (tmp_path / "own" / "pipelines" / "readings" / "pipeline.yaml").read_text()
    assert guess["guess"]["gaps"] == []
    assert "event_time: measured_at" in text
    assert "      meter_serial_number: meter.serialNumber" in text
    assert "epochs: {measured_at: ms}" in text
    assert "keys: [meter_serial_number]" in text
    assert "not taken: phases: it is an array" in text
    assert [case["differences"] for case in run("test", "readings")["cases"]] == [[], [], []]

    run("start", "readings", "--wait")

    def has_read(records: int) -> bool:
        (pipeline,) = run("status")["pipelines"]
        (figures,) = run("agent", "metrics", "readings", code=None)
        return bool(pipeline["lag"] == 0 and figures["read_total"] == records)

    wait_for("the readings", lambda: has_read(READINGS), 600, every=2.0)
    sent = send_records(settings, "meter-readings", [*events[READINGS:], *broken])
    wait_for("the late readings", lambda: has_read(READINGS + LATE + BROKEN), 300, every=2.0)
    report = run("reconcile", "readings")
    record_property(
        "minutes to the first verdict, without making the data", round((time.monotonic() - began - sent_s) / 60, 1)
    )
    counts = report["counts"]["stream"]
    truth = totals(readings)
    late_cells = {(each.at_ms // HOUR_MS * HOUR_MS, serial(each.meter)) for each in readings[READINGS:]}
    assert (counts["DEFECT"], counts["NOT_COMPARABLE"]) == (0, 0)
    assert counts["LATE"] == len(late_cells)
    assert sum(counts.values()) == len(truth)
    late_addresses = {(each.partition, each.offset) for each in sent[:LATE]}
    causes = run("verdicts", "readings", "--causes", "--pair", "stream", "--limit", "500")["rows"]
    assert {(each["partition"], each["offset"]) for each in causes if each["cause"] == "late"} == late_addresses

    run("backfill", "run", "readings", "--yes")
    assert run("reconcile", "readings")["counts"]["served"]["LATE"] == 0
    closed = {*served(run)} | late_cells
    wait_for(
        "the agent to serve the correction",
        lambda: served(run) == {cell: truth[cell] for cell in closed},
        120,
        every=2.0,
    )
    assert len(closed) >= len(truth) - 2 * METERS


def test_a_shops_file_is_served_to_the_cent_and_to_its_last_window_by_six_commands_and_no_typed_file(
    run: Run, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Semicolons, decimal commas, a currency, German dates, cp1252: sums are those of pandas."""
    start = pd.Timestamp("2026-03-02 08:00", tz="Europe/Berlin")
    rows = pd.DataFrame({"n": range(3_000)})
    rows["at"] = start + pd.to_timedelta(rows.n * 25, unit="s")
    rows["shop"] = rows.n.mod(3).map({0: "Köln", 1: "Bonn", 2: "Düren"})
    rows["cents"] = rows.n * 7_919 % 250_000 + 100
    amount = rows.cents.map(lambda each: f"{each // 100:,}".replace(",", ".") + f",{each % 100:02d} €")
    lines = rows.n.astype(str) + ";" + rows["at"].dt.strftime("%d.%m.%Y %H:%M:%S") + ";" + rows.shop + ";" + amount
    file = tmp_path / "sales.csv"
    file.write_bytes(("\n".join(["Nummer;Zeitpunkt;Filiale;Betrag", *lines]) + "\n").encode("cp1252"))
    zone = ("--zone", "Europe/Berlin")
    looked = run("look", str(file), *zone)
    assert (looked["event_time"], looked["keys"], looked["disordered"]) == ("zeitpunkt", ["filiale"], 0)
    run("init", "sales", "--from-file", str(file), *zone, "--window", "1 hour")
    began = time.monotonic()
    run("up")
    run("start", "sales")
    checked = run("send", "sales", str(file), *zone, "--dry-run")
    assert (checked["records"], checked["sent"]) == (3_000, False)
    sent = run("send", "sales", str(file), *zone, "--close")
    assert (sent["records"], sent["stream"]["dead"], sent["heartbeat"]["sent"]) == (3_000, 0, True)
    assert sent["stream"]["read"] == 3_001  # with the heartbeat
    verdict = run("reconcile", "sales")
    record_property("minutes to the first verdict, after init", round((time.monotonic() - began) / 60, 1))
    truth = rows.groupby([rows["at"].dt.tz_convert("UTC").dt.floor("1h"), "shop"]).cents.agg(["sum", "size"])
    assert sent["stream"]["emitted"] == len(truth)
    for pair in ("stream", "served"):
        assert {name: count for name, count in verdict["counts"][pair].items() if count} == {"AGREES": len(truth)}
    shown = run("show", "sales", "--limit", "300")["rows"]
    assert len(shown) == len(truth)
    for row in shown:
        expected = truth.loc[(pd.Timestamp(row["window_start"]), row["filiale"])]
        assert (round(float(row["betrag_sum"]) * 100), row["records"]) == (expected["sum"], expected["size"])
    again = run("send", "sales", "--close")
    assert (again["heartbeat"]["sent"], again["heartbeat"]["closed_until"]) == (
        False,
        sent["heartbeat"]["closed_until"],
    )


def test_a_databases_topic_of_changes_becomes_its_table_by_four_commands_and_no_typed_file(
    run: Run, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Debezium's envelope with its schema, keys as JSON, deletes with their tombstones: the rows are those of the database."""
    run("up")
    settings = Settings(project=tmp_path / "own", home=tmp_path / "own" / ".rivertwice")
    ensure_topic(settings, "shop.public.orders", 2)
    dice, table, events = random.Random(49), dict[int, dict[str, object]](), list[Event]()
    for n in range(2_000):
        at_ms, key = BEGIN_MS + n * 1_000, dice.randrange(150)
        before = table.get(key)
        row = {"id": key, "customer": f"c{n % 40}", "quantity": n % 9 + 1, "placed_at": at_ms * 1_000}
        is_delete = before is not None and n % 7 == 0
        op = "d" if is_delete else "c" if before is None else "u"
        payload = {
            "before": before,
            "after": None if is_delete else row,
            "op": op,
            "ts_ms": at_ms,
            "source": {"table": "orders"},
        }
        name = json.dumps({"schema": {}, "payload": {"id": key}}).encode()
        events.append(Event(key % 2, name, json.dumps({"schema": {}, "payload": payload}).encode(), at_ms))
        if is_delete:
            del table[key]
            events.append(Event(key % 2, name, None, at_ms))
        else:
            table[key] = row
    send_records(settings, "shop.public.orders", events)
    began = time.monotonic()
    run("init", "orders", "--from-topic", "shop.public.orders")
    caught = run("start", "orders", "--wait")
    assert caught["dead"] == 0
    verdict = run("reconcile", "orders")["counts"]["served"]
    record_property("minutes to the first verdict", round((time.monotonic() - began) / 60, 1))
    assert (verdict["DEFECT"], verdict["NOT_COMPARABLE"], verdict["AGREES"]) == (0, 0, 2_000)
    rows = run("show", "orders", "--by-key", "--limit", "1000")["rows"]
    assert {row["id"]: (row["customer"], row["quantity"]) for row in rows} == {
        key: (row["customer"], row["quantity"]) for key, row in table.items()
    }


def served(run: Run) -> dict[tuple[int, str], tuple[int, int]]:
    """Return hour and meter to what `rivertwice show` shows."""
    rows = run("show", "readings", "--limit", "10000")["rows"]
    return {
        (to_ms(parse_iso(row["window_start"])), row["meter_serial_number"]): (row["records"], row["energy_wh_sum"])
        for row in rows
    }
