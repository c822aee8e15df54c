"""Batch verbs on a Spark Connect server that shares nothing with this process except a place: the results of this machine's own Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from homes.project import TO_RUN, make_project, replace_text
from lab.faults.events import Event, produce_events
from rivertwice.core.instants import to_iso, to_ms
from rivertwice.core.settings import Settings
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import ensure_topic
from rivertwice.timeline.served import export_sha256
from running.warm_spark import run_command_warm, run_driver_warm
from servers.spark_cluster import Disks, disks_missing
from servers.spark_connect import ConnectServer, spark_connect

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.faults]
NAME = "orders"
BEGIN = datetime(2026, 1, 5, 8, tzinfo=UTC)
CLOSED = "sc://localhost:1"
"""Where nobody answers."""
YAML = """\
name: orders
description: Amounts by shop.
sources:
  records:
    topic: TOPIC
    partitions: 2
    schema: {shop: string, at: timestamp, amount: bigint, code: string, tags: string}
    required: [shop, amount]
    event_time: at
    watermark: 10 minutes
    max_future: 1 hour
    keep_decoded: true
window: {size: 10 minutes}
keys: [shop]
count_column: records
columns: {records: {}, total: {}, highest: {}, share: {}}
stream: {max_offsets_per_trigger: 100, catch_up_share: 0, shuffle_partitions: 1}
"""
# Expressions that throw on a record: a cast, one of what `nullif` gives, one in a function of an array.
SQL = """\
SELECT window.start AS window_start, window.end AS window_end, upper(shop) AS shop,
  count(*) AS records, sum(abs(amount)) AS total, max(CAST(code AS INT)) AS highest,
  max(size(transform(split(nullif(tags, ''), ','), part -> CAST(part AS INT)))) + max(CAST(nullif(tags, '') AS BIGINT)) AS share
FROM records
GROUP BY window(at, '10 minutes'), upper(shop)
"""
LATE_WINDOW = ("2026-01-05T08:30:00Z", "2026-01-05T08:40:00Z")


def event(number: int, minute: float, *, code: str = "7", tags: str = "12") -> Event:
    """Return an order of a minute after the begin."""
    at = BEGIN + timedelta(minutes=minute)
    value = {"shop": f"s{number % 3}", "at": to_iso(at), "amount": number % 11 - 5, "code": code, "tags": tags}
    return Event(number % 2, b"k", json.dumps(value).encode(), to_ms(at))


def stream_orders(folder: Path, broker: BrokerInfo, shared: Path) -> Settings:
    """Stream four hours of orders, with some on which the SQL throws and a late one, and serve them.

    The driver is told of a server that does not answer: streams do not ask it.
    """
    topic = f"t-{uuid.uuid4().hex[:12]}"
    files = {"pipeline.yaml": YAML.replace("TOPIC", topic), "transform.sql": SQL}
    settings = make_project(folder, {NAME: files}, links=TO_RUN, bootstrap=broker.bootstrap, shared=shared)
    ensure_topic(settings, topic, 2)
    orders = [
        event(
            n,
            n / 2,
            code="none" if n % 160 == 90 else str(n),
            tags="1,x" if n % 120 == 40 else "" if n % 7 == 0 else "3",
        )
        for n in range(480)
    ]
    away, log = replace(settings, spark_remote=CLOSED), folder / "driver.log"
    produce_events(settings, topic, orders)
    run_driver_warm(away, NAME, log)
    produce_events(settings, topic, [event(1000, 31)])  # its window is closed
    produce_events(settings, topic, [event(n, n / 2) for n in range(480, 520)])
    run_driver_warm(away, NAME, log)
    run_command_warm(settings, "admin", "rebuild", NAME)
    return settings


def command(settings: Settings, *words: str, code: int | None = 0, **env: str) -> Any:
    """Run a command line in a process of its own, which must end with the code, if one is given; return what it printed as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "rivertwice.cli.main", "--output", "json", *words],
        env={**os.environ, **settings.to_env(), **env}, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert code in (None, done.returncode), (words, done.stdout[-3000:], done.stderr[-6000:])
    return json.loads(done.stdout or done.stderr.splitlines()[-1])


def refusal(settings: Settings, *words: str, **env: str) -> str:
    """Run a command line that must be refused, and return why it was."""
    return str(command(settings, *words, code=1, **env)["error"]["message"])


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The one folder that both sides see."""
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


@pytest.fixture
def elsewhere(tmp_path: Path, shared: Path) -> Iterator[ConnectServer]:
    """A server that sees of this test's folders its own, and the shared one."""
    own = tmp_path / "server"
    own.mkdir()
    disks = None if disks_missing() else Disks(shared=[own, shared], hidden=[tmp_path])
    with spark_connect(own, disks=disks) as server:
        yield server


def verdicts(settings: Settings, run: str) -> list[dict[str, Any]]:
    """Return the rows of a run, in an order that does not depend on it."""
    rows = command(settings, "verdicts", NAME, "--run", run, "--limit", "10000")["rows"]
    kept = ({name: value for name, value in row.items() if name not in ("run", "created_at")} for row in rows)
    return sorted(kept, key=lambda row: json.dumps(row, sort_keys=True))


@pytest.mark.proves("guarantees.md#verbs-on-a-spark-connect-server")
def test_verbs_on_a_server_elsewhere_give_what_they_give_here(
    tmp_path: Path, broker: BrokerInfo, shared: Path, elsewhere: ConnectServer
) -> None:
    settings = stream_orders(tmp_path, broker, shared)
    remote = replace(settings, spark_remote=elsewhere.url)
    home = settings.pipeline(NAME)
    copied = command(remote, "admin", "archive", NAME)
    assert copied["records"] == 521
    first = command(remote, "reconcile", NAME)
    again = command(settings, "reconcile", NAME, "--full")
    assert first["gate"]["passed"]
    assert first["counts"] == again["counts"]
    assert first["counts"]["served"]["LATE"] == 1
    assert first["balance"] == again["balance"]
    assert first["balance"]["total"]["dead"] == 7
    assert verdicts(settings, first["run"]) == verdicts(settings, again["run"])

    window = ("--from", LATE_WINDOW[0], "--to", LATE_WINDOW[1], "--yes")
    done = command(remote, "backfill", "run", NAME, *window)
    assert (done["windows"], done["audit"]["rows"]) == (1, 3)
    command(settings, "admin", "rebuild", NAME)
    after = export_sha256(home)
    repaired = command(remote, "reconcile", NAME)
    assert (repaired["counts"]["stream"]["LATE"], repaired["counts"]["served"]["LATE"]) == (1, 0)
    assert command(settings, "reconcile", NAME, "--full")["counts"] == repaired["counts"]
    command(settings, "backfill", "run", NAME, *window)
    command(settings, "admin", "rebuild", NAME)
    assert export_sha256(home) == after

    replace_text(settings.definitions / NAME / "transform.sql", "sum(abs(amount))", "sum(amount)")
    trial = command(remote, "try", NAME)
    assert trial == command(settings, "try", NAME)
    assert trial["rows"]["changed"] > 0
    found = {each["name"]: each for each in command(remote, "doctor", code=None)}
    assert found["spark connect"]["ok"], found
    if not disks_missing():
        unseen = replace(remote, shared=None)
        assert "RIVERTWICE_SHARED" in refusal(unseen, "reconcile", NAME)


@pytest.mark.proves("guarantees.md#verbs-on-a-spark-connect-server")
def test_a_server_that_lacks_something_is_refused_with_what_it_lacks(tmp_path: Path, broker: BrokerInfo) -> None:
    settings = stream_orders(tmp_path, broker, tmp_path)
    other = tmp_path / "python" / "rivertwice"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text('__version__ = "0.0.9"\n')
    env = {"SPARK_CONNECT_AUTHENTICATE_TOKEN": "of-the-server"}
    with spark_connect(tmp_path / "server", kafka=False, python_path=[other.parent], env=env) as server:
        remote = replace(settings, spark_remote=server.url)
        for token in ({}, {"SPARK_CONNECT_AUTHENTICATE_TOKEN": "another"}):
            assert "set SPARK_CONNECT_AUTHENTICATE_TOKEN" in refusal(remote, "reconcile", NAME, **token)
        token = {"SPARK_CONNECT_AUTHENTICATE_TOKEN": "of-the-server"}
        why = refusal(remote, "reconcile", NAME, **token)
        assert "no Kafka connector" in why
        assert "rivertwice 0.0.9" in why
        (found,) = [each for each in command(remote, "doctor", code=None, **token) if each["name"] == "spark connect"]
        assert not found["ok"]
        assert "no Kafka connector" in found["remedy"] + found["found"]
    assert "does not answer" in refusal(remote, "reconcile", NAME)
    assert command(settings, "reconcile", NAME)["gate"]["passed"]


@pytest.mark.proves("guarantees.md#verbs-on-a-spark-connect-server")
def test_a_server_that_dies_meanwhile_is_named_and_the_verb_can_be_repeated(tmp_path: Path, broker: BrokerInfo) -> None:
    settings = stream_orders(tmp_path, broker, tmp_path)
    with spark_connect(tmp_path / "server") as server:
        remote = replace(settings, spark_remote=server.url)
        words = [sys.executable, "-m", "rivertwice.cli.main", "--output", "json", "reconcile", NAME]
        verb = subprocess.Popen(words, env={**os.environ, **remote.to_env()}, stderr=subprocess.PIPE, text=True)
        assert verb.stderr is not None
        said = next(line for line in verb.stderr if "re-derive" in line)
        server.kill()
        said += verb.stderr.read()
        assert verb.wait(timeout=300) == 1, said
    assert f"the Spark Connect server {server.url} does not answer" in said
    assert command(settings, "reconcile", NAME)["gate"]["passed"]
