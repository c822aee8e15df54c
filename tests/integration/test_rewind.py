"""A rewind over a real broker and the real driver: shown, caught up beside the old head, compared, moved, resumed."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.savepoint.operations.effects import abandon_operation
from rivertwice.savepoint.operations.rewind import rewind_stream, show_rewind
from rivertwice.savepoint.operations.steps import REWIND
from rivertwice.savepoint.take import take_savepoint
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.sequence import head
from rivertwice.timeline.served import export_sha256, rebuild_served
from streams.synthetic import DriverProcess, flights, make_small_project, produce, run_to_end, wait_for_batch

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
STORY = flights(150)
CUT = 120  # records there when the stream first runs; the others come once it has stopped
BEFORE = 4  # the savepoint is taken behind this batch, or a little later


def streamed(broker: BrokerInfo, folder, name: str) -> tuple[Settings, str]:
    """A stream that ran to its end in two pieces, and the savepoint taken in the first."""
    settings = make_small_project(folder, name, bootstrap=broker.bootstrap)
    produce(settings, name, STORY[:CUT])
    driver = DriverProcess(settings, name, "--until-end")
    try:
        wait_for_batch(settings, name, BEFORE, driver=driver, seconds=300)
        taken = take_savepoint(settings, name, now=utc_now())
        driver.finish(300)
    finally:
        driver.stop()
    return settings, taken.id


def served(settings: Settings, name: str) -> str:
    rebuild_served(settings.pipeline(name), load_definition(settings.definitions / name))
    return export_sha256(settings.pipeline(name))


@pytest.mark.proves("guarantees.md#restore-fall-back-rewind")
@pytest.mark.faults
def test_a_rewind_serves_the_old_head_until_it_has_caught_up(broker, tmp_path):
    name = "rewind-whole"
    settings, taken = streamed(broker, tmp_path, name)
    home, before = settings.pipeline(name), served(settings, name)
    old = path_ledger(home)
    plan = show_rewind(settings, name, taken, unproved=True)
    assert plan.refusals == ()
    assert plan.batches == old[-1].batch - plan.batch
    report = rewind_stream(settings, name, taken, unproved=True, stop_before_head=True)
    assert (served(settings, name), head(home)) == (before, "t1")
    assert path_ledger(home) == old
    counts = report.comparison
    assert (report.records, counts["old_windows"]) == (plan.records, plan.windows)
    assert counts["same"] + counts["differs"] + counts["only_old"] == plan.rows > 0
    moved = rewind_stream(settings, name)
    assert (moved.moved, moved.timeline, head(home)) == (True, "t2", "t2")
    path = path_ledger(home)
    assert path[: len(old) - plan.batches] == old[: len(old) - plan.batches]
    assert {row.timeline for row in path[len(old) - plan.batches :]} == {"t2"}
    assert path[-1].end_offsets == old[-1].end_offsets
    assert path[-1].batch_watermark_ms >= old[-1].batch_watermark_ms  # no window that was closed is open again
    produce(settings, name, STORY[CUT:])
    rows = run_to_end(settings, name)
    assert all(a.end_offsets == b.start_offsets for a, b in pairwise(rows))
    assert rows[-1].timeline == "t2"


@pytest.mark.faults
def test_given_up_the_old_stream_goes_on_from_its_own_checkpoint(broker, tmp_path):
    name = "rewind-given-up"
    settings, taken = streamed(broker, tmp_path, name)
    old = path_ledger(settings.pipeline(name))
    rewind_stream(settings, name, taken, unproved=True, stop_before_head=True)
    given = abandon_operation(settings, name, REWIND)
    assert (given.head, len(given.left)) == ("t1", 2)
    produce(settings, name, STORY[CUT:])
    rows = run_to_end(settings, name)
    assert rows[: len(old)] == old
    assert {row.timeline for row in rows} == {"t1"}
    assert len(rows) > len(old)
