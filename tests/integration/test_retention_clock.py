"""The race clock and the archive ahead of it, on a real broker; no Spark is needed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from rivertwice.agent.archiver import RetentionKeeper
from rivertwice.core.errors import LogGapError
from rivertwice.core.instants import utc_now
from rivertwice.core.plain import to_plain
from rivertwice.core.settings import Settings
from rivertwice.log import kafka
from rivertwice.log.archive import extend_archive
from rivertwice.log.archive_table import ABSENT, archived_ranges, archived_segments
from rivertwice.log.leases import RaceLevel
from rivertwice.log.reader import absent_runs, find_holes
from rivertwice.log.records import observe_read
from rivertwice.retention.summary import RetentionBrief
from rivertwice.retention.view import view_retention
from rivertwice.storage.table import Table
from rivertwice.timeline.lineage import Timeline, create_timeline
from rivertwice.timeline.sequence import move_head
from running.waiting import wait_for

pytestmark = pytest.mark.kafka
NAME = "p"


def fill(settings: Settings, topic: str, count: int, at: datetime) -> None:
    producer = kafka.producer(settings)
    for number in range(count):
        producer.produce(
            topic,
            key=b"k",
            value=None if number % 5 == 0 else b"v%d" % number,
            partition=number % 2,
            timestamp=int(at.timestamp() * 1000) + number,
            headers=[("schema-id", b"x")] if number % 3 else None,
        )
    assert producer.flush(30) == 0


def begin(settings: Settings, topic: str) -> None:
    """Record a timeline that has read nothing yet."""
    home = settings.pipeline(NAME)
    genesis = {topic: {str(p): 0 for p in kafka.end_offsets(settings, topic)}}
    ids = {topic: kafka.topic_id(settings, topic)}
    create_timeline(home, Timeline(NAME, "t1", None, 0, genesis, "b", {}, "c", ids, utc_now()))
    move_head(home, "t1", reason="first start", expected_seq=0, now=utc_now())


@pytest.fixture
def finite(kafka_settings: Settings, topic: str) -> str:
    """A topic that is kept for ten hours, with twenty records that are eight hours old, and a stream at its begin."""
    kafka.ensure_topic(kafka_settings, topic, 2, {"retention.ms": str(36_000_000)})
    fill(kafka_settings, topic, 20, utc_now() - timedelta(hours=8))
    begin(kafka_settings, topic)
    return topic


def test_the_clock_runs_from_the_records_own_timestamp(kafka_settings: Settings, finite: str) -> None:
    now = utc_now()
    view = view_retention(kafka_settings, NAME, now)
    assert (view.leases[0].holder, view.leases[0].level, view.topics[0].waiting) == ("stream t1", RaceLevel.WARNING, 20)
    assert view.leases[0].clock.deadline is not None
    assert abs((view.leases[0].clock.deadline - now) - timedelta(hours=2)) < timedelta(minutes=5)
    later = view_retention(kafka_settings, NAME, now + timedelta(hours=1, minutes=30))
    assert later.leases[0].level is RaceLevel.CRITICAL


@pytest.mark.proves("howto-log.md#the-archive-goes-ahead")
def test_a_topic_kept_for_ever_has_no_clock_and_is_not_archived(
    kafka_settings: Settings, make_topic: Callable[[int], str]
) -> None:
    topic = make_topic(2)
    fill(kafka_settings, topic, 20, utc_now() - timedelta(days=4000))
    begin(kafka_settings, topic)
    keeper = RetentionKeeper(kafka_settings, lambda: [NAME], threading.Event())
    view = keeper.look(NAME, utc_now())
    assert view is not None
    assert [lease.level for lease in view.leases] == [RaceLevel.OK, RaceLevel.OK]
    assert keeper.look(NAME, utc_now()) is None
    assert not (kafka_settings.home / "agent" / "events.jsonl").exists()


@pytest.mark.proves("guarantees.md#archive")
def test_the_agent_archives_once_and_then_only_the_stream_is_at_risk(kafka_settings: Settings, finite: str) -> None:
    keeper = RetentionKeeper(kafka_settings, lambda: [NAME], threading.Event())
    keeper.look(NAME, utc_now())
    topic_id = kafka.topic_id(kafka_settings, finite)
    kinds: list[str] = []

    def archived() -> bool:
        keeper.look(NAME, utc_now())
        lines = (kafka_settings.home / "agent" / "events.jsonl").read_text().splitlines()
        kinds[:] = [json.loads(line)["kind"] for line in lines]
        return "archived" in kinds

    wait_for("the agent's archive", archived, 90, every=0.2, seen=lambda: kinds)
    assert kinds == ["archive", "archived"], (kafka_settings.home / "agent" / "archive.log").read_text()
    assert archived_ranges(kafka_settings, finite, topic_id) == {0: (0, 10), 1: (0, 10)}
    told = to_plain(RetentionBrief.read(kafka_settings, NAME, utc_now()))
    assert told is not None
    assert told["unarchived"]["records"] == 0
    assert "stream t1" in told["summary"]  # only Kafka serves the stream, whatever the archive has


def test_the_archive_without_spark_holds_every_record_as_kafka_has_it(kafka_settings: Settings, finite: str) -> None:
    report = extend_archive(None, kafka_settings, finite, chunk_records=7)
    assert (report.records, report.commits) == (20, 3)
    rows = Table(kafka_settings.archive(finite)).read()
    assert rows is not None
    plain = sorted(rows.to_pylist(), key=lambda row: row["offset"] * 2 + row["partition"])
    assert [row["value"] for row in plain] == [None if n % 5 == 0 else b"v%d" % n for n in range(20)]
    assert [row["headers"] for row in plain[:2]] == [None, [{"key": "schema-id", "value": b"x"}]]
    assert {row["timestamp_type"] for row in plain} == {0}
    assert extend_archive(None, kafka_settings, finite).records == 0


def test_the_archive_follows_a_topic_that_gets_a_partition(kafka_settings: Settings, finite: str) -> None:
    extend_archive(None, kafka_settings, finite)
    kafka.add_partitions(kafka_settings, finite, 3)
    producer = kafka.producer(kafka_settings)
    producer.produce(finite, value=b"new", partition=2)
    assert producer.flush(30) == 0
    assert extend_archive(None, kafka_settings, finite).added == {2: (0, 1)}
    assert archived_ranges(kafka_settings, finite, kafka.topic_id(kafka_settings, finite)) == {
        0: (0, 10),
        1: (0, 10),
        2: (0, 1),
    }


def test_retention_by_bytes_is_measured_in_what_is_free_and_the_pace(
    kafka_settings: Settings, topic: str, tmp_path: Path
) -> None:
    kafka.ensure_topic(kafka_settings, topic, 2, {"retention.bytes": "1000"})
    fill(kafka_settings, topic, 20, utc_now())
    begin(kafka_settings, topic)
    earlier = (time.monotonic() - 10.0, {0: 0, 1: 0})
    view = view_retention(kafka_settings, NAME, utc_now(), earlier={topic: earlier})
    assert view.topics[0].log.per_second[0] == pytest.approx(1.0, rel=0.5)
    assert 0.9 < view.leases[0].clock.share < 1.0  # 10 records of some 4 bytes
    assert view.leases[0].clock.left is not None


def test_a_transaction_leaves_offsets_that_hold_nothing_and_they_are_named(
    kafka_settings: Settings, make_topic: Callable[[int], str]
) -> None:
    topic = make_topic(1)
    producer = kafka.producer(kafka_settings, transactional_id=topic)
    producer.init_transactions(30)
    for finish in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic, value=b"x", partition=0)
        assert producer.flush(30) == 0
        finish(30)
    assert kafka.end_offsets(kafka_settings, topic) == {0: 4}
    wanted = {(0, 1): "marker or compacted", (0, 2): "aborted", (0, 3): "marker or compacted"}
    assert find_holes(kafka_settings, topic, {0: (0, 4)}) == wanted
    assert absent_runs(kafka_settings, topic, {0: (0, 4)}) == {0: ((1, 4),)}
    assert extend_archive(None, kafka_settings, topic).ends == {0: 4}
    rows = Table(kafka_settings.archive(topic)).read(columns=["offset", "timestamp_type", "value"])
    assert rows is not None
    assert [tuple(row.values()) for row in rows.sort_by("offset").to_pylist()] == [
        (0, 0, b"x"),
        (1, ABSENT, None),
        (2, ABSENT, None),
        (3, ABSENT, None),
    ]
    producer.begin_transaction()  # an open transaction: nothing after it can be archived yet
    producer.produce(topic, value=b"open", partition=0)
    assert producer.flush(30) == 0
    assert extend_archive(None, kafka_settings, topic).ends == {0: 4}
    producer.commit_transaction(30)
    assert extend_archive(None, kafka_settings, topic).ends == {0: 6}


def test_a_topic_created_anew_has_nothing_for_the_claims_on_the_old_one(kafka_settings: Settings, finite: str) -> None:
    extend_archive(None, kafka_settings, finite, upto={0: 4, 1: 10})
    kafka.delete_topic(kafka_settings, finite)
    wait_for("the deletion of the topic", lambda: not kafka.topic_exists(kafka_settings, finite), 30)
    kafka.ensure_topic(replace(kafka_settings), finite, 2)
    fill(kafka_settings, finite, 50, utc_now())
    view = view_retention(kafka_settings, NAME, utc_now())
    assert not view.topics[0].same_topic
    assert {lease.kafka for lease in view.leases} == {0}


@pytest.mark.proves("guarantees.md#archive")
def test_the_archive_passes_a_hole_only_when_asked_and_still_names_it(kafka_settings: Settings, finite: str) -> None:
    #  archive   |====|            [0, 4)
    #  Kafka            |====|     [6, 10) of partition 0, [3, 10) of partition 1
    extend_archive(None, kafka_settings, finite, upto={0: 4, 1: 4})
    kafka.delete_records(kafka_settings, finite, {0: 6, 1: 3})
    with pytest.raises(LogGapError, match=r"partition 0 \[4, 6\).*--accept-hole"):
        extend_archive(None, kafka_settings, finite)
    report = extend_archive(None, kafka_settings, finite, chunk_records=4, accept_hole=True)
    assert (report.added, report.commits) == ({0: (6, 10), 1: (4, 10)}, 3)
    topic_id = kafka.topic_id(kafka_settings, finite)
    segments = [{0: (0, 4), 1: (0, 4)}, {0: (6, 10), 1: (4, 10)}]
    assert archived_segments(kafka_settings, finite, topic_id) == segments
    assert extend_archive(None, kafka_settings, finite, accept_hole=True).commits == 0
    kafka.delete_records(kafka_settings, finite, {0: 10, 1: 10})
    plan = observe_read(kafka_settings, finite, {0: (0, 10), 1: (2, 10)}, topic_id)
    assert (plan.older, plan.archive) == (({0: (0, 4)}, {1: (2, 4)}), {0: (6, 10), 1: (4, 10)})
    assert (plan.kafka, plan.missing) == ({}, ((0, 4, 6),))
