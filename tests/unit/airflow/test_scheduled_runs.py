"""A scheduled run of a pipeline that never ran is skipped; one that somebody asks for is refused, or finds nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from rivertwice.airflow import steps

PARAMS = {"prove": True, "reason": "", "start": "", "end": "", "scope": "stale", "dry_run": False}
FIRST_TASKS = {
    "rotate": steps.take_savepoint,
    "archive": steps.check_archive,
    "reconcile": steps.check_reconcile,
    "backfill": steps.plan_backfill,
    "backfill of sessions": steps.check_backfill,
    "correct": steps.plan_correction,
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Let the tasks find a home without a timeline, and a run of the given type."""
    monkeypatch.setenv("RIVERTWICE_PROJECT", str(Path(__file__).resolve().parents[3]))
    monkeypatch.setenv("RIVERTWICE_HOME", str(tmp_path))

    def by(run_type: str) -> None:
        context: dict[str, Any] = {"dag_run": SimpleNamespace(run_type=run_type, conf={}, run_id="r"), "params": PARAMS}
        monkeypatch.setattr(steps, "get_current_context", lambda: context)

    return by


@pytest.mark.proves("howto-airflow.md#the-dags")
@pytest.mark.parametrize("verb", FIRST_TASKS)
def test_a_scheduled_run_of_a_stream_that_was_never_started_is_skipped(asked: Callable[[str], None], verb: str) -> None:
    asked("scheduled")
    with pytest.raises(AirflowSkipException, match="flight_delays has no timeline yet"):
        FIRST_TASKS[verb]("flight_delays")


@pytest.mark.parametrize("verb", ["rotate", "backfill"])
def test_one_that_somebody_asked_for_is_not_skipped(asked: Callable[[str], None], verb: str) -> None:
    asked("manual")
    with pytest.raises(AirflowFailException):
        FIRST_TASKS[verb]("flight_delays")
