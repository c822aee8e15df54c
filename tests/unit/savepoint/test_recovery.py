"""How long a fall-back would take, and when the next savepoint is due."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from homes.savepoint import FINGERPRINT, NOW, savepoint
from rivertwice.core.waits import Attempts
from rivertwice.savepoint.recovery import (
    BATCH_S,
    BETWEEN,
    LONGEST_WAIT,
    START_S,
    RecoveryEstimate,
    RecoveryStep,
    batches_within,
    decide_keep_up,
    estimate_recovery,
    measured_batch_s,
)
from rivertwice.timeline.lineage import Segment

PATH = [Segment("t1", 0, None)]
OBJECTIVE = timedelta(minutes=2)


def proved(number, batch_s=None):
    proof = {"proved": True, "batch_s": batch_s, "made_at": f"2013-07-02T00:00:{number % 60:02d}Z"}
    return replace(savepoint(number), proof=proof)


def estimate(last, *savepoints):
    return estimate_recovery(savepoints, PATH, FINGERPRINT, last)


def decide(found, objective=OBJECTIVE, awaiting=(), memory=Attempts(), *, wanted=True):  # noqa: B008 (frozen)
    return decide_keep_up(found, objective, awaiting, memory, NOW, wanted=wanted)


def test_the_batches_after_the_newest_proved_savepoint_are_counted():
    found = estimate(130, proved(90), proved(120), savepoint(129))
    assert (found.savepoint, found.batches, found.measured) == (proved(120).id, 10, False)
    assert found.seconds == START_S + 10 * BATCH_S


def test_without_a_proved_savepoint_every_batch_would_be_replayed():
    assert estimate(99, savepoint(50)).batches == 100
    assert estimate(99, savepoint(50)).savepoint is None


def test_a_savepoint_off_the_path_or_of_another_definition_does_not_count():
    other = proved(80)
    other = replace(other, manifest=replace(other.manifest, fingerprint={"state": "old"}))
    assert estimate_recovery([other, proved(60)], PATH, FINGERPRINT, 100).batches == 40
    assert estimate_recovery([proved(60)], [Segment("t1", 0, 50)], FINGERPRINT, 100).batches == 101


def test_the_seconds_of_a_batch_are_the_median_of_the_newest_proofs():
    assert measured_batch_s([savepoint(1), proved(2)]) is None
    proofs = [proved(1, 90.0), *(proved(number, float(number)) for number in range(2, 7))]
    assert measured_batch_s(proofs) == 4.0
    assert estimate(130, proved(120, 0.25)).seconds == START_S + 2.5


def test_a_savepoint_is_due_before_half_of_the_objective_is_used_up():
    due_at = batches_within(OBJECTIVE, BATCH_S)
    assert due_at == 70  # (60 s - 25 s) at half a second a batch
    for batches, kind in (
        (0, RecoveryStep.WAIT),
        (due_at - 1, RecoveryStep.WAIT),
        (due_at, RecoveryStep.ROTATE),
        (10 * due_at, RecoveryStep.ROTATE),
    ):
        found = RecoveryEstimate("sp", batches, BATCH_S, measured=True)
        assert decide(found).kind == kind, batches
        assert (kind == RecoveryStep.ROTATE) == (found.seconds >= OBJECTIVE.total_seconds() / 2)


@pytest.mark.parametrize("batch_s", [0.001, 0.5, 3.0, 100.0])
def test_a_savepoint_is_due_after_one_batch_at_the_least(batch_s):
    assert batches_within(timedelta(minutes=1), batch_s) >= 1
    assert decide(RecoveryEstimate("sp", 0, batch_s, measured=True), timedelta(minutes=1)).kind == RecoveryStep.WAIT


def test_without_an_objective_or_a_wanted_stream_nothing_is_due():
    found = RecoveryEstimate("sp", 10_000, 0.5, measured=True)
    assert decide(found, None).kind == RecoveryStep.WAIT
    assert decide(found, wanted=False).kind == RecoveryStep.WAIT
    assert decide(None).kind == RecoveryStep.WAIT


def test_a_planned_restores_savepoint_is_proved_before_anything_else():
    found = RecoveryEstimate("sp", 10_000, 0.5, measured=True)
    for objective, wanted in ((None, False), (OBJECTIVE, True)):
        decision = decide(found, objective, ["sp-1", "sp-2"], wanted=wanted)
        assert (decision.kind, decision.savepoint) == (RecoveryStep.PROVE, "sp-2")


def test_one_job_runs_at_a_time_and_failures_make_the_next_wait_longer():
    found = RecoveryEstimate("sp", 10_000, 0.5, measured=True)
    assert decide(found, memory=Attempts(busy=True)).kind == RecoveryStep.WAIT
    for failures, pause in ((0, BETWEEN), (1, 2 * BETWEEN), (3, 8 * BETWEEN), (60, LONGEST_WAIT)):
        for ago, kind in ((pause - timedelta(seconds=1), RecoveryStep.WAIT), (pause, RecoveryStep.ROTATE)):
            memory = Attempts(failures=failures, last_end=NOW - ago)
            assert decide(found, memory=memory).kind == kind, (failures, ago)


def test_a_job_that_ended_in_the_future_of_a_clock_set_back_delays_nothing():
    found = RecoveryEstimate("sp", 10_000, 0.5, measured=True)
    assert decide(found, memory=Attempts(last_end=NOW + timedelta(hours=1))).kind == RecoveryStep.ROTATE
