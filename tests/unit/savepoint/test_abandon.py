from __future__ import annotations

from dataclasses import asdict

import pytest

from homes.operations import Crash, die_around
from rivertwice.errors import LostRaceError, RequestError
from rivertwice.instants import utc_now
from rivertwice.savepoint.catalogue import load_savepoint
from rivertwice.savepoint.operations import record as steps
from rivertwice.savepoint.operations.effects import abandon_operation
from rivertwice.savepoint.operations.record import only_operation, read_operations
from rivertwice.savepoint.operations.restore import restore_savepoint
from rivertwice.savepoint.operations.steps import RESTORE
from rivertwice.timeline.intent import read_intent, write_intent
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.sequence import head


def interrupt(world, monkeypatch, effect):
    settings, _, taken, _ = world
    with monkeypatch.context() as patch:
        die_around(patch, effect, after=effect == "create_timeline")
        with pytest.raises(Crash):
            restore_savepoint(settings, "p", taken.id)


@pytest.mark.parametrize(
    ("effect", "left"),
    [("download", 0), ("replay_recorded", 0), ("create_timeline", 1), ("seal_timeline", 1)],
)
def test_a_restore_given_up_names_what_it_leaves_and_the_parent_goes_on(world, monkeypatch, effect, left):
    settings, home, taken, _ = world
    before = [asdict(row) for row in path_ledger(home)]
    interrupt(world, monkeypatch, effect)
    report = abandon_operation(settings, "p", RESTORE)
    assert (report.head, head(home), report.running) == ("t1", "t1", True)
    assert report.left[0].startswith("operations/restore-")
    assert len(report.left) == 1 + left
    assert all((home.root / name.partition(" ")[0]).exists() for name in report.left)
    assert [operation.step for operation in read_operations(home)] == [steps.ABANDONED]
    assert load_savepoint(home, taken.id).leases == ()
    assert list(home.scratch.glob("restore-*")) == []
    intent = read_intent(home)
    assert intent is not None
    assert intent.desired == "running"
    assert [asdict(row) for row in path_ledger(home)] == before
    again = restore_savepoint(settings, "p", taken.id)
    assert (again.resumed, head(home)) == (False, again.timeline)


def test_a_stop_asked_for_meanwhile_stands(world, monkeypatch):
    settings, home, _, _ = world
    interrupt(world, monkeypatch, "download")
    write_intent(home, "stopped", "somebody", utc_now())
    assert not abandon_operation(settings, "p", RESTORE).running
    intent = read_intent(home)
    assert intent is not None
    assert (intent.desired, intent.by) == ("stopped", "somebody")


def test_a_restore_whose_head_has_moved_can_only_be_finished(world, monkeypatch):
    settings, _, _, _ = world
    with monkeypatch.context() as patch:
        die_around(patch, "move_head", after=True)
        with pytest.raises(Crash):
            restore_savepoint(settings, "p")
    with pytest.raises(RequestError, match="only be finished"):
        abandon_operation(settings, "p", RESTORE)
    assert restore_savepoint(settings, "p").resumed
    with pytest.raises(RequestError, match="no restore of p was cut off"):
        abandon_operation(settings, "p", RESTORE)


def test_a_restore_that_runs_cannot_be_given_up(world):
    settings, home, _, _ = world
    with only_operation(home), pytest.raises(LostRaceError, match="is restoring"):
        abandon_operation(settings, "p", RESTORE)
