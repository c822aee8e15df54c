"""A keyed backlog is read together in event time: no more records are late than by the order in which they were sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from rivertwice.config import Settings
from rivertwice.embedded.broker import BrokerInfo
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.lineage import path_ledger
from running.warm_spark import run_driver_warm
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
    _, split = streamed(tmp_path / "split", broker, topic, 0)
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
