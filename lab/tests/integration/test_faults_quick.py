"""The quick part of the fault campaign, judged by the oracle: one seed of the cases that are marked quick, and of a job that loses rows."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lab.faults.campaign import run_case, tell
from lab.faults.cases import all_cases
from lab.faults.control_cases import commits_first, control_cases
from lab.faults.outcomes import CONTROL
from rivertwice.core.settings import Settings
from rivertwice.local.broker import BrokerInfo
from running.tiers import LANDING, in_turn

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
SEED = LANDING


def test_nothing_is_lost_duplicated_wrong_or_unexplained(
    settings: Settings, broker: BrokerInfo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (case,) = in_turn([each for each in all_cases() if each.quick])
    outcome = run_case(replace(settings, bootstrap=broker.bootstrap), case, SEED, tmp_path)
    with capsys.disabled():
        sys.stdout.write(f"\n{tell(outcome)}\n")
    assert outcome.ok, f"`rivertwice faults run --case {case.name} --seed {SEED} --keep` repeats it: {outcome.detail}"
    assert outcome.kills >= case.kills


def test_a_job_that_commits_its_offsets_before_its_output_loses_rows_and_doubles_none(
    settings: Settings, broker: BrokerInfo, tmp_path: Path
) -> None:
    (case,) = [each for each in control_cases(all_cases()) if each.run is commits_first]
    outcome = run_case(replace(settings, bootstrap=broker.bootstrap), case, 1, tmp_path, job=CONTROL)
    assert outcome.kills == case.kills, outcome.detail
    assert outcome.lost > 0
    assert (outcome.duplicated, outcome.wrong) == (0, 0)
