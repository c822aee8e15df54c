"""Killed with SIGKILL at seeded moments, the stream ends exactly as the oracle says: nothing lost, nothing twice."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from killed_run import stream_with_kills
from oracle.flights_oracle import consume, expect, read_batches, read_changelog
from rivertwice.log.broker import BrokerInfo
from rivertwice.timeline.lineage import path_ledger

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def check(folder: Path, broker: BrokerInfo, *, kills: int, seed: int, limit: int | None) -> str:
    topic = f"kills-{seed}-{kills}"
    run, struck = stream_with_kills(
        folder, bootstrap=broker.bootstrap, topic=topic, kills=kills, seed=seed, limit=limit
    )
    batches = read_batches(run.home.tables.ledger, topic)
    expected = expect(consume(broker.bootstrap, topic), batches)
    stream = read_changelog(run.home.tables.changelog)
    assert {window: [row] for window, row in expected.closed.items()} == stream, f"seed {seed}, kills {struck}"
    rows = path_ledger(run.home)
    assert sum(row.read for row in rows) == run.records
    assert [row.batch for row in rows] == list(range(len(rows)))
    assert len({row.epoch for row in rows}) > 1
    return (
        f"\nseed {seed}: {kills} kills at batches {[kill.batch for kill in struck]}, {len(rows)} batches, "
        f"{len(stream)} rows emitted, {len(expected.late)} late, 0 lost, 0 duplicated, 0 unexplained\n"
    )


def test_three_kills_lose_and_repeat_nothing(
    tmp_path: Path, broker: BrokerInfo, capsys: pytest.CaptureFixture[str]
) -> None:
    told = check(tmp_path, broker, kills=3, seed=1, limit=480)
    with capsys.disabled():
        sys.stdout.write(told)


@pytest.mark.faults
def test_twenty_kills_over_the_two_days_lose_and_repeat_nothing(
    tmp_path: Path, broker: BrokerInfo, capsys: pytest.CaptureFixture[str]
) -> None:
    told = check(tmp_path, broker, kills=20, seed=20, limit=None)
    with capsys.disabled():
        sys.stdout.write(told)
