"""Topics with transactions as sources: every committed record counts once, whatever offsets markers and aborted records take."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from homes.project import edit_yaml, write_definition
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.log import kafka
from rivertwice.log.archive import extend_archive
from rivertwice.savepoint.take import take_savepoint
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.served import read_served, rebuild_served
from running.waiting import wait_for
from running.warm_spark import run_command_warm, run_driver_warm
from streams.first_load import closing_records, late_records, reconciled
from streams.keyed import NAME, keyed_backlog, make_keyed_project
from streams.synthetic import DriverProcess
from streams.transactions import TransactionalSource

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def served(settings: Settings, name: str = NAME) -> Counter[tuple[str, int]]:
    """Return (key, start of the hour) to how many records are served."""
    home = settings.pipeline(name)
    rebuild_served(home, load_definition(settings.definitions / name))
    rows = read_served(home)
    assert rows is not None
    return Counter(
        {(row["k"], int(row["window_start"].timestamp() * 1000)): row["records"] for row in rows.to_pylist()}
    )


def closed(truth: Counter[tuple[str, int]], settings: Settings) -> Counter[tuple[str, int]]:
    """Return the hours that the stream has closed."""
    end_ms = path_ledger(settings.pipeline(NAME))[-1].batch_watermark_ms
    return Counter({(key, start): count for (key, start), count in truth.items() if start + 3_600_000 <= end_ms})


def make(folder: Path, broker: BrokerInfo, topic: str) -> Settings:
    return make_keyed_project(folder, broker.bootstrap, topic, max_offsets_per_trigger=150, shuffle_partitions=1)


def kill_in_its_work(settings: Settings) -> None:
    """Run a driver in a process of its own, and kill it after some batches."""
    driver = DriverProcess(settings, NAME, "--until-end")
    home = settings.pipeline(NAME)
    wait_for("three batches", lambda: len(path_ledger(home)) >= 3, 120, every=0.05)
    os.killpg(driver.process.pid, signal.SIGKILL)
    driver.process.wait(30)


@pytest.mark.proves("guarantees.md#changelog")
@pytest.mark.faults
def test_committed_records_are_counted_and_replayed_exactly(tmp_path: Path, broker: BrokerInfo, topic: str) -> None:
    settings, log = make(tmp_path, broker, topic), tmp_path / "driver.log"
    home, records = settings.pipeline(NAME), keyed_backlog(11, 900, days=1)
    source = TransactionalSource(settings, topic, 11)
    source.send(records[:600])
    kill_in_its_work(settings)
    run_driver_warm(settings, NAME, log)
    taken = take_savepoint(settings, NAME, now=utc_now(), reason="test")
    source.send([*records[600:], *late_records(records, 12)])
    source.send(closing_records(records))
    run_driver_warm(settings, NAME, log)

    rows = path_ledger(home)
    assert sum(row.read for row in rows) == len(source.sent)
    ends = kafka.end_offsets(settings, topic)
    absent = sum(number for row in rows for number in row.absent.get(topic, {}).values())
    assert absent == sum(ends.values()) - len(source.sent)
    assert source.aborted > 30
    full = reconciled(settings)
    assert full["counts"]["served"]["LATE"] > 0
    assert reconciled(settings, full=False)["balance"] == full["balance"]
    assert full["balance"]["total"]["read"] == len(source.sent)
    run_command_warm(settings, "backfill", "run", NAME, "--yes")
    assert reconciled(settings)["counts"]["served"]["LATE"] == 0
    assert served(settings) == closed(source.hours(), settings)
    assert run_command_warm(settings, "savepoint", "prove", NAME, taken.id)["proved"]

    # Now Kafka deletes all of it: the archive alone is replayed, restored and recomputed.
    extend_archive(None, settings, topic)
    second = take_savepoint(settings, NAME, now=utc_now(), reason="test")
    more = keyed_backlog(12, 200, days=1)
    newest_ms = max(record.event_ms for record in source.sent)
    source.send(
        [type(r)(r.partition, r.key, newest_ms + n * 60_000, newest_ms + n * 60_000) for n, r in enumerate(more)]
    )
    run_driver_warm(settings, NAME, log)
    run_command_warm(settings, "admin", "archive", NAME)
    kafka.delete_records(settings, topic, kafka.end_offsets(settings, topic))
    assert run_command_warm(settings, "savepoint", "prove", NAME, second.id)["proved"]
    again = reconciled(settings)
    assert again["balance"]["total"]["read"] == len(source.sent)
    run_command_warm(settings, "savepoint", "restore", NAME, second.id, "--yes")
    run_driver_warm(settings, NAME, log)
    assert reconciled(settings)["balance"]["total"]["read"] == len(source.sent)
    assert served(settings) == closed(source.hours(), settings)


@pytest.mark.proves("howto-stream.md#run-a-stream-by-schedule")
def test_a_run_to_the_logs_end_waits_for_no_open_transaction_and_for_no_pause(
    tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    settings, log = make(tmp_path, broker, topic), tmp_path / "driver.log"
    home, records = settings.pipeline(NAME), keyed_backlog(21, 200, days=1, late_share=0)
    source = TransactionalSource(settings, topic, 21)
    source.send(records[:100])
    with source.holding(records[100:110]):
        run_driver_warm(settings, NAME, log)
        assert sum(row.read for row in path_ledger(home)) == 100
        run_driver_warm(settings, NAME, log)  # nothing new can be read, so it ends
    over = threading.Event()

    def send_on() -> None:
        for record in itertools.cycle(records):
            source.send([record])
            if over.wait(0.05):
                return

    sending = threading.Thread(target=send_on)
    sending.start()
    try:
        run_driver_warm(settings, NAME, log)  # ends although records come without a pause
    finally:
        over.set()
        sending.join()
    run_driver_warm(settings, NAME, log)
    assert sum(row.read for row in path_ledger(home)) == len(source.sent)


READER_YAML = """\
name: reader
description: How many records of a key were counted in a day, as another pipeline delivered them.
sources:
  counts:
    topic: {topic}
    partitions: 2
    schema: {{op: string, window_start: timestamp, keys: string, values: string}}
    required: [op, window_start]
    event_time: window_start
    watermark: 1 hour
    max_future: 1 day
window: {{size: 1 day}}
keys: [k]
count_column: rows
columns: {{rows: {{}}, records: {{}}}}
"""
READER_SQL = """\
SELECT window.start AS window_start, window.end AS window_end, get_json_object(keys, '$.k') AS k, count(*) AS rows,
  sum(CAST(get_json_object(values, '$.records') AS bigint)) AS records
FROM counts
GROUP BY window(window_start, '1 day'), get_json_object(keys, '$.k')
"""
READER_ROWS = "SELECT * FROM counts WHERE op = 'emit'"


@pytest.mark.proves("guarantees.md#kafka-sink")
def test_a_pipeline_reads_what_another_delivers_exactly_once(tmp_path: Path, broker: BrokerInfo, topic: str) -> None:
    settings, log, sent = make(tmp_path, broker, topic), tmp_path / "driver.log", f"{topic}-sent"

    def deliver(document: dict[str, Any]) -> None:
        document["deliver"] = {sent: {"to": "kafka", "topic": sent, "partitions": 2, "guarantee": "exactly_once"}}

    edit_yaml(settings.definitions / NAME, deliver)
    write_definition(
        settings.definitions / "reader",
        {"pipeline.yaml": READER_YAML.format(topic=sent), "transform.sql": READER_SQL, "rows.sql": READER_ROWS},
    )
    records = keyed_backlog(5, 400, days=2, late_share=0)
    source = TransactionalSource(settings, topic, 5)
    for part in (records[:200], records[200:], closing_records(records)):
        source.send(part)
        run_driver_warm(settings, NAME, log)
        run_command_warm(settings, "deliver", "run", NAME, "--until-end")
        run_driver_warm(settings, "reader", log)
    emitted = sum(row.emitted for row in path_ledger(settings.pipeline(NAME)))
    rows = path_ledger(settings.pipeline("reader"))
    assert sum(row.read for row in rows) == emitted > 100
    assert sum(number for row in rows for number in row.absent.get(sent, {}).values()) > 0
    assert sum(row.bad for row in rows) == 0
    assert reconciled(settings, "reader")["balance"]["total"]["read"] == emitted
    reader = read_served(settings.pipeline("reader"))
    by_day = Counter[tuple[str, int]]()
    for (key, start), count in served(settings).items():
        by_day[key, start // 86_400_000 * 86_400_000] += count
    assert reader is not None
    for row in reader.to_pylist():
        assert row["records"] == by_day[row["k"], int(row["window_start"].timestamp() * 1000)], json.dumps(
            row, default=str
        )
    assert reader.num_rows > 10
