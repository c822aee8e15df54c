"""Mutations of finished runs are found and blame nothing else, and runs that nobody touched are left alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lab.mutation_score import plan_scores, run_scores, summary
from lab.mutations import MUTATIONS
from rivertwice.core.settings import Settings
from rivertwice.local.broker import BrokerInfo
from running.tiers import LANDING, in_turn

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def test_all_kinds_come_in_turn_over_all_streams_and_the_clean_ones_last() -> None:
    plan = list(plan_scores([1, 2], 5, 3))
    assert [kind for _, kind, _ in plan] == [*list(MUTATIONS)[:5], "clean", "clean", "clean"]
    assert [stream for stream, _, _ in plan] == [1, 2, 1, 2, 1, 1, 2, 1]
    assert len(set(plan)) == 8


@pytest.mark.faults
def test_random_mutations_are_found_and_clean_runs_are_clean(
    spark: SparkSession, broker: BrokerInfo, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(project=project, home=tmp_path / "home", bootstrap=broker.bootstrap, spark_master="local[2]")
    found = run_scores(
        settings, tmp_path, kinds=in_turn(MUTATIONS, 12), tell=lambda _: None, spark=spark,
        streams=1, mutations=12, clean=2, seed=100 + LANDING,
    )  # fmt: skip
    with capsys.disabled():
        sys.stdout.write("\n" + summary(found) + "\n")
    assert [one for one in found if not one.ok] == []
    assert len(found) == 14
