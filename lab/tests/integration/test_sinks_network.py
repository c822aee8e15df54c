"""Sinks behind a network that delays, swallows and breaks: what the sink holds is what is served, each row once."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from homes.delivery import DeliveryHome, fill, fold, read_topic
from lab.faults.proxy import CLEAR, END_TXN, PRODUCE, FaultProxy, LateRequest, Weather
from rivertwice.cli import cli
from rivertwice.config import Settings
from rivertwice.embedded.broker import start_broker, stop_broker
from rivertwice.log import kafka, outbox

pytestmark = pytest.mark.kafka
KAFKA = "{out: {to: kafka, topic: out, partitions: 2, guarantee: exactly_once}}"


@pytest.fixture
def proxy(settings: Settings) -> Iterator[FaultProxy]:
    """A proxy before a broker of the test's own, which all clients reach through it."""
    with FaultProxy() as found:
        own = replace(settings, bootstrap=None)
        broker = start_broker(own, advertised_port=found.port)
        try:
            found.target_port = int(broker.bootstrap.rpartition(":")[2])
            yield found
        finally:
            stop_broker(own)


def deliver(world: DeliveryHome, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rivertwice.cli", "deliver", "run", "p", "--until-end", *more]
    environment = {**os.environ, **world.settings.to_env()}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.proves("howto-delivery.md#what-is-promised", "howto-delivery.md#kafka")
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


@pytest.mark.proves("howto-delivery.md#large-steps")
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
