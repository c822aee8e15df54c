"""The flight replayer and the embedded broker, for real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from typing import cast

import pytest
from confluent_kafka import TopicPartition

from lab.flights.plan import STORM, LogRecord
from lab.flights.replay import ReplayRequest, plan_replay, replay
from rivertwice.core.errors import ConfigError, RequestError
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Deadline
from rivertwice.local.broker import broker_status, start_broker, stop_broker
from rivertwice.log import kafka
from running.waiting import wait_for

pytestmark = pytest.mark.kafka


def read_all(settings: Settings, topic: str) -> dict[int, list[LogRecord]]:
    """Consume the whole topic, by partition, in order."""
    ends = kafka.end_offsets(settings, topic)
    reader = kafka.consumer(settings)
    reader.assign([TopicPartition(topic, partition, 0) for partition in ends])
    found: dict[int, list[LogRecord]] = {partition: [] for partition in ends}
    deadline = Deadline.after(60)
    while any(len(found[partition]) < end for partition, end in ends.items()):
        assert deadline.left(), {partition: len(rows) for partition, rows in found.items()}
        for message in reader.consume(1000, 1.0):
            assert message.error() is None
            headers = cast("tuple[tuple[str, bytes], ...]", tuple(message.headers() or ()))
            record = LogRecord(message.partition(), message.timestamp()[1], message.key(), message.value(), headers)
            assert message.offset() == len(found[message.partition()])
            found[message.partition()].append(record)
    reader.close()
    return found


def by_partition(records: tuple[LogRecord, ...]) -> dict[int, list[LogRecord]]:
    return {p: [record for record in records if record.partition == p] for p in range(4)}


def test_the_topic_holds_exactly_the_plan_in_order(kafka_settings: Settings, topic: str) -> None:
    request = ReplayRequest(topic=topic, days=STORM, poison_share=0.01)
    report = replay(kafka_settings, request)
    assert (report.planned, report.present, report.sent, report.poison) == (1_903, 0, 1_903, 19)
    assert read_all(kafka_settings, topic) == by_partition(plan_replay(kafka_settings, request).records)


def test_a_second_replay_sends_nothing(kafka_settings: Settings, topic: str) -> None:
    request = ReplayRequest(topic=topic, days=STORM)
    replay(kafka_settings, request)
    again = replay(kafka_settings, request)
    assert (again.present, again.sent, sum(again.ends.values())) == (1_884, 0, 1_884)


def test_a_replay_that_was_limited_goes_on_after_its_last_record(kafka_settings: Settings, topic: str) -> None:
    request = ReplayRequest(topic=topic, days=STORM)
    replay(kafka_settings, replace(request, limit=700))
    report = replay(kafka_settings, request)
    assert (report.present, report.sent) == (700, 1_184)
    assert read_all(kafka_settings, topic) == by_partition(plan_replay(kafka_settings, request).records)


def test_a_paced_replay_that_was_stopped_goes_on_without_a_hole(kafka_settings: Settings, topic: str) -> None:
    request = ReplayRequest(topic=topic, days=STORM)
    stop = threading.Event()
    kafka.ensure_topic(kafka_settings, topic, 4)

    def stop_after_fifty() -> None:
        enough = Deadline.after(60).wait_until(
            lambda: sum(kafka.end_offsets(kafka_settings, topic).values()) >= 50, every=0.05
        )
        stop.set()  # in any case: the replay must end
        assert enough

    watcher = threading.Thread(target=stop_after_fifty)
    watcher.start()
    first = replay(kafka_settings, replace(request, speed=3_600.0), stop=stop)
    watcher.join()
    assert 0 < first.sent < 1_884
    second = replay(kafka_settings, request)
    assert first.sent + second.sent == 1_884
    assert read_all(kafka_settings, topic) == by_partition(plan_replay(kafka_settings, request).records)


def test_a_replay_killed_in_the_middle_goes_on_without_a_hole(kafka_settings: Settings, topic: str) -> None:
    request = ReplayRequest(topic=topic, days=STORM)
    kafka.ensure_topic(kafka_settings, topic, 4)
    script = (
        "from rivertwice.core.settings import Settings; from lab.flights.plan import STORM;"
        "from lab.flights.replay import ReplayRequest, replay;"
        f"replay(Settings.from_env(), ReplayRequest(topic={topic!r}, days=STORM, speed=7200.0))"
    )
    process = subprocess.Popen([sys.executable, "-c", script], env=os.environ | kafka_settings.to_env())
    wait_for(
        "a hundred records",
        lambda: sum(kafka.end_offsets(kafka_settings, topic).values()) >= 100,
        60,
        seen=process.poll,
    )
    process.send_signal(signal.SIGKILL)
    process.wait()
    report = replay(kafka_settings, request)
    assert 100 <= report.present < 1_884
    assert read_all(kafka_settings, topic) == by_partition(plan_replay(kafka_settings, request).records)


def test_a_topic_filled_by_another_replay_is_refused(kafka_settings: Settings, topic: str) -> None:
    replay(kafka_settings, ReplayRequest(topic=topic, days=STORM, limit=50))
    with pytest.raises(RequestError, match="filled by another replay"):
        replay(kafka_settings, ReplayRequest(topic=topic, days=(STORM[1], STORM[1])))


def test_a_topic_with_other_partitions_is_refused(kafka_settings: Settings, topic: str) -> None:
    kafka.ensure_topic(kafka_settings, topic, 2)
    with pytest.raises(ConfigError, match="has 2 partitions, not 4"):
        kafka.ensure_topic(kafka_settings, topic, 4)


def test_records_of_2013_are_still_there_and_their_header_too(kafka_settings: Settings, topic: str) -> None:
    replay(kafka_settings, ReplayRequest(topic=topic, days=STORM, limit=40))
    assert sum(kafka.begin_offsets(kafka_settings, topic).values()) == 0
    records = [record for part in read_all(kafka_settings, topic).values() for record in part]
    assert Counter(record.headers for record in records) == {(("schema-id", b"flights-1"),): 40}


def test_the_broker_outlives_its_starter_and_keeps_its_records(settings: Settings) -> None:
    script = "from rivertwice.core.settings import Settings; from rivertwice.local.broker import start_broker; start_broker(Settings.from_env())"
    subprocess.run([sys.executable, "-c", script], env=os.environ | settings.to_env(), check=True)
    try:
        info = broker_status(settings)
        assert info is not None
        assert info.pid is not None
        assert start_broker(settings) == info
        kafka.ensure_topic(settings, "kept", 1)
        producer = kafka.producer(settings)
        producer.produce("kept", b"value")
        assert producer.flush(30) == 0
        os.kill(info.pid, signal.SIGKILL)
        again = start_broker(settings)
        assert (again.bootstrap, again.cluster_id) == (info.bootstrap, info.cluster_id)
        assert again.pid != info.pid
        assert kafka.end_offsets(settings, "kept") == {0: 1}
    finally:
        assert stop_broker(settings)
    assert broker_status(settings) is None
    assert not stop_broker(settings)
