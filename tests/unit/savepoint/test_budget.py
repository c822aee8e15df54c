from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

from homes.savepoint import FINGERPRINT, NOW, make_home, savepoint
from rivertwice.savepoint import prove as prove_module
from rivertwice.savepoint.catalogue import load_savepoint
from rivertwice.savepoint.proof import ProofBudget, decide_over_batches, decide_over_bytes, select_retry
from rivertwice.savepoint.prove import prove_rotation, prove_savepoint
from rivertwice.savepoint.records import encode_record
from rivertwice.savepoint.take import take_savepoint

BUDGET = ProofBudget(batches=3, max_batches=10, max_bytes=100)


def test_a_savepoint_whose_two_copies_do_not_fit_is_not_begun():
    assert decide_over_bytes(50, BUDGET) is None
    assert "budget of 100" in (decide_over_bytes(51, BUDGET) or "")


def test_a_replay_above_the_budget_begins_only_when_asked_for():
    assert decide_over_batches(5, 15, BUDGET) is None
    assert "11 batches on" in (decide_over_batches(5, 16, BUDGET) or "")
    assert decide_over_batches(5, 16, ProofBudget(batches=50, max_batches=10)) is None


def test_the_next_rotation_proves_the_newest_savepoint_since_the_proved():
    there = [savepoint(1), savepoint(2, proved=True), savepoint(3), savepoint(4), savepoint(5)]
    assert select_retry(there, {savepoint(5).id}) == savepoint(4)
    assert select_retry(there[:2], ()) is None
    assert select_retry([*there, savepoint(6, proved=True)], ()) is None
    assert select_retry(there[2:3], {savepoint(3).id}) is None


def test_a_rotation_without_later_batches_proves_the_savepoint_before(tmp_path, monkeypatch):
    settings, _ = make_home(tmp_path)
    older, newer = (take_savepoint(settings, "p", now=NOW + timedelta(hours=hour)) for hour in range(2))
    asked = []

    def prove(_settings, _pipeline, name, **_):
        asked.append(name)
        return SimpleNamespace(savepoint=name, proved=name == older.id)

    monkeypatch.setattr(prove_module, "prove_savepoint", prove)
    assert [proof.savepoint for proof in prove_rotation(settings, "p", newer.id)] == [newer.id, older.id]
    older.store.put(f"{older.id}/proof.json", encode_record({"proved": True}))
    assert [proof.savepoint for proof in prove_rotation(settings, "p", newer.id)] == [newer.id]
    assert asked == [newer.id, older.id, newer.id]


def test_a_proof_above_its_budget_says_so_and_counts_as_an_attempt(tmp_path, monkeypatch):
    settings, home = make_home(tmp_path)
    taken = take_savepoint(settings, "p", now=NOW)
    monkeypatch.setattr(prove_module, "current_fingerprint", lambda *_: FINGERPRINT)
    proof = prove_savepoint(settings, "p", taken.id, budget=ProofBudget(max_bytes=10))
    assert not proof.proved
    assert "budget of 10" in proof.reason
    assert len(taken.store.list(f"{taken.id}/attempts/")) == 1
    assert load_savepoint(home, taken.id).status == "taken"
