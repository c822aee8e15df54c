"""Three schema versions and a fourth that nobody pinned, in one real topic: streamed, recomputed, compared."""

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
from rivertwice.definition.avro import prefixed
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


def make_events() -> tuple[list[Event], dict[tuple[datetime, str], tuple[int, Decimal]], Counter[str]]:
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
            value, reason = ((prefixed(4, value[5:]), "schema_id"), (value[:-2], "avro"))[number // 20 % 2]
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
    events, truth, dead = make_events()
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
    assert (again.returncode, again.stdout.splitlines()[-1]) == (0, "wrote schemas/orders-3.avsc")
    assert (settings.definitions / ORDERS.name / "schemas" / "orders-3.avsc").read_text() == text

    index = settings.project / "schemas"
    fourth = json.loads((index / "orders-value" / "3.avsc").read_text())
    fourth["fields"].append({"name": "gift", "type": "boolean", "default": False})
    (tmp_path / "v4.avsc").write_text(json.dumps(fourth))
    assert (
        run(
            settings, "rivertwice.cli.main", "admin", "schema", "register", "orders-value", str(tmp_path / "v4.avsc")
        ).returncode
        == 0
    )
    held = run(settings, "rivertwice.cli.main", "admin", "schema", "refresh", ORDERS.name)
    assert (held.returncode, "timeline t1" in held.stderr, "--change-decode" in held.stderr) == (1, True, True)
    assert not (settings.definitions / ORDERS.name / "schemas" / "orders-4.avsc").exists()
    with capsys.disabled():
        batches = len(path_ledger(home))
        sys.stdout.write(f"\n{RECORDS} records, {batches} batches, {dict(dead)} dead, verdicts {verdicts}\n")
