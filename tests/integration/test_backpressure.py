"""More records than the stream may read: they wait in the log, nothing is dropped, memory does not grow with them."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from lab.faults.lab import Lab
from rivertwice.agent.metrics import measure
from rivertwice.agent.view import view_pipeline
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Deadline
from rivertwice.local.broker import BrokerInfo
from rivertwice.timeline.lineage import path_ledger
from running.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.faults]
CAP, FLOOD_S = 50, 12
WARM_UP = 20  # batches: what Spark and Delta keep of the batches before is kept by then
PER_SECOND = 100
COLLECTS = "-XX:+UseG1GC -XX:G1PeriodicGCInterval=1000 -XX:-G1PeriodicGCInvokesConcurrent -Xlog:gc:file={logs}/%p"
"""A heap grows to its limit whatever lives in it: so the JVM collects all its garbage once a second, and says what is left."""
_LEFT = re.compile(r"Pause Full .*->(\d+)M\(")


def live_mib(logs: Path) -> list[int]:
    """Return what each full collection left in the driver's heap, in MiB; the JVMs that only start it are over before."""
    return max(([int(left) for left in _LEFT.findall(log.read_text())] for log in logs.iterdir()), key=len, default=[])


def lives(logs: Path) -> int:
    """Return what lives in the JVM's heap, in MiB, as the collection after next says: one may be under way."""
    known = len(live_mib(logs))
    wait_for(
        "two collections",
        lambda: len(live_mib(logs)) >= known + 2,
        60,
        every=0.2,
        seen=lambda: [log.read_text()[-2000:] for log in logs.iterdir()],
    )
    return live_mib(logs)[-1]


def memory_of_python(pid: int) -> int:
    """Return the resident bytes of a driver's process, without its JVM."""
    return psutil.Process(pid).memory_info().rss


def test_what_is_too_much_waits_in_the_log_and_is_read_in_bounded_batches(
    settings: Settings, broker: BrokerInfo, tmp_path: Path
) -> None:
    collections = tmp_path / "collections"
    collections.mkdir()
    lab = Lab(
        replace(settings, bootstrap=broker.bootstrap),
        tmp_path / "run",
        seed=45,
        pins={"max_offsets_per_trigger": CAP, "trigger": "1 second"},
    )
    try:
        lab.produce(lab.next_plan(records=WARM_UP * CAP))
        others = os.environ.get("SPARK_SUBMIT_OPTS", "").replace("-XX:+UseSerialGC", "")  # a JVM takes one collector
        options = {"SPARK_SUBMIT_OPTS": others, "_JAVA_OPTIONS": COLLECTS.format(logs=collections)}
        driver = lab.start_driver(env=options)
        lab.until(lambda: lab.steps().idle(lab.produced), 300, "the first batches")
        before, python_before, lags = lives(collections), memory_of_python(driver.pid), []
        for second in range(FLOOD_S):
            second_ends = Deadline.after(1.0)
            lab.produce(lab.next_plan(records=PER_SECOND, poison_share=0.0, closing=False))
            now = utc_now()
            found = measure(lab.settings, lab.pipeline, view_pipeline(lab.settings, lab.pipeline, now), now)
            lags.append((second, found.lag_records, found.backpressure_s))
            time.sleep(second_ends.left())
        assert lags[-1][1] is not None
        grown = lags[-1][1] - (lags[4][1] or 0)
        assert grown > 0.5 * (PER_SECOND - CAP) * (FLOOD_S - 5), lags
        assert lags[-1][2] is not None
        assert lags[-1][2] > 0, lags
        lab.until(lambda: lab.steps().idle(lab.produced), 240, "the end of the flood")
        rows = path_ledger(lab.home)
        assert max(row.read for row in rows) <= CAP
        assert sum(row.read for row in rows) == lab.produced
        after = lives(collections)
        assert after < 1.25 * before, live_mib(collections)
        assert memory_of_python(driver.pid) < 1.25 * python_before
        print(f"MiB that live: {before} before, {after} after, at each collection {live_mib(collections)}")  # noqa: T201
    finally:
        lab.close()
