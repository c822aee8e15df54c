"""One per cent of poison in every kind: all of it in the dead letters by address, nothing else there, the stream alive."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
import pytest

from lab.flights.plan import STORM
from lab.flights.poison import KINDS, plan_poison
from lab.flights.replay import ReplayRequest, plan_replay
from lab.tests.oracle.flights_oracle import consume, expect, read_batches, read_changelog
from rivertwice.local.broker import BrokerInfo
from rivertwice.storage.table import Table
from rivertwice.timeline.lineage import path_ledger
from streams.flights import stream_days

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
SHARE = 0.01


@pytest.mark.proves("definitions.md#what-makes-a-dead-letter", "guarantees.md#dead-letters")
def test_all_poison_becomes_dead_letters_and_nothing_else_does(
    tmp_path: Path, broker: BrokerInfo, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stream_days(
        tmp_path,
        bootstrap=broker.bootstrap,
        topic="poisoned",
        poison_share=SHARE,
        pins={"max_offsets_per_trigger": 240},
    )
    request = ReplayRequest(topic=run.topic, days=STORM, poison_share=SHARE)
    plan = plan_replay(run.settings, request)
    ends: Counter[int] = Counter()
    injected = {}
    for position, record in enumerate(plan.records):
        if position in plan.poison:
            injected[record.partition, ends[record.partition]] = (record.key, record.value)
        ends[record.partition] += 1
    dead = Table(run.home.tables.dead_letters).read()
    assert dead is not None
    rows = dead.to_pylist()
    assert {(row["partition"], row["offset"]): (row["key"], row["value"]) for row in rows} == injected
    assert len(rows) == len(injected) == round(SHARE * 1_884)
    assert {row["topic"] for row in rows} == {run.topic}

    ledger = path_ledger(run.home)
    assert {(row["_timeline"], row["_batch"]) for row in rows} <= {(row.timeline, row.batch) for row in ledger}
    assert sum(row.bad for row in ledger) == len(rows)
    assert sum(row.accepted for row in ledger) == 1_884
    assert sum(row.read for row in ledger) == len(plan.records)

    records = [one for one in consume(broker.bootstrap, run.topic) if (one.partition, one.offset) not in injected]
    expected = expect(records, read_batches(run.home.tables.ledger, run.topic))
    assert {window: [row] for window, row in expected.closed.items()} == read_changelog(run.home.tables.changelog)
    reasons = dict(sorted(Counter(pc.cast(dead["reason"], "string").to_pylist()).items()))
    assert set(reasons) == {kind.reason for kind in KINDS}
    with capsys.disabled():
        sys.stdout.write(f"\n{len(rows)} poison records of {len(KINDS)} kinds, all dead letters: {reasons}\n")


def test_every_kind_is_among_one_per_cent() -> None:
    from homes.project import REPOSITORY
    from lab.flights.data import flights_csv
    from lab.flights.plan import read_flights
    from rivertwice.core.settings import Settings

    flights = read_flights(flights_csv(Settings(project=REPOSITORY, home=REPOSITORY)), STORM)
    poison = plan_poison(flights, [0] * len(flights), SHARE, ReplayRequest(topic="t").seed)
    assert {one.kind for one in poison.values()} == {kind.name for kind in KINDS}
