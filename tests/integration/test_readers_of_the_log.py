"""Readers beside the stream, without Spark: keys and order, groups that share partitions, takeover, readers of any speed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest
from confluent_kafka import Consumer, TopicPartition

from lab.faults.events import Event, produce_events
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Deadline
from rivertwice.log import kafka
from rivertwice.log.addresses import Part
from rivertwice.log.kafka import ensure_topic
from rivertwice.log.reader import read_exactly, read_pieces

pytestmark = pytest.mark.kafka
AT_MS = 1_767_225_600_000
PATIENCE_S = 60


def event(partition: int, key: str, value: str) -> Event:
    return Event(partition, key.encode(), value.encode(), AT_MS)


@contextmanager
def member(settings: Settings, group: str, topic: str) -> Iterator[Consumer]:
    """A reader of a group, which commits only when told to."""
    extra = {
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 6000,
        "partition.assignment.strategy": "range",
    }
    reader = kafka.consumer(settings, extra=extra)
    reader.subscribe([topic])
    try:
        yield reader
    finally:
        reader.close()


def settle(readers: list[Consumer], wanted: Callable[[list[int]], bool]) -> list[list[int]]:
    """Poll all readers until their numbers of partitions are as wanted; return each one's partitions."""
    deadline = Deadline.after(PATIENCE_S)
    while deadline.left():
        for reader in readers:
            reader.poll(0.05)
        parts = [sorted(one.partition for one in reader.assignment()) for reader in readers]
        if wanted([len(one) for one in parts]):
            return parts
    pytest.fail(f"the group did not settle: {[reader.assignment() for reader in readers]}")


def take(reader: Consumer, count: int) -> list[str]:
    """Return the next values."""
    found: list[str] = []
    deadline = Deadline.after(PATIENCE_S)
    while len(found) < count and deadline.left():
        message = reader.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message.value().decode())
    assert len(found) == count
    return found


def test_a_key_keeps_its_partition_and_order_and_topics_have_no_order(kafka_settings: Settings, topic: str) -> None:
    ensure_topic(kafka_settings, topic, 3)
    assert 12345 % 3 == 0  # the pinned rule: id modulo partitions
    place = {"u7": 7 % 3, "u8": 8 % 3}
    assert place == {"u7": 1, "u8": 2}
    produce_events(
        kafka_settings,
        topic,
        [event(place[key], key, value) for key, value in (("u7", "e1"), ("u8", "e2"), ("u7", "e3"))],
    )
    found = [
        (m.partition(), m.offset(), m.value()) for m in read_exactly(kafka_settings, topic, {1: (0, 2), 2: (0, 1)})
    ]
    assert sorted(found) == [(1, 0, b"e1"), (1, 1, b"e3"), (2, 0, b"e2")]


@pytest.mark.parametrize(
    ("partitions", "readers", "shares"), [(6, 3, [2, 2, 2]), (3, 2, [1, 2]), (3, 10, [0] * 7 + [1] * 3)]
)
def test_a_group_shares_the_partitions_and_what_is_left_over_stays_idle(
    kafka_settings: Settings, topic: str, partitions: int, readers: int, shares: list[int]
) -> None:
    ensure_topic(kafka_settings, topic, partitions)
    with ExitStack() as stack:
        members = [stack.enter_context(member(kafka_settings, f"{topic}-group", topic)) for _ in range(readers)]
        parts = settle(members, lambda counts: sorted(counts) == shares)
    assert sorted(one for part in parts for one in part) == list(range(partitions))


READER = """
import sys, time
from confluent_kafka import Consumer, TopicPartition
servers, group, topic = sys.argv[1:]
reader = Consumer({
    "bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest",
    "session.timeout.ms": 6000, "partition.assignment.strategy": "range",
})
reader.subscribe([topic])
read = 0
while read < 7:
    message = reader.poll(0.2)
    read += message is not None and message.error() is None
reader.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
print("committed 5 of 7", flush=True)
time.sleep(600)
"""


def test_a_reader_that_is_killed_is_taken_over_at_its_last_commit(kafka_settings: Settings, topic: str) -> None:
    ensure_topic(kafka_settings, topic, 1)
    produce_events(kafka_settings, topic, [event(0, "k", f"e{number}") for number in range(10)])
    group = f"{topic}-group"
    command = [sys.executable, "-c", READER, kafka_settings.bootstrap_servers(), group, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        try:
            assert first.stdout is not None
            assert first.stdout.readline() == "committed 5 of 7\n"
        finally:
            first.kill()
    with member(kafka_settings, group, topic) as second:
        assert take(second, 5) == [f"e{number}" for number in range(5, 10)]


def test_readers_of_any_speed_do_not_hinder_each_other(kafka_settings: Settings, topic: str) -> None:
    ensure_topic(kafka_settings, topic, 1)
    values = [f"e{number}" for number in range(200)]
    produce_events(kafka_settings, topic, [event(0, "k", value) for value in values])
    with (
        member(kafka_settings, f"{topic}-fast", topic) as fast,
        member(kafka_settings, f"{topic}-slow", topic) as slow,
        member(kafka_settings, f"{topic}-late", topic) as late,
    ):
        assert take(slow, 1) == values[:1]
        assert take(fast, 200) == values
        assert take(slow, 1) == values[1:2]
        assert take(late, 20) == values[:20]
        view = dict.fromkeys(take(late, 180))
        late.seek(TopicPartition(topic, 0, 0))  # a view is made again from the first record
        assert [*dict.fromkeys([*values[:20], *view])] == take(late, 200)


def test_pieces_of_the_log_are_read_without_a_pause_between_them(
    kafka_settings: Settings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client whose queue is full puts its next fetch off by a second, unless told otherwise; polls come back empty meanwhile."""
    ensure_topic(kafka_settings, topic, 2)
    produce_events(kafka_settings, topic, [event(number % 2, "k", f"e{number}") for number in range(2000)])
    empty = []

    class Counting:
        def __init__(self, reader: Consumer) -> None:
            self.assign, self.close, self._consume = reader.assign, reader.close, reader.consume

        def consume(self, count: int, seconds: float) -> Sequence[object]:
            messages: Sequence[object] = self._consume(count, seconds)
            if not messages:
                empty.append(seconds)
            return messages

    real = kafka.consumer
    monkeypatch.setattr(kafka, "consumer", lambda *args, **options: Counting(real(*args, **options)))
    pieces = {Part(topic, part): [(start, start + 2) for start in range(0, 1000, 50)] for part in (0, 1)}
    values = [message.value().decode() for _, message in read_pieces(kafka_settings, pieces)]
    assert sorted(values) == sorted(
        f"e{2 * offset + part}" for part in (0, 1) for start in range(0, 1000, 50) for offset in (start, start + 1)
    )
    assert len(empty) <= len(pieces[Part(topic, 0)])


def test_a_stream_can_read_no_further_than_an_open_transaction(kafka_settings: Settings, topic: str) -> None:
    ensure_topic(kafka_settings, topic, 2)
    produce_events(kafka_settings, topic, [event(p, "k", str(n)) for n in range(3) for p in range(2)])
    producer = kafka.producer(kafka_settings, transactional_id=topic)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(30) == 0
    ask = kafka.stable_ends_asker(kafka_settings, [topic])
    assert kafka.end_offsets(kafka_settings, topic) == {0: 4, 1: 3}
    assert ask() == {topic: {0: 3, 1: 3}}
    producer.commit_transaction(30)
    deadline = Deadline.after(PATIENCE_S)
    while ask()[topic][0] != 5:  # the marker has an offset, too
        assert deadline.left()
