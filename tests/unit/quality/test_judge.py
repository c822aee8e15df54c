"""Rows judged by pandas, and what is stored of it."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from click.testing import CliRunner

from homes.backfill import SQL, YAML, make_home, result
from homes.ledger import NOW
from homes.project import make_project
from homes.quality import HOUR, between, expect, serve, write_suite
from rivertwice.cli.main import cli
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.definition.model import Definition
from rivertwice.quality.judge import judge_table
from rivertwice.quality.model import ERRORED, FAILED, PASSED, STILL_FAILS
from rivertwice.quality.suites import Suite
from rivertwice.quality.table import failing_by_severity, read_newest, read_results, standing, store_acceptance
from rivertwice.quality.windows import WindowsCheck, judge_windows
from rivertwice.storage.table import Table
from rivertwice.timeline.upkeep import drop_old_judgements
from rivertwice.upkeep.redact import Redactor

pytestmark = pytest.mark.long
Made = tuple[Settings, PipelineHome, Definition]


def no_spark() -> NoReturn:
    message = "so few rows need no Spark"
    raise AssertionError(message)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    settings, home, bundle = make_home(tmp_path)
    serve(home, (0, "a", 5), (1, "a", 5), (1, "b", 50), (2, "a", 500))
    return settings, home, bundle.definition


def judge(made: Made, run: str = "r1", *ranges: tuple[int, int], hours: int = 0) -> WindowsCheck:
    settings, home, definition = made
    now = NOW + timedelta(hours=hours)
    check = judge_windows(settings, home, definition, no_spark, list(ranges) or None, run, now)
    assert check is not None
    return check


def states(check: WindowsCheck) -> list[str]:
    return [each.state for each in check.judgements]


def test_a_failing_expectation_names_its_windows_rows_and_keys(made: Made) -> None:
    write_suite(
        made[0], "windows", between(max_value=49), expect("expect_column_mean_to_be_between", column="n", max_value=10)
    )
    check = judge(made)
    values, mean = check.judgements
    assert check.judged is not None
    assert (check.judged.rows, check.judged.engine, states(check)) == (4, "pandas", [FAILED, FAILED])
    assert (values.unexpected, values.failing) == (2, ((HOUR, 3 * HOUR),))
    assert [(row["k"], row["n"]) for row in values.examples] == [("b", 50), ("a", 500)]
    assert values.examples[0]["window_start"] == "1970-01-01T01:00:00Z"
    assert (mean.observed, mean.failing, mean.unexpected) == ("140.0", ((0, 3 * HOUR),), None)


def test_the_rows_of_a_window_are_a_column(made: Made) -> None:
    write_suite(made[0], "windows", between(column="_rows_in_window", min_value=1, max_value=1))
    (each,) = judge(made).judgements
    assert (each.state, each.unexpected, each.failing) == (FAILED, 2, ((HOUR, 2 * HOUR),))


def test_examples_are_a_few_however_many_rows_fail(made: Made) -> None:
    serve(made[1], *((hour, key, 9) for hour in range(5) for key in "abcdefgh"))
    write_suite(made[0], "windows", between(max_value=1))
    (each,) = judge(made).judgements
    assert (each.unexpected, len(each.examples)) == (40, 10)


@pytest.mark.parametrize(("most", "failing"), [(40, ((HOUR, 6 * HOUR),)), (39, ((0, 7 * HOUR),))])
def test_windows_of_many_failing_rows_are_looked_up_to_a_bound(
    made: Made, monkeypatch: pytest.MonkeyPatch, most: int, failing: tuple[tuple[int, int], ...]
) -> None:
    monkeypatch.setattr("rivertwice.quality.judge.MOST_PLACED", most)
    serve(made[1], (0, "a", 1), (6, "a", 1), *((hour, key, 9) for hour in range(1, 6) for key in "abcdefgh"))
    write_suite(made[0], "windows", between(column="n", min_value=0), between(max_value=1))
    passed, each = judge(made).judgements
    assert (passed.state, each.unexpected, each.failing) == (PASSED, 40, failing)


def test_only_windows_in_the_ranges_are_judged(made: Made) -> None:
    write_suite(made[0], "windows", between(max_value=49))
    assert states(judge(made, "r1", (0, HOUR))) == [PASSED]
    assert states(judge(made, "r2", (0, HOUR), (2 * HOUR, 9 * HOUR), hours=1)) == [FAILED]


def test_a_failure_stays_until_its_windows_are_judged_again(made: Made) -> None:
    settings, home, _ = made
    write_suite(settings, "windows", between(max_value=49))
    judge(made)
    assert states(judge(made, "r2", (2 * HOUR, 3 * HOUR), hours=1)) == [FAILED]
    serve(home, (0, "a", 5), (1, "b", 5), (2, "a", 5))
    (left,) = judge(made, "r3", (2 * HOUR, 3 * HOUR), hours=2).judgements
    assert (left.state, left.failing, left.since) == (STILL_FAILS, ((HOUR, 2 * HOUR),), "r1")
    assert states(judge(made, "r4", (HOUR, 2 * HOUR), hours=3)) == [PASSED]
    assert failing_by_severity(standing(settings, home)) == {"critical": 0, "warning": 0, "info": 0}


def test_a_full_run_judges_windows_that_are_gone_too(made: Made) -> None:
    settings, home, _ = made
    write_suite(settings, "windows", between(max_value=49))
    judge(made)
    serve(home, (0, "a", 5))
    assert states(judge(made, "r2", hours=1)) == [PASSED]


def test_what_is_accepted_fails_again_only_with_new_windows(made: Made) -> None:
    settings, home, _ = made
    write_suite(settings, "windows", between(max_value=49))
    judge(made)
    newest = read_newest(home)
    assert newest is not None
    store_acceptance(home, newest, newest.judgements[0], "known", NOW)
    assert read_newest(home) == type(newest)("r1", "windows", NOW, ())
    assert states(judge(made, "r2", (0, HOUR), hours=1)) == [PASSED]
    assert states(judge(made, "r3", (HOUR, 2 * HOUR), hours=2)) == [FAILED]
    assert [row["reason"] for row in read_results(home) if row["state"] == "accepted"] == ["known"]


def test_no_new_row_leaves_what_was_found(made: Made) -> None:
    settings, home, _ = made
    write_suite(settings, "windows", between("warning", max_value=49))
    judge(made)
    check = judge(made, "r2", (90 * HOUR, 99 * HOUR), hours=1)
    assert check.judged is None
    assert states(check) == [FAILED]
    assert failing_by_severity(standing(settings, home)) == {"critical": 0, "warning": 1, "info": 0}


def test_a_run_is_stored_once(made: Made) -> None:
    settings, home, _ = made
    write_suite(settings, "windows", between(min_value=0), between("info", max_value=9))
    judge(made)
    judge(made)
    stored = read_results(home)
    assert [(row["run"], row["state"], row["rows"], row["engine"]) for row in stored] == [
        ("r1", "passed", 4, "pandas"),
        ("r1", "failed", 4, "pandas"),
    ]
    assert Table(home.tables.quality).applied_version(f"quality/r1/{stored[0]['suite'][:16]}") == 1


def test_upkeep_removes_old_results_and_nothing_that_holds(made: Made) -> None:
    settings, home, _ = made
    write_suite(settings, "windows", between(max_value=49))
    judge(made)
    judge(made, "r2", (0, HOUR), hours=1)
    drop_old_judgements(home, NOW + timedelta(days=100))
    assert {row["run"] for row in read_results(home)} == {"r2"}
    assert failing_by_severity(standing(settings, home))["critical"] == 1  # r2 says what r1 found, too


def test_an_erasure_finds_what_is_stored_of_a_person(made: Made) -> None:
    settings, home, _ = made
    serve(home, (0, "anna", 5), (1, "b", 7))
    write_suite(
        settings,
        "windows",
        between(max_value=4),
        expect("expect_column_distinct_values_to_equal_set", column="k", value_set=["b"]),
        expect("expect_column_mean_to_be_between", column="k", max_value=1),
    )
    judge(made)
    stored = Table(home.tables.quality).read()
    assert stored is not None
    assert "anna" in str(stored.to_pylist())
    redacted, _ = Redactor("anna", "p-1", frozenset({"k"})).table(stored)
    assert "anna" not in str(redacted.to_pylist())
    assert redacted["examples"].to_pylist()[0] == stored["examples"].to_pylist()[0].replace("anna", "p-1")


def test_what_the_library_cannot_judge_is_errored_and_blocks(made: Made) -> None:
    settings, _, _ = made
    write_suite(settings, "windows", expect("expect_column_mean_to_be_between", "info", column="k", max_value=1))
    (each,) = judge(made).judgements
    assert (each.state, each.blocks, each.failing) == (ERRORED, True, ((0, 3 * HOUR),))
    assert "could not be judged" in each.describe()


def test_nothing_served_or_no_suite_judges_nothing(tmp_path: Path) -> None:
    settings, home, bundle = make_home(tmp_path)
    arguments: tuple[Any, ...] = (settings, home, bundle.definition, no_spark, None, "r1", NOW)
    assert judge_windows(*arguments) is None
    write_suite(settings, "windows", between(min_value=0))
    check = judge_windows(*arguments)
    assert check is not None
    assert (check.judged, check.judgements) == (None, ())
    assert standing(settings, home) is None


def with_ratio(tmp_path: Path) -> Definition:
    """The definition with one more column, a double."""
    yaml = YAML.replace(
        "columns: {n: {compare: exact}}", "columns: {n: {compare: exact}, ratio: {compare: tolerance, tolerance: 0.1}}"
    )
    settings = make_project(tmp_path, {"p": {"pipeline.yaml": yaml, "transform.sql": SQL}})
    return load_definition(settings.definition_folder("p"))


@pytest.mark.proves("howto-quality.md#write-a-suite")
def test_a_row_that_is_nan_passes_no_expectation_of_its_column(tmp_path: Path) -> None:
    """Great Expectations takes NaN for missing, so that it lies between any bounds."""
    rows = result((0, "a", 5), (1, "a", 6))
    ratio = pa.array([0.5, math.nan], pa.float64())
    rows = rows.append_column("ratio", ratio)
    definition = with_ratio(tmp_path)
    suite = Suite("s", "windows", "sha", "s", (between(column="ratio", max_value=1), between(column="n", max_value=9)))
    judged = judge_table(suite, definition, rows)
    assert judged is not None
    assert [each.state for each in judged.judgements] == [ERRORED, PASSED]
    assert "the column ratio has rows that are NaN" in judged.judgements[0].error
    assert judged.judgements[0].blocks
    whole = rows.set_column(rows.schema.get_field_index("ratio"), "ratio", pa.array([0.5, None], pa.float64()))
    judged = judge_table(suite, definition, whole)
    assert judged is not None
    assert [each.state for each in judged.judgements] == [PASSED, PASSED]


@pytest.mark.proves("howto-quality.md#look-at-results")
def test_an_example_that_is_infinite_is_text_because_json_has_no_such_number(tmp_path: Path) -> None:
    rows = result((0, "a", 5)).append_column("ratio", pa.array([math.inf], pa.float64()))
    suite = Suite("s", "windows", "sha", "s", (between(column="ratio", max_value=1),))
    judged = judge_table(suite, with_ratio(tmp_path), rows)
    assert judged is not None
    stored = json.dumps(judged.judgements[0].examples, allow_nan=False)
    assert json.loads(stored)[0]["ratio"] == "Infinity"


def test_infinite_examples_that_version_0_1_stored_are_printed_as_json(made: Made) -> None:
    write_suite(made[0], "windows", between(max_value=49))
    judge(made)
    place = made[1].tables.quality
    rows = Table(place).read()
    at = rows.schema.get_field_index("examples")
    Table(place).overwrite(rows.set_column(at, "examples", pa.array(['[{"k": "a", "ratio": Infinity}]'])))
    options = ["--output", "json", "--project", str(made[0].project), "--home", str(made[0].home)]
    (shown,) = json.loads(CliRunner().invoke(cli, [*options, "quality", "p"]).stdout)["rows"]
    assert json.loads(shown["examples"]) == [{"k": "a", "ratio": "Infinity"}]
