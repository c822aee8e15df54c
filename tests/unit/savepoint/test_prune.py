from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from homes.savepoint import NOW, add_timeline, make_home, row, savepoint, write_checkpoint
from rivertwice.cli.main import cli
from rivertwice.core.errors import RequestError, SavepointError
from rivertwice.savepoint import prune
from rivertwice.savepoint.catalogue import Savepoint, list_savepoints, savepoint_store, select_newest
from rivertwice.savepoint.operations.record import OperationStep, Restore, write_operation
from rivertwice.savepoint.prune import (
    delete_savepoint,
    held_savepoints,
    pin_savepoint,
    prune_savepoints,
    remove_savepoints,
    select_protected,
    select_prunable,
    unpin_savepoint,
)
from rivertwice.savepoint.records import encode_record, lease_savepoint, release_savepoint
from rivertwice.savepoint.take import take_savepoint
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.lineage import Fork

SAVEPOINTS = st.lists(
    st.builds(
        savepoint,
        st.integers(0, 900),
        proved=st.booleans(),
        pinned=st.booleans(),
        leased_for=st.sampled_from([0, -1, 1]),
    ),
    unique_by=lambda s: s.id,
    max_size=12,
)


@pytest.mark.proves(
    "cli.md#savepoints-and-versions", "howto-savepoints.md#what-prune-never-deletes", "guarantees.md#savepoints"
)
@given(SAVEPOINTS, st.integers(0, 6))
def test_what_may_go_is_never_protected_and_never_among_the_newest(savepoints, keep):
    protected = select_protected(savepoints, now=NOW)
    gone = select_prunable(savepoints, protected, keep=keep)
    left = [s for s in savepoints if s not in gone]
    assert not {s.id for s in gone} & set(protected)
    newest_first = sorted(savepoints, key=lambda s: s.manifest.created_at, reverse=True)
    assert all(s in left for s in newest_first[:keep])
    assert all(s in left for s in savepoints if s.pinned or any(lease.expires_at > NOW for lease in s.leases))
    assert select_newest(left, proved=True) == select_newest(savepoints, proved=True)
    assert select_newest(left, proved=False) == select_newest(savepoints, proved=False)
    assert bool(left) == bool(savepoints)


@given(SAVEPOINTS, st.integers(0, 6))
def test_pruning_again_finds_nothing_more(savepoints, keep):
    gone = select_prunable(savepoints, select_protected(savepoints, now=NOW), keep=keep)
    left = [s for s in savepoints if s not in gone]
    assert select_prunable(left, select_protected(left, now=NOW), keep=keep) == []


@given(SAVEPOINTS)
def test_only_protected_ones_are_left_when_none_is_kept(savepoints):
    protected = select_protected(savepoints, now=NOW)
    gone = select_prunable(savepoints, protected, keep=0)
    assert {s.id for s in savepoints} - {s.id for s in gone} == set(protected)


def test_a_lease_that_ran_out_protects_nothing():
    assert select_protected([savepoint(1, leased_for=-1), savepoint(2)], now=NOW) == {savepoint(2).id: "newest"}


def test_keeping_fewer_than_none_is_refused():
    with pytest.raises(RequestError):
        select_prunable([], {}, keep=-1)


def test_the_oldest_go_and_the_pinned_and_leased_stay(tmp_path):
    settings, home = make_home(tmp_path)
    taken = [take_savepoint(settings, "p", now=NOW + timedelta(hours=hour)) for hour in range(5)]
    pin_savepoint(home, taken[0].id, by="test", now=NOW)
    lease_savepoint(taken[1].store, taken[1].id, "prove-1", now=NOW, length=timedelta(days=9))
    report = prune_savepoints(home, keep=2, now=NOW + timedelta(days=1))
    assert report.deleted == (taken[2].id,)
    assert report.protected == {taken[0].id: "pinned", taken[1].id: "leased by prove-1", taken[4].id: "newest"}
    assert [s.id for s in list_savepoints(home)] == [taken[index].id for index in (0, 1, 3, 4)]
    assert not (home.savepoints / taken[2].id).exists()
    unpin_savepoint(home, taken[0].id)
    release_savepoint(taken[1].store, taken[1].id, "prove-1")
    assert prune_savepoints(home, keep=1, now=NOW).deleted == tuple(taken[index].id for index in (0, 1, 3))


def test_a_deletion_that_died_half_way_is_finished_by_the_next_prune(tmp_path):
    settings, home = make_home(tmp_path)
    old, new = (take_savepoint(settings, "p", now=NOW + timedelta(hours=hour)) for hour in range(2))
    store = savepoint_store(home)
    store.put(f"{old.id}/deleting.json", encode_record({"at": "x"}))
    store.delete(f"{old.id}/checkpoint/metadata")
    assert [s.id for s in list_savepoints(home)] == [new.id]
    with pytest.raises(SavepointError, match="being deleted"):
        lease_savepoint(store, old.id, "restore-1", now=NOW, length=timedelta(hours=1))
    assert prune_savepoints(home, keep=5, now=NOW).deleted == (old.id,)
    assert not (home.savepoints / old.id).exists()


def test_a_deletion_ends_with_its_manifest_and_then_its_mark(tmp_path, monkeypatch):
    """Killed before, the mark still says that what is left is being deleted."""
    settings, _ = make_home(tmp_path)
    taken = take_savepoint(settings, "p", now=NOW)
    real, deleted = type(taken.store).delete, []
    monkeypatch.setattr(type(taken.store), "delete", lambda store, key: (deleted.append(key), real(store, key))[1])
    assert delete_savepoint(taken.store, taken.id, now=NOW)
    assert deleted.index(f"{taken.id}/checkpoint/metadata") < len(deleted) - 2
    assert deleted[-2:] == [f"{taken.id}/manifest.json", f"{taken.id}/deleting.json"]
    assert len({*deleted}) == len(deleted)


def test_a_savepoint_leased_or_pinned_at_the_last_moment_is_left_whole(tmp_path):
    settings, home = make_home(tmp_path)
    taken = take_savepoint(settings, "p", now=NOW)
    lease_savepoint(taken.store, taken.id, "restore-1", now=NOW, length=timedelta(hours=1))
    assert not delete_savepoint(taken.store, taken.id, now=NOW)
    release_savepoint(taken.store, taken.id, "restore-1")
    pin_savepoint(home, taken.id, by="test", now=NOW)
    assert not delete_savepoint(taken.store, taken.id, now=NOW)
    assert [s.id for s in list_savepoints(home)] == [taken.id]


def test_a_take_that_died_is_cleared_after_an_hour_and_not_before(tmp_path):
    _, home = make_home(tmp_path)
    store = savepoint_store(home)
    store.put("sp-t1-1-00000000/taking.json", encode_record({"started_at": "2013-07-02T00:00:00Z"}))
    store.put("sp-t1-1-00000000/checkpoint/metadata", b"")
    assert prune_savepoints(home, keep=0, now=NOW + timedelta(minutes=59)).deleted == ()
    assert prune_savepoints(home, keep=0, now=NOW + timedelta(minutes=61)).deleted == ("sp-t1-1-00000000",)
    assert store.list() == []


def test_a_prune_that_died_after_its_mark_leaves_what_was_leased(tmp_path):
    settings, home = make_home(tmp_path)
    taken = take_savepoint(settings, "p", now=NOW)
    lease_savepoint(taken.store, taken.id, "restore-1", now=NOW, length=timedelta(hours=6))
    taken.store.put(f"{taken.id}/deleting.json", encode_record({"at": "x", "decided": False}))  # and died
    assert prune_savepoints(home, keep=0, now=NOW).deleted == ()
    assert [s.id for s in list_savepoints(home)] == [taken.id]
    assert taken.verify_files() == taken.manifest.size


def test_a_decided_deletion_is_finished_although_a_lease_was_put_too_late(tmp_path):
    settings, home = make_home(tmp_path)
    taken = take_savepoint(settings, "p", now=NOW)
    taken.store.put(f"{taken.id}/deleting.json", encode_record({"at": "x", "decided": True}))
    taken.store.delete(f"{taken.id}/checkpoint/metadata")
    late = {
        "holder": "restore-1",
        "expires_at": "2100-01-01T00:00:00Z",
    }  # its holder died before it looked for the mark
    taken.store.put(f"{taken.id}/leases/restore-1.json", encode_record(late))
    assert prune_savepoints(home, keep=5, now=NOW).deleted == (taken.id,)
    assert taken.store.list() == []


@pytest.mark.proves("guarantees.md#savepoints")
def test_a_proved_one_stays_while_the_newer_proved_one_is_damaged(tmp_path):
    settings, home = make_home(tmp_path)
    older, newer, newest = (take_savepoint(settings, "p", now=NOW + timedelta(hours=hour)) for hour in range(3))
    for one in (older, newer):
        one.store.put(f"{one.id}/proof.json", encode_record({"proved": True}))
    (home.savepoints / newer.id / "checkpoint/metadata").write_text("rot")
    report = prune_savepoints(home, keep=1, now=NOW)
    assert report.protected == {older.id: "newest proved", newest.id: "newest"}
    assert report.deleted == (newer.id,)


@pytest.mark.proves("howto-savepoints.md#what-prune-never-deletes")
def test_an_interrupted_restores_savepoint_outlives_its_lease(tmp_path):
    settings, home = make_home(tmp_path)
    older, _ = (take_savepoint(settings, "p", now=NOW + timedelta(hours=hour)) for hour in range(2))
    operation = Restore("restore-00000000", older.id, "t1", "t2", True, NOW)
    write_operation(home, operation)
    assert prune_savepoints(home, keep=0, now=NOW).protected[older.id] == "needed by restore-00000000"
    write_operation(home, replace(operation, step=OperationStep.DONE))
    assert prune_savepoints(home, keep=0, now=NOW).deleted == (older.id,)


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0",
        *(encode_record({"holder": "prove-1", "expires_at": wrong}) for wrong in ("soon", "2013-07-02T00:00", 7)),
    ],
)
def test_a_lease_that_cannot_be_read_protects(tmp_path, data):
    settings, home = make_home(tmp_path)
    taken, _ = (take_savepoint(settings, "p", now=NOW + timedelta(hours=hour)) for hour in range(2))
    taken.store.put(f"{taken.id}/leases/prove-1.json", data)
    assert prune_savepoints(home, keep=0, now=NOW).protected[taken.id] == "leased by unreadable prove-1.json"


def proved_at(settings, home, *hours_and_proofs):
    """Take a savepoint at each hour; prove those with True."""
    taken = []
    for hour, proved in hours_and_proofs:
        one = take_savepoint(settings, "p", now=NOW + timedelta(hours=hour))
        if proved:
            one.store.put(f"{one.id}/proof.json", encode_record({"proved": True}))
        taken.append(one)
    return taken


def rot(home, one):
    (home.savepoints / one.id / "checkpoint/metadata").write_text("rot")


def test_the_newest_savepoint_of_the_heads_path_is_verified(tmp_path):
    """t1: 0 1 2 3, a savepoint at 3 is newer, but the head is t2, which left t1 after 1: nothing restores from 3."""
    settings, home = make_home(tmp_path, planned=1, finished=1, committed=1)
    older, on_path = proved_at(settings, home, (0, True), (1, True))
    append_ledger(home, [row(2), row(3)])
    write_checkpoint(home, "t1", planned=3, finished=3)
    (off_path,) = proved_at(settings, home, (2, True))
    add_timeline(home, "t2", parent=Fork("t1", 1), first=2)
    rot(home, on_path)  # and the one off the path is sound
    report = prune_savepoints(home, keep=0, now=NOW)
    assert report.protected == {older.id: "newest proved", off_path.id: "newest proved, off the head's path"}
    assert report.deleted == (on_path.id,)


def test_the_newest_is_verified_as_soon_as_any_of_those_that_go_is_proved(tmp_path):
    settings, home = make_home(tmp_path)
    proved, unproved, rotten, newest = proved_at(settings, home, (0, True), (1, False), (2, True), (3, False))
    rot(home, rotten)
    report = prune_savepoints(home, keep=1, now=NOW)
    assert report.protected == {proved.id: "newest proved", newest.id: "newest"}
    assert report.deleted == (unproved.id, rotten.id)


def test_a_prune_of_what_was_never_proved_reads_no_savepoint(tmp_path, monkeypatch):
    settings, home = make_home(tmp_path)
    unproved, proved, newest = proved_at(settings, home, (0, False), (1, True), (2, False))
    monkeypatch.setattr(Savepoint, "verify_files", lambda one: pytest.fail(f"{one.id} was read"))
    report = prune_savepoints(home, keep=1, now=NOW)
    assert report.protected == {proved.id: "newest proved", newest.id: "newest"}
    assert report.deleted == (unproved.id,)


def test_a_savepoint_proved_after_it_was_chosen_is_not_pruned(tmp_path):
    settings, home = make_home(tmp_path)
    (chosen,) = proved_at(settings, home, (0, True))
    assert not delete_savepoint(chosen.store, chosen.id, now=NOW, proved=False)
    assert [s.id for s in list_savepoints(home)] == [chosen.id]
    assert delete_savepoint(chosen.store, chosen.id, now=NOW, proved=True)
    assert list_savepoints(home) == []


def test_a_proof_between_the_choice_and_the_deletion_saves_the_savepoint(tmp_path, monkeypatch):
    """The prove ends while prune is at work on an older one."""
    settings, home = make_home(tmp_path)
    first, second, newest = proved_at(settings, home, (0, False), (1, False), (2, False))
    true_delete = prune.delete_savepoint

    def delete_then_prove(store, name, **options):
        gone = true_delete(store, name, **options)
        if name == first.id:
            second.store.put(f"{second.id}/proof.json", encode_record({"proved": True}))
        return gone

    monkeypatch.setattr(prune, "delete_savepoint", delete_then_prove)
    report = prune_savepoints(home, keep=0, now=NOW)
    assert (report.deleted, report.kept) == ((first.id,), (second.id,))
    assert [s.id for s in list_savepoints(home)] == [second.id, newest.id]


def test_a_lease_that_ends_now_protects_no_more(tmp_path):
    settings, home = make_home(tmp_path)
    (taken,) = proved_at(settings, home, (0, False))
    lease_savepoint(taken.store, taken.id, "restore-1", now=NOW, length=timedelta(hours=1))
    end = NOW + timedelta(hours=1)
    assert held_savepoints(home, now=end - timedelta(seconds=1)) == {taken.id: "leased by restore-1"}
    assert held_savepoints(home, now=end) == {}
    assert delete_savepoint(taken.store, taken.id, now=end)


def test_a_named_savepoint_is_deleted_only_if_nothing_protects_it(tmp_path):
    settings, home = make_home(tmp_path)
    first, second, newest = proved_at(settings, home, (0, False), (1, False), (2, False))
    pin_savepoint(home, second.id, by="test", now=NOW)
    assert remove_savepoints(home, {first.id, "sp-gone-1-00000000"}, now=NOW) == [first.id]
    for name, why in ((second.id, "pinned"), (newest.id, "newest")):
        with pytest.raises(SavepointError, match=rf"{name} is protected \({why}\); it was not deleted"):
            remove_savepoints(home, {name}, now=NOW)
    with pytest.raises(SavepointError, match="pinned"):
        remove_savepoints(home, {second.id}, now=NOW, newest_too=True)
    assert remove_savepoints(home, {newest.id}, now=NOW, newest_too=True) == [newest.id]
    assert [s.id for s in list_savepoints(home)] == [second.id]


def test_a_take_that_is_at_work_is_no_abandoned_one(tmp_path):
    _, home = make_home(tmp_path)
    store = savepoint_store(home)
    store.put("sp-t1-1-00000000/taking.json", encode_record({"started_at": "2013-07-02T00:00:00Z"}))
    assert prune_savepoints(home, keep=0, now=NOW + timedelta(hours=1)).deleted == ()
    assert store.list() == ["sp-t1-1-00000000/taking.json"]


def test_twelve_are_kept_if_nobody_says_how_many():
    assert prune.KEPT == 12


@pytest.mark.proves("cli.md#savepoints-and-versions", "howto-savepoints.md#what-prune-never-deletes")
def test_the_command_deletes_the_oldest_and_none_that_is_protected(tmp_path):
    settings, home = make_home(tmp_path, planned=3, finished=3, committed=3)
    pinned, oldest, proved, newest = (
        take_savepoint(settings, "p", now=NOW + timedelta(hours=hour)).id for hour in range(4)
    )
    write_intent(home, "running", "test", NOW)
    pin_savepoint(home, pinned, by="test", now=NOW)
    savepoint_store(home).put(f"{proved}/proof.json", encode_record({"proved": True}))
    options = ["--project", str(settings.project), "--home", str(settings.home), "--output", "json"]
    command = [*options, "savepoint", "prune", "p", "--keep", "1"]
    shown = CliRunner().invoke(cli, [*command, "--dry-run"])
    assert (shown.exit_code, json.loads(shown.stdout)["would_delete"]) == (0, [oldest])
    assert len(list_savepoints(home)) == 4
    done = CliRunner().invoke(cli, [*command, "--yes"])
    assert (done.exit_code, json.loads(done.stdout)["deleted"]) == (0, [oldest])
    assert [one.id for one in list_savepoints(home)] == [pinned, proved, newest]
