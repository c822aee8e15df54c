"""The quick part of the fault campaign: one seed of the cases that are marked quick, judged by the oracle."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lab.faults.campaign import run_case, tell
from lab.faults.cases import all_cases
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
