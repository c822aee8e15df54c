"""What a suite with a mistake adds to the gate of a reconcile: the run continues, and says what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from homes.backfill import make_home
from homes.ledger import NOW
from homes.quality import between, serve, write_suite
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import Definition
from rivertwice.quality.table import read_newest
from rivertwice.reconcile.report import check_windows, standing_alerts

pytestmark = pytest.mark.long
Made = tuple[Settings, PipelineHome, Definition]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    settings, home, bundle = make_home(tmp_path)
    serve(home, (0, "a", 5))
    return settings, home, bundle.definition


def no_spark() -> NoReturn:
    message = "so few rows need no Spark"
    raise AssertionError(message)


def test_a_suite_with_a_mistake_judges_nothing_and_fails_the_gate(made: Made) -> None:
    settings, home, definition = made
    write_suite(settings, "windows", between(max_value=0), between(max_value=2**53 + 1))
    check = check_windows(settings, home, definition, no_spark, None, "r1", NOW)
    assert check is not None
    assert not check.is_judged
    (alert,) = check.alerts
    assert (alert.severity, alert.kind) == ("critical", "quality")
    assert "windows.json, expectation 2 of 2: `max_value` has 9007199254740993" in alert.message
    assert "`rivertwice lint p`" in alert.message
    assert read_newest(home) is None

    write_suite(settings, "windows", between(max_value=9))
    corrected = check_windows(settings, home, definition, no_spark, None, "r2", NOW)
    assert corrected is not None
    assert (corrected.is_judged, corrected.alerts) == (True, [])


def test_a_suite_that_cannot_be_read_fails_the_gate_though_nothing_is_new(made: Made) -> None:
    settings, home, _ = made
    write_suite(settings, "windows").write_text("{")
    (alert,) = standing_alerts(settings, home)
    assert (alert.severity, alert.kind) == ("critical", "quality")
    assert "expectations/p/windows.json is not valid JSON" in alert.message
