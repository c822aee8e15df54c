"""A job that Airflow submits for a short run starts a JVM with the quick compiler only."""

from __future__ import annotations

from typing import Any

import pytest

from rivertwice import reconcile
from rivertwice.core.errors import DamagedFileError
from rivertwice.core.settings import Settings
from rivertwice.definition.airflow_section import SparkResources
from rivertwice.engine.jvm import QUICK_JVM, QUICK_RECORDS
from rivertwice.tasks.environment import submit_confs
from rivertwice.tasks.jobs import SparkJob

OPTIONS = "spark.driver.extraJavaOptions"


def test_only_a_quick_job_has_the_options(settings: Settings) -> None:
    assert QUICK_JVM in submit_confs(settings, SparkResources().confs, quick=True)[OPTIONS]
    assert QUICK_JVM not in submit_confs(settings, SparkResources().confs)[OPTIONS]


@pytest.mark.parametrize(
    ("arguments", "full"),
    [(["--pipeline", "p"], False), (["--full"], True), (["--from", "a", "--to", "b"], True)],
)
def test_a_reconcile_is_quick_by_what_it_reads(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, arguments: list[str], full: bool
) -> None:
    asked: list[bool] = []

    def count(_home: Any, *, full: bool) -> int:
        asked.append(full)
        return QUICK_RECORDS + len(asked) - 1

    monkeypatch.setattr(reconcile, "count_unsealed", count)
    assert [SparkJob("p", "reconcile", arguments).is_quick(settings) for _ in range(2)] == [True, False]
    assert asked == [full, full]


def test_a_job_of_which_nothing_is_known_is_not_quick(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_home: Any, *, full: bool) -> int:
        message = f"the ledger is damaged ({full})"
        raise DamagedFileError(message)

    assert not SparkJob("p", "act", []).is_quick(settings)
    assert not SparkJob("p", "backfill", []).is_quick(settings)
    monkeypatch.setattr(reconcile, "count_unsealed", refuse)
    assert not SparkJob("p", "reconcile", []).is_quick(settings)
