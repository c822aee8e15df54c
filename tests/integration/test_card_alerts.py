"""S19: a card's count, its profile by change events and a model's score in one stream, killed on the way, exactly once to a topic."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from homes.delivery import read_topic
from homes.project import EXAMPLES, TO_RUN, make_project, replace_text
from lab.faults.events import Event, produce_events
from rivertwice.core.instants import from_ms, to_iso
from rivertwice.core.settings import Settings
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import ensure_topic
from running.warm_spark import run_command_warm
from streams.synthetic import DriverProcess, run_to_end, wait_for_batch

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
NAME = "card_alerts"
AT_MS = 1_767_607_200_000
CARDS = 6


def send_profiles(settings: Settings, topic: str, home: str, usual: str) -> None:
    """Send each card's row of the table as a change event."""
    events = []
    for card in range(CARDS):
        body = {
            "before": None,
            "after": {"card_id": f"c{card}", "home": home, "usual": usual},
            "op": "u",
            "ts_ms": AT_MS,
        }
        key = json.dumps({"card_id": f"c{card}"}).encode()
        events.append(Event(card % 4, key, json.dumps(body).encode(), AT_MS))
    produce_events(settings, topic, events)


def send_transactions(settings: Settings, topic: str, numbers: range, chance: random.Random) -> None:
    """Send a transaction a minute of every card in turn; one in four is abroad, and then of five times the usual amount."""
    events = []
    for number in numbers:
        card, ms = number % CARDS, AT_MS + number * 20_000
        country = "BR" if chance.random() < 0.25 else "DE"
        body = {
            "tx": f"t{number}",
            "card_id": f"c{card}",
            "amount": 100 if country == "BR" else 20,
            "country": country,
            "at": to_iso(from_ms(ms)),
        }
        events.append(Event(card % 4, f"c{card}".encode(), json.dumps(body).encode(), ms))
    produce_events(settings, topic, events)


@pytest.mark.proves("guarantees.md#kafka-sink")
def test_profile_count_and_score_of_one_stream_reach_a_topic_once_though_its_driver_is_killed(
    broker: BrokerInfo, tmp_path: Path, topic: str
) -> None:
    settings = make_project(tmp_path, {NAME: EXAMPLES / NAME}, links=TO_RUN, bootstrap=broker.bootstrap)
    file = settings.definitions / NAME / "pipeline.yaml"
    for old, new in (
        ("topic: card-transactions", f"topic: {topic}"),
        ("topic: shop-db.public.card_profiles", f"topic: {topic}-profiles"),
        ("topic: card-alerts", f"topic: {topic}-alerts"),
        ("stream: {trigger: 0 s}", "stream: {trigger: 0 s, max_offsets_per_trigger: 20}"),
    ):
        replace_text(file, old, new)
    profiles, chance = f"{topic}-profiles", random.Random(19)
    for name in (topic, profiles):
        ensure_topic(settings, name, 4)
    send_profiles(settings, profiles, "DE", "20.00")
    known = run_to_end(settings, NAME)[-1].batch
    send_transactions(settings, topic, range(60), chance)
    driver = DriverProcess(settings, NAME, "--until-end")
    try:
        wait_for_batch(settings, NAME, known + 1, driver=driver)
    finally:
        driver.stop()
    run_to_end(settings, NAME)
    run_command_warm(settings, "deliver", "run", NAME, "--until-end")
    send_profiles(settings, profiles, "BR", "100.00")
    run_to_end(settings, NAME)  # no transaction of before is scored again
    send_transactions(settings, topic, range(60, 120), chance)
    run_to_end(settings, NAME)
    run_command_warm(settings, "deliver", "run", NAME, "--until-end")

    told = [one["values"] for one in read_topic(settings, f"{topic}-alerts") if one["op"] == "emit"]
    assert Counter(one["tx"] for one in told) == dict.fromkeys((f"t{number}" for number in range(120)), 1)
    by_tx: dict[str, Any] = {one["tx"]: one for one in told}
    chance = random.Random(19)
    abroad = [number for number in range(120) if chance.random() < 0.25]
    # A card has a transaction each two minutes, so three in five minutes: no alert is of the count alone.
    assert max(one["transactions"] for one in told) == 3
    alerts = {number for number in range(120) if by_tx[f"t{number}"]["alert"]}
    assert alerts == {number for number in abroad if number < 60}  # from then on BR is home, and 100 the usual amount
    # Two topics have no common order: each row is held to the order that the ledger recorded (else DEFECT), and no truth is claimed.
    report = run_command_warm(settings, "reconcile", NAME, code=3)
    assert report["counts"]["stream"] == {"AGREES": 0, "DEFECT": 0, "LATE": 0, "NOT_COMPARABLE": 120, "OPEN": 0}
    assert report["balance"]["total"]["unexplained"] == 0
