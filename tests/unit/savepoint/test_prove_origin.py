"""The savepoint of a planned restore is proved from the proved one before it; until then both stay."""

from __future__ import annotations

from datetime import timedelta

import pytest

from homes.operations import patch_effect
from homes.savepoint import add_timeline, catch_checkpoint_up, commit_batches, row
from rivertwice.core.errors import ReplayMismatchError, SavepointError
from rivertwice.core.instants import utc_now
from rivertwice.savepoint.awaiting import select_awaiting
from rivertwice.savepoint.catalogue import list_savepoints, load_savepoint
from rivertwice.savepoint.manifest import StateBase
from rivertwice.savepoint.operations import record
from rivertwice.savepoint.operations.record import Restore, read_operations
from rivertwice.savepoint.operations.restore import restore_savepoint
from rivertwice.savepoint.proof import StateDigest, last_attempt
from rivertwice.savepoint.prove import prove_savepoint
from rivertwice.savepoint.prune import prune_savepoints
from rivertwice.savepoint.records import encode_record
from rivertwice.savepoint.take import take_savepoint
from rivertwice.timeline.lineage import Fork, Segment

pytestmark = pytest.mark.long


def read_files(_spark, checkpoint, batch):
    return StateDigest(batch, 1, {"0/default": (checkpoint / "offsets" / str(batch)).read_text()})


@pytest.fixture
def restored(planned_world, monkeypatch):
    """A planned restore is done; the stream of its timeline has committed batches 7 and 8 since."""
    settings, home, origin, _ = planned_world
    report = restore_savepoint(settings, "p", StateBase.RESTING)
    commit_batches(home, [row(7, "t2"), row(8, "t2")])
    catch_checkpoint_up(home, "t2", finished=8)
    patch_effect(monkeypatch, "read_state", read_files)
    return settings, home, origin, load_savepoint(home, report.savepoint)


def newer_proved(settings, home, at):
    newer = take_savepoint(settings, "p", now=at)
    newer.store.put(f"{newer.id}/proof.json", encode_record({"proved": True}))
    return newer


@pytest.mark.proves("howto-upgrade.md#how-to-change-a-definition-under-a-running-stream")
def test_it_is_proved_by_the_batches_since_the_proved_one_before_it(restored):
    settings, home, origin, base = restored
    proof = prove_savepoint(settings, "p", base.id)
    assert (proof.proved, proof.batches, proof.last_batch, proof.source) == (True, 3, 6, "kafka")
    assert proof.batch_s == 0.25
    assert f"since {origin.id} replayed equal" in proof.reason
    assert load_savepoint(home, base.id).status == "proved"
    assert [each.leases for each in list_savepoints(home)] == [(), ()]
    assert list(home.scratch.iterdir()) == []


@pytest.mark.proves("howto-upgrade.md#how-to-change-a-definition-under-a-running-stream")
def test_another_state_is_no_proof_and_both_savepoints_stay(restored, monkeypatch):
    settings, home, origin, base = restored

    def differ(_spark, checkpoint, batch):
        return StateDigest(batch, 1, {"0/default": checkpoint.name})

    patch_effect(monkeypatch, "read_state", differ)
    with pytest.raises(ReplayMismatchError, match="held another state"):
        prove_savepoint(settings, "p", base.id)
    assert "held another state" in (last_attempt(load_savepoint(home, base.id)) or "")
    newest = newer_proved(settings, home, utc_now() + timedelta(minutes=1))
    take_savepoint(settings, "p", now=utc_now() + timedelta(minutes=2))
    report = prune_savepoints(home, keep=0, now=utc_now())
    assert report.protected[origin.id] == f"kept until {base.id} is proved"
    assert report.protected[base.id] == "waits for its proof: timeline t2 began from it"
    assert report.protected[newest.id] == "newest proved"
    assert report.deleted == ()


def test_once_it_is_proved_prune_deletes_what_came_before_it(restored):
    settings, home, origin, base = restored
    assert prune_savepoints(home, keep=0, now=utc_now()).deleted == ()
    prove_savepoint(settings, "p", base.id)
    assert prune_savepoints(home, keep=0, now=utc_now()).deleted == (origin.id,)


def test_without_its_origin_the_newest_proved_before_it_takes_its_place(restored):
    settings, home, origin, base = restored
    origin.store.delete(f"{origin.id}/proof.json")
    with pytest.raises(SavepointError, match="no proved savepoint before it"):
        prove_savepoint(settings, "p", base.id)
    assert "no proved savepoint before it" in (last_attempt(base) or "")
    add_timeline(home, "t9", parent=Fork("t1", 5), first=6)
    assert select_awaiting(read_operations(home), list_savepoints(home), [Segment("t9", 6, None)]) == []


def test_a_planned_operation_awaits_its_proof_once_it_is_done_and_counts(restored):
    _, home, _, base = restored
    (done,) = read_operations(home)
    assert isinstance(done, Restore)
    path = [Segment("t1", 0, 6), Segment("t2", 7, None)]
    savepoints = list_savepoints(home)
    assert select_awaiting([done], savepoints, path) == [done]
    assert select_awaiting([done], savepoints, path[:1]) == []
    for other in ({"step": record.OperationStep.MOVED}, {"step": record.OperationStep.ABANDONED}, {"planned": False}):
        assert select_awaiting([type(done)(**{**vars(done), **other})], savepoints, path) == []
    base.store.put(f"{base.id}/proof.json", encode_record({"proved": True}))
    assert select_awaiting([done], list_savepoints(home), path) == []
