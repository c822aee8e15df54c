from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from homes.operations import Crash, die_around, patch_effect
from homes.savepoint import FINGERPRINT, savepoint, write_checkpoint
from rivertwice.core.errors import FingerprintError, ReplayMismatchError, SavepointError, ServiceError, TableDamageError
from rivertwice.core.instants import utc_now
from rivertwice.savepoint.catalogue import list_savepoints
from rivertwice.savepoint.operations import fall_back as fall_back_module
from rivertwice.savepoint.operations import record, restore
from rivertwice.savepoint.operations.fall_back import fall_back, select_candidates
from rivertwice.savepoint.operations.record import FallBackReport, read_fall_back, read_operations, write_fall_back
from rivertwice.savepoint.records import encode_record
from rivertwice.savepoint.take import take_savepoint
from rivertwice.storage.table_log import entry_path
from rivertwice.stream.lease import Owner
from rivertwice.timeline.intent import Intent
from rivertwice.timeline.lineage import Segment
from rivertwice.timeline.sequence import head


def proved_again(world):
    """A second, newer savepoint of the same pipeline, proved as well."""
    settings, home, _, _ = world
    write_checkpoint(home, "t1", planned=5, finished=5)
    newer = take_savepoint(settings, "p", now=utc_now())
    newer.store.put(f"{newer.id}/proof.json", encode_record({"proved": True}))
    return newer


def test_the_newest_proved_takes_the_place_and_the_intent_is_left_alone(world):
    settings, home, _, _ = world
    newer = proved_again(world)
    before = Intent.load(home)
    fallen = fall_back(settings, "p", progress=print)
    assert (fallen.report.savepoint, fallen.report.forked_at, fallen.report.replayed) == (newer.id, 6, 1)
    assert (head(home), Intent.load(home), fallen.passed_over) == ("t2", before, {})
    assert "timeline t2 continues after batch 6" in fallen.describe(1.0)


def damage_file(newer, folder):
    (folder / "checkpoint/metadata").write_text("x")


def change_manifest(newer, folder):
    manifest = folder / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"batch":5', b'"batch":4'))


def say_another_batch(newer, folder):
    (folder / "manifest.json").write_bytes(replace(newer.manifest, batch=4).to_bytes())


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (damage_file, "damaged"),
        (change_manifest, "it is damaged; use another savepoint"),
        (say_another_batch, "the manifest or the ledger is damaged"),
    ],
)
def test_a_damaged_one_is_passed_over_by_name_for_the_next_older(world, damage, why):
    newer = proved_again(world)
    damage(newer, world.home.savepoints / newer.id)
    fallen = fall_back(world.settings, "p", progress=print)
    assert fallen.report.savepoint == world.taken.id
    assert why in fallen.passed_over[newer.id]
    assert newer.id in fallen.describe(1.0)


def test_a_damaged_manifest_does_not_hide_the_older(world):
    newer = proved_again(world)
    manifest = world.home.savepoints / newer.id / "manifest.json"
    for damage in (b"", b"{", b"[]", b'{"format":1}', manifest.read_bytes().replace(b'"batch":5', b'"batch":4')):
        manifest.write_bytes(damage)
        names = [one.id for one in select_candidates(list_savepoints(world.home), [Segment("t1", 0, None)])]
        assert names == [world.taken.id]


def test_a_disagreeing_replay_ends_its_restore_and_the_older_is_taken(world, monkeypatch):
    settings, home, taken, _ = world
    newer = proved_again(world)
    real = restore.replay_recorded

    def disagree(spark, settings, definition, checkpoint, rows, **named):
        if len(rows) == 1:
            message = "batch 6 gave another result"
            raise ReplayMismatchError(message)
        real(spark, settings, definition, checkpoint, rows, **named)

    patch_effect(monkeypatch, "replay_recorded", disagree)
    fallen = fall_back(settings, "p", progress=print)
    assert (fallen.report.savepoint, head(home)) == (taken.id, fallen.report.timeline)
    assert fallen.passed_over == {newer.id: "batch 6 gave another result"}
    assert sorted(operation.step for operation in read_operations(home)) == [
        record.OperationStep.DONE,
        record.OperationStep.ABANDONED,
    ]


@pytest.mark.proves("guarantees.md#restore-fall-back-rewind")
def test_without_a_proved_one_it_is_refused_with_the_way_out(world):
    settings, home, taken, _ = world
    taken.store.delete(f"{taken.id}/proof.json")
    with pytest.raises(SavepointError, match=f"no proved savepoint.*{taken.id} --unproved"):
        fall_back(settings, "p", progress=print)
    taken.store.delete(f"{taken.id}/manifest.json")
    with pytest.raises(SavepointError, match="restore p --from-beginning"):
        fall_back(settings, "p", progress=print)
    assert head(home) == "t1"


def test_an_interrupted_restore_is_gone_on_with_first(world, monkeypatch):
    settings, home, _, _ = world

    with monkeypatch.context() as patch:
        die_around(patch, "create_timeline")
        with pytest.raises(Crash):
            fall_back(settings, "p", progress=print)
    fallen = fall_back(settings, "p", since=utc_now() - timedelta(days=1), progress=print)
    assert fallen.report.resumed
    assert head(home) == "t2"


def test_a_head_that_moved_since_needs_nothing_more(world):
    settings, home, _, _ = world
    noticed = utc_now()
    fall_back(settings, "p", since=noticed, progress=print)
    assert fall_back(settings, "p", since=noticed, progress=print).report is None
    assert head(home) == "t2"


def test_candidates_are_the_proved_on_the_path_newest_batch_first():
    there = [savepoint(4, proved=True), savepoint(9), savepoint(7, proved=True), savepoint(12, proved=True)]
    found = select_candidates(there, [Segment("t1", 0, 8), Segment("t2", 9, None)])
    assert [one.manifest.batch for one in found] == [7, 4]


def test_what_a_fall_back_came_to_is_read_back(world):
    _, home, _, _ = world
    assert read_fall_back(home) is None
    report = FallBackReport(7, 1.5, utc_now(), True, "done", 2.0, "sp", "t2", 6, 3, {"sp-x": "why"})
    write_fall_back(home, report)
    assert read_fall_back(home) == report
    assert read_operations(home) == []


def empty_ledger_entry(world, _patch):
    entry_path(world.home.tables.ledger, 0).write_bytes(b"")


def change_definition(_world, patch):
    patch_effect(patch, "current_fingerprint", lambda *_: {**FINGERPRINT, "semantics": "new"})


def be_alive(_world, patch):
    patch.setattr(fall_back_module, "lease_owner", lambda _: Owner(1, 1, 0.0, "t1"))


@pytest.mark.proves("failure-modes.md#a-power-loss", "howto-upgrade.md#afterwards")
@pytest.mark.parametrize(
    ("spoil", "error", "match"),
    [
        (empty_ledger_entry, TableDamageError, "ledger"),
        (change_definition, FingerprintError, "semantics"),
        (be_alive, ServiceError, "nothing was done"),
    ],
)
def test_what_no_savepoint_is_to_blame_for_is_refused(world, monkeypatch, spoil, error, match):
    spoil(world, monkeypatch)
    with pytest.raises(error, match=match):
        fall_back(world.settings, "p", progress=print)
    assert (head(world.home), read_operations(world.home)) == ("t1", [])
