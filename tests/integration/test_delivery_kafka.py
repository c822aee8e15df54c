"""Delivery to a real broker: every row once for readers of committed records, whoever is killed, and one deliverer at a time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from homes.delivery import DeliveryHome, fill, fold, read_topic
from rivertwice.core.errors import LeaseLostError, LedgerError
from rivertwice.core.plain import to_plain
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Deadline
from rivertwice.definition.delivery_section import KafkaDelivery
from rivertwice.deliver.deliver import Deliverer
from rivertwice.deliver.kafka_sink import KafkaSink
from rivertwice.deliver.model import DeliveryBatch, Position
from rivertwice.deliver.source import StoredSource
from rivertwice.deliver.status import view_refused
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import delete_topic, ensure_topic, producer, topic_exists
from rivertwice.log.outbox import POSITIONS
from running.waiting import wait_for

pytestmark = pytest.mark.kafka


@pytest.fixture
def world(tmp_path: Path, broker: BrokerInfo, topic: str) -> DeliveryHome:
    sink = f"{{{topic}: {{to: kafka, topic: {topic}, partitions: 2, guarantee: exactly_once}}}}"
    return DeliveryHome(tmp_path, sink, broker.bootstrap)


def deliver(world: DeliveryHome, topic: str, *, again: bool = False):
    finish = threading.Event()
    finish.set()
    asked = world.definition.deliver[topic]
    return Deliverer(world.settings, "p", topic, asked).run(threading.Event(), finish, again=again)


@pytest.mark.proves("guarantees.md#kafka-sink")
def test_a_consumer_that_folds_the_topic_holds_what_is_served(world: DeliveryHome, topic: str) -> None:
    fill(world, "t1", range(4), keys=3)
    world.commit("t1", 4, 4, [], copy=False)
    assert deliver(world, topic).records == 12
    assert deliver(world, topic).records == 0
    world.publish(1, 3, [(1, "k00000", 7), (1, "k00001", 100_001), (2, "new", 1)])
    assert deliver(world, topic).records == 6  # 1 corrected, 1 equal, 4 withdrawn, 1 new
    world.begin("t2", ("t1", 4))
    world.move_head("t2")
    fill(world, "t2", [5], keys=2)
    assert deliver(world, topic).records == 2
    world.begin("t3", ("t1", 1))
    fill(world, "t3", range(2, 6), keys=1)
    world.move_head("t3")
    deliver(world, topic)
    records = read_topic(world.settings, topic)
    assert fold(records) == world.served()
    emitted = Counter((one["_key"], *one["from"].values()) for one in records if one["op"] == "emit")
    assert set(emitted.values()) == {1}
    assert {one["op"] for one in records} == {"emit", "correct", "withdraw"}
    assert {len(one["at"]) for one in records} == {4}


@pytest.mark.proves("guarantees.md#kafka-sink")
@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.faults)])
def test_a_deliverer_killed_in_its_transactions_leaves_every_row_once(
    world: DeliveryHome, topic: str, tmp_path: Path, kills: int
) -> None:
    batches, keys = 40, 750
    fill(world, "t1", range(batches), keys)
    ensure_topic(world.settings, topic, 2)
    command = [sys.executable, "-m", "rivertwice.cli.main", "deliver", "run", "p", "--until-end"]
    environment = {**os.environ, **world.settings.to_env()}
    chance = random.Random(7)
    log = tmp_path / "deliver.log"

    def start() -> subprocess.Popen[bytes]:
        with log.open("ab") as out:
            return subprocess.Popen(command, env=environment, stdout=out, stderr=out)

    met = 0
    with watched_end(world.settings, topic) as end, watched_end(world.settings, topic, committed=True) as stable:
        for _ in range(5 * kills):  # each time after some records of the transaction under way, or between two of them
            if met == kills:
                break
            wanted = end() + chance.randint(1, 4_000)
            process = start()
            deadline = Deadline.after(120)
            while deadline.left() and process.poll() is None and end() < wanted:
                time.sleep(0.001)
            assert process.poll() is None, log.read_text()[-3000:]
            process.send_signal(signal.SIGKILL)
            process.wait(30)
            met += end() > stable()  # the killed one's records, which no transaction has committed
    assert met == kills, "too few kills met an open transaction"
    assert start().wait(120) == 0, log.read_text()[-3000:]
    records = read_topic(world.settings, topic)
    found = Counter((one["from"]["timeline"], one["from"]["batch"], one["_key"]) for one in records)
    assert len(found) == batches * keys
    assert set(found.values()) == {1}
    assert fold(records) == world.served()
    assert len(read_topic(world.settings, topic, committed=False)) > len(records), "no transaction was aborted"


@contextmanager
def watched_end(settings: Settings, topic: str, *, committed: bool = False) -> Iterator[Callable[[], int]]:
    """Count what the topic holds, with or without the records of open transactions."""
    level = "read_committed" if committed else "read_uncommitted"
    reader = Consumer({"bootstrap.servers": settings.bootstrap_servers(), "group.id": "w", "isolation.level": level})
    places = [TopicPartition(topic, partition) for partition in range(2)]
    try:
        yield lambda: sum(reader.get_watermark_offsets(place, timeout=10)[1] for place in places)
    finally:
        reader.close()


def parcel(source: StoredSource, shape, before: Position | None, number: int) -> DeliveryBatch:
    return DeliveryBatch(shape, "s", (), before, Position("t1", number, 1, "x", number))


@pytest.mark.proves("guarantees.md#kafka-sink")
def test_a_second_deliverer_fences_the_first(world: DeliveryHome, topic: str) -> None:
    fill(world, "t1", range(1), keys=1)
    source = StoredSource(world.home)
    view = source.look(None)
    shape, schema = source.shape(view), source.schema()
    delivery = world.definition.deliver[topic]
    assert isinstance(delivery, KafkaDelivery)
    first, second = (KafkaSink(world.settings, "p", topic, delivery) for _ in range(2))
    assert first.open(shape, schema) is None
    first.deliver(parcel(source, shape, None, 1))
    position = second.open(shape, schema)
    assert position == Position("t1", 1, 1, "x", 1)
    with pytest.raises(LeaseLostError, match="fenced"):
        first.deliver(parcel(source, shape, position, 2))
    second.deliver(parcel(source, shape, position, 3))
    assert first.open(shape, schema) == Position("t1", 3, 1, "x", 3)
    first.close()
    second.close()


@pytest.mark.proves("guarantees.md#kafka-sink")
def test_an_open_transaction_of_another_sink_does_not_hide_a_position(world: DeliveryHome, topic: str) -> None:
    fill(world, "t1", [0], keys=2)
    stop = threading.Event()
    first = Deliverer(world.settings, "p", topic, world.definition.deliver[topic])
    thread = threading.Thread(target=first.run, args=(stop, threading.Event()))
    thread.start()
    wait_for(
        "the first step",
        lambda: topic_exists(world.settings, topic) and len(read_topic(world.settings, topic)) == 2,
        60,
    )
    other = producer(world.settings, transactional_id=f"other-{topic}")
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(POSITIONS, key=b"other", value=b"?")
    assert other.flush(30) == 0
    fill(world, "t1", [1], keys=2)
    wait_for("the second step", lambda: len(read_topic(world.settings, topic)) == 4, 60)
    stop.set()
    thread.join(30)
    ending = threading.Timer(3.0, other.abort_transaction)
    ending.start()
    assert deliver(world, topic).records == 0
    ending.join()
    assert len(read_topic(world.settings, topic)) == 4


@pytest.mark.proves("guarantees.md#kafka-sink")
@pytest.mark.parametrize("small", [False, True], ids=["default limit", "topic of 3,000 bytes"])
def test_a_record_too_large_for_the_topic_is_set_aside(world: DeliveryHome, topic: str, small: bool) -> None:
    if small:
        ensure_topic(world.settings, topic, 2, {"max.message.bytes": "3000"})
    draw = random.Random(1)
    size = 3_500 if small else 1_100_000
    large = "".join(chr(draw.randrange(33, 127)) for _ in range(size))
    world.commit("t1", 0, 1, [(0, "a", 1), (0, large, 2), *((0, f"k{number:05d}", number) for number in range(200))])
    delivered = deliver(world, topic)
    assert (delivered.records, delivered.refused) == (201, 1)
    fill(world, "t1", [1], keys=2)
    assert deliver(world, topic).records == 2
    found = fold(read_topic(world.settings, topic))
    assert found == {at: n for at, n in world.served().items() if at[1] != large}
    (one,) = to_plain(view_refused(world.home, topic))
    assert "max.message.bytes" in one["reason"]


@pytest.mark.proves("failure-modes.md#delivery", "guarantees.md#kafka-sink")
def test_a_second_deliverer_of_the_same_home_is_turned_away_at_once(world: DeliveryHome, topic: str) -> None:
    from rivertwice.deliver.note import only_deliverer

    with only_deliverer(world.home, topic), pytest.raises(LeaseLostError, match=r"delivered by .* of this home"):
        deliver(world, topic)


@pytest.mark.proves("guarantees.md#kafka-sink")
def test_a_topic_that_was_deleted_is_not_filled_from_the_middle(world: DeliveryHome, topic: str) -> None:
    fill(world, "t1", range(2), keys=2)
    deliver(world, topic)
    delete_topic(world.settings, topic)
    fill(world, "t1", [2], keys=2)
    with pytest.raises(LedgerError, match="--again"):
        deliver(world, topic)
    assert deliver(world, topic, again=True).records == 6
    assert fold(read_topic(world.settings, topic)) == world.served()


@pytest.mark.proves("guarantees.md#kafka-sink")
def test_without_transactions_records_and_position_still_follow_each_other(
    tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    sink = f"{{{topic}: {{to: kafka, topic: {topic}, transactions: false, guarantee: at_least_once}}}}"
    world = DeliveryHome(tmp_path, sink, broker.bootstrap)
    fill(world, "t1", range(3), keys=2)
    assert deliver(world, topic).records == 6
    fill(world, "t1", [3], keys=2)
    assert deliver(world, topic).records == 2
    assert fold(read_topic(world.settings, topic)) == world.served()
