"""A pattern of topics: what matches when a stream begins, what is created while it runs, and all that is proved of it afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from homes.project import TO_RUN, make_project
from lab.faults.processes import end_group, start_process
from rivertwice.core.instants import from_ms, to_iso
from rivertwice.core.settings import Settings
from rivertwice.engine.java import java_env
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import add_partitions, delete_records, delete_topic, end_offsets, ensure_topic
from rivertwice.savepoint.catalogue import list_savepoints
from rivertwice.timeline.intent import Exit
from rivertwice.timeline.ledger import LedgerRow, read_ledger
from running.waiting import wait_for
from running.warm_spark import invoke_warm, run_command_warm, run_driver_warm
from streams.amounts import BEGIN_MS, NAME, SQL, WINDOW_MS, YAML, amounts, send, totals

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
DRIVER = (sys.executable, "-m", "rivertwice.stream.driver", "--pipeline", NAME)
PATIENCE_S = 240


@pytest.fixture
def prefix() -> str:
    return f"shop-{uuid.uuid4().hex[:10]}"


def project(folder: Path, broker: BrokerInfo, prefix: str) -> Settings:
    text = (
        YAML.replace("TOPIC", f"{prefix}.*")
        .replace("    partitions: 1\n", "")
        .replace("catch_up_share: 0", "catch_up_share: 0.5")
    )
    return make_project(
        folder, {NAME: {"pipeline.yaml": text, "transform.sql": SQL}}, links=TO_RUN, bootstrap=broker.bootstrap
    )


def start(settings: Settings, log: Path) -> subprocess.Popen[bytes]:
    env = {**os.environ, **java_env(settings), **settings.to_env()}
    return start_process(DRIVER, log=log, env=env, cwd=settings.project)


def until_read(settings: Settings, count: int, log: Path) -> None:
    home = settings.pipeline(NAME)
    wait_for(
        f"{count} records in the ledger",
        lambda: sum(row.read for row in read_ledger(home)) >= count,
        PATIENCE_S,
        seen=lambda: log.read_text()[-3000:],
    )


def served(settings: Settings) -> dict[tuple[int, str], tuple[int, int]]:
    sql = f"SELECT epoch_ms(window_start) AS at, k, records, total FROM {NAME}"
    rows = run_command_warm(settings, "query", "--limit", "10000", sql)["rows"]
    return {(row["at"], row["k"]): (row["records"], row["total"]) for row in rows}


def joined_at(settings: Settings, pattern: str, number: int) -> LedgerRow:
    """Return the first batch whose range has a partition of the pattern's log."""
    return next(row for row in read_ledger(settings.pipeline(NAME)) if str(number) in row.end_offsets[pattern])


@pytest.mark.faults
@pytest.mark.proves("guarantees.md#what-everything-needs", "howto-log.md#read-all-topics-of-a-pattern")
def test_a_topic_that_is_created_while_the_stream_runs_counts_from_its_first_record_and_is_proved_like_the_others(
    tmp_path: Path, broker: BrokerInfo, prefix: str
) -> None:
    settings, log, records = project(tmp_path, broker, prefix), tmp_path / "driver.log", amounts()
    eu, us, asia, pattern = (f"{prefix}.{name}" for name in ("eu", "us", "asia", "*"))
    for topic in (eu, us, f"rivertwice-{prefix}.eu"):
        ensure_topic(settings, topic, 1)
    send(settings, eu, records[:200:2])
    send(settings, us, records[1:200:2])

    driver = start(settings, log)
    try:
        until_read(settings, 200, log)
        run_command_warm(settings, "savepoint", "take", NAME)  # before the third topic joins
        ensure_topic(settings, asia, 2)
        send(settings, asia, records[200:300])
        until_read(settings, 300, log)
        send(settings, asia, records[300:420:2])
        send(settings, eu, records[301:420:2])
    finally:
        end_group(driver)  # with SIGKILL
    driver = start(settings, log)
    try:
        until_read(settings, 420, log)
        add_partitions(settings, us, 2)  # a partition joins as a topic does
        send(settings, us, records[420:])
        until_read(settings, 600, log)
    finally:
        os.kill(driver.pid, signal.SIGTERM)
        assert driver.wait(PATIENCE_S) == 0, log.read_text()[-3000:]

    assert "joined" in log.read_text()
    ledger = read_ledger(settings.pipeline(NAME))
    assert sum(row.read for row in ledger) == len(records)
    first = joined_at(settings, pattern, 2)
    assert (first.ranges(pattern)[2][0], first.batch > 0) == (0, True)
    assert set(ledger[0].end_offsets[pattern]) == {"0", "1"}
    assert set(ledger[-1].end_offsets[pattern]) == {"0", "1", "2", "3", "4"}

    run_command_warm(settings, "savepoint", "take", NAME)
    before, _ = list_savepoints(settings.pipeline(NAME))
    run_command_warm(settings, "savepoint", "prove", NAME, before.id)  # over the batch in which the topic joined
    assert run_command_warm(settings, "reconcile", NAME)["gate"]["passed"]
    run_command_warm(settings, "admin", "archive", NAME)
    delete_records(settings, pattern, end_offsets(settings, pattern))
    run_command_warm(settings, "savepoint", "prove", NAME, before.id)  # of the archive alone

    closed_ms = ledger[-1].batch_watermark_ms // WINDOW_MS * WINDOW_MS
    span = ("--from", to_iso(from_ms(BEGIN_MS)), "--to", to_iso(from_ms(closed_ms)))
    run_command_warm(settings, "backfill", "run", NAME, *span, "--yes")
    assert run_command_warm(settings, "reconcile", NAME, "--full")["gate"]["passed"]
    run_command_warm(settings, "admin", "rebuild", NAME)
    wanted = {row: each[:2] for row, each in totals(records).items() if row[0] < closed_ms}
    assert served(settings) == wanted
    joined = run_command_warm(settings, "admin", "topics")[pattern]
    assert joined == {f"{eu}/0": 0, f"{us}/0": 1, f"{asia}/0": 2, f"{asia}/1": 3, f"{us}/1": 4}

    delete_topic(settings, us)
    ensure_topic(settings, us, 2)
    driver = start(settings, log)
    assert driver.wait(PATIENCE_S) == 1
    said = Exit.load(settings.pipeline(NAME))
    assert said is not None
    assert (said.failure, us in said.message) == ("retention", True), said


def test_a_stream_of_a_pattern_that_no_topic_matches_says_so_and_begins_with_the_first(
    tmp_path: Path, broker: BrokerInfo, prefix: str
) -> None:
    settings, log = project(tmp_path, broker, prefix), tmp_path / "driver.log"
    driver = start(settings, log)
    assert driver.wait(PATIENCE_S) == 1
    said = Exit.load(settings.pipeline(NAME))
    assert said is not None
    assert (said.failure, f"no topic of Kafka at {broker.bootstrap} has joined {prefix}.*" in said.message) == (
        "store",
        True,
    )
    ensure_topic(settings, f"{prefix}.eu", 1)
    send(settings, f"{prefix}.eu", amounts()[:60])
    said_by_lint = invoke_warm(settings, "lint", NAME).output
    assert f"{prefix}.* has 1 partitions" in said_by_lint, said_by_lint
    refused = invoke_warm(settings, "send", NAME, str(tmp_path / "any.csv"))
    assert f"{NAME} reads all topics {prefix}.*" in refused.output, refused.output
    run_driver_warm(settings, NAME, log)
    assert sum(row.read for row in read_ledger(settings.pipeline(NAME))) == 60
