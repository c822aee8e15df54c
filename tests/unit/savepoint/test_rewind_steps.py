"""The rewind's protocol without Spark and Kafka; the picture is in `homes.rewind`."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from homes.operations import Crash, die_around, patch_effect
from homes.rewind import commit
from homes.savepoint import FINGERPRINT, NOW, TOPIC, row
from rivertwice.errors import FingerprintError, LogGapError, LostRaceError, RequestError, SavepointError, ServiceError
from rivertwice.instants import utc_now
from rivertwice.reconcile.model import RowId
from rivertwice.reconcile.results import ReconcileCause, Stamp, store_run
from rivertwice.savepoint.catalogue import load_savepoint
from rivertwice.savepoint.operations import effects
from rivertwice.savepoint.operations import record as steps
from rivertwice.savepoint.operations.catch_up import run_to_goal
from rivertwice.savepoint.operations.drain import hold_stream, let_go_of_stream
from rivertwice.savepoint.operations.effects import abandon_operation
from rivertwice.savepoint.operations.record import only_operation, read_restores, read_rewinds
from rivertwice.savepoint.operations.restore import restore_savepoint
from rivertwice.savepoint.operations.rewind import choose_savepoint, rewind_stream, show_rewind
from rivertwice.savepoint.operations.steps import REWIND
from rivertwice.savepoint.prune import prune_savepoints
from rivertwice.savepoint.records import encode_record
from rivertwice.savepoint.take import take_savepoint
from rivertwice.store import delta
from rivertwice.store.files import read_json, replace_json
from rivertwice.stream.catch_up import Goal
from rivertwice.stream.lease import Owner
from rivertwice.stream.seal import app_of, is_sealed
from rivertwice.timeline.intent import Exit, read_intent, write_exit, write_intent
from rivertwice.timeline.lineage import Fork, load_timeline, path_ledger, timeline_ledger
from rivertwice.timeline.sequence import head, read_sequence

pytestmark = pytest.mark.long


@pytest.fixture
def world(rewind_world):
    return rewind_world


def check_rewound(world, child="t2"):
    home = world.home
    assert head(home) == child
    line = load_timeline(home, child)
    assert (line.parent, line.first_batch, line.genesis) == (Fork("t1", 3), 4, {TOPIC: {"0": 40}})
    assert [(one.timeline, one.batch) for one in path_ledger(home)] == [
        *(("t1", batch) for batch in range(4)),
        (child, 4),
        (child, 5),
    ]
    (done,) = [one for one in read_rewinds(home) if one.step == steps.DONE]
    assert done.comparison is not None
    assert {key: done.comparison[key] for key in ("same", "differs", "only_old", "only_new")} == {
        "same": 2,
        "differs": 1,
        "only_old": 0,
        "only_new": 0,
    }
    assert (done.records, done.batches) == (30, 2)
    assert done.plan == {"batches": 3, "records": 30, "rows": 3, "windows": 3, "dead": 0}
    assert is_sealed(delta.applied_version(home.tables.changelog, app_of("p", "t1")))
    assert not home.drain.exists()
    assert list(home.scratch.glob("rewind-*")) == []
    assert load_savepoint(home, world.taken.id).leases == ()


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


def test_confirmed_the_path_is_the_old_one_to_the_fork_then_the_childs(world):
    report = rewind_stream(world.settings, "p")
    assert (report.timeline, report.forked_at, report.moved, report.running) == ("t2", "t1@3", True, True)
    check_rewound(world)
    moves = [entry.payload["reason"] for entry in read_sequence(world.home) if entry.kind == "head"]
    assert moves[1:] == [f"rewind to {world.taken.id} ({report.operation})"]
    assert read_intent(world.home).desired == "running"
    assert [asdict(one) for one in timeline_ledger(world.home, "t1")] == world.before


def test_stopped_before_the_head_moves_everything_serves_as_before(world):
    report = rewind_stream(world.settings, "p", world.taken.id, stop_before_head=True)
    assert (report.moved, report.head, report.comparison["differs"]) == (False, "t1", 1)
    assert report.comparison["examples"][0]["new"] == {"n": 2}
    assert [asdict(one) for one in path_ledger(world.home)] == world.before
    assert not world.home.drain.exists()
    again = rewind_stream(world.settings, "p")
    assert (again.resumed, again.moved, again.operation) == (True, True, report.operation)
    check_rewound(world)


@pytest.mark.parametrize(
    ("effect", "after"),
    [
        ("drain_stream", False),
        ("download", True),
        ("create_timeline", True),
        ("run_to_goal", True),
        ("seal_timeline", True),
        ("move_head", False),
        ("move_head", True),
        ("write_intent", True),
    ],
)
def test_killed_around_any_effect_and_run_again_the_result_is_the_same(world, monkeypatch, effect, after):
    with monkeypatch.context() as patch:
        die_around(patch, effect, after=after)
        with pytest.raises(Crash):
            rewind_stream(world.settings, "p")
    assert rewind_stream(world.settings, "p").resumed
    check_rewound(world)
    assert read_intent(world.home).desired == "running"


@pytest.mark.parametrize("count", range(1, 9))
def test_killed_around_any_record_and_run_again_the_result_is_the_same(world, monkeypatch, count):
    with monkeypatch.context() as patch:
        die_around(patch, "write_operation", count=count)
        with pytest.raises(Crash):
            rewind_stream(world.settings, "p")
    rewind_stream(world.settings, "p")
    check_rewound(world)


def test_a_head_that_went_on_during_the_rewind_is_caught_up_with(world):
    rewind_stream(world.settings, "p", stop_before_head=True)
    write_intent(world.home, "running", "somebody", utc_now())
    commit(world.home, row(7, emitted=1), {(70, "k"): 1})
    report = rewind_stream(world.settings, "p")
    assert (report.compared_at, report.records, report.comparison["same"]) == (7, 40, 3)
    assert path_ledger(world.home)[-1].end_offsets == {TOPIC: {"0": 80}}


def test_a_batch_between_the_look_and_the_seal_is_caught_up_with(world, monkeypatch):
    real = effects.seal_timeline

    def slow(home, pipeline, timeline):
        if path_ledger(home)[-1].batch != 7:
            commit(home, row(7, emitted=1), {(70, "k"): 1})
        real(home, pipeline, timeline)

    patch_effect(monkeypatch, "seal_timeline", slow)
    report = rewind_stream(world.settings, "p")
    assert (report.moved, report.compared_at, report.records) == (True, 7, 40)


@pytest.mark.parametrize("effect", ["download", "create_timeline", "run_to_goal", "compare_emitted"])
def test_given_up_the_old_head_goes_on_from_its_own_checkpoint(world, monkeypatch, effect):
    with monkeypatch.context() as patch:
        die_around(patch, effect)
        with pytest.raises(Crash):
            rewind_stream(world.settings, "p")
    given = abandon_operation(world.settings, "p", REWIND)
    assert (given.head, head(world.home), given.running) == ("t1", "t1", True)
    assert all((world.home.root / name.partition(" ")[0]).exists() for name in given.left)
    assert read_intent(world.home).desired == "running"
    assert [asdict(one) for one in path_ledger(world.home)] == world.before
    assert not is_sealed(delta.applied_version(world.home.tables.changelog, app_of("p", "t1")))
    commit(world.home, row(7, emitted=1), {(70, "k"): 1})  # not sealed: it takes a batch
    assert load_savepoint(world.home, world.taken.id).leases == ()
    assert not rewind_stream(world.settings, "p").resumed


def test_a_stop_asked_for_meanwhile_stands_when_it_is_given_up(world):
    rewind_stream(world.settings, "p", stop_before_head=True)
    write_intent(world.home, "stopped", "somebody", utc_now())
    assert not abandon_operation(world.settings, "p", REWIND).running
    assert read_intent(world.home).by == "somebody"


def test_once_the_head_is_sealed_it_can_only_be_finished(world, monkeypatch):
    with monkeypatch.context() as patch:
        die_around(patch, "move_head")
        with pytest.raises(Crash):
            rewind_stream(world.settings, "p")
    with pytest.raises(RequestError, match="only be finished"):
        abandon_operation(world.settings, "p", REWIND)
    rewind_stream(world.settings, "p")
    with pytest.raises(RequestError, match="nothing to give up"):
        abandon_operation(world.settings, "p", REWIND)


def test_no_restore_and_no_other_rewind_begins_under_an_unfinished_one(world):
    other = take_savepoint(world.settings, "p", now=utc_now())
    rewind_stream(world.settings, "p", stop_before_head=True)
    with pytest.raises(RequestError, match="a restore now would move the head under it"):
        restore_savepoint(world.settings, "p", world.taken.id)
    with pytest.raises(RequestError, match="was cut off at 'caught up and compared'"):
        rewind_stream(world.settings, "p", other.id)
    with only_operation(world.home), pytest.raises(LostRaceError, match="is restoring"):
        rewind_stream(world.settings, "p")
    assert read_restores(world.home) == []


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


def test_a_changed_definition_and_a_lost_log_are_refused_first(world, monkeypatch):
    world.begin[0] = 41
    with pytest.raises(LogGapError, match="flights-0 offsets 40 to 41"):
        rewind_stream(world.settings, "p")
    world.begin[0] = 0
    patch_effect(monkeypatch, "current_fingerprint", lambda *_: {**FINGERPRINT, "state": "x"})
    with pytest.raises(FingerprintError, match="changed: state"):
        rewind_stream(world.settings, "p")
    assert (read_rewinds(world.home), read_intent(world.home).by) == ([], "test")


def test_a_damaged_savepoint_is_refused_before_the_stream_is_touched(world):
    (world.home.savepoints / world.taken.id / "checkpoint/metadata").write_text("x")
    with pytest.raises(SavepointError, match="damaged"):
        rewind_stream(world.settings, "p")
    assert (read_rewinds(world.home), read_intent(world.home).by) == ([], "test")


def test_one_that_is_not_proved_needs_a_word(world):
    world.taken.store.delete(f"{world.taken.id}/proof.json")
    with pytest.raises(SavepointError, match="no proved savepoint"):
        rewind_stream(world.settings, "p")
    with pytest.raises(SavepointError, match="never proved"):
        rewind_stream(world.settings, "p", world.taken.id)
    assert rewind_stream(world.settings, "p", world.taken.id, unproved=True).moved


# ---- the driver that catches up


class FakeProcess:
    pid = 4711

    def __init__(self, returncode):
        self.returncode = returncode

    def poll(self):
        return self.returncode


def test_a_driver_that_ends_before_the_goal_is_named_with_its_reason(world, monkeypatch):
    patch_effect(monkeypatch, "start_catching_up", lambda *_: FakeProcess(1))
    write_exit(world.home, Exit(2, utc_now(), "disk", "no space", clean=False))
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


def test_a_driver_that_does_not_stop_ends_the_rewind(world, monkeypatch):
    with monkeypatch.context() as patch:
        patch_effect(patch, "lease_owner", lambda _: Owner(1, 1, 0.0, "t1"))
        with pytest.raises(ServiceError, match="run the rewind again"):
            rewind_stream(world.settings, "p", drain_seconds=0.1)
    assert head(world.home) == "t1"
    rewind_stream(world.settings, "p")
    check_rewound(world)


def test_a_marker_of_somebody_else_stays_when_the_block_ends(world):
    hold_stream(world.home, "rewind-1")
    replace_json(world.home.drain, {"by": "somebody"})
    let_go_of_stream(world.home, "rewind-1")
    assert read_json(world.home.drain) == {"by": "somebody"}
