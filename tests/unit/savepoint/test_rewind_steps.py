"""What is particular to rewinds; what every operation promises is in `test_operations`, the picture in `homes.rewind`."""

from __future__ import annotations

import pytest

from homes.operations import Crash, die_around, patch_effect
from homes.rewind import commit
from homes.savepoint import NOW, TOPIC, row
from rivertwice.core.errors import ServiceError
from rivertwice.core.instants import utc_now
from rivertwice.reconcile.model import RowId
from rivertwice.reconcile.results import ReconcileCause, Stamp, store_run
from rivertwice.savepoint.operations import effects
from rivertwice.savepoint.operations.fork import block_stream, release_stream
from rivertwice.savepoint.operations.record import read_restores
from rivertwice.savepoint.operations.restore import restore_savepoint
from rivertwice.savepoint.operations.rewind import choose_savepoint, rewind_stream, run_to_goal, show_rewind
from rivertwice.savepoint.prune import prune_savepoints
from rivertwice.savepoint.records import encode_record
from rivertwice.savepoint.take import take_savepoint
from rivertwice.storage.local import read_json, replace_json
from rivertwice.stream.checkpoint import Goal
from rivertwice.stream.lease import Owner
from rivertwice.timeline.intent import Exit, write_intent
from rivertwice.timeline.lineage import path_ledger

pytestmark = pytest.mark.long


@pytest.fixture
def world(rewind_world):
    return rewind_world


def test_shown_it_changes_nothing(world):
    files = sorted(path for path in world.home.root.rglob("*") if path.is_file())
    plan = show_rewind(world.settings, "p")
    assert (plan.savepoint, plan.records, plan.rows, plan.windows, plan.late) == (world.taken.id, 30, 3, 3, None)
    assert sorted(path for path in world.home.root.rglob("*") if path.is_file()) == files


def test_late_records_of_the_batches_that_go_are_counted_by_reconcile(world):
    stamp = Stamp("r1", "p", NOW, "t1", 6, "b", 1, {TOPIC: {"0": 70}})
    of_row = RowId(0, 10_000, '{"k": "a"}')
    causes = [
        ReconcileCause("stream", "late", of_row, TOPIC, 0, offset, batch, 0, NOW)
        for offset, batch in ((38, 3), (41, 4), (41, 4), (52, 5))
    ]
    causes.append(ReconcileCause("stream", "dead", None, TOPIC, 0, 55, 5))
    summary = {"counts": {}, "balance": {}, "late_by_partition": {}, "gate": {}, "duration_s": 0.0}
    store_run(world.home, stamp, [], causes, summary)
    assert show_rewind(world.settings, "p").late == 2


def test_a_head_that_went_on_during_the_rewind_is_caught_up_with(world):
    rewind_stream(world.settings, "p", stop_before_head=True)
    write_intent(world.home, "running", "somebody", utc_now())
    commit(world.home, row(7, emitted=1), {(70, "k"): 1})
    report = rewind_stream(world.settings, "p")
    assert (report.compared_at, report.records, report.comparison["same"]) == (7, 40, 3)
    assert path_ledger(world.home)[-1].end_offsets == {TOPIC: {"0": 80}}


@pytest.mark.proves("guarantees.md#restore-fall-back-rewind")
def test_a_batch_between_the_look_and_the_seal_is_caught_up_with(world, monkeypatch):
    real = effects.seal_timeline

    def slow(home, pipeline, timeline):
        if path_ledger(home)[-1].batch != 7:
            commit(home, row(7, emitted=1), {(70, "k"): 1})
        real(home, pipeline, timeline)

    patch_effect(monkeypatch, "seal_timeline", slow)
    report = rewind_stream(world.settings, "p")
    assert (report.moved, report.compared_at, report.records) == (True, 7, 40)


@pytest.mark.proves("howto-savepoints.md#what-prune-never-deletes")
def test_prune_spares_the_savepoint_an_unfinished_rewind_goes_on_with(world):
    rewind_stream(world.settings, "p", stop_before_head=True)
    for number in range(3):
        later = take_savepoint(world.settings, "p", now=utc_now())
        if number == 1:
            later.store.put(f"{later.id}/proof.json", encode_record({"proved": True}))
    assert world.taken.id in prune_savepoints(world.home, keep=0, now=utc_now()).protected


def test_a_later_restore_and_prune_keep_the_newest_proved_of_the_path(world, monkeypatch):
    gone = take_savepoint(world.settings, "p", now=utc_now())  # at t1@6, which will not count
    gone.store.put(f"{gone.id}/proof.json", encode_record({"proved": True}))
    rewind_stream(world.settings, "p", world.taken.id)
    assert set(prune_savepoints(world.home, keep=0, now=utc_now()).protected) == {gone.id, world.taken.id}
    assert choose_savepoint(world.home, None).id == world.taken.id
    with monkeypatch.context() as patch:
        die_around(patch, "check_restore")
        with pytest.raises(Crash):
            restore_savepoint(world.settings, "p")
    assert [one.savepoint for one in read_restores(world.home)] == [world.taken.id]


# ---- the driver that catches up


class FakeProcess:
    pid = 4711

    def __init__(self, returncode):
        self.returncode = returncode

    def poll(self):
        return self.returncode


def test_a_driver_that_ends_before_the_goal_is_named_with_its_reason(world, monkeypatch):
    patch_effect(monkeypatch, "start_catching_up", lambda *_: FakeProcess(1))
    Exit(2, utc_now(), "disk", "no space", clean=False).save(world.home)
    goal = Goal("t2", "rewind-1", {TOPIC: {"0": 70}}, 6000)
    with pytest.raises(ServiceError, match="disk: no space"):
        run_to_goal(world.settings, world.home, goal, lambda: row(3), print)


def test_a_driver_that_read_everything_and_went_idle_has_caught_up(world, monkeypatch):
    started = []
    patch_effect(monkeypatch, "start_catching_up", lambda *_: started.append(1) or FakeProcess(0))
    goal = Goal("t2", "rewind-1", {TOPIC: {"0": 40}}, 9000)
    run_to_goal(world.settings, world.home, goal, lambda: row(3), print)
    assert started == [1]
    run_to_goal(world.settings, world.home, Goal("t2", "rewind-1", {TOPIC: {"0": 40}}, 3000), lambda: row(3), print)
    assert started == [1]  # it was there already


def test_a_driver_that_outlived_the_rewind_is_gone_on_with(world, monkeypatch):
    ends = iter([Owner(3, 1, 0.0, "t2"), Owner(3, 1, 0.0, "t2"), None])
    patch_effect(monkeypatch, "lease_owner", lambda _: next(ends))
    patch_effect(monkeypatch, "start_catching_up", lambda *_: pytest.fail("another was started"))
    goal = Goal("t2", "rewind-1", {TOPIC: {"0": 40}}, 3000)
    run_to_goal(world.settings, world.home, goal, lambda: row(3), print)
    assert read_json(world.home.drain)["by"] == "rewind-1"  # kept fresh, so that the agent leaves it alone


def test_a_marker_of_somebody_else_stays_when_the_block_ends(world):
    block_stream(world.home, "rewind-1")
    replace_json(world.home.drain, {"by": "somebody"})
    release_stream(world.home, "rewind-1")
    assert read_json(world.home.drain) == {"by": "somebody"}
