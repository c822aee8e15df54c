"""The archive and the seam, on a real Kafka and a real Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from rivertwice.core.errors import LogGapError
from rivertwice.core.settings import Settings
from rivertwice.log import kafka
from rivertwice.log.archive import archived_ends, archived_starts, extend_archive
from rivertwice.log.records import KAFKA_COLUMNS, read_ranges
from rivertwice.storage.table import Table
from rivertwice.storage.table_files import TableFiles
from running.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

START_MS = 1_372_550_400_000  # 2013-06-30T00:00:00Z


def fill(settings: Settings, topic: str, count: int, *, partitions: int = 2, first: int = 0) -> None:
    """Produce records 0..count-1 round robin, an hour apart, with a header; every seventh is a tombstone."""
    producer = kafka.producer(settings)
    for number in range(first, first + count):
        producer.produce(
            topic,
            key=b"k%d" % number,
            value=None if number % 7 == 0 else b"v%d" % number,
            partition=number % partitions,
            timestamp=START_MS + number * 3_600_000,
            headers=[("schema-id", b"t-1"), ("n", str(number).encode())],
        )
    assert producer.flush(30) == 0


def contents(frame: DataFrame) -> list[tuple[object, ...]]:
    rows = frame.select(*KAFKA_COLUMNS).toArrow().to_pylist()
    plain = [tuple(str(row[name]) if name == "headers" else row[name] for name in KAFKA_COLUMNS) for row in rows]
    return sorted(plain, key=lambda row: (row[3], row[4]))


@pytest.fixture(params=[False, True], ids=["by spark's reader", "by executors"])
def by_executors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the archive's files are read as on a cluster: by our own client, where the executors are."""
    monkeypatch.setattr(TableFiles, "are_read_by_executors", lambda *_: request.param)
    return bool(request.param)


def addresses(settings: Settings, topic: str) -> list[tuple[int, int]]:
    table = Table(settings.archive(topic)).read(columns=["partition", "offset"])
    assert table is not None
    return sorted((row["partition"], row["offset"]) for row in table.to_pylist())


def test_running_twice_adds_nothing_twice(
    spark: SparkSession, kafka_settings: Settings, make_topic: Callable[[int], str]
) -> None:
    topic = make_topic(2)
    fill(kafka_settings, topic, 50)
    first = extend_archive(spark, kafka_settings, topic, chunk_records=20)
    again = extend_archive(spark, kafka_settings, topic, chunk_records=20)
    assert (first.records, first.commits, again.records, again.commits) == (50, 3, 0, 0)
    assert addresses(kafka_settings, topic) == [(p, offset) for p in range(2) for offset in range(25)]

    fill(kafka_settings, topic, 10, first=50)
    more = extend_archive(spark, kafka_settings, topic)
    assert more.added == {0: (25, 30), 1: (25, 30)}
    topic_id = kafka.topic_id(kafka_settings, topic)
    assert archived_ends(kafka_settings, topic, topic_id) == {0: 30, 1: 30}
    assert archived_starts(kafka_settings, topic, topic_id) == {0: 0, 1: 0}


@pytest.mark.proves("guarantees.md#archive")
@pytest.mark.usefixtures("by_executors")
@pytest.mark.parametrize("plainly", [False, True], ids=["by spark", "without spark"])
def test_the_archive_gives_byte_for_byte_what_kafka_gave(
    spark: SparkSession, kafka_settings: Settings, make_topic: Callable[[int], str], plainly: bool
) -> None:
    topic = make_topic(2)
    fill(kafka_settings, topic, 60)
    before = contents(read_ranges(spark, kafka_settings, topic, {0: (0, 30), 1: (0, 30)}))
    extend_archive(None if plainly else spark, kafka_settings, topic)
    kafka.delete_records(kafka_settings, topic, {0: 30, 1: 30})
    after = contents(read_ranges(spark, kafka_settings, topic, {0: (0, 30), 1: (0, 30)}))
    assert len(before) == 60
    assert after == before


@pytest.mark.proves("guarantees.md#archive")
@pytest.mark.usefixtures("by_executors")
def test_the_seam_between_archive_and_kafka_is_read_once(
    spark: SparkSession, kafka_settings: Settings, make_topic: Callable[[int], str]
) -> None:
    #  offsets  0........20........40
    #  archive  |=========|
    #  Kafka         |=============|      (deleted below 10)
    topic = make_topic(1)
    fill(kafka_settings, topic, 40, partitions=1)
    whole = contents(read_ranges(spark, kafka_settings, topic, {0: (0, 40)}))
    extend_archive(spark, kafka_settings, topic, upto={0: 20})
    kafka.delete_records(kafka_settings, topic, {0: 10})
    assert contents(read_ranges(spark, kafka_settings, topic, {0: (0, 40)})) == whole
    assert contents(read_ranges(spark, kafka_settings, topic, {0: (15, 25)})) == whole[15:25]


@pytest.mark.proves("guarantees.md#archive")
def test_a_gap_is_an_error_that_names_partition_and_offsets(
    spark: SparkSession, kafka_settings: Settings, make_topic: Callable[[int], str]
) -> None:
    topic = make_topic(2)
    fill(kafka_settings, topic, 40)
    extend_archive(spark, kafka_settings, topic, upto={0: 5, 1: 5})
    kafka.delete_records(kafka_settings, topic, {0: 8, 1: 5})
    with pytest.raises(LogGapError, match=r"partition 0 \[5, 8\) is in neither"):
        read_ranges(spark, kafka_settings, topic, {0: (0, 20), 1: (0, 20)})
    with pytest.raises(LogGapError, match=r"partition 0 \[5, 8\).*cannot be filled"):
        extend_archive(spark, kafka_settings, topic)
    assert len(contents(read_ranges(spark, kafka_settings, topic, {1: (0, 20)}))) == 20


@pytest.mark.proves("guarantees.md#what-everything-needs")
def test_a_topic_created_anew_does_not_mix_with_the_old_one(
    spark: SparkSession, kafka_settings: Settings, make_topic: Callable[[int], str]
) -> None:
    topic = make_topic(1)
    fill(kafka_settings, topic, 10, partitions=1)
    extend_archive(spark, kafka_settings, topic)
    old = kafka.topic_id(kafka_settings, topic)
    kafka.delete_topic(kafka_settings, topic)
    wait_for("the deletion of the topic", lambda: not kafka.topic_exists(kafka_settings, topic), 30)
    make_topic(1)
    fill(kafka_settings, topic, 3, partitions=1, first=100)
    extend_archive(spark, kafka_settings, topic)
    assert [row[0] for row in contents(read_ranges(spark, kafka_settings, topic, {0: (0, 3)}))] == [
        b"k100",
        b"k101",
        b"k102",
    ]
    assert len(contents(read_ranges(spark, kafka_settings, topic, {0: (0, 10)}, topic_id=old))) == 10
    with pytest.raises(LogGapError, match=r"partition 0 \[3, 10\)"):
        read_ranges(spark, kafka_settings, topic, {0: (0, 10)})


@pytest.mark.proves("howto-log.md#what-it-promises", "guarantees.md#archive")
def test_a_crash_before_the_commit_leaves_nothing_and_after_it_everything(
    spark: SparkSession, kafka_settings: Settings, make_topic: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(2)
    fill(kafka_settings, topic, 60)
    real, calls = Table.append, []

    def crash_around_the_second(*args: object, **kwargs: object) -> int:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Table, "append", crash_around_the_second)
    with pytest.raises(KeyboardInterrupt):
        extend_archive(spark, kafka_settings, topic, chunk_records=20)
    assert len(addresses(kafka_settings, topic)) == 20
    report = extend_archive(spark, kafka_settings, topic, chunk_records=20)
    assert report.records == 40
    assert addresses(kafka_settings, topic) == [(p, offset) for p in range(2) for offset in range(30)]


@pytest.mark.proves("howto-log.md#what-it-promises", "guarantees.md#archive")
@pytest.mark.faults
def test_an_archive_job_killed_again_and_again_ends_with_every_record_once(
    spark: SparkSession, kafka_settings: Settings, make_topic: Callable[[int], str], project: Path
) -> None:
    topic = make_topic(2)
    fill(kafka_settings, topic, 4_000)
    script = (
        "import sys; from rivertwice.core.settings import Settings; from rivertwice.log.archive import extend_archive;"
        "from rivertwice.engine.session import spark_session; s = Settings.from_env();"
        f"extend_archive(spark_session(s, 'kill'), s, {topic!r}, chunk_records=100,"
        " progress=lambda line: print(line, flush=True))"
    )
    for kill_after in (1, 4, 9):
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            env=os.environ | kafka_settings.to_env(),
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=project,
        )
        assert process.stdout is not None
        for _ in range(kill_after):
            assert process.stdout.readline()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert len(addresses(kafka_settings, topic)) >= 100 * kill_after
    extend_archive(spark, kafka_settings, topic)
    assert addresses(kafka_settings, topic) == [(p, offset) for p in range(2) for offset in range(2_000)]


@pytest.mark.proves("guarantees.md#archive")
@pytest.mark.usefixtures("by_executors")
def test_an_archive_that_lost_a_file_is_an_error_and_not_a_smaller_result(
    spark: SparkSession, kafka_settings: Settings, make_topic: Callable[[int], str]
) -> None:
    topic = make_topic(1)
    fill(kafka_settings, topic, 30, partitions=1)
    extend_archive(spark, kafka_settings, topic)
    table = Table(kafka_settings.archive(topic)).open()
    assert table is not None
    table.handle.delete("day = '2013-06-30'")
    with pytest.raises(LogGapError, match="once, but has 6 records in partition 0"):
        read_ranges(spark, kafka_settings, topic, {0: (0, 30)})
