"""Every JSON suite loads completely, and each of its expectations is shown failing once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rivertwice.core.errors import SuiteError
from rivertwice.reconcile.run import load_suite, run_suite

SUITES = Path(__file__).parents[2] / "expectations"
VERDICT = {
    "pair": "stream",
    "window_start": pd.Timestamp("2013-06-30T10:00Z"),
    "window_end": pd.Timestamp("2013-06-30T11:00Z"),
    "verdict": "AGREES",
    "presence": "both",
    "rows": 4,
    "late": 0,
    "dead": 0,
    "unexplained": 0,
    "late_share": 0.0,
}
ACCOUNT = {
    "partition": "0", "read": 10, "emitted": 6, "open": 2, "late": 1, "dead": 1, "excluded": 0, "unexplained": 0, "late_share": 0.02,
}  # fmt: skip
LIMIT = {"alert_share": 0.05}


def kinds(name: str) -> list[str]:
    return [entry["type"] for entry in json.loads((SUITES / f"{name}.json").read_text())["expectations"]]


@pytest.mark.parametrize("name", [path.stem for path in sorted(SUITES.glob("*.json"))])
def test_every_declared_expectation_is_loaded(name: str) -> None:
    assert sorted(e.expectation_type for e in load_suite(SUITES, name).expectations) == sorted(kinds(name))


def test_rightful_frames_pass_both_suites() -> None:
    verdicts = run_suite(SUITES, "verdicts", pd.DataFrame([VERDICT]))
    balance = run_suite(SUITES, "balance", pd.DataFrame([ACCOUNT]), LIMIT)
    assert (verdicts.passed, verdicts.failed, verdicts.errored) == (10, (), ())
    assert (balance.passed, balance.failed, balance.errored) == (5, (), ())


VERDICT_FAULTS: list[tuple[str, str, list[dict[str, Any]]]] = [
    ("documented columns", "critical", [{**VERDICT, "surprise": 1}]),
    ("every result row has a verdict", "critical", [{**VERDICT, "verdict": None}]),
    ("no result row is a defect", "critical", [{**VERDICT, "verdict": "DEFECT"}]),
    ("every result row can be compared", "warning", [{**VERDICT, "verdict": "NOT_COMPARABLE"}]),
    ("no side holds a row that no record explains", "critical", [{**VERDICT, "presence": "stream only"}]),
    ("missing or too many", "critical", [{**VERDICT, "unexplained": 1}]),
    ("never negative", "critical", [{**VERDICT, "late": -1}]),
    ("more late records than records", "critical", [{**VERDICT, "late_share": 1.5}]),
    ("each verdict once per pair", "critical", [VERDICT, VERDICT]),
]
BALANCE_FAULTS: list[tuple[str, str, list[dict[str, Any]]]] = [
    ("documented columns", "critical", [{**ACCOUNT, "surprise": 1}]),
    ("every record read", "critical", [{**ACCOUNT, "unexplained": -1}]),
    ("multiplies no record", "critical", [{**ACCOUNT, "excluded": -1}]),
    ("late share stays below", "warning", [{**ACCOUNT, "late_share": 0.06}]),
    ("accounted for once", "critical", [ACCOUNT, ACCOUNT]),
]


@pytest.mark.parametrize(("because", "severity", "rows"), VERDICT_FAULTS, ids=[f[0] for f in VERDICT_FAULTS])
def test_each_expectation_on_verdicts_fails_on_its_fault(
    because: str, severity: str, rows: list[dict[str, Any]]
) -> None:
    outcome = run_suite(SUITES, "verdicts", pd.DataFrame(rows))
    assert [alert.severity for alert in outcome.failed if because in alert.message] == [severity]
    assert len(outcome.failed) == 1


def test_an_empty_verdict_frame_is_a_warning() -> None:
    outcome = run_suite(SUITES, "verdicts", pd.DataFrame([VERDICT]).iloc[:0])
    assert [(a.severity, "at least one" in a.message) for a in outcome.failed] == [("warning", True)]


@pytest.mark.parametrize(("because", "severity", "rows"), BALANCE_FAULTS, ids=[f[0] for f in BALANCE_FAULTS])
def test_each_expectation_on_the_balance_fails_on_its_fault(
    because: str, severity: str, rows: list[dict[str, Any]]
) -> None:
    outcome = run_suite(SUITES, "balance", pd.DataFrame(rows), LIMIT)
    assert [alert.severity for alert in outcome.failed if because in alert.message] == [severity]
    assert len(outcome.failed) == 1


@pytest.mark.parametrize(
    ("suite", "rows", "repeats"),
    [
        ("balance", {**ACCOUNT, "late_share": 0.06}, "late_share"),
        ("balance", {**ACCOUNT, "unexplained": 1}, "balance"),
        ("verdicts", {**VERDICT, "verdict": "DEFECT"}, "defect"),
        ("verdicts", {**VERDICT, "verdict": "NOT_COMPARABLE"}, "not_comparable"),
        ("verdicts", {**VERDICT, "late": -1}, ""),
    ],
)
def test_what_the_gate_says_itself_is_said_once(suite: str, rows: dict[str, Any], repeats: str) -> None:
    outcome = run_suite(SUITES, suite, pd.DataFrame([rows]), LIMIT)
    assert [alert.repeats for alert in outcome.failed] == [repeats]


def test_every_expectation_has_its_fault() -> None:
    assert len(VERDICT_FAULTS) + 1 == len(kinds("verdicts"))
    assert len(BALANCE_FAULTS) == len(kinds("balance"))


@pytest.mark.proves("howto-correct.md#where-it-is-kept")
def test_a_missing_column_is_errored_and_not_failed() -> None:
    frame = pd.DataFrame([VERDICT]).drop(columns="unexplained")
    outcome = run_suite(SUITES, "verdicts", frame)
    assert [alert.kind for alert in outcome.errored] == ["suite_errored"]
    assert [alert.severity for alert in outcome.errored] == ["critical"]


def write(folder: Path, expectations: list[dict[str, Any]]) -> Path:
    (folder / "one.json").write_text(json.dumps({"name": "one", "expectations": expectations}))
    return folder


def test_a_misspelt_type_is_refused_instead_of_checking_nothing(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        [
            {"type": "expect_column_valuez_to_not_be_null", "severity": "critical", "kwargs": {"column": "a"}},
            {"type": "expect_column_to_exist", "severity": "critical", "kwargs": {"column": "a"}},
        ],
    )
    with pytest.raises(SuiteError, match=r"declares 2 expectations but 1 were loaded: expect_column_valuez"):
        load_suite(folder, "one")


def test_a_misspelt_argument_is_refused(tmp_path: Path) -> None:
    entry = {"type": "expect_column_to_exist", "severity": "critical", "kwargs": {"colum": "a"}}
    with pytest.raises(SuiteError, match="not accepted"):
        load_suite(write(tmp_path, [entry]), "one")


@pytest.mark.parametrize("severity", ["crit", ""])
def test_an_unknown_severity_is_refused(tmp_path: Path, severity: str) -> None:
    entry = {"type": "expect_column_to_exist", "severity": severity, "kwargs": {"column": "a"}}
    with pytest.raises(SuiteError, match="severities"):
        load_suite(write(tmp_path, [entry]), "one")


def test_a_missing_or_damaged_suite_is_refused(tmp_path: Path) -> None:
    (tmp_path / "damaged.json").write_text("{")
    for name in ("absent", "damaged"):
        with pytest.raises(SuiteError, match="gates nothing"):
            load_suite(tmp_path, name)
