"""What is left of an objective, from times and figures that are given; and what is judged at all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from homes.project import FLIGHTS, edit_yaml, make_project
from rivertwice.agent.cost import CostMeter
from rivertwice.agent.figures import Measures
from rivertwice.agent.metrics import measure
from rivertwice.agent.objectives import ObjectivesView
from rivertwice.agent.prometheus import exposition, judge_alerts, judge_objectives
from rivertwice.agent.ring import RingSample, ring_file, write_sample
from rivertwice.agent.view import view_pipeline
from rivertwice.core.errors import DefinitionError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import Definition, load_definition
from rivertwice.definition.fingerprint import fingerprint_of

NOW = datetime(2026, 11, 27, 3, tzinfo=UTC)
NAME = "flight_delays"
DECLARED = {
    "alerts": {"latency": "5 minutes"},
    "stream": {"recovery": "15 minutes"},
    "slo": {"freshness": 0.99, "late_share": 0.9, "agreement": 0.999, "recovery": 0.95},
}
WELL: dict[str, Any] = {"desired": "running", "latency_s": 10, "late_share": 0.01, "served_defects": 0, "recovery_s": 60, "recovery_objective_s": 900}  # fmt: skip


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_project(tmp_path, {NAME: FLIGHTS})


def declare(settings: Settings, declared: dict[str, Any]) -> Definition:
    edit_yaml(settings.definitions / NAME, lambda document: document.update(declared))
    return load_definition(settings.definition_folder(NAME))


def judged(definition: Definition, **changes: object) -> dict[str, float]:
    measures = Measures(NAME, NOW, **{**WELL, **changes})
    return judge_objectives(definition, measures, judge_alerts(measures, definition.alerts))


def sample(home: PipelineHome, at: datetime, **values: float) -> None:
    home.root.mkdir(parents=True, exist_ok=True)
    write_sample(ring_file(home), RingSample(at, "running", True, values))


def test_each_objective_is_judged_by_the_limit_that_is_declared_elsewhere(settings: Settings) -> None:
    definition = declare(settings, DECLARED)
    assert set(judged(definition).values()) == {0.0}
    for name, change in (
        ("freshness", {"latency_s": 301}), ("late_share", {"late_share": 0.06}), ("agreement", {"served_defects": 1}),
        ("recovery", {"recovery_s": 901}),
    ):  # fmt: skip
        assert [each for each, missed in judged(definition, **change).items() if missed] == [name]


def test_what_is_not_declared_or_not_known_is_not_judged(settings: Settings) -> None:
    definition = declare(settings, DECLARED)
    assert set(judged(definition, desired="stopped")) == {"late_share", "agreement"}
    assert "agreement" not in judged(definition, served_defects=None)
    only = declare(settings, {"slo": {"agreement": 0.99}})
    assert set(judged(only)) == {"agreement"}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"alerts": {}}, "write alerts: {latency: 5 minutes}"),
        ({"stream": {}}, "write stream: {recovery: 15 minutes}"),
        ({"compare": False}, "is judged by reconciles, but compare is false"),
        ({"slo": {"freshness": 1.0}}, "slo.freshness"),
    ],
)
def test_an_objective_without_its_limit_is_refused(settings: Settings, changed: dict[str, Any], says: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        declare(settings, DECLARED | changed)
    assert says in str(refused.value)


@pytest.mark.proves("howto-watch.md#objectives")
def test_objectives_touch_no_fingerprint(settings: Settings) -> None:
    before = fingerprint_of(declare(settings, {})).hashes()
    assert fingerprint_of(declare(settings, DECLARED)).hashes() == before


@pytest.mark.proves("howto-watch.md#objectives")
def test_the_budget_of_each_range_is_the_time_that_was_missed_of_what_may_be(settings: Settings) -> None:
    """Ten days are known, one sample each four minutes; freshness was missed in the last 72 minutes."""
    definition, home = declare(settings, DECLARED), settings.pipeline(NAME)
    for minutes in range(10 * 1440, -1, -4):
        sample(home, NOW - timedelta(minutes=minutes), missed_freshness=float(minutes < 72), missed_agreement=0.0)
    view = ObjectivesView.read(home, definition, NOW)
    worst, other, *unknown = view.budgets
    assert (worst.objective, other.objective, other.left) == ("freshness", "agreement", 1.0)
    assert worst.burn[1] == pytest.approx(5.0, rel=0.05)  # 72 of 14.4 minutes
    assert worst.burn[7] == pytest.approx(72 / 100.8, rel=0.1)
    assert worst.burn[30] == pytest.approx(72 / 432, rel=0.1)
    assert worst.left == pytest.approx(1 - worst.burn[30])
    assert worst.text.startswith(
        "freshness (records wait at most 5 minutes for 99 % of the time): 83% of the budget is left"
    )
    assert [(each.objective, each.left) for each in unknown] == [("late_share", None), ("recovery", None)]
    assert view.worst.budgets == (worst,)


def test_a_pipeline_of_an_hour_has_not_used_the_budget_of_a_month(settings: Settings) -> None:
    definition, home = declare(settings, DECLARED), settings.pipeline(NAME)
    for minutes in range(60, -1, -1):
        sample(home, NOW - timedelta(minutes=minutes), missed_freshness=float(minutes > 54))
    (worst, *_) = ObjectivesView.read(home, definition, NOW).budgets
    assert worst.left is not None
    assert worst.left > 0.95


@pytest.mark.proves("howto-watch.md#prometheus-alerts-and-grafanas-dashboard")
def test_prometheus_gets_what_is_left_of_each_budget(settings: Settings) -> None:
    declare(settings, DECLARED)
    for seconds in range(120, -1, -6):
        sample(settings.pipeline(NAME), NOW - timedelta(seconds=seconds), missed_freshness=1.0, missed_agreement=0.0)
    measures = measure(settings, NAME, view_pipeline(settings, NAME, NOW), NOW)
    assert measures.budget_left["agreement"] == {"1": 1.0, "7": 1.0, "30": 1.0}
    shown = exposition([measures], {})
    for days in (1, 7, 30):
        left = measures.budget_left["freshness"][str(days)]
        assert left == pytest.approx(1 - 120 / (days * 864), abs=0.02)
        line = f'rivertwice_budget_left_share{{days="{days}",objective="freshness",pipeline="{NAME}"}} {left}'
        assert line in shown.splitlines()
    assert "recovery" not in measures.budget_left, "nothing is known of it"


@pytest.mark.proves("howto-watch.md#objectives")
def test_a_pipeline_of_two_minutes_has_used_two_minutes_at_most(settings: Settings) -> None:
    """A slot of 30 days is 144 minutes long, and of a day nearly five."""
    definition, home = declare(settings, DECLARED), settings.pipeline(NAME)
    for seconds in range(120, -1, -6):
        sample(home, NOW - timedelta(seconds=seconds), missed_freshness=1.0, cpu_cores=0.5)
    view = ObjectivesView.read(home, definition, NOW)
    assert view.cost is not None
    assert all(50 < used < 70 for used in view.cost.cpu_s.values())
    (worst, *_) = view.budgets
    assert worst.burn[30] == pytest.approx(120 / (30 * 864), rel=0.1)
    assert worst.burn[1] == pytest.approx(120 / 864, rel=0.1)


def test_the_cost_is_in_cpu_seconds_of_each_range_and_the_largest_memory(settings: Settings) -> None:
    definition, home = declare(settings, DECLARED), settings.pipeline(NAME)
    assert ObjectivesView.read(home, definition, NOW).cost is None
    for minutes in range(2 * 1440, -1, -4):
        sample(home, NOW - timedelta(minutes=minutes), cpu_cores=0.5, memory_bytes=4e8 if minutes == 40 else 1e8)
    cost = ObjectivesView.read(home, definition, NOW).cost
    assert cost is not None
    assert cost.cpu_s[1] == pytest.approx(43_200, rel=0.02)
    assert cost.cpu_s[30] == pytest.approx(86_400, rel=0.06), "two days are known"
    assert cost.memory_bytes == 400_000_000


def test_drivers_of_a_group_share_their_jvm_equally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process stands for both the driver and the group's JVM: its memory counts once, or a quarter of it."""
    import os

    from rivertwice.storage.local import replace_json

    own = os.getpid()
    monkeypatch.setattr(os, "getsid", lambda pid: own if pid == own else 0)
    alone = CostMeter(tmp_path).look("p1", own, NOW)
    assert set(alone) == {"memory_bytes"}, "CPU is counted from one look to the next"
    monkeypatch.setattr(os, "getsid", lambda pid: 1 if pid == own else 0)
    (tmp_path / "groups" / "g").mkdir(parents=True)
    host = {"pid": 1, "drivers": {f"p{number}": number for number in range(4)}}
    replace_json(tmp_path / "groups" / "g" / "host.json", host)
    meter = CostMeter(tmp_path)
    shared = meter.look("p1", 2, NOW)
    assert shared["memory_bytes"] == pytest.approx(alone["memory_bytes"] / 4, rel=0.2)
    sum(range(3_000_000))
    assert 0 < meter.look("p1", 2, NOW + timedelta(seconds=1))["cpu_cores"] < 1
    assert meter.look("p1", None, NOW) == {"cpu_cores": 0.0, "memory_bytes": 0.0}
