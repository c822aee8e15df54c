"""Rows of old runs go, but for those that a kept run or a kept seal builds on."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivertwice.core.homes import PipelineHome
from rivertwice.core.plain import to_plain
from rivertwice.reconcile.model import RowId
from rivertwice.reconcile.results import (
    ReconcileCause,
    Stamp,
    StoredVerdict,
    cause_rows,
    reconcile_runs,
    store_run,
    verdict_rows,
)
from rivertwice.storage.table import Table
from rivertwice.timeline.judgements import Increment
from rivertwice.timeline.upkeep import drop_old_judgements, select_old_quality, select_old_runs

NOW = datetime(2026, 11, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def run(name: str, age: int, base: str | None = None) -> dict[str, Any]:
    increment = None if base is None else json.dumps(to_plain(Increment(base)))
    return {"run": name, "created_at": NOW - age * DAY, "increment": increment}


def test_a_run_that_a_kept_one_builds_on_is_kept() -> None:
    runs = [run("a", 200), run("b", 100, "a"), run("c", 10, "b"), run("x", 150)]
    assert select_old_runs(runs, [], NOW, 90 * DAY) == ({"x"}, set())


def test_the_newest_run_and_the_newest_seal_are_kept_whatever_their_age() -> None:
    runs = [run("a", 300), run("b", 200), run("c", 190)]
    assert select_old_runs(runs, [run("a", 300), run("b", 200)], NOW, 90 * DAY) == ({"a"}, {"a"})


def result(run: str, age: int, subject: str = "windows", reason: str | None = None) -> dict[str, Any]:
    return {"run": run, "subject": subject, "created_at": NOW - age * DAY, "reason": reason}


def test_results_of_suites_go_but_for_the_newest_and_what_was_accepted() -> None:
    rows = [result("a", 300), result("b", 200), result("b", 199, reason="known"), result("c", 150), result("d", 120)]
    rows += [result("bf-1", 300, "corrections"), result("bf-2", 200, "corrections")]
    rows += [result("bf-0", 400, "corrections", "a strike")]
    assert select_old_quality(rows, NOW, 90 * DAY) == {"a", "c", "bf-1"}
    assert select_old_quality([*rows, result("e", 10)], NOW, 90 * DAY) == {"a", "c", "d", "bf-1"}
    assert select_old_quality([], NOW, 90 * DAY) == set()


@given(st.lists(st.tuples(st.integers(0, 300), st.booleans(), st.booleans()), max_size=12), st.integers(0, 200))
def test_no_kept_run_or_seal_lacks_what_it_builds_on(history: list[tuple[int, bool, bool]], keep: int) -> None:
    ages = sorted((age for age, _, _ in history), reverse=True)
    builds = [builds for _, builds, _ in history]
    runs = [run(str(n), age, str(n - 1) if n and builds[n] else None) for n, age in enumerate(ages)]
    seals = [runs[n] for n, (_, _, is_sealed) in enumerate(history) if is_sealed]
    old, old_seals = select_old_runs(runs, seals, NOW, keep * DAY)
    for n, row in enumerate(runs):
        is_needed = row["run"] not in old or (row in seals and row["run"] not in old_seals)
        if is_needed and row["increment"] is not None:
            assert str(n - 1) not in old
        assert not (row["run"] in old and row["created_at"] >= NOW - keep * DAY)


@pytest.fixture
def home(tmp_path: Any) -> PipelineHome:
    return PipelineHome(tmp_path / "home" / "p")


def store(home: PipelineHome, name: str, age: int) -> None:
    stamp = Stamp(name, "p", NOW - age * DAY, "t1", 1, "b", 1, {})
    summary = {"counts": {}, "balance": {}, "late_by_partition": {}, "gate": {"alerts": []}, "duration_s": 1.0}
    late = StoredVerdict("stream", 0, 10, "{}", "LATE", "1 of 2 records came", late=1)
    store_run(home, stamp, [late], [ReconcileCause("stream", "late", RowId(0, 10, "{}"), "t", 0, 5)], summary)


def test_rows_of_old_runs_are_removed_and_the_runs_stay(home: PipelineHome) -> None:
    for name, age in (("old", 200), ("young", 5)):
        store(home, name, age)
    assert drop_old_judgements(home, NOW) == 1
    assert verdict_rows(home, "old") == cause_rows(home, "old") == []
    assert len(verdict_rows(home, "young")) == len(cause_rows(home, "young")) == 1
    assert [row["run"] for row in reconcile_runs(home)] == ["old", "young"]
    assert drop_old_judgements(home, NOW) == 0


def test_rows_of_a_killed_run_go_as_those_of_old_runs_do(home: PipelineHome) -> None:
    """Killed after its verdicts and causes, a reconcile has no row in `reconciles`; one that works now has none either."""
    for name, age in (("killed", 100), ("old", 200), ("working", 0), ("young", 5)):
        store(home, name, age)
    runs = Table(home.tables.reconciles).read()
    assert runs is not None
    kept = [row for row in runs.to_pylist() if row["run"] in ("old", "young")]
    Table(home.tables.reconciles).replace_rows(pa.Table.from_pylist(kept, schema=runs.schema))
    assert drop_old_judgements(home, NOW) == 2
    for table in (home.tables.verdicts, home.tables.causes):
        rows = Table(table).read()
        assert rows is not None
        assert sorted(rows["run"].to_pylist()) == ["working", "young"]
    assert drop_old_judgements(home, NOW) == 0
