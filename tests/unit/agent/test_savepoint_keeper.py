"""The agent proves what a planned restore began from, and takes savepoints for the recovery objective."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from homes.savepoint import NOW, make_home
from rivertwice.agent import keeper, savepoints
from rivertwice.agent.alert_store import alerts_of
from rivertwice.agent.savepoints import SavepointKeeper, describe_unproved
from rivertwice.agent.view import view_pipeline
from rivertwice.cli.status import PipelineStatus, recovery_texts
from rivertwice.core.plain import to_plain
from rivertwice.savepoint.operations import record
from rivertwice.savepoint.operations.record import Restore, write_operation
from rivertwice.savepoint.proof import record_attempt
from rivertwice.savepoint.records import encode_record
from rivertwice.savepoint.recovery import RecoveryStep, view_recovery
from rivertwice.savepoint.take import take_savepoint
from rivertwice.timeline.intent import write_intent


class Job:
    """A process that ends when it is told to."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.pid = 1
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A home with batches 0 to 3, a proved savepoint at 3, and a keeper whose jobs do nothing."""
    settings, home = make_home(tmp_path)
    origin = take_savepoint(settings, "p", now=NOW - timedelta(hours=1))
    origin.store.put(f"{origin.id}/proof.json", encode_record({"proved": True}))
    write_intent(home, "running", "test", NOW)
    jobs: list[Job] = []

    def start(_settings, command, _path, _headline):
        jobs.append(Job(command))
        return jobs[-1]

    monkeypatch.setattr(keeper, "start_logged", start)
    return settings, home, origin, SavepointKeeper(settings, lambda: ["p"], threading.Event()), jobs


def plan_restore(settings, home, origin, **changes):
    """Let a planned restore be done whose timeline is the head's, and whose savepoint is not proved."""
    base = take_savepoint(settings, "p", now=NOW)
    done = Restore(
        "restore-1",
        base.id,
        "t0",
        "t1",
        was_running=True,
        started_at=NOW,
        step=record.OperationStep.DONE,
        planned=True,
        origin=origin.id,
    )
    write_operation(home, replace(done, **changes))
    return base


def alerts(settings):
    return {alert.cause.kind: alert for alert in alerts_of(settings).state().alerts if alert.resolved_at is None}


@pytest.mark.proves(
    "architecture.md#decisions-that-changed-the-first-design",
    "howto-upgrade.md#how-to-change-a-definition-under-a-running-stream",
)
def test_the_agent_proves_the_savepoint_of_a_planned_restore(kept):
    settings, home, origin, keeper, jobs = kept
    assert keeper.look("p", NOW).kind == RecoveryStep.WAIT
    base = plan_restore(settings, home, origin)
    assert keeper.look("p", NOW).kind == RecoveryStep.PROVE
    assert jobs[0].command[-4:] == ["--pipeline", "p", "--prove", base.id]
    assert keeper.look("p", NOW).kind == RecoveryStep.WAIT
    base.store.put(f"{base.id}/proof.json", encode_record({"proved": True}))
    jobs[0].returncode = 0
    keeper.look("p", NOW)
    assert keeper.look("p", NOW + timedelta(hours=1)).kind == RecoveryStep.WAIT
    assert (len(jobs), alerts(settings)) == (1, {})
    events = [json.loads(line)["kind"] for line in (settings.home / "agent/events.jsonl").read_text().splitlines()]
    assert events == ["savepoint_due", "savepoint_proved"]


@pytest.mark.proves("guarantees.md#restore-fall-back-rewind")
def test_a_proof_that_disagrees_pages_at_once_with_the_way_back(kept):
    settings, home, origin, keeper, jobs = kept
    base = plan_restore(settings, home, origin)
    keeper.look("p", NOW)
    record_attempt(base, {"reason": "state store 0/default differs", "made_at": "2013"})
    jobs[0].returncode = 3
    keeper.look("p", NOW)
    found = alerts(settings)["unproved_start"]
    assert found.severity == "critical"
    for part in (base.id, "state store 0/default differs", f"rivertwice savepoint restore p {origin.id}"):
        assert part in found.message
    base.store.put(f"{base.id}/proof.json", encode_record({"proved": True}))
    keeper.look("p", NOW + timedelta(minutes=1))
    assert alerts(settings) == {}


def test_a_proof_that_cannot_be_had_pages_after_three_tries(kept):
    settings, home, origin, keeper, jobs = kept
    plan_restore(settings, home, origin)
    for number in range(1, 4):
        now = NOW + timedelta(hours=number)
        assert keeper.look("p", now).kind == RecoveryStep.PROVE
        jobs[-1].returncode = 1
        keeper.look("p", now)
        assert ("unproved_start" in alerts(settings)) == (number == 3)
    assert alerts(settings)["unproved_start"].severity == "warning"


@pytest.mark.proves("guarantees.md#upgrade")
def test_an_upgrades_way_back_is_a_rewind_under_the_old_definition(kept):
    settings, home, origin, _, _ = kept
    base = plan_restore(settings, home, origin, bundle="b2")
    restore = Restore("restore-1", base.id, "t0", "t1", was_running=True, started_at=NOW, bundle="b2", origin=origin.id)
    text = describe_unproved("p", restore, "it differs")
    assert f"put the definition back that timeline t0 ran, then `rivertwice savepoint rewind p {origin.id}`" in text
    assert "take a savepoint now" in describe_unproved("p", replace(restore, origin=None), "it differs")


def test_a_savepoint_is_taken_once_the_objective_needs_one(kept, monkeypatch):
    settings, home, origin, keeper, jobs = kept
    monkeypatch.setattr("rivertwice.savepoint.recovery.read_objective", lambda *_: timedelta(minutes=1))
    monkeypatch.setattr(savepoints, "read_objective", lambda *_: timedelta(minutes=1))
    assert keeper.look("p", NOW).kind == RecoveryStep.WAIT
    origin.store.delete(f"{origin.id}/proof.json")  # now all four batches would be replayed
    monkeypatch.setattr("rivertwice.savepoint.recovery.BATCH_S", 5.0)
    assert keeper.look("p", NOW).kind == RecoveryStep.ROTATE
    assert jobs[0].command[-2:] == ["--pipeline", "p"]
    shown = to_plain(view_pipeline(settings, "p", NOW))["recovery"]
    assert (shown["batches"], shown["objective_s"], shown["over"]) == (4, 60.0, False)
    write_intent(home, "stopped", "test", NOW)
    jobs[0].returncode = 1
    assert keeper.look("p", NOW + timedelta(hours=9)).kind == RecoveryStep.WAIT


def test_status_says_what_a_fall_back_takes_and_what_waits_for_its_proof(kept):
    settings, home, origin, _, _ = kept
    base = plan_restore(settings, home, origin)
    view = view_recovery(settings, "p")
    assert [restore.savepoint for restore in view.awaiting] == [base.id]
    item = PipelineStatus(**vars(view_pipeline(settings, "p", NOW)))
    assert list(recovery_texts(item)) == [f"{base.id} waits for its proof; the way back is {origin.id}"]
    over = replace(item.recovery, objective_s=60.0, over=True, seconds=95.0, batches=140, awaiting=())
    assert list(recovery_texts(replace(item, recovery=over))) == [
        "a fall-back would take about 95 s (140 batches to replay), over its objective of 60 s"
    ]
    assert list(recovery_texts(replace(item, recovery=None))) == []
