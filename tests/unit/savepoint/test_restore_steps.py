"""The restore's protocol without Spark and Kafka: the replay only moves files, everything else is real."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from homes.operations import Crash, die_around, patch_effect
from homes.savepoint import add_timeline, commit_batches, row
from rivertwice.errors import FingerprintError, LogGapError, LostRaceError, RequestError, SavepointError, ServiceError
from rivertwice.instants import utc_now
from rivertwice.savepoint.bases import BEGINNING
from rivertwice.savepoint.operations import record as steps
from rivertwice.savepoint.operations.fork import last_in_changelog
from rivertwice.savepoint.operations.record import only_operation, read_operations
from rivertwice.savepoint.operations.restore import restore_savepoint
from rivertwice.savepoint.prune import remove_savepoints
from rivertwice.savepoint.take import take_savepoint
from rivertwice.store import delta
from rivertwice.store.delta_log import entry_path
from rivertwice.stream.at_rest import at_rest
from rivertwice.stream.lease import Owner
from rivertwice.timeline.intent import read_intent, write_intent
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.lineage import Fork, list_timelines, load_timeline, path_ledger
from rivertwice.timeline.sequence import head, read_sequence

pytestmark = pytest.mark.long


def check_restored(home, report):
    assert (head(home), report.timeline, report.forked_at) == ("t2", "t2", 6)
    line = load_timeline(home, "t2")
    assert (line.parent, line.first_batch, line.genesis) == (Fork("t1", 6), 7, {"flights": {"0": 70}})
    checkpoint = home.checkpoint("t2")
    assert sorted(int(p.name) for p in (checkpoint / "commits").iterdir() if p.name.isdigit()) == list(range(7))
    assert (checkpoint / "offsets/6").read_text() == row(6).offsets_text
    assert [r.batch for r in path_ledger(home)] == list(range(7))
    assert list_timelines(home) == ["t1", "t2"]
    assert len([entry for entry in read_sequence(home) if entry.kind == "head"]) == 2
    intent = read_intent(home)
    assert intent is not None
    assert intent.desired == "running"
    assert not home.drain.exists()
    assert list(home.scratch.glob("restore-*")) == []
    assert [operation.step for operation in read_operations(home)] == [steps.DONE]


def test_the_newest_proved_savepoint_is_restored_and_results_stay(world):
    settings, home, taken, _ = world
    before = [asdict(r) for r in path_ledger(home)]
    take_savepoint(settings, "p", now=utc_now())  # newer, not proved
    report = restore_savepoint(settings, "p")
    assert (report.savepoint, report.replayed, report.resumed, report.running) == (taken.id, 3, False, True)
    check_restored(home, report)
    assert [asdict(r) for r in path_ledger(home)] == before


STEPS = (
    "verify_files",
    "write_intent",
    "download",
    "replay_recorded",
    "create_timeline",
    "move_head",
    "release_savepoint",
)


def test_every_batch_is_replayed_from_the_beginning_without_a_savepoint(world):
    settings, home, taken, _ = world
    before = [asdict(r) for r in path_ledger(home)]
    assert remove_savepoints(home, {taken.id}, now=utc_now(), newest_too=True) == [taken.id]

    report = restore_savepoint(settings, "p", BEGINNING)

    assert (report.savepoint, report.replayed) == (BEGINNING, 7)
    check_restored(home, report)
    assert (home.checkpoint("t2") / "metadata").exists()
    assert [asdict(r) for r in path_ledger(home)] == before


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    "effect", ["write_intent", "make_empty_checkpoint", "replay_recorded", "create_timeline", "move_head"]
)
def test_a_killed_restore_from_the_beginning_ends_the_same(world, monkeypatch, effect, after):
    settings, home, _, _ = world
    with monkeypatch.context() as patch:
        die_around(patch, effect, after=after)
        with pytest.raises(Crash):
            restore_savepoint(settings, "p", BEGINNING)
    report = restore_savepoint(settings, "p")  # without a word it goes on with what was cut off
    assert (report.savepoint, report.resumed) == (BEGINNING, True)
    check_restored(home, report)


def test_an_upgraded_stream_is_not_restored_from_the_beginning(world, monkeypatch):
    settings, home, _, _ = world
    patch_effect(monkeypatch, "equivalent_bundles", lambda *_: set())
    with pytest.raises(FingerprintError, match="the stream was upgraded"):
        restore_savepoint(settings, "p", BEGINNING)
    assert (head(home), read_operations(home)) == ("t1", [])


def test_an_erasure_at_rest_drains_nothing_and_reads_the_archive_alone(world, monkeypatch):
    settings, home, _, _ = world
    asked = []
    patch_effect(
        monkeypatch, "oldest_offsets", lambda *_, archive_only: asked.append(archive_only) or {"flights": {0: 0}}
    )
    with at_rest(home, "er-1", utc_now(), running="x"):
        restore_savepoint(settings, "p", BEGINNING, keep_intent=True, rewritten_by="er-1")
        assert home.drain.exists()  # no driver may start before the erasure is through
    assert asked == [True]
    assert [one.rewritten_by for one in read_operations(home)] == ["er-1"]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("effect", STEPS)
def test_killed_around_any_effect_and_run_again_the_result_is_the_same(world, monkeypatch, effect, after):
    settings, home, taken, _ = world
    with monkeypatch.context() as patch:
        die_around(patch, effect, after=after)
        with pytest.raises(Crash):
            restore_savepoint(settings, "p", taken.id)
    finished = effect == "release_savepoint"
    report = restore_savepoint(settings, "p") if not finished else None
    if report is not None:
        assert report.resumed
        check_restored(home, report)
    else:
        assert head(home) == "t2"
        assert read_operations(home)[0].step == steps.DONE


@pytest.mark.parametrize("count", range(1, 9))
def test_killed_around_any_record_and_run_again_the_result_is_the_same(world, monkeypatch, count):
    settings, home, taken, _ = world
    with monkeypatch.context() as patch:
        die_around(patch, "write_operation", count=count)
        with pytest.raises(Crash):
            restore_savepoint(settings, "p", taken.id)
    check_restored(home, restore_savepoint(settings, "p", taken.id))


def test_batches_that_come_in_while_it_was_interrupted_are_replayed_too(world, monkeypatch):
    settings, home, taken, _ = world
    with monkeypatch.context() as patch:
        die_around(patch, "create_timeline")
        with pytest.raises(Crash):
            restore_savepoint(settings, "p", taken.id)
    commit_batches(home, [row(7)])
    report = restore_savepoint(settings, "p", taken.id)
    assert (report.forked_at, report.replayed) == (7, 4)
    assert load_timeline(home, "t2").first_batch == 8


def test_a_parent_that_went_on_behind_a_finished_child_gets_another_child(world, monkeypatch):
    settings, home, taken, _ = world
    with monkeypatch.context() as patch:
        die_around(patch, "seal_timeline")
        with pytest.raises(Crash):
            restore_savepoint(settings, "p", taken.id)
    commit_batches(home, [row(7)])
    with pytest.raises(LostRaceError, match="run the restore again"):
        restore_savepoint(settings, "p", taken.id)
    assert head(home) == "t1"
    report = restore_savepoint(settings, "p", taken.id)
    assert (report.timeline, report.forked_at, head(home)) == ("t3", 7, "t3")


def test_a_damaged_savepoint_is_refused_before_the_stream_is_touched(world):
    settings, home, taken, _ = world
    (home.savepoints / taken.id / "checkpoint/metadata").write_text("x")
    with pytest.raises(SavepointError, match="damaged"):
        restore_savepoint(settings, "p", taken.id)
    intent = read_intent(home)
    assert intent is not None
    assert (intent.desired, head(home), read_operations(home)) == ("running", "t1", [])


def test_a_log_that_begins_after_the_fork_is_refused_first(world):
    settings, home, taken, begin = world
    begin[0] = 71
    with pytest.raises(LogGapError, match="1 records are gone"):
        restore_savepoint(settings, "p", taken.id)
    assert (head(home), read_operations(home)) == ("t1", [])


@pytest.mark.proves("howto-savepoints.md#restore")
def test_without_a_proved_savepoint_nothing_is_restored_by_default(world):
    settings, _, taken, _ = world
    taken.store.delete(f"{taken.id}/proof.json")
    with pytest.raises(SavepointError, match="no proved savepoint"):
        restore_savepoint(settings, "p")
    with pytest.raises(SavepointError, match="never proved"):
        restore_savepoint(settings, "p", taken.id)
    assert restore_savepoint(settings, "p", taken.id, unproved=True).timeline == "t2"


def test_a_savepoint_of_an_older_timeline_is_replayed_across_the_fork(world):
    settings, home, taken, _ = world
    add_timeline(home, "t2", parent=Fork("t1", 5), first=6)
    commit_batches(home, [row(6, "t2"), row(7, "t2")])
    report = restore_savepoint(settings, "p", taken.id)
    assert (report.timeline, report.parent, report.forked_at, report.replayed) == ("t3", "t2", 7, 4)


def test_a_savepoint_off_the_path_is_refused(world):
    settings, home, taken, _ = world
    add_timeline(home, "t2", parent=Fork("t1", 2), first=3)
    commit_batches(home, [row(3, "t2")])
    with pytest.raises(SavepointError, match="rewind"):
        restore_savepoint(settings, "p", taken.id)


def test_a_driver_that_does_not_stop_ends_the_restore(world, monkeypatch):
    settings, home, taken, _ = world
    with monkeypatch.context() as patch:
        patch_effect(patch, "lease_owner", lambda _: Owner(1, 1, 0.0, "t1"))
        with pytest.raises(ServiceError, match="did not stop within 0 s"):
            restore_savepoint(settings, "p", taken.id, drain_seconds=0.1)
    assert head(home) == "t1"
    assert not home.drain.exists()
    check_restored(home, restore_savepoint(settings, "p"))


def test_a_stream_that_was_not_wanted_stays_stopped(world):
    settings, home, taken, _ = world
    write_intent(home, "stopped", "test", utc_now())
    assert not restore_savepoint(settings, "p", taken.id).running
    intent = read_intent(home)
    assert intent is not None
    assert intent.desired == "stopped"


def test_two_restores_at_once_are_refused(world):
    settings, home, taken, _ = world
    with only_operation(home), pytest.raises(LostRaceError, match="is restoring"):
        restore_savepoint(settings, "p", taken.id)


def test_another_savepoint_waits_for_the_interrupted_restore(world, monkeypatch):
    settings, _, taken, _ = world
    other = take_savepoint(settings, "p", now=utc_now())
    with monkeypatch.context() as patch:
        die_around(patch, "download")
        with pytest.raises(Crash):
            restore_savepoint(settings, "p", taken.id)
    with pytest.raises(RequestError, match="was cut off at 'fork decided'"):
        restore_savepoint(settings, "p", other.id)


def test_the_fork_is_the_changelogs_last_batch_where_it_lost_newer_ones(world):
    settings, home, taken, _ = world
    append_ledger(home, [row(7), row(8)])  # copies of commits that the changelog has no more
    report = restore_savepoint(settings, "p", taken.id)
    assert (report.forked_at, report.replayed) == (6, 3)
    assert load_timeline(home, "t2").first_batch == 7
    assert load_timeline(home, "t2").genesis == row(6).end_offsets


def test_a_restore_goes_on_behind_its_seal_from_the_same_batch(world, monkeypatch):
    settings, home, taken, _ = world
    with monkeypatch.context() as patch:
        die_around(patch, "move_head")
        with pytest.raises(Crash):
            restore_savepoint(settings, "p", taken.id)
    assert last_in_changelog(home, "t1") == 6
    assert restore_savepoint(settings, "p", taken.id).forked_at == 6


def test_a_savepoint_after_the_changelogs_end_is_refused_for_an_older(world):
    settings, home, taken, _ = world
    entry_path(home.tables.changelog, delta.open_table(home.tables.changelog).version()).unlink()
    for batch in (5, 4):
        entry_path(home.tables.changelog, delta.open_table(home.tables.changelog).version()).unlink()
        assert last_in_changelog(home, "t1") == (batch - 1 if batch == 5 else None)
    with pytest.raises(SavepointError, match="is at batch 3, but the changelog of p ends at batch -1"):
        restore_savepoint(settings, "p", taken.id)
    with pytest.raises(SavepointError, match="no proved savepoint on the head's path"):
        restore_savepoint(settings, "p")
