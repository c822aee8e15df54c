"""Executors: what they judge of every row is what the driver says of it, in every history."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from homes.windows import WindowHome
from lab.faults.reconcile_runs import stored_run
from rivertwice.core.instants import EPOCH, utc_now
from rivertwice.core.settings import Settings
from rivertwice.reconcile import observe
from rivertwice.reconcile.results import cause_rows, verdict_rows
from rivertwice.reconcile.run import reconcile
from rivertwice.reconcile.seals.model import read_seals
from rivertwice.timeline.served import rebuild_served
from simulated.windows import SIZE, START, World, random_batches

pytestmark = pytest.mark.spark
HISTORIES = int(os.environ.get("RIVERTWICE_HISTORIES", "2"))


def said(spark: SparkSession, made: WindowHome, folder: Path) -> dict[str, Any]:
    """Return what a whole run stores, on a copy of the home, with its seal."""
    shutil.copytree(made.settings.home, folder)
    settings: Settings = replace(made.settings, home=folder)
    report = reconcile(spark, settings, "p", full=True, now=utc_now(), progress=lambda _: None)
    home = settings.pipeline("p")
    return {
        **stored_run(home, report.run),
        "dirty": report.dirty,
        "seals": [replace(seal, run="", created_at=EPOCH, versions={}) for seal in read_seals(home)],
    }


@pytest.mark.proves("guarantees.md#verdicts")
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_executors_say_of_every_row_what_the_driver_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    world = World(SIZE // 2 if seed % 2 else SIZE)
    for batch in random_batches(chance, 40):
        world.commit(batch)
    made = WindowHome(tmp_path / "home", world)
    made.commit(chance.randint(5, 20))
    for number in range(3):
        if chance.random() < 0.8:
            rebuild_served(made.home, made.bundle.definition)
        by_driver = said(spark, made, tmp_path / f"driver{number}")
        with monkeypatch.context() as patched:
            patched.setattr(observe, "MOST_ROWS", -1)
            by_executors = said(spark, made, tmp_path / f"executors{number}")
        for name in ("verdicts", "causes"):
            assert sorted({*by_executors[name]} ^ {*by_driver[name]}) == [], name
        assert by_executors == by_driver
        if chance.random() < 0.3:
            made.fork()
        low = world.emitted[chance.randrange(len(world.emitted) // 2)][1].start_ms
        made.publish(low, low + 4 * SIZE)
        made.commit(chance.randint(1, 8))


@pytest.mark.parametrize("most_rows", [observe.MOST_ROWS, -1])
def test_records_in_time_that_a_publication_lacks_are_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_rows: int
) -> None:
    """A rewind leaves such a publication: the new head closes its windows at other records."""
    world = World(SIZE)
    world.commit([(0, "a", START + 1000, 1), (1, "b", START + 2000, 2)])
    world.commit([(0, "a", START + 3000, 3)])
    world.commit([(1, "c", START + SIZE + 1000, 4), (0, "a", START + SIZE + 20_000, 5)])
    world.commit([(0, "a", START + SIZE + 21_000, 6)])
    made = WindowHome(tmp_path / "home", world)
    made.commit(1)
    made.publish(START, START + SIZE)
    made.commit(3)
    rebuild_served(made.home, made.bundle.definition)
    monkeypatch.setattr(observe, "MOST_ROWS", most_rows)
    report = reconcile(spark, made.settings, "p", full=True, now=utc_now(), progress=lambda _: None)
    rows = verdict_rows(made.home, report.run)
    served = [(row["key"], row["reason"]) for row in rows if (row["pair"], row["verdict"]) == ("served", "LATE")]
    assert served == [('{"k": "a"}', "1 of 2 records came too late after the newest publication")]
    assert report.counts["stream"]["LATE"] == report.counts["served"]["DEFECT"] == 0
    (cause,) = [row for row in cause_rows(made.home, report.run) if row["cause"] == "late"]
    assert (cause["partition"], cause["offset"], cause["batch"]) == (0, 1, 1)
