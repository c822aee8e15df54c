"""A proof is put under a lease that holds, so that prune and it see each other, however long the replay took."""

from __future__ import annotations

from dataclasses import replace

import pytest

from homes.savepoint import FINGERPRINT, NOW, make_home
from rivertwice.core.errors import SavepointError
from rivertwice.savepoint import prove as prove_module
from rivertwice.savepoint.catalogue import load_savepoint
from rivertwice.savepoint.proof import unproved
from rivertwice.savepoint.prove import prove_savepoint
from rivertwice.savepoint.records import encode_record, read_leases
from rivertwice.savepoint.take import take_savepoint


@pytest.fixture
def taken(tmp_path, monkeypatch):
    settings, home = make_home(tmp_path)
    savepoint = take_savepoint(settings, "p", now=NOW)
    monkeypatch.setattr(prove_module, "current_fingerprint", lambda *_: FINGERPRINT)
    monkeypatch.setattr(prove_module, "session_of", lambda *_: None)
    monkeypatch.setattr(prove_module, "load_state_definition", lambda *_: None)
    return settings, home, savepoint


def replay_while(monkeypatch, meanwhile):
    """Let the replay agree, after something else has happened."""

    def prove(attempt, _spark):
        meanwhile(attempt)
        return replace(unproved(attempt.savepoint, "proved", attempt.began), proved=True)

    monkeypatch.setattr(prove_module, "_prove", prove)


def test_the_lease_still_holds_when_the_proof_is_put(taken, monkeypatch):
    settings, home, savepoint = taken
    held = []
    real = prove_module.note_proof

    def noted(*args):
        held.extend(lease.holder for lease in read_leases(savepoint.store, savepoint.id))
        return real(*args)

    monkeypatch.setattr(prove_module, "note_proof", noted)
    replay_while(monkeypatch, lambda attempt: None)
    assert prove_savepoint(settings, "p", savepoint.id).proved
    assert [holder.partition("-")[0] for holder in held] == ["prove"]
    assert load_savepoint(home, savepoint.id).status == "proved"
    assert read_leases(savepoint.store, savepoint.id) == []


def test_a_savepoint_that_prune_deletes_meanwhile_gets_no_proof(taken, monkeypatch):
    settings, _, savepoint = taken

    def prune(attempt):
        savepoint.store.delete(f"{savepoint.id}/leases/{attempt.holder}.json")  # it ran out, and prune found none
        savepoint.store.put(f"{savepoint.id}/deleting.json", encode_record({"by": "prune"}))

    replay_while(monkeypatch, prune)
    with pytest.raises(SavepointError, match="is being deleted by prune"):
        prove_savepoint(settings, "p", savepoint.id)
    assert savepoint.store.get(f"{savepoint.id}/proof.json") is None
    assert read_leases(savepoint.store, savepoint.id) == []
