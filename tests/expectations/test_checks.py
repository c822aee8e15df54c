"""The built-in checks say of any frame what Great Expectations says of it, and refuse what only that can judge."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as of_hypothesis
from hypothesis import strategies as st

from homes.backfill import emitted, make_home
from homes.quality import between, expect, write_suite
from rivertwice.cli.main import cli
from rivertwice.core.errors import SuiteError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.definition.model import Definition
from rivertwice.quality.checks import ARGUMENTS, find_need
from rivertwice.quality.engine import find_mistakes
from rivertwice.quality.judge import judge_table
from rivertwice.quality.model import ERRORED, FAILED
from rivertwice.quality.suites import load_checked, require_judges
from rivertwice.reconcile.gate import SuiteOutcome
from rivertwice.reconcile.run import load_suite, run_suite

SUITES = Path(__file__).parents[2] / "expectations"
Made = tuple[Settings, PipelineHome, Definition]
LIBRARY = "great_expectations"
FEW = of_hypothesis(
    max_examples=30, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow]
)
COUNTS = st.sampled_from([0, 0, 0, 1, 7, -1])
SHARES = st.sampled_from([0.0, 0.0, 0.02, 0.06, 1.0, 1.5, -0.1])
VERDICT = {
    "pair": st.sampled_from(["stream", "served"]),
    "window_start": st.sampled_from(list(pd.date_range("2013-06-30T10:00Z", periods=3, freq="h"))),
    "window_end": st.just(pd.Timestamp("2013-06-30T13:00Z")),
    "verdict": st.sampled_from(["AGREES", "AGREES", "LATE", "OPEN", "NOT_COMPARABLE", "DEFECT", None]),
    "presence": st.sampled_from(["both", "both", "truth only", "stream only", None]),
    "rows": COUNTS,
    "late": st.one_of(COUNTS, st.none()),
    "dead": COUNTS,
    "unexplained": COUNTS,
    "late_share": SHARES,
}  # fmt: skip
ACCOUNTS = st.fixed_dictionaries({
    "partition": st.sampled_from(["0", "1", "2", None]),
    **dict.fromkeys(("read", "emitted", "open", "late", "dead", "excluded", "unexplained"), COUNTS),
    "late_share": SHARES,
})  # fmt: skip
ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", "c"]), st.integers(-3, 9)), min_size=1, max_size=9
)
PLAIN = (
    between(min_value=0),
    between("warning", max_value=5),
    between("info", min_value=-1, max_value=8),
    expect("expect_column_values_to_not_be_null", column="k"),
    expect("expect_column_values_to_be_in_set", "warning", "the keys that are known", column="k", value_set=["a", "b"]),
    expect("expect_column_values_to_not_be_in_set", column="n", value_set=[7, 8]),
    expect("expect_column_values_to_be_unique", "warning", column="n"),
    expect("expect_compound_columns_to_be_unique", column_list=["k", "n"]),
    expect("expect_table_row_count_to_be_between", min_value=2, max_value=7),
    expect("expect_column_values_to_be_between", column="_rows_in_window", max_value=2),
    between(column="k", min_value=1),
)


@contextmanager
def by_checks() -> Iterator[None]:
    """In the block, Great Expectations is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, LIBRARY, None)
        yield


def in_order(outcome: SuiteOutcome) -> SuiteOutcome:
    """Return an outcome with its alerts sorted: Great Expectations has no order of its own."""
    failed, errored = (
        tuple(sorted(each, key=lambda alert: alert.message)) for each in (outcome.failed, outcome.errored)
    )
    return replace(outcome, failed=failed, errored=errored)


def read(name: str) -> list[dict[str, Any]]:
    return json.loads((SUITES / f"{name}.json").read_text())["expectations"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    settings, home, bundle = make_home(tmp_path_factory.mktemp("checks"))
    return settings, home, bundle.definition


@pytest.mark.long
@FEW
@given(
    rows=st.lists(st.fixed_dictionaries(VERDICT), max_size=6),
    dropped=st.sampled_from(["", "", "", "unexplained", "verdict", "presence"]),
)
def test_verdicts_have_the_same_outcome(rows: Sequence[dict[str, Any]], dropped: str) -> None:
    frame = pd.DataFrame(rows, columns=list(VERDICT))
    assert_same("verdicts", frame.drop(columns=[dropped] if dropped else []))


@pytest.mark.long
@FEW
@given(rows=st.lists(ACCOUNTS, min_size=1, max_size=5), surprise=st.booleans())
def test_a_balance_has_the_same_outcome(rows: Sequence[dict[str, Any]], surprise: bool) -> None:
    assert_same("balance", pd.DataFrame(rows).assign(**({"surprise": 1} if surprise else {})))


def assert_same(name: str, frame: pd.DataFrame) -> None:
    limit = {"alert_share": 0.05}
    expected = run_suite(SUITES, name, frame, limit)
    with by_checks():
        found = run_suite(SUITES, name, frame, limit)
    assert in_order(found) == in_order(expected)


@pytest.mark.long
@FEW
@given(rows=ROWS)
def test_a_users_plain_suite_has_the_same_judgements(made: Made, rows: Sequence[tuple[int, str, int]]) -> None:
    settings, _, definition = made
    write_suite(settings, "windows", *PLAIN)

    def judged() -> Any:
        suite = load_checked(settings, "p", definition, "windows")
        return judge_table(suite, definition, emitted("t1", 0, *rows))

    expected = judged()
    with by_checks():
        assert judged() == expected


def test_every_built_in_check_is_compared_and_fails_once(made: Made) -> None:
    settings, _, definition = made
    plain = {entry["type"] for entry in PLAIN} | {"expect_table_columns_to_match_set"}  # which both gate suites have
    assert plain == set(ARGUMENTS)
    write_suite(settings, "windows", *PLAIN)
    rows = emitted("t1", 0, *[(0, "c", 9), (0, "c", 9), (0, "b", 7), (1, None, -3)] * 2)
    with by_checks():
        judged = judge_table(load_checked(settings, "p", definition, "windows"), definition, rows)
    assert [each.state for each in judged.judgements] == [FAILED] * (len(PLAIN) - 1) + [ERRORED]


@pytest.mark.parametrize(
    "entry",
    [
        expect("expect_column_mean_to_be_between", column="n", max_value=3),
        between(min_value=0, mostly=0.9),
        between(min_value="2026-01-01"),
        expect("expect_column_values_to_be_in_set", column="k", value_set=[]),
        expect("expect_table_columns_to_match_set", column_set=["k"], exact_match=False),
    ],
    ids=lambda entry: entry["type"] + str(sorted(entry["kwargs"].items())),
)
@pytest.mark.proves("howto-quality.md#without-great-expectations")
def test_what_needs_the_library_is_refused_before_anything_is_computed(made: Made, entry: dict[str, Any]) -> None:
    settings, _, definition = made
    write_suite(settings, "corrections", between(min_value=0), entry)
    assert find_mistakes(entry["type"], entry["kwargs"]) == []
    require_judges(settings, "p", "corrections")
    line = r"is not among the built-in checks: .* run `uv pip install 'rivertwice\[quality\]'`"
    with by_checks():
        with pytest.raises(SuiteError, match=line):
            require_judges(settings, "p", "corrections")
        with pytest.raises(SuiteError, match=line):
            load_checked(settings, "p", definition, "corrections")
        linted = CliRunner().invoke(cli, ["--project", str(settings.project), "lint", "p", "--without-spark"])
        require_judges(settings, "p", "windows")
    assert linted.exit_code == 3
    assert "rivertwice[quality]" in "".join(linted.output.split())


def test_a_gate_suite_that_needs_the_library_is_refused(tmp_path: Path) -> None:
    entry = expect("expect_column_to_exist", column="verdict")
    (tmp_path / "verdicts.json").write_text(json.dumps({"name": "verdicts", "expectations": [entry]}))
    assert len(load_suite(tmp_path, "verdicts").expectations) == 1
    with by_checks(), pytest.raises(SuiteError, match="rivertwice\\[quality\\]"):
        load_suite(tmp_path, "verdicts")


def test_what_the_checks_take_the_library_takes_too() -> None:
    entries = [*PLAIN, *(each for name in ("verdicts", "balance") for each in read(name))]
    assert [find_need(entry["type"], entry["kwargs"]) for entry in entries] == [""] * len(entries)
    assert [find_mistakes(entry["type"], entry["kwargs"]) for entry in entries] == [[]] * len(entries)
