"""Readers beside the stream, without Spark: keys and order, groups that share partitions, takeover, readers of any speed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from confluent_kafka import Consumer

from lab import readers
from lab.faults.events import Event, produce_events
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Deadline
from rivertwice.log import kafka
from rivertwice.log.addresses import Part
from rivertwice.log.kafka import ensure_topic
from rivertwice.log.reader import read_pieces

pytestmark = pytest.mark.kafka
AT_MS = 1_767_225_600_000
PATIENCE_S = 60


def event(partition: int, key: str, value: str) -> Event:
    return Event(partition, key.encode(), value.encode(), AT_MS)


def test_a_key_keeps_its_partition_and_order_and_topics_have_no_order(kafka_settings: Settings, topic: str) -> None:
    found = readers.keys(kafka_settings, topic)
    assert found == {"12345": "P0", "P1": ["o0 e1", "o1 e3"], "P2": ["o0 e2"], "readers": [[0, 1], [2]]}


@pytest.mark.parametrize(
    ("partitions", "count", "shares"),
    [(6, 3, [[0, 1], [2, 3], [4, 5]]), (3, 2, [[0, 1], [2]]), (3, 10, [[0], [1], [2], *[[]] * 7])],
)
def test_a_group_shares_the_partitions_and_what_is_left_over_stays_idle(
    kafka_settings: Settings, topic: str, partitions: int, count: int, shares: list[list[int]]
) -> None:
    assert readers.shares(kafka_settings, topic, partitions, count) == shares


def test_a_reader_that_is_killed_is_taken_over_at_its_last_commit(kafka_settings: Settings, topic: str) -> None:
    assert readers.takeover(kafka_settings, topic) == [f"e{number}" for number in range(5, 10)]


def test_readers_of_any_speed_do_not_hinder_each_other(kafka_settings: Settings, topic: str) -> None:
    assert readers.speeds(kafka_settings, topic) == {"slow": 2, "fast": 200, "late": 50, "again": 200}


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
