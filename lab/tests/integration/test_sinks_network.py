"""Sinks behind a network that delays, swallows and breaks: what the sink holds is what is served, each row once."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from homes.delivery import DeliveryHome, fill, fold, read_topic
from lab.faults.postgres import address_at, commit_of_a_step, loopback_server, missing, port_of
from lab.faults.proxy import CLEAR, END_TXN, PRODUCE, FaultProxy, LateRequest, Weather, proxied_broker
from rivertwice.cli.main import cli
from rivertwice.core.errors import ServiceError
from rivertwice.core.settings import Settings
from rivertwice.deliver import postgres_sink
from rivertwice.deliver.deliver import Deliverer
from rivertwice.log import kafka, outbox
from running.waiting import wait_for

KAFKA = "{out: {to: kafka, topic: out, partitions: 2, guarantee: exactly_once}}"


@pytest.fixture
def proxy(settings: Settings) -> Iterator[FaultProxy]:
    """A proxy before a broker of the test's own, which all clients reach through it."""
    with proxied_broker(replace(settings, bootstrap=None)) as found:
        yield found


def deliver(world: DeliveryHome, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rivertwice.cli.main", "deliver", "run", "p", "--until-end", *more]
    environment = {**os.environ, **world.settings.to_env()}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.kafka
@pytest.mark.proves("howto-delivery.md#what-is-promised", "howto-delivery.md#kafka", "guarantees.md#kafka-sink")
def test_a_commit_that_the_network_delays_is_not_taken_for_that_of_the_next_step(
    proxy: FaultProxy, tmp_path: Path
) -> None:
    world = DeliveryHome(tmp_path / "world", KAFKA, f"127.0.0.1:{proxy.port}")
    keys = 9_000
    fill(world, "t1", range(3), keys)  # a step each
    sent = 0

    def in_the_middle_of_the_next_step(key: int, again: int) -> bool:
        nonlocal sent
        sent += key == PRODUCE and again > 0
        return sent == 3

    proxy.late = LateRequest(END_TXN, in_the_middle_of_the_next_step)
    first = deliver(world)
    assert proxy.late.arrived.is_set(), first.stderr
    second = deliver(world)
    assert second.returncode == 0, second.stderr
    records = read_topic(world.settings, "out")
    found = Counter((one["from"]["timeline"], one["from"]["batch"], one["_key"]) for one in records)
    assert len(found) == 3 * keys
    assert Counter(found.values()) == {1: 3 * keys}
    assert fold(records) == world.served()
    assert first.returncode == 0, first.stderr


@pytest.mark.kafka
@pytest.mark.proves("howto-delivery.md#large-steps", "guarantees.md#kafka-sink")
def test_a_publication_that_takes_longer_than_a_transaction_may_last_is_delivered_in_parts(
    proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = DeliveryHome(tmp_path / "world", KAFKA, f"127.0.0.1:{proxy.port}")
    for name, value in world.settings.to_env().items():
        monkeypatch.setenv(name, value)
    fill(world, "t1", range(1), keys=1)
    draw = random.Random(1)
    texts = [
        "".join(chr(draw.randrange(0x4E00, 0x9FFF)) for _ in range(400)) for _ in range(4_000)
    ]  # nothing to compress
    world.publish(0, 1, [(0, text, number) for number, text in enumerate(texts)])
    monkeypatch.setattr(kafka, "TRANSACTION_S", 12.0)
    monkeypatch.setattr(outbox, "PART_S", 3.0)
    proxy.weather = Weather(latency_s=0.05, slice_bytes=16_384)  # 0.3 MB a second, so the whole takes half a minute
    with pytest.raises(SystemExit) as ended:
        cli(["deliver", "run", "p", "--until-end"], prog_name="rivertwice")
    proxy.weather = CLEAR
    assert not ended.value.code
    records = read_topic(world.settings, "out")
    steps = Counter(one["at"]["step"] for one in records)
    assert len(steps) > 3
    assert sum(steps.values()) == len({(one["_key"], one["op"]) for one in records}) == 4_002
    assert fold(records) == world.served()


POSTGRES = "{pg: {to: postgres, table: totals, dsn_env: TEST_PG, guarantee: effectively_once}}"
needs_postgres = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a PostgreSQL server that listens on loopback, without a proxy."""
    with loopback_server() as address:
        yield address


@pytest.fixture
def far(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy before PostgreSQL; the sink's variable names it."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS totals, rivertwice_positions")
    with FaultProxy(port_of(server)) as found:
        monkeypatch.setenv("TEST_PG", address_at(found.port))
        yield found


@pytest.fixture
def table(far: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeliveryHome:
    made = DeliveryHome(tmp_path / "world", POSTGRES)
    for name, value in made.settings.to_env().items():
        monkeypatch.setenv(name, value)
    return made


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli(list(words), prog_name="rivertwice")
    return int(ended.value.code or 0)


def rows_in(server: str) -> dict[tuple[int, str], int]:
    with psycopg.connect(server) as connection:
        rows = connection.execute("SELECT window_start, k, n FROM totals").fetchall()
    return {(int(start.timestamp()) // 3600, key): value for start, key, value in rows}


@needs_postgres
@pytest.mark.parametrize("lose", [False, True], ids=["the answer is lost", "the request is lost"])
@pytest.mark.proves(
    "howto-delivery.md#postgresql",
    "failure-modes.md#delivery",
    "guarantees.md#postgresql-sink",
)
def test_a_commit_without_an_answer_ends_in_time_and_the_position_says_what_became_of_it(
    table: DeliveryHome,
    far: FaultProxy,
    server: str,
    lose: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fill(table, "t1", range(2), keys=5)
    assert run("deliver", "run", "p", "--until-end") == 0
    fill(table, "t1", range(2, 3), keys=5)
    far.swallow, far.lose = commit_of_a_step(), lose
    monkeypatch.setattr(postgres_sink, "WAIT_S", 2.0)
    assert run("deliver", "run", "p", "--until-end") == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "no answer came within 2 s" in error
    assert "its position shows the outcome of the transaction when it is opened again" in error
    far.swallow = None
    assert len(rows_in(server)) == (10 if lose else 15)
    assert run("--output", "json", "deliver", "run", "p", "--until-end") == 0
    assert f'"steps": {int(lose)}' in capsys.readouterr().out
    assert rows_in(server) == table.served()


@needs_postgres
def test_sigterm_ends_a_deliverer_whose_database_does_not_answer(
    table: DeliveryHome, far: FaultProxy, server: str
) -> None:
    fill(table, "t1", range(1), keys=5)
    far.swallow, far.lose = commit_of_a_step(), False
    command = [sys.executable, "-m", "rivertwice.cli.main", "deliver", "run", "p"]
    with subprocess.Popen(command, env={**os.environ}, stderr=subprocess.PIPE, text=True) as process:
        with psycopg.connect(server, autocommit=True) as watcher:
            found = "SELECT to_regclass('totals') IS NOT NULL"
            wait_for("the commit", lambda: watcher.execute(found).fetchone() == (True,), 60)
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=40)
    assert process.returncode == 4, error
    assert "ends without its answer" in " ".join(error.split())
    far.swallow = None
    assert run("deliver", "run", "p", "--until-end") == 0
    assert rows_in(server) == table.served()


@needs_postgres
@pytest.mark.proves("failure-modes.md#delivery", "guarantees.md#postgresql-sink")
def test_a_deliverer_that_stands_still_inside_copy_holds_the_next_one_up_for_a_minute_at_most(
    table: DeliveryHome, far: FaultProxy, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(table, "t1", range(1), keys=5)
    assert run("deliver", "run", "p", "--until-end") == 0
    table.commit("t1", 1, 2, [(1, f"k{number}", number) for number in range(60_000)])
    elsewhere = tmp_path / "another host"
    shutil.copytree(table.settings.home, elsewhere)
    command = [sys.executable, "-m", "rivertwice.cli.main", "deliver", "run", "p", "--until-end"]
    ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'rivertwice%' AND query LIKE 'COPY%' AND state = 'active'"
    with (
        subprocess.Popen(command, env={**os.environ}, stderr=subprocess.PIPE, text=True) as process,
        psycopg.connect(server, autocommit=True) as watcher,
    ):
        wait_for("COPY", lambda: watcher.execute(ours).fetchone() == (1,), 60, every=0.002)
        process.send_signal(signal.SIGSTOP)
        try:
            assert watcher.execute(ours).fetchone() == (1,), "it was stopped behind COPY"
            monkeypatch.setattr(postgres_sink, "LOCK_S", 1)
            settings = replace(table.settings, home=elsewhere)
            other = Deliverer(settings, "p", "pg", table.definition.deliver["pg"])
            finish = threading.Event()
            finish.set()
            with pytest.raises(ServiceError, match="lock timeout"):
                other.run(threading.Event(), finish)

            monkeypatch.setattr(postgres_sink, "STILL_S", 2)

            def delivered() -> bool:
                try:
                    return (
                        Deliverer(settings, "p", "pg", table.definition.deliver["pg"])
                        .run(threading.Event(), finish)
                        .steps
                        == 1
                    )
                except ServiceError:
                    return False

            wait_for("the second deliverer's step", delivered, 20)
        finally:
            process.send_signal(signal.SIGCONT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 1, error
    assert rows_in(server) == table.served()
