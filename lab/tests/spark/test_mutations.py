"""Mutations of finished runs are found and blame nothing else, and runs that nobody touched are left alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lab.mutation_score import Score, plan_scores, run_scores, summary
from lab.mutations import MUTATIONS
from rivertwice.config import Settings
from rivertwice.embedded.broker import BrokerInfo
from running.tiers import LANDING

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
QUICK = (
    "changelog/swap",
    "changelog/shift",
    "ledger/emitted",
    "ledger/max_event",
    "ledger/boundary",
    "ledger/offsets_text",
    "dead/drop",
    "served",
    "transform",
)


def test_all_kinds_come_in_turn_over_all_streams_and_the_clean_ones_last() -> None:
    plan = list(plan_scores([1, 2], 5, 3))
    assert [kind for _, kind, _ in plan] == [*list(MUTATIONS)[:5], "clean", "clean", "clean"]
    assert [stream for stream, _, _ in plan] == [1, 2, 1, 2, 1, 1, 2, 1]
    assert len(set(plan)) == 8


def score(
    spark: SparkSession, project: Path, broker: BrokerInfo, folder: Path, kinds: Sequence[str], **sizes: int
) -> list[Score]:
    settings = Settings(project=project, home=folder / "home", bootstrap=broker.bootstrap, spark_master="local[2]")
    found = run_scores(settings, folder, kinds=kinds, tell=lambda _: None, spark=spark, **sizes)
    sys.stdout.write("\n" + summary(found) + "\n")
    return found


@pytest.mark.faults  # `test_planted.py` plants twenty kinds at once in every run
def test_mutations_of_every_table_are_found_and_a_clean_run_is_clean(
    spark: SparkSession, broker: BrokerInfo, project: Path, tmp_path: Path
) -> None:
    found = score(spark, project, broker, tmp_path, QUICK, streams=1, mutations=len(QUICK), clean=1, seed=7)
    assert [one for one in found if not one.ok] == []
    assert len(found) == len(QUICK) + 1


@pytest.mark.faults
def test_random_mutations_are_found_and_clean_runs_are_clean(
    spark: SparkSession, broker: BrokerInfo, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        found = score(
            spark, project, broker, tmp_path, tuple(MUTATIONS), streams=2, mutations=24, clean=4, seed=100 + LANDING
        )
    assert [one for one in found if not one.ok] == []
    assert len(found) == 28
