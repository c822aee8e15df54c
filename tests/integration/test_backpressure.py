"""More records than the stream may read: they wait in the log, nothing is dropped, memory does not grow with them."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from rivertwice.config import Settings
from rivertwice.instants import utc_now
from rivertwice.log.broker import BrokerInfo
from rivertwice.metrics.measure import measure
from rivertwice.supervise.view import view_pipeline
from rivertwice.testing.lab import Lab
from rivertwice.testing.processes import group_members
from rivertwice.timeline.lineage import path_ledger

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.faults]
CAP, FLOOD_S = 50, 20
PER_SECOND = 100


def memory_of(pid: int) -> int:
    """Return the resident bytes of a driver and its JVM."""
    return sum(member.memory_info().rss for member in [psutil.Process(pid), *group_members(pid)])


def test_what_is_too_much_waits_in_the_log_and_is_read_in_bounded_batches(
    settings: Settings, broker: BrokerInfo, tmp_path: Path
) -> None:
    lab = Lab(
        replace(settings, bootstrap=broker.bootstrap),
        tmp_path / "run",
        seed=45,
        pins={"max_offsets_per_trigger": CAP, "trigger": "1 second"},
    )
    try:
        lab.produce(lab.next_plan(records=CAP))
        driver = lab.start_driver()
        lab.until(lambda: lab.steps().idle(lab.produced), 120, "the first records")
        before, lags = memory_of(driver.pid), []
        for second in range(FLOOD_S):
            due = time.monotonic() + 1.0
            lab.produce(lab.next_plan(records=PER_SECOND, poison_share=0.0, closing=False))
            now = utc_now()
            found = measure(lab.settings, lab.pipeline, view_pipeline(lab.settings, lab.pipeline, now), now)
            lags.append((second, found.lag_records, found.backpressure_s))
            time.sleep(max(0.0, due - time.monotonic()))
        assert lags[-1][1] is not None
        grown = lags[-1][1] - (lags[4][1] or 0)
        assert grown > 0.5 * (PER_SECOND - CAP) * (FLOOD_S - 5), lags
        assert lags[-1][2] is not None
        assert lags[-1][2] > 0, lags
        lab.until(lambda: lab.steps().idle(lab.produced), 240, "the end of the flood")
        rows = path_ledger(lab.home)
        assert max(row.read for row in rows) <= CAP
        assert sum(row.read for row in rows) == lab.produced
        assert memory_of(driver.pid) < 1.5 * before
        lab.kill_when(driver, lambda: True)
        lab.run_to_end()
        assert lab.judge().findings == ()
    finally:
        lab.close()
