"""What a killed driver left half done, at its first plan or at its last commit, is finished by the next one, and nothing is lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from deltalake import DeltaTable

from histories.random_histories import random_batches
from rivertwice.core.instants import utc_now
from rivertwice.definition.bundle import build_bundle
from rivertwice.definition.definition import load_definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.stream import driver
from rivertwice.stream.begin import resolve_timeline
from rivertwice.timeline.ledger import read_keys
from rivertwice.timeline.lineage import path_ledger
from running.warm_spark import run_command_warm
from streams.kinds import NAME, check_explained, make_kind_project, run_to_end, send

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def test_the_remains_of_a_first_plan_do_not_keep_a_stream_from_beginning(
    tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    settings = make_kind_project(tmp_path, broker, topic, "tumbling")
    folder = settings.definitions / NAME
    definition, home = load_definition(folder), settings.pipeline(NAME)
    records = [record for batch in random_batches(random.Random("first plan"), 2) for record in batch][:120]
    send(settings, definition, records)
    bundle = build_bundle(folder)
    bundle.save(home.bundles)
    line = resolve_timeline(settings, home, definition, bundle, utc_now())
    # As found behind a kill -9: Spark had written the source's beginning, and half of its plan. It refuses to start beside it.
    remains = home.checkpoint(line.timeline) / "offsets"
    remains.mkdir(parents=True)
    for name in (".0.49d55e5d-ef93-4974-b6eb-4b0897b99453.tmp", "..0.49d55e5d-ef93-4974-b6eb-4b0897b99453.tmp.crc"):
        (remains / name).touch()
    run_to_end(settings, tmp_path / "driver.log")
    report = run_command_warm(settings, "reconcile", NAME)
    check_explained(report)
    assert report["balance"]["total"]["read"] == len(records)


def test_a_batch_that_a_superseded_driver_committed_after_the_start_keeps_its_ledger_row(
    tmp_path: Path, broker: BrokerInfo, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_kind_project(tmp_path, broker, topic, "tumbling")
    definition, home = load_definition(settings.definitions / NAME), settings.pipeline(NAME)
    records = [record for batch in random_batches(random.Random("late commit"), 4) for record in batch]
    send(settings, definition, records[: len(records) // 2])
    run_to_end(settings, tmp_path / "driver.log")
    newest = path_ledger(home)[-1]
    # As found after a driver that woke between another one's start and its first batch, committed, and was killed before the ledger's copy.
    for name in (f"{newest.batch}", f".{newest.batch}.crc"):
        (home.checkpoint(newest.timeline) / "commits" / name).unlink()
    ledger = DeltaTable(str(home.tables.ledger))
    ledger.restore(ledger.version() - 1)
    assert (newest.timeline, newest.batch) not in read_keys(home)
    monkeypatch.setattr(driver, "heal_ledger", lambda _: 0)
    send(settings, definition, records[len(records) // 2 :])
    run_to_end(settings, tmp_path / "driver.log")
    rows = path_ledger(home)
    assert [row.batch for row in rows] == list(range(rows[-1].batch + 1))
    assert rows[-1].batch > newest.batch
    check_explained(run_command_warm(settings, "reconcile", NAME))
