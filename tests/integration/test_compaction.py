"""Kafka's own compaction of a topic of change events: what stays, that it makes the same table, and that no stream takes it."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType  # type: ignore[attr-defined]
from pyspark.sql import SparkSession

from homes.project import EXAMPLES, REPOSITORY, make_project, replace_text
from rivertwice.core.errors import LogGapError
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.engine.cases import RAW_ARROW, RAW_SCHEMA
from rivertwice.engine.compile import compile_batch
from rivertwice.engine.decode import decode
from rivertwice.engine.relations import accepted
from rivertwice.local.broker import BrokerInfo
from rivertwice.log import kafka, outbox
from rivertwice.log.archive import extend_archive
from rivertwice.log.kafka import ensure_topic
from rivertwice.log.reader import read_exactly
from rivertwice.timeline.key_view import select_rows
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.served import rebuild_served
from running.waiting import wait_for
from running.warm_spark import invoke_warm, run_command_warm, run_driver_warm
from streams.first_load import closing_records, reconciled
from streams.keyed import NAME, keyed_backlog, make_keyed_project, send

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
CHANGES = [
    (123, "Alice"),
    (456, "Bob"),
    (123, "Alice Updated"),
    (789, "Carol"),
    (456, "Bob Updated"),
    (123, "Alice V3"),
]
MANY = 500
"""Updates of one key, of which compaction leaves the newest."""
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.001",
    "segment.ms": "100",
    "min.compaction.lag.ms": "0",
    "delete.retention.ms": "3600000",
}
PATIENCE_S = 120
EXAMPLE = EXAMPLES / "users_from_changes"
AT_MS = 1_704_103_200_000
Record = dict[str, Any]


def produce(bootstrap: str, topic: str, records: list[tuple[bytes, bytes | None]], first_ms: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number, (key, value) in enumerate(records):
        producer.produce(topic, value, key, partition=0, timestamp=first_ms + number * 1000)
    assert producer.flush(30) == 0


def consume(bootstrap: str, topic: str) -> list[Record]:
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "enable.partition.eof": True})
    reader.assign([TopicPartition(topic, 0, 0)])
    found: list[Record] = []
    try:
        while (message := reader.poll(10)) is not None and message.error() is None:
            moment = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
            place = {"topic": topic, "partition": 0, "offset": message.offset(), "timestamp": moment}
            found.append({"key": message.key(), "value": message.value(), "headers": None, **place})
    finally:
        reader.close()
    return found


def table(spark: SparkSession, records: list[Record]) -> list[tuple[Any, ...]]:
    """Return the view that the example's fold makes of records, in batch; without the column that counts a key's changes."""
    definition = load_definition(EXAMPLE)
    _, source = definition.source
    raw = spark.createDataFrame(pa.Table.from_pylist(records, schema=RAW_ARROW).to_pylist(), RAW_SCHEMA)
    rows = compile_batch(spark, definition, accepted(decode(raw, source), source)).toArrow()
    rows = rows.append_column("_batch", pa.array([0] * rows.num_rows, pa.int64()))
    return [(row["id"], row["name"], row["changed_at"]) for row in select_rows(rows, definition)]


@pytest.mark.proves(
    "howto-log.md#transactions-and-compaction", "lab/docs/scenarios.md#scenarios", "guarantees.md#what-everything-needs"
)
def test_the_newest_record_of_each_key_stays_and_makes_the_same_table(
    spark: SparkSession, tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    settings = Settings(REPOSITORY, tmp_path / "home", bootstrap=broker.bootstrap, spark_master="local[2]")
    ensure_topic(settings, topic, 1, COMPACTED)
    values: list[dict[str, Any]] = [
        {"before": None, "after": {"id": key, "name": name}, "op": "r", "ts_ms": AT_MS + number * 1000}
        for number, (key, name) in enumerate(CHANGES)
    ]
    values += [
        {"before": None, "after": {"id": 42, "name": f"v{number}"}, "op": "u", "ts_ms": AT_MS + 10_000 + number}
        for number in range(MANY)
    ]
    records = [(b'{"id":%d}' % one["after"]["id"], json.dumps(one).encode()) for one in values]
    produce(broker.bootstrap, topic, records, AT_MS)
    whole = consume(broker.bootstrap, topic)
    assert [one["offset"] for one in whole] == list(range(6 + MANY))
    times = itertools.count(AT_MS + 3_600_000, 1000)

    def left_records() -> list[dict[str, Any]]:
        """Return what is left, and write a record of another key: the newest segment is never cleaned, and that rolls it on."""
        rows = [one for one in consume(broker.bootstrap, topic) if one["key"] != b"filler"]
        produce(broker.bootstrap, topic, [(b"filler", b"{}")], next(times))
        return rows if len(rows) <= 4 else []

    left = wait_for("the compaction", left_records, PATIENCE_S, every=2)
    assert [(one["offset"], json.loads(one["value"])["after"]["name"]) for one in left] == [
        (3, "Carol"),
        (4, "Bob Updated"),
        (5, "Alice V3"),
        (5 + MANY, f"v{MANY - 1}"),
    ]
    # A new reader: the snapshot that is left, then the tail; a record without a value deletes its key.
    produce(broker.bootstrap, topic, [(b'{"id":42}', None)], AT_MS + 7_200_000)
    tail = [one for one in consume(broker.bootstrap, topic) if one["key"] != b"filler"]
    assert [one["value"] is None for one in tail] == [False] * 4 + [True]
    shown = table(spark, left)
    assert [row[:2] for row in shown] == [
        (42, f"v{MANY - 1}"),
        (123, "Alice V3"),
        (456, "Bob Updated"),
        (789, "Carol"),
    ]
    assert shown == table(spark, whole)
    assert table(spark, tail) == shown[1:]
    refused = settings_of(tmp_path, broker, topic)
    check_refused(refused, topic, tmp_path / "driver.log")
    check_copied(refused, topic, tmp_path)


def check_copied(settings: Settings, topic: str, folder: Path) -> None:
    """A stream reads a copy: what compaction has left, each record once, then the tail."""
    yaml = settings.definitions / EXAMPLE.name / "pipeline.yaml"
    replace_text(yaml, f"topic: {topic}", f"topic: {topic}-copied")
    copied = run_command_warm(settings, "send", EXAMPLE.name, "--from-topic", topic)
    assert copied["records"] == len(consume(settings.bootstrap_servers(), topic))
    assert run_command_warm(settings, "send", EXAMPLE.name, "--from-topic", topic)["records"] == 0
    assert shown_by(settings, folder / "copied.log") == {123: "Alice V3", 456: "Bob Updated", 789: "Carol"}
    name = {"before": None, "after": {"id": 42, "name": "again"}, "op": "c", "ts_ms": AT_MS + 8_000_000}
    produce(settings.bootstrap_servers(), topic, [(b'{"id":42}', json.dumps(name).encode())], AT_MS + 8_000_000)
    produce(settings.bootstrap_servers(), topic, [(b'{"id":789}', None)], AT_MS + 8_001_000)
    assert run_command_warm(settings, "send", EXAMPLE.name, "--from-topic", topic)["records"] == 2
    assert shown_by(settings, folder / "tail.log") == {42: "again", 123: "Alice V3", 456: "Bob Updated"}
    done = invoke_warm(settings, "send", EXAMPLE.name, "--from-topic", f"{topic}-copied")
    assert (done.exit_code, "reads" in done.output) == (1, True)


def shown_by(settings: Settings, log: Path) -> dict[int, str]:
    """Run the stream to the topic's end; return the names that `rivertwice show --by-key` prints."""
    run_driver_warm(settings, EXAMPLE.name, log)
    rebuild_served(settings.pipeline(EXAMPLE.name), load_definition(settings.definition_folder(EXAMPLE.name)))
    rows = run_command_warm(settings, "show", EXAMPLE.name, "--by-key")["rows"]
    return {row["id"]: row["name"] for row in rows if not row["deleted"]}


@pytest.mark.proves("guarantees.md#what-everything-needs")
@pytest.mark.parametrize("archived", [True, False], ids=["archived before", "not archived"])
def test_what_kafka_compacts_after_the_stream_is_named_or_archived(
    archived: bool, tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    settings = make_keyed_project(tmp_path, broker.bootstrap, topic, shuffle_partitions=1)
    records = keyed_backlog(4, 200, days=1)
    send(settings, topic, [*records, *closing_records(records)])
    run_driver_warm(settings, NAME, tmp_path / "driver.log")
    whole = reconciled(settings)
    if archived:
        extend_archive(None, settings, topic)
    compact(settings, topic)
    count, times = {"left": 0}, itertools.count(1_770_000_000_000, 1000)

    def is_compacted() -> bool:
        for partition in range(4):
            produce_at(broker.bootstrap, topic, partition, next(times))
        ranges = {p: (0, end) for p, end in path_ends(settings).items()}
        count["left"] = sum(1 for _ in read_exactly(settings, topic, ranges))
        return count["left"] < 150

    wait_for("the compaction", is_compacted, PATIENCE_S, every=2)
    if archived:
        assert reconciled(settings)["counts"] == whole["counts"]
        return
    done = invoke_warm(settings, "--output", "json", "reconcile", NAME, "--full")
    report = json.loads(done.stdout)
    assert report["counts"]["stream"]["DEFECT"] == 0, report
    assert report["counts"]["stream"]["NOT_COMPARABLE"] > 0
    assert report["counts"]["stream"]["AGREES"] == 0
    shown = run_command_warm(settings, "verdicts", NAME, "--pair", "stream", "--limit", "1000")["rows"]
    doubted = [str(row["reason"]) for row in shown if row["verdict"] == "NOT_COMPARABLE"]
    assert [reason for reason in doubted if "is in neither Kafka nor the archive" not in reason] == []
    with pytest.raises(LogGapError, match=r"has cleanup\.policy=compact"):
        extend_archive(None, settings, topic)


@pytest.mark.proves("howto-log.md#transactions-and-compaction")
def test_a_copy_that_ends_anywhere_copies_each_record_once(
    kafka_settings: Settings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, values = f"{topic}-copied", [f"v{number}".encode() for number in range(12)]
    for name in (topic, target):
        ensure_topic(kafka_settings, name, 1)
    produce(kafka_settings.bootstrap_servers(), topic, [(b"k", value) for value in values], AT_MS)
    monkeypatch.setattr(outbox, "PART_S", 0.0)  # a transaction of each record
    whole = outbox.Outbox.send
    sends = itertools.count()

    def send_or_end(box: outbox.Outbox, *args: Any, **options: Any) -> int:
        number = next(sends)
        if number == 4:
            raise KeyboardInterrupt  # before a transaction
        sent = whole(box, *args, **options)
        if number == 7:
            raise KeyboardInterrupt  # after one
        return sent

    monkeypatch.setattr(outbox.Outbox, "send", send_or_end)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            outbox.Outbox(kafka_settings, target, f"copy-{topic}", transactional=True).copy_from(topic)
    assert outbox.Outbox(kafka_settings, target, f"copy-{topic}", transactional=True).copy_from(topic) == 5
    found = consume(kafka_settings.bootstrap_servers(), target)
    assert [one["value"] for one in found] == values
    assert [one["timestamp"] for one in found] == [
        one["timestamp"] for one in consume(kafka_settings.bootstrap_servers(), topic)
    ]


def compact(settings: Settings, topic: str) -> None:
    """Let Kafka compact a topic from now on."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in COMPACTED.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    client = kafka.admin(settings)  # kept until the answer is there
    client.incremental_alter_configs([resource])[resource].result(20)


def produce_at(bootstrap: str, topic: str, partition: int, at_ms: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"{}", b"filler", partition=partition, timestamp=at_ms)
    assert producer.flush(30) == 0


def path_ends(settings: Settings) -> dict[int, int]:
    last = path_ledger(settings.pipeline(NAME))[-1]
    return {int(partition): end for places in last.end_offsets.values() for partition, end in places.items()}


def settings_of(folder: Path, broker: BrokerInfo, topic: str) -> Settings:
    """A project whose definition, the example, reads the compacted topic."""
    settings = make_project(folder, {EXAMPLE.name: EXAMPLE}, home=folder / "other", bootstrap=broker.bootstrap)
    yaml = settings.definitions / EXAMPLE.name / "pipeline.yaml"
    replace_text(yaml, "topic: users-changes", f"topic: {topic}")
    replace_text(yaml, "partitions: 3", "partitions: 1")
    return settings


def check_refused(settings: Settings, topic: str, log: Path) -> None:
    """As the source of a stream the topic is refused: by lint, by the driver before it commits, and by the archive."""
    (linted,) = run_command_warm(settings, "lint", EXAMPLE.name, code=3)
    (broken,) = [one for one in linted["findings"] if one["state"] == "broken"]
    assert f"{topic} is compacted" in broken["told"]
    with pytest.raises(AssertionError, match=r"has cleanup\.policy=compact: Kafka removes records"):
        run_driver_warm(settings, EXAMPLE.name, log)
    assert path_ledger(settings.pipeline(EXAMPLE.name)) == []
    with pytest.raises(LogGapError, match=r"has cleanup\.policy=compact: Kafka removes records"):
        extend_archive(None, settings, topic)
