"""A run's rows are stored once, and a run exists only when all of them are."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from rivertwice.core.homes import PipelineHome
from rivertwice.reconcile.model import RowId, RowVerdict
from rivertwice.reconcile.results import (
    ReconcileCause,
    Stamp,
    cause_rows,
    newest_reconcile,
    reconcile_runs,
    store_run,
    stored_verdicts,
    verdict_rows,
)
from rivertwice.storage.table import Table

NOW = datetime(2013, 7, 2, tzinfo=UTC)
ROW = RowId(3_600_000, 7_200_000, '{"origin": "JFK"}')
VERDICT = RowVerdict("stream", ROW, "LATE", "1 of 4", "both", late=1)
CAUSE = ReconcileCause("stream", "late", ROW, "flights", 2, 17, 5, 7_200_000, NOW)
FINDING = ReconcileCause("stream", "finding:ledger", batch=5, detail="read is 1")
SUMMARY = {
    "counts": {"stream": {"LATE": 1}},
    "balance": {},
    "late_by_partition": {"0": 0.1},
    "gate": {"passed": True},
    "duration_s": 1.5,
}


def stamp(run: str) -> Stamp:
    return Stamp(run, "flight_delays", NOW, "t1", 9, "b1", 3, {"flights": {"0": 20}})


@pytest.fixture
def home(tmp_path: Path) -> PipelineHome:
    return PipelineHome(tmp_path / "flight_delays")


def test_before_the_first_run_there_is_nothing(home: PipelineHome) -> None:
    assert newest_reconcile(home) is None
    assert verdict_rows(home, "r1") == [] == cause_rows(home, "r1")


def test_a_stored_run_is_read_back(home: PipelineHome) -> None:
    store_run(home, stamp("r1"), stored_verdicts([VERDICT]), [CAUSE, FINDING], SUMMARY)
    newest = newest_reconcile(home)
    assert newest is not None
    assert (newest["run"], newest["batch"], newest["counts"]) == ("r1", 9, {"stream": {"LATE": 1}})
    assert newest["as_of"] == {"flights": {"0": 20}}
    (verdict,) = verdict_rows(home, "r1")
    assert (verdict["verdict"], verdict["window_start"].hour, verdict["late"]) == ("LATE", 1, 1)
    finding, late = cause_rows(home, "r1")
    assert (late["partition"], late["offset"], late["event_time"]) == (2, 17, NOW)
    assert finding["window_start"] is None


def test_a_run_stored_twice_is_there_once(home: PipelineHome) -> None:
    for _ in range(2):
        store_run(home, stamp("r1"), stored_verdicts([VERDICT]), [CAUSE], SUMMARY)
    assert len(reconcile_runs(home)) == len(verdict_rows(home, "r1")) == len(cause_rows(home, "r1")) == 1


@pytest.mark.proves("guarantees.md#verdicts")
def test_a_run_that_died_half_way_does_not_exist_until_repeated(
    home: PipelineHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Table.append

    def dies_at_causes(table: Table, *arguments: object, **named: object) -> int:
        if table.name == "causes":
            raise KeyboardInterrupt
        return real(table, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Table, "append", dies_at_causes)
    with pytest.raises(KeyboardInterrupt):
        store_run(home, stamp("r1"), stored_verdicts([VERDICT]), [CAUSE], SUMMARY)
    assert newest_reconcile(home) is None
    monkeypatch.setattr(Table, "append", real)
    store_run(home, stamp("r1"), stored_verdicts([VERDICT]), [CAUSE], SUMMARY)
    assert len(verdict_rows(home, "r1")) == len(reconcile_runs(home)) == 1


def test_runs_without_rows_are_stored_too(home: PipelineHome) -> None:
    store_run(home, stamp("r1"), [], [], SUMMARY)
    assert [run["run"] for run in reconcile_runs(home)] == ["r1"]
