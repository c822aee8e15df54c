"""The fast path on a real broker: killed in the middle and run again, what it sent is what its log calls for, record by record."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from homes.project import EXAMPLES, TO_RUN, make_project, replace_text
from lab.faults.events import Event, produce_events
from rivertwice.core.settings import Settings
from rivertwice.deliver.fast import committed_offsets, read_fast_owner, read_runs
from rivertwice.local.broker import BrokerInfo
from rivertwice.log import kafka
from running.waiting import wait_for
from running.warm_spark import invoke_warm

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
NAME = "fraud_scores"
PATIENCE_S = 240


@pytest.fixture
def settings(tmp_path: Path, broker: BrokerInfo, topic: str) -> Settings:
    settings = make_project(tmp_path, {NAME: EXAMPLES / NAME}, links=TO_RUN, bootstrap=broker.bootstrap)
    yaml = settings.definitions / NAME / "pipeline.yaml"
    replace_text(yaml, "topic: transactions", f"topic: {topic}")
    replace_text(yaml, "topic: fraud-alerts", f"topic: {topic}-alerts")
    kafka.ensure_topic(settings, topic, 4)
    return settings


def send(settings: Settings, topic: str, count: int, chance: random.Random) -> None:
    now_ms = int(time.time() * 1000)
    events = []
    for number in range(count):
        body = {
            "tx": f"t{number}",
            "card_id": f"c{number % 9}",
            "amount": 5,
            "score": chance.random(),
            "at": "2026-01-01T00:00:00Z",
        }
        value = b"{broken" if number % 50 == 7 else json.dumps(body).encode()
        events.append(Event(number % 4, f"c{number % 9}".encode(), value, now_ms))
    produce_events(settings, topic, events)


@contextmanager
def fast_path(settings: Settings, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "rivertwice.deliver.fast_job", "--pipeline", NAME],
            env={**os.environ, **settings.to_env()},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(60)


def await_true(condition: Callable[[], bool], log: Path) -> None:
    wait_for("the fast path", condition, PATIENCE_S, every=0.05, seen=lambda: log.read_text()[-3000:])


def check(settings: Settings) -> dict[str, Any]:
    done = invoke_warm(settings, "--output", "json", "deliver", "check", "--fast", NAME)
    assert done.exit_code in (0, 3), done.output[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["exact"] is (done.exit_code == 0)
    return found


@pytest.mark.proves("guarantees.md#fast-path")
def test_what_a_killed_fast_path_sent_is_what_its_log_owes(settings: Settings, topic: str, tmp_path: Path) -> None:
    chance, log, home = random.Random("fast path"), tmp_path / "fast.log", settings.pipeline(NAME)
    send(settings, topic, 40, chance)  # before it ever ran: nobody is told of these

    def sent() -> int:
        return sum(kafka.end_offsets(settings, f"{topic}-alerts").values()) if read_runs(home) else 0

    with fast_path(settings, log) as process:
        await_true(lambda: committed_offsets(home, topic) is not None, log)
        send(settings, topic, 400, chance)
        await_true(lambda: sent() > 10, log)
        owner = read_fast_owner(home)
        assert owner is not None
        assert owner.pid == process.pid
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    send(settings, topic, 400, chance)
    ends = kafka.end_offsets(settings, topic)
    with fast_path(settings, log):
        await_true(lambda: committed_offsets(home, topic) == ends, log)
    found = check(settings)
    assert (found["missing_count"], found["unexpected_count"], found["ahead"]) == (0, 0, 0)
    assert found["expected"] == found["sent"] > 40
    assert found["judged"] == {str(part): [10, end] for part, end in ends.items()}

    forged = {"card_id": "c1", "record": {"topic": topic, "partition": 0, "offset": ends[0] - 1}}
    produce_events(settings, f"{topic}-alerts", [Event(0, b"c1", json.dumps(forged).encode(), int(time.time() * 1000))])
    assert check(settings)["unexpected"] == [f"0@{ends[0] - 1}"]


@pytest.mark.proves("guarantees.md#fast-path")
def test_another_meaning_begins_another_run_and_both_are_judged(settings: Settings, topic: str, tmp_path: Path) -> None:
    chance, log, home = random.Random("two runs"), tmp_path / "fast.log", settings.pipeline(NAME)
    sql = settings.definitions / NAME / "fast.sql"
    for limit in ("0.9", "0.5"):
        sql.write_text(sql.read_text().replace("> 0.9", f"> {limit}"))
        with fast_path(settings, log):
            await_true(lambda: committed_offsets(home, topic) is not None, log)
            send(settings, topic, 200, chance)
            await_true(lambda: committed_offsets(home, topic) == kafka.end_offsets(settings, topic), log)
    assert [run.number for run in read_runs(home)] == [1, 2]
    found = check(settings)
    assert found["exact"]
    assert 60 < found["expected"] < 180


@pytest.mark.proves("guarantees.md#fast-path", "howto-delivery.md#write-one")
def test_a_record_on_which_fast_sql_throws_is_left_out_and_counted(
    settings: Settings, topic: str, tmp_path: Path
) -> None:
    log, home = tmp_path / "fast.log", settings.pipeline(NAME)
    sql = settings.definitions / NAME / "fast.sql"
    sql.write_text("SELECT record, card_id, CAST(tx AS INT) AS tx FROM transactions WHERE CAST(tx AS INT) % 2 = 0")
    texts = ["1", "2", "three", "4", "5", "six", "8"]
    body = {"card_id": "c1", "amount": 5, "score": 0.5, "at": "2026-01-01T00:00:00Z"}
    now_ms = int(time.time() * 1000)
    with fast_path(settings, log) as process:
        await_true(lambda: committed_offsets(home, topic) is not None, log)
        events = [Event(0, b"c1", json.dumps({**body, "tx": text}).encode(), now_ms) for text in texts]
        produce_events(settings, topic, events)
        await_true(
            lambda: process.poll() is not None or committed_offsets(home, topic) == {0: 7, 1: 0, 2: 0, 3: 0}, log
        )
        assert process.poll() is None, log.read_text()[-3000:]
    found = check(settings)
    assert found["exact"]
    assert (found["expected"], found["thrown_count"], found["thrown"]) == (3, 2, ["0@2", "0@5"])


@pytest.mark.proves("guarantees.md#fast-path", "howto-delivery.md#operate-it")
def test_records_that_kafka_deleted_before_they_were_read_stop_the_fast_path(
    settings: Settings, topic: str, tmp_path: Path
) -> None:
    chance, log, home = random.Random("deleted"), tmp_path / "fast.log", settings.pipeline(NAME)
    with fast_path(settings, log):
        await_true(lambda: committed_offsets(home, topic) is not None, log)
        send(settings, topic, 40, chance)
        read = kafka.end_offsets(settings, topic)
        await_true(lambda: committed_offsets(home, topic) == read, log)
    send(settings, topic, 200, chance)
    kafka.delete_records(settings, topic, {part: end - 5 for part, end in kafka.end_offsets(settings, topic).items()})
    sent = kafka.end_offsets(settings, f"{topic}-alerts")
    with fast_path(settings, log) as process:
        await_true(lambda: process.poll() is not None, log)
    assert process.returncode not in (0, None), log.read_text()[-3000:]
    assert committed_offsets(home, topic) == read
    assert kafka.end_offsets(settings, f"{topic}-alerts") == sent


@pytest.mark.proves("guarantees.md#fast-path", "howto-delivery.md#operate-it")
def test_two_hosts_that_run_it_send_every_row_twice_and_the_check_counts_it(
    settings: Settings, topic: str, tmp_path: Path
) -> None:
    chance, log = random.Random("two hosts"), tmp_path / "fast.log"
    hosts = [settings, replace(settings, home=tmp_path / "second")]
    with fast_path(hosts[0], log), fast_path(hosts[1], log):
        for host in hosts:
            await_true(lambda host=host: committed_offsets(host.pipeline(NAME), topic) is not None, log)  # type: ignore[misc]
        send(settings, topic, 200, chance)
        ends = kafka.end_offsets(settings, topic)
        for host in hosts:
            await_true(lambda host=host: committed_offsets(host.pipeline(NAME), topic) == ends, log)  # type: ignore[misc]
    for host in hosts:
        found = check(host)
        assert found["exact"]
        assert found["again"] == found["expected"] > 10
