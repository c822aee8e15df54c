"""The whole loop once, cheaply, with every part real: stream, kill, compare, repair, save, prove, restore, and Airflow runs it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rivertwice.core.instants import utc_now
from rivertwice.definition.definition import load_definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.reconcile.results import newest_reconcile
from rivertwice.savepoint.catalogue import load_savepoint
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.sequence import head, read_sequence
from rivertwice.timeline.served import export_sha256, rebuild_served
from running.warm_spark import run_command_warm
from servers.airflow import agent_and_airflow, await_success, link_project, run_dag
from streams.synthetic import DriverProcess, flights, make_small_project, produce, run_to_end, wait_for_batch

pytestmark = [pytest.mark.core, pytest.mark.airflow, pytest.mark.spark, pytest.mark.kafka]
NAME = "loop"
FLIGHTS = 260
VERBS = ("backfill", "care", "reconcile")


@pytest.mark.proves("README.md#the-loop", "guarantees.md#changelog")
def test_a_killed_stream_is_compared_repaired_saved_and_restored(tmp_path: Path, broker: BrokerInfo) -> None:
    settings = make_small_project(tmp_path, NAME, bootstrap=broker.bootstrap, batch=30)
    home = settings.pipeline(NAME)
    produce(settings, NAME, flights(FLIGHTS))

    driver = DriverProcess(settings, NAME)
    try:
        wait_for_batch(settings, NAME, 1, driver=driver, seconds=300)
    finally:
        driver.stop()  # SIGKILL
    before = path_ledger(home)
    ledger = run_to_end(settings, NAME)
    assert ledger[: len(before)] == before
    assert sum(row.read for row in ledger) == FLIGHTS
    assert max(Counter(row.batch for row in ledger).values()) == 1

    link_project(settings.project)
    write_intent(home, "stopped", "test", utc_now())
    with agent_and_airflow(settings, NAME, verbs=VERBS) as airflow:
        rotation = airflow.trigger(f"care__{NAME}", {"reason": "before the repair"})
        run_dag(airflow, f"reconcile__{NAME}", timeout=600)
        run = newest_reconcile(home)
        assert run is not None
        assert run["counts"]["served"]["LATE"] > 0
        assert run["counts"]["served"].get("DEFECT", 0) == run["balance"]["total"]["unexplained"] == 0
        run_dag(airflow, f"backfill__{NAME}", {"scope": "stale", "reason": "late flights"}, timeout=600)
        assert read_sequence(home)[-1].kind == "publication"
        await_success(airflow, f"care__{NAME}", rotation)
        savepoint = airflow.xcom(f"care__{NAME}", rotation, "report")["savepoint"]
    assert load_savepoint(home, savepoint).status == "proved"

    run_command_warm(settings, "reconcile", NAME)
    compared = newest_reconcile(home)
    assert compared is not None
    assert compared["counts"]["served"].get("LATE", 0) == compared["counts"]["served"].get("DEFECT", 0) == 0
    assert compared["counts"]["stream"]["LATE"] == run["counts"]["stream"]["LATE"]
    served, timeline = export_sha256(home), head(home)
    restored = run_command_warm(settings, "savepoint", "restore", NAME, savepoint, "--yes")
    assert restored["timeline"] == head(home) != timeline
    rebuild_served(home, load_definition(settings.definitions / NAME))
    assert export_sha256(home) == served
