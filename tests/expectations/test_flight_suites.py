"""The suites of flight_delays name columns of its definition, and each of their expectations is shown failing once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from homes.project import FLIGHTS, REPOSITORY
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.quality.judge import judge_table
from rivertwice.quality.model import FAILED
from rivertwice.quality.suites import lint_suites, load_checked

SETTINGS = Settings(project=REPOSITORY, home=REPOSITORY / "no-home")
START = datetime(2013, 6, 30, 10, tzinfo=UTC)
ROW: dict[str, Any] = {
    "window_start": START,
    "window_end": START + timedelta(hours=1),
    "origin": "JFK",
    "flights": 20,
    "cancelled": 1,
    "delay_sum": 190,
    "delay_mean": 10.0,
    "delay_max": 60,
    "delay_p95": 50.0,
    "late_15": 3,
}
FOUR = [{**ROW, "origin": origin} for origin in ("EWR", "JFK", "LGA", "JFK")]
WINDOWS: list[tuple[str, str, list[dict[str, Any]]]] = [
    ("every row names its airport", "critical", [{**ROW, "origin": None}]),
    ("flights of three airports", "critical", [{**ROW, "origin": "BOS"}]),
    ("an hour without a flight", "critical", [{**ROW, "flights": 0, "cancelled": 0, "late_15": 0}]),
    ("no more flights are cancelled", "critical", [{**ROW, "cancelled": 21}]),
    ("no more flights are late", "critical", [{**ROW, "late_15": 21}]),
    ("the largest delay of an hour", "critical", [{**ROW, "delay_max": 9}]),
    ("between 1 and 60 departures", "warning", [{**ROW, "flights": 61}]),
    ("a row of each airport at most", "critical", FOUR),
    ("more than five hours", "warning", [{**ROW, "delay_mean": 301.0, "delay_max": 400}]),
    ("flights leave between 10 minutes", "info", [{**ROW, "delay_mean": 61.0, "delay_max": 70}]),
]
CORRECTIONS: list[tuple[str, str, list[dict[str, Any]]]] = [
    ("every row names its airport", "critical", [{**ROW, "origin": None}]),
    ("flights of three airports", "critical", [{**ROW, "origin": "BOS"}]),
    ("takes no hour away", "critical", [{**ROW, "flights": 0, "cancelled": 0}]),
    ("no more flights are cancelled", "critical", [{**ROW, "cancelled": 21}]),
    ("more than a day early", "critical", [{**ROW, "delay_max": 2881}]),
    ("more than five hours", "warning", [{**ROW, "delay_mean": 301.0}]),
]
ALL = [("windows", *fault) for fault in WINDOWS] + [("corrections", *fault) for fault in CORRECTIONS]


def failing(subject: str, rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    definition = load_definition(FLIGHTS)
    suite = load_checked(SETTINGS, "flight_delays", definition, subject)
    assert suite is not None
    judged = judge_table(suite, definition, pa.Table.from_pylist(rows))
    assert judged is not None
    return [(each.because, each.severity) for each in judged.judgements if each.state == FAILED]


def test_every_expectation_holds_for_a_plain_hour_and_has_its_fault(tmp_path: Path) -> None:
    settings = Settings(project=REPOSITORY, home=tmp_path)
    assert [finding.state for finding in lint_suites(settings, load_definition(FLIGHTS))] == ["holds", "holds"]
    for subject, faults in (("windows", WINDOWS), ("corrections", CORRECTIONS)):
        assert failing(subject, [ROW]) == []
        suite = load_checked(SETTINGS, "flight_delays", load_definition(FLIGHTS), subject)
        assert suite is not None
        assert len(suite.expectations) == len(faults)


@pytest.mark.parametrize(
    ("subject", "because", "severity", "rows"), ALL, ids=[f"{subject}-{because}" for subject, because, _, _ in ALL]
)
def test_each_expectation_on_flights_fails_on_its_fault(
    subject: str, because: str, severity: str, rows: list[dict[str, Any]]
) -> None:
    assert [level for text, level in failing(subject, rows) if because in text] == [severity]
