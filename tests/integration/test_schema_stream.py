"""Three schema versions and a fourth, registered and incompatible, in one real topic: streamed, recomputed, compared."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from homes.orders import AT, ORDERS, REGISTERED, record
from homes.project import TO_RUN, edit_yaml, make_project
from lab.faults.events import Event, produce_events
from rivertwice.core.settings import Settings
from rivertwice.definition.avro import AvroSchema, parse_avro, prefixed
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import ensure_topic
from rivertwice.storage.table import Table
from rivertwice.timeline.lineage import path_ledger

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
SEED, RECORDS, PARTITIONS, HOURS = 47, 240, 3, 4


def make_orders_project(folder: Path, broker: BrokerInfo, topic: str) -> Settings:
    settings = make_project(folder, {ORDERS.name: ORDERS}, links=TO_RUN, bootstrap=broker.bootstrap)
    shutil.copytree(REGISTERED, settings.project / "schemas")

    def change(document: dict[str, Any]) -> None:
        document["sources"]["orders"]["topic"] = topic
        document["stream"] = {"max_offsets_per_trigger": 60}

    edit_yaml(settings.definitions / ORDERS.name, change)
    return settings


def run(settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **settings.to_env()}
    return subprocess.run(
        [sys.executable, "-m", *arguments], env=env, capture_output=True, text=True, timeout=900, check=False
    )


def register_incompatible_fourth(settings: Settings, folder: Path) -> AvroSchema:
    """Register a version whose amount is a text, which the subject's rule refuses and another rule lets through; return it."""
    fourth = json.loads((REGISTERED / "orders-value" / "3.avsc").read_text())
    (amount,) = [field for field in fourth["fields"] if field["name"] == "amount"]
    amount["type"] = "string"
    file = folder / "v4.avsc"
    file.write_text(json.dumps(fourth))
    schema = ("rivertwice.cli.main", "admin", "schema")
    checked = run(settings, *schema, "check", "orders-value", str(file))
    assert (checked.returncode, "amount" in checked.stdout) == (3, True), checked.stdout + checked.stderr
    assert run(settings, *schema, "register", "orders-value", str(file)).returncode == 1
    forced = run(settings, *schema, "register", "orders-value", str(file), "--rule", "none")
    assert forced.stdout.splitlines()[-1] == "orders-value version 4 has id 4", forced.stderr
    return parse_avro(file.read_text(), "version 4")


def make_events(
    fourth: AvroSchema,
) -> tuple[list[Event], dict[tuple[datetime, str], tuple[int, Decimal]], Counter[str]]:
    """Return events, what every window must hold, and the dead letters by reason."""
    rng = random.Random(SEED)
    events, truth, dead = [], defaultdict(lambda: (0, Decimal(0))), Counter[str]()
    for number in range(RECORDS):
        at = AT + timedelta(hours=HOURS) * number / RECORDS
        version, amount = rng.choice((1, 2, 3)), Decimal(rng.randrange(-500, 5000)).scaleb(-2)
        currency = rng.choice(("EUR", "USD")) if version > 1 else "EUR"
        fields: dict[str, Any] = {"order_id": f"o{number}", "placed_at": at, "amount": str(amount)}
        fields |= {"currency": currency} if version > 1 else {}
        value = record(version, **fields)
        if number % 20 == 7:
            incompatible = prefixed(4, fourth.encode({**fields, "amount": f"{amount} EUR", "currency": currency}))
            value, reason = ((incompatible, "schema_id"), (value[:-2], "avro"))[number // 20 % 2]
            dead[reason] += 1
        else:
            hour = at.replace(minute=0, second=0, microsecond=0)
            count, total = truth[hour, currency]
            truth[hour, currency] = count + 1, total + amount
        events.append(Event(number % PARTITIONS, None, value, int(at.timestamp() * 1000)))
    return events, dict(truth), dead


@pytest.mark.proves("howto-schemas.md#a-new-version-while-a-stream-runs")
@pytest.mark.faults
def test_all_versions_are_counted_and_others_are_dead_letters(
    tmp_path: Path, broker: BrokerInfo, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = make_orders_project(tmp_path, broker, topic)
    ensure_topic(settings, topic, PARTITIONS)
    fourth = register_incompatible_fourth(settings, tmp_path)
    named = run(settings, "rivertwice.cli.main", "admin", "schema", "refresh", ORDERS.name, "--dry-run")
    assert named.returncode == 3
    assert "version 4 (id 4) is not pinned, its records are dead letters (schema_id): " in named.stdout
    assert "amount" in named.stdout.partition("version 4 (id 4)")[2]
    events, truth, dead = make_events(fourth)
    produce_events(settings, topic, events)
    driven = run(settings, "rivertwice.stream.driver", "--pipeline", ORDERS.name, "--until-end")
    assert driven.returncode == 0, driven.stdout[-4000:]

    home = settings.pipeline(ORDERS.name)
    letters = Table(home.tables.dead_letters).read().to_pylist()
    sent = Counter[int]()
    wrong = set()
    for number, event in enumerate(events):
        if number % 20 == 7:
            wrong.add((event.partition, sent[event.partition], event.value))
        sent[event.partition] += 1
    assert {(row["partition"], row["offset"], row["value"]) for row in letters} == wrong
    assert Counter(row["reason"] for row in letters) == dead

    emitted = Table(home.tables.changelog).read().to_pylist()
    got = {(row["window_start"], row["currency"]): (row["orders"], row["total"]) for row in emitted}
    assert len(emitted) == len(got) > 0
    assert got == {key: value for key, value in truth.items() if key in got}
    assert {hour for hour, _ in got} == {AT + timedelta(hours=hour) for hour in range(HOURS - 1)}

    checked = run(settings, "rivertwice.cli.main", "--output", "json", "reconcile", ORDERS.name)
    assert checked.returncode == 0, checked.stdout[-2000:] + checked.stderr[-2000:]
    report = json.loads(checked.stdout)
    verdicts = report["counts"]["stream"]
    assert verdicts["AGREES"] == len(got)
    assert not verdicts.get("DEFECT")
    assert not verdicts.get("NOT_COMPARABLE")

    text = (settings.definitions / ORDERS.name / "schemas" / "orders-3.avsc").read_text()
    (settings.definitions / ORDERS.name / "schemas" / "orders-3.avsc").unlink()
    refused = run(settings, "rivertwice.stream.driver", "--pipeline", ORDERS.name, "--until-end")
    assert refused.returncode == 1
    assert "changed in semantics, decode" in refused.stdout
    again = run(settings, "rivertwice.cli.main", "admin", "schema", "refresh", ORDERS.name)
    assert (again.returncode, "wrote schemas/orders-3.avsc" in again.stdout.splitlines()) == (3, True)  # 3: the fourth
    assert (settings.definitions / ORDERS.name / "schemas" / "orders-3.avsc").read_text() == text

    index = settings.project / "schemas"
    fifth = json.loads((index / "orders-value" / "3.avsc").read_text())
    fifth["fields"].append({"name": "gift", "type": "boolean", "default": False})
    (tmp_path / "v5.avsc").write_text(json.dumps(fifth))
    registered = run(
        settings, "rivertwice.cli.main", "admin", "schema", "register", "orders-value", str(tmp_path / "v5.avsc")
    )
    assert registered.returncode == 0, registered.stderr
    held = run(settings, "rivertwice.cli.main", "admin", "schema", "refresh", ORDERS.name)
    assert (held.returncode, "timeline t1" in held.stderr, "--change-decode" in held.stderr) == (1, True, True)
    assert not (settings.definitions / ORDERS.name / "schemas" / "orders-5.avsc").exists()
    with capsys.disabled():
        batches = len(path_ledger(home))
        sys.stdout.write(f"\n{RECORDS} records, {batches} batches, {dict(dead)} dead, verdicts {verdicts}\n")
