"""What is particular to restores, planned ones too; what every operation promises is in `test_operations`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from homes.operations import Crash, die_around, patch_effect
from homes.savepoint import add_timeline, catch_checkpoint_up, commit_batches, row
from rivertwice.core.errors import FingerprintError, SavepointError
from rivertwice.core.instants import utc_now
from rivertwice.savepoint.catalogue import list_savepoints, load_savepoint
from rivertwice.savepoint.manifest import StateBase
from rivertwice.savepoint.operations.effects import abandon_operation
from rivertwice.savepoint.operations.fall_back import fall_back
from rivertwice.savepoint.operations.fork import last_in_changelog
from rivertwice.savepoint.operations.record import Restore, read_operations, write_operation
from rivertwice.savepoint.operations.restore import restore_savepoint, show_restore
from rivertwice.savepoint.operations.steps import RESTORE
from rivertwice.savepoint.prune import remove_savepoints
from rivertwice.savepoint.records import encode_record
from rivertwice.savepoint.resting import require_own_state
from rivertwice.storage.table import Table
from rivertwice.storage.table_log import entry_path
from rivertwice.stream.lease import at_rest
from rivertwice.timeline import ledger
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.lineage import Fork, Timeline
from rivertwice.timeline.sequence import head

pytestmark = pytest.mark.long


def test_every_batch_is_replayed_from_the_beginning_where_no_savepoint_is_left(world):
    settings, home, taken, _ = world
    assert remove_savepoints(home, {taken.id}, now=utc_now(), newest_too=True) == [taken.id]
    report = restore_savepoint(settings, "p", StateBase.BEGINNING)
    assert (report.savepoint, report.replayed, head(home)) == (StateBase.BEGINNING, 7, "t2")


def test_an_erasure_at_rest_drains_nothing_and_reads_the_archive_alone(world, monkeypatch):
    settings, home, _, _ = world
    asked = []
    patch_effect(
        monkeypatch, "oldest_offsets", lambda *_, archive_only: asked.append(archive_only) or {"flights": {0: 0}}
    )
    with at_rest(home, "er-1", utc_now(), running="x"):
        restore_savepoint(settings, "p", StateBase.BEGINNING, keep_intent=True, rewritten_by="er-1")
        assert home.drain.exists()  # no driver may start before the erasure is through
    assert asked == [True]
    assert [one.rewritten_by for one in read_operations(home)] == ["er-1"]


def test_a_savepoint_of_an_older_timeline_is_replayed_across_the_fork(world):
    settings, home, taken, _ = world
    add_timeline(home, "t2", parent=Fork("t1", 5), first=6)
    commit_batches(home, [row(6, "t2"), row(7, "t2")])
    report = restore_savepoint(settings, "p", taken.id)
    assert (report.timeline, report.parent, report.forked_at, report.replayed) == ("t3", "t2", 7, 4)


def test_the_fork_is_the_changelogs_last_batch_where_it_lost_newer_ones(world):
    settings, home, taken, _ = world
    append_ledger(home, [row(7), row(8)])  # copies of commits that the changelog has no more
    report = restore_savepoint(settings, "p", taken.id)
    assert (report.forked_at, report.replayed) == (6, 3)
    assert Timeline.load(home, "t2").first_batch == 7
    assert Timeline.load(home, "t2").genesis == row(6).end_offsets


def test_a_savepoint_after_the_changelogs_end_is_refused_for_an_older(world):
    settings, home, taken, _ = world
    entry_path(home.tables.changelog, Table(home.tables.changelog).open().version).unlink()
    for batch in (5, 4):
        entry_path(home.tables.changelog, Table(home.tables.changelog).open().version).unlink()
        assert last_in_changelog(home, "t1") == (batch - 1 if batch == 5 else None)
    with pytest.raises(SavepointError, match="is at batch 3, but the changelog of p ends at batch -1"):
        restore_savepoint(settings, "p", taken.id)
    with pytest.raises(SavepointError, match="no proved savepoint on the head's path"):
        restore_savepoint(settings, "p")


@pytest.fixture
def replays(monkeypatch):
    """The numbers of batches that were replayed, by any session."""
    counted: list[int] = []
    patch_effect(monkeypatch, "replay_recorded", lambda *arguments, **_: counted.append(len(arguments[4])))
    return counted


def count_rows_read(monkeypatch, act):
    """Return how many whole rows of the ledger an act reads."""
    real, counted = ledger.from_table, []

    def from_table(table):
        counted.append(table.num_rows)
        return real(table)

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "from_table", from_table)
        act()
    return sum(counted)


def test_a_planned_restore_reads_no_more_rows_behind_a_long_history(planned_world, replays, monkeypatch):
    settings, home, *_ = planned_world
    append_ledger(home, [row(batch) for batch in range(7, 300)])
    commit_batches(home, [row(batch) for batch in range(300, 304)])
    catch_checkpoint_up(home, "t1", finished=303)
    shown = count_rows_read(monkeypatch, lambda: show_restore(settings, "p", StateBase.RESTING))
    done = count_rows_read(monkeypatch, lambda: restore_savepoint(settings, "p", StateBase.RESTING))
    assert (head(home), replays) == ("t2", [])
    assert 0 < shown < 40
    assert 0 < done < 40


def test_a_batch_whose_commit_file_is_missing_is_the_only_one_replayed(planned_world, replays):
    settings, home, *_ = planned_world
    (home.checkpoint("t1") / "commits/6").unlink()  # the driver was killed between the two
    report = restore_savepoint(settings, "p", StateBase.RESTING)
    assert (report.forked_at, report.replayed, replays) == (6, 1, [1])
    assert load_savepoint(home, report.savepoint).manifest.batch == 5


@pytest.mark.parametrize("file", ["offsets/5", "offsets/6", "metadata"])
def test_a_damaged_checkpoint_lets_the_newest_proved_be_replayed(planned_world, replays, file):
    settings, home, taken, _ = planned_world
    (home.checkpoint("t1") / file).write_text("x")
    report = restore_savepoint(settings, "p", StateBase.RESTING)
    assert (report.savepoint, report.forked_at, report.replayed, replays) == (taken.id, 6, 3, [3])
    assert [each.id for each in list_savepoints(home)] == [taken.id]


def test_damage_without_a_proved_savepoint_ends_it_and_names_the_way_out(planned_world):
    settings, home, taken, _ = planned_world
    taken.store.delete(f"{taken.id}/proof.json")
    (home.checkpoint("t1") / "offsets/5").write_text("x")
    with pytest.raises(SavepointError, match=r"is damaged .*--abandon"):
        restore_savepoint(settings, "p", StateBase.RESTING, unproved=True)
    assert head(home) == "t1"
    assert abandon_operation(settings, "p", RESTORE).running


def test_a_fall_back_finishes_a_planned_restore_whose_checkpoint_broke(planned_world, monkeypatch, replays):
    settings, home, taken, _ = planned_world
    with monkeypatch.context() as patch:
        die_around(patch, "save_checkpoint")
        with pytest.raises(Crash):
            restore_savepoint(settings, "p", StateBase.RESTING)
    (home.checkpoint("t1") / "offsets/6").write_text("x")
    fallen = fall_back(settings, "p", progress=print)
    assert fallen.report is not None
    assert (fallen.report.resumed, fallen.report.savepoint, replays, head(home)) == (True, taken.id, [3], "t2")


def test_an_upgraded_timeline_without_a_batch_is_no_base_of_a_planned_one(planned_world):
    home = planned_world.home
    add_timeline(home, "t2", parent=Fork("t1", 6), first=7)
    line, parent = Timeline.load(home, "t2"), Timeline.load(home, "t1")
    with pytest.raises(FingerprintError, match="made by an upgrade and has no batch yet"):
        require_own_state(replace(line, fingerprint={"state": "new"}), parent, row(6))
    with pytest.raises(SavepointError, match="made by an accepted gap and has no batch yet"):
        require_own_state(replace(line, genesis={"flights": {"0": 99}}), parent, row(6))
    require_own_state(replace(line, genesis={"flights": {"0": 70}}), parent, row(6))


def test_an_upgrade_record_that_was_proved_meanwhile_reads_back(planned_world):
    _, home, taken, _ = planned_world
    taken.store.put(f"{taken.id}/proof.json", encode_record({"proved": True}))
    of_upgrade = {"bundle": "b", "planned": True, "origin": taken.id}
    stored = Restore("restore-1", StateBase.RESTING, "t1", "t2", was_running=True, started_at=utc_now(), **of_upgrade)
    write_operation(home, stored)
    (read,) = read_operations(home)
    assert (read, read.held) == (stored, (taken.id,))
