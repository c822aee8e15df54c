"""A keyed backlog is read together in event time: no more records are late than by the order in which they were sent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rivertwice.agent.launch import start_agent, stop_agent
from rivertwice.core.settings import Settings
from rivertwice.local.broker import BrokerInfo
from rivertwice.stream.lease import lease_owner
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.lineage import path_ledger
from running.waiting import wait_for
from running.warm_spark import invoke_warm, run_driver_warm
from streams.keyed import (
    MINUTE_MS,
    NAME,
    drift_ms,
    keyed_backlog,
    late_by_arrival,
    late_in_the_stream,
    make_keyed_project,
    send,
)

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
RECORDS, BATCH = 3000, 150


def streamed(folder: Path, broker: BrokerInfo, topic: str, share: float) -> tuple[Settings, list[LedgerRow]]:
    settings = make_keyed_project(
        folder, broker.bootstrap, topic, max_offsets_per_trigger=BATCH, catch_up_share=share, shuffle_partitions=1
    )
    folder.mkdir(exist_ok=True)
    run_driver_warm(settings, NAME, folder / "driver.log")
    return settings, path_ledger(settings.pipeline(NAME))


def test_a_keyed_backlog_is_read_together_in_event_time(tmp_path: Path, broker: BrokerInfo, topic: str) -> None:
    records = keyed_backlog(7, RECORDS, days=8)
    send(make_keyed_project(tmp_path / "sender", broker.bootstrap, topic), topic, records)
    settings, split = streamed(tmp_path / "split", broker, topic, 0)
    (linted,) = json.loads(invoke_warm(settings, "--output", "json", "lint", NAME, "--without-spark").stdout)
    (skew,) = (finding for finding in linted["findings"] if finding["check"] == "skewed partitions")
    assert (skew["state"], "remove stream.catch_up_share: 0" in skew["remedy"]) == ("warns", True)
    _, placed = streamed(tmp_path / "placed", broker, topic, 0.25)
    alone = late_by_arrival(records)
    assert sum(row.read for row in placed) == RECORDS
    assert alone > 0.05 * RECORDS
    assert late_in_the_stream(records, split, topic) > 3 * alone
    assert late_in_the_stream(records, placed, topic) <= 1.2 * alone
    assert max(drift_ms(records, topic, row) for row in placed[:-1]) <= 15 * MINUTE_MS
    log = (tmp_path / "placed" / "driver.log").read_text()
    assert "batch 0 is placed" in log
    assert "batches are not placed by event time any more" in log


@pytest.fixture
def started(broker: BrokerInfo, tmp_path: Path, topic: str) -> Iterator[Settings]:
    """A project whose stream was asked for by `rivertwice start`, over a filled topic; what runs at the end is ended."""
    settings = make_keyed_project(tmp_path, broker.bootstrap, topic, max_offsets_per_trigger=BATCH, trigger="1 second")
    send(settings, topic, keyed_backlog(9, RECORDS, days=8))
    start_agent(settings)
    yield settings
    stop_agent(settings)
    owner = lease_owner(settings.pipeline(NAME))
    if owner is not None:
        os.kill(owner.pid, signal.SIGKILL)


def test_status_follows_a_started_stream_until_it_has_caught_up(started: Settings) -> None:
    def status() -> dict[str, Any]:
        shown = invoke_warm(started, "--output", "json", "status")
        (item,) = json.loads(shown.stdout)["pipelines"]
        return dict(item)

    assert invoke_warm(started, "start", NAME).exit_code == 0
    seen: list[str] = []

    def has_caught_up() -> bool:
        item = status()
        seen.extend([item["placed_until"]] if item["placed_until"] else [])
        return item["lag"] == 0 and item["placed_until"] is None

    wait_for("the end of the backlog", has_caught_up, 300, every=0.5, seen=status)
    assert len(set(seen)) > 3
    assert seen[0] < seen[-1]


KILLED_WHEN = {
    "the first batch is a draft": "placing.replace_whole = die",
    "the first batch is placed and the marker is there": "placing.replace_whole = lambda *a: (place(*a), die())",
    "a placed batch is computed and not committed": "sink.changelog_rows = die_at_the_third",
    "a batch is committed and the next one is not placed": "placing.Placing.place_next = die",
}
PATCHED = """
import os, signal
from rivertwice.stream import driver, placing, sink

place, rows_of, calls = placing.replace_whole, sink.changelog_rows, []
def die(*_): os.killpg(0, signal.SIGKILL)
def die_at_the_third(*arguments):
    calls.append(1)
    return die() if len(calls) > 2 else rows_of(*arguments)
PATCH
driver.main(["--pipeline", "keyed", "--until-end"])
"""


@pytest.mark.faults
def test_a_driver_killed_while_it_catches_up_continues_as_if_it_was_not(
    tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    records = keyed_backlog(8, RECORDS, days=8)
    send(make_keyed_project(tmp_path / "sender", broker.bootstrap, topic), topic, records)
    _, never_killed = streamed(tmp_path / "never", broker, topic, 0.25)
    folder = tmp_path / "killed"
    settings = make_keyed_project(
        folder, broker.bootstrap, topic, max_offsets_per_trigger=BATCH, catch_up_share=0.25, shuffle_partitions=1
    )
    home = settings.pipeline(NAME)
    markers = []
    for when, patch in KILLED_WHEN.items():
        code = [sys.executable, "-c", PATCHED.replace("PATCH", patch)]
        done = subprocess.run(
            code, env={**os.environ, **settings.to_env()}, start_new_session=True, capture_output=True, timeout=300
        )
        assert done.returncode == -signal.SIGKILL, (when, done.stdout[-3000:], done.stderr[-3000:])
        markers.append(home.unplaced("t1").exists())
    assert markers == [True, True, False, False]
    run_driver_warm(settings, NAME, folder / "driver.log")
    rows = path_ledger(home)
    assert [row.end_offsets for row in rows[:3]] == [row.end_offsets for row in never_killed[:3]]
    assert sum(row.read for row in rows) == RECORDS
    assert late_in_the_stream(records, rows, topic) <= 1.2 * late_by_arrival(records)
    assert max(drift_ms(records, topic, row) for row in rows[:-1]) <= 15 * MINUTE_MS
