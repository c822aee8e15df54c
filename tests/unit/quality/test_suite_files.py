"""A suite with a mistake is refused with the file, the fact and the nearest right name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from homes.backfill import make_home
from homes.quality import between, expect, write_suite
from rivertwice.cli.frame import Frame
from rivertwice.cli.services import check_suites, up_text
from rivertwice.core.errors import SuiteError
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import build_bundle
from rivertwice.definition.definition import load_definition
from rivertwice.definition.model import Definition
from rivertwice.engine.checked import Judgement
from rivertwice.quality.suites import lint_suites, load_checked, read_suite, suite_mistakes

pytestmark = pytest.mark.long
Made = tuple[Settings, Definition]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    settings, _, bundle = make_home(tmp_path)
    return settings, bundle.definition


def refused(made: Made, *expectations: dict[str, Any]) -> str:
    settings, definition = made
    write_suite(settings, "windows", *expectations)
    with pytest.raises(SuiteError) as caught:
        load_checked(settings, "p", definition, "windows")
    (finding, *_) = lint_suites(settings, definition)
    assert (finding.state, finding.told) == ("broken", str(caught.value).splitlines()[0])
    return str(caught.value)


MISTAKES = [
    ({"type": "expect_column_valuez_to_not_be_null", "kwargs": {"column": "n"}}, "did you mean expect_column_values_to_not_be_null?"),
    (between(column="nn", min_value=0), "no column 'nn'; did you mean n?"),
    (between(minvalue=0.0), "no argument `minvalue`; did you mean min_value?"),
    (between(), "cannot both be None"),
    ({"type": "expect_column_values_to_not_be_null", "kwargs": {}}, "`column`: field required"),
    ({"type": "expect_column_to_exist", "kwargs": {"column": "n"}, "severity": "critcal"}, "did you mean critical?"),
    ({"type": "expect_column_to_exist", "kwarg": {"column": "n"}}, "`kwarg` is not part of an expectation; did you mean kwargs?"),
    ({"type": "unexpected_rows_expectation", "kwargs": {"unexpected_rows_query": "x"}}, "asks an SQL database"),
    (expect("expect_compound_columns_to_be_unique", column_list=["k", "window_begin"]), "no column 'window_begin'"),
    (between(min_value=0, row_condition='k=="a"', condition_parser="pandas"), "row_condition is a text"),
    (between(max_value={"$PARAMETER": "limit"}), "$PARAMETER has no value"),
    (
        between(
            min_value=0,
            row_condition={"column": {"name": "key"}, "operator": "==", "parameter": "a", "type": "comparison"},
            condition_parser="great_expectations",
        ),
        "no column 'key'",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "said"), MISTAKES, ids=[said for _, said in MISTAKES])
def test_a_mistake_is_named_with_the_file_and_the_nearest_name(made: Made, entry: dict[str, Any], said: str) -> None:
    text = refused(made, between(min_value=0), entry)
    assert "expectations/p/windows.json, expectation 2 of 2: " in text
    assert said in text


def test_all_mistakes_of_a_suite_are_named_at_once(made: Made) -> None:
    text = refused(made, between(column="nn", min_value=0), {"type": "expect_nothing", "kwargs": {}})
    assert len(text.splitlines()) == 2


def test_the_same_expectation_twice_would_be_judged_once(made: Made) -> None:
    assert "the same as expectation 1" in refused(made, between(min_value=0), between("warning", min_value=0))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not valid JSON at line 1, column 2"),
        ("[]", "no list `expectations`"),
        ('{"expectations": []}', "no list `expectations`"),
    ],
)
def test_a_file_that_is_no_suite_is_refused(made: Made, text: str, said: str) -> None:
    settings, _ = made
    write_suite(settings, "windows").write_text(text)
    with pytest.raises(SuiteError, match=said):
        read_suite(settings, "p", "windows")


def test_a_file_that_nothing_runs_is_found(made: Made) -> None:
    settings, definition = made
    write_suite(settings, "window", between(min_value=0))
    write_suite(settings, "windows", between(min_value=0), pipeline="nothing_like_it")
    found = [(each.state, each.told) for each in lint_suites(settings, definition)]
    assert found == [("broken", "expectations/p/window.json is run by nothing; did you mean windows.json?")]


def test_a_folder_that_is_nearly_named_as_a_pipeline_warns(made: Made) -> None:
    settings, _ = made
    files = {path.name: path.read_text() for path in (settings.definitions / "p").iterdir()}
    folder = settings.definitions / "hourly_totals"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text.replace("name: p", "name: hourly_totals"))
    write_suite(settings, "windows", between(min_value=0), pipeline="hourly_total")
    (finding,) = lint_suites(settings, load_definition(folder))
    assert (finding.state, "did you mean expectations/hourly_totals?" in finding.told) == ("warns", True)


def test_a_version_has_its_own_suite_or_that_of_its_pipeline(made: Made) -> None:
    settings, _ = made
    write_suite(settings, "windows", between(min_value=0))
    shared = read_suite(settings, "p@v2", "windows")
    write_suite(settings, "windows", between(min_value=1), pipeline="p@v2")
    own = read_suite(settings, "p@v2", "windows")
    assert shared is not None
    assert own is not None
    assert (shared.path, own.path) == ("expectations/p/windows.json", "expectations/p@v2/windows.json")


ACCEPTED = (between(min_value=0), expect("expect_column_values_to_not_be_null", column="k"))


@pytest.fixture
def accepted(made: Made) -> Iterator[Made]:
    """A home whose suite was accepted; from then on nobody may ask Great Expectations."""
    settings, definition = made
    write_suite(settings, "windows", *ACCEPTED)
    assert [finding.state for finding in lint_suites(settings, definition)] == ["holds"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rivertwice.quality.engine._great_expectations", lambda: pytest.fail("it was asked"))
        yield made


@pytest.mark.parametrize("suite", [ACCEPTED, ACCEPTED[::-1], ACCEPTED[:1]], ids=["same", "moved", "shorter"])
def test_what_was_accepted_is_not_asked_again(accepted: Made, suite: tuple[dict[str, Any], ...]) -> None:
    settings, definition = accepted
    write_suite(settings, "windows", *suite)

    assert [finding.state for finding in lint_suites(settings, definition)] == ["holds"]


def test_what_is_ours_is_found_in_what_was_accepted(accepted: Made) -> None:
    settings, definition = accepted
    write_suite(settings, "windows", *ACCEPTED, {**ACCEPTED[0], "severity": "critcal"})

    mistakes = [finding.told for finding in lint_suites(settings, definition)]

    assert ["did you mean critical?" in mistakes[0], "the same as expectation 1" in mistakes[1]] == [True, True]


def test_a_column_that_the_definition_lost_is_found_in_what_was_accepted(accepted: Made) -> None:
    settings, _ = accepted
    text = (settings.definitions / "p" / "pipeline.yaml").read_text()
    text = text.replace("count_column: n", "count_column: total").replace("{n: ", "{total: ")
    (settings.definitions / "p" / "pipeline.yaml").write_text(text)

    (finding,) = lint_suites(settings, load_definition(settings.definitions / "p"))

    assert (finding.state, "no column 'n'" in finding.told) == ("broken", True)


@pytest.mark.parametrize(
    "changed",
    [between(min_value=1), between(), between(minvalue=0), expect("expect_column_values_to_be_null", column="k")],
)
def test_what_was_not_accepted_is_asked(accepted: Made, changed: dict[str, Any]) -> None:
    settings, definition = accepted
    write_suite(settings, "windows", *ACCEPTED, changed)

    with pytest.raises(pytest.fail.Exception, match="it was asked"):
        lint_suites(settings, definition)


def test_another_version_of_great_expectations_is_asked(accepted: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, definition = accepted
    monkeypatch.setattr("rivertwice.quality.suites.version", lambda _: "99")

    with pytest.raises(pytest.fail.Exception, match="it was asked"):
        lint_suites(settings, definition)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 2}'])
def test_a_record_that_cannot_be_read_is_written_again(made: Made, text: str) -> None:
    settings, definition = made
    record = settings.pipeline("p").accepted
    write_suite(settings, "windows", *ACCEPTED)
    lint_suites(settings, definition)
    known = record.read_bytes()
    record.write_text(text)

    assert [finding.state for finding in lint_suites(settings, definition)] == ["holds"]
    assert record.read_bytes() == known


def test_suites_with_a_mistake_are_not_accepted(made: Made) -> None:
    settings, definition = made
    write_suite(settings, "windows", *ACCEPTED)
    write_suite(settings, "corrections", between())

    assert [finding.state for finding in lint_suites(settings, definition)] == ["broken"]
    assert not settings.pipeline("p").accepted.exists()


def test_a_home_that_cannot_be_written_keeps_nothing(made: Made) -> None:
    settings, definition = made
    write_suite(settings, "windows", *ACCEPTED)
    settings.pipeline("p").accepted.mkdir(parents=True)  # nobody can replace a folder by a file, not even root

    assert [finding.state for finding in lint_suites(settings, definition)] == ["holds"]


def test_a_pipeline_without_suites_has_no_finding(made: Made) -> None:
    settings, definition = made
    assert lint_suites(settings, definition) == []
    assert load_checked(settings, "p", definition, "windows") is None


def test_up_names_a_broken_suite_beside_the_definitions(made: Made) -> None:
    settings, _ = made
    write_suite(settings, "windows", between(column="nn", min_value=0))
    bundle = build_bundle(settings.definitions / "p")
    judged = [Judgement("p", bundle, None, (), ()), Judgement("unloadable", None, None, ("why",), ())]
    suites = check_suites(Frame(settings, "text", debug=False), judged)
    assert list(suites) == ["p"]
    services = {"broker": {"bootstrap": "127.0.0.1:9", "pid": 1}, "agent": {"pid": 2}, "airflow": None}
    text = up_text({**services, "suites": suites}, judged)
    assert text.startswith("broker   answers at 127.0.0.1:9 (process 1)\nagent    keeps streams alive (process 2)\n")
    assert "broken suite" in text
    assert "did you mean n?" in text


@pytest.mark.proves("howto-quality.md#write-a-suite")
@pytest.mark.parametrize("bound", [2**53, -(2**53) - 1, 2**53 + 1, 1e17])
def test_a_bound_that_a_double_does_not_hold_exactly_is_refused(made: Made, bound: float) -> None:
    settings = made[0]
    write_suite(settings, "windows", between(max_value=bound), between(min_value=2**53 - 1))
    (said,) = suite_mistakes(settings, made[1])
    assert f"expectation 1 of 2: `max_value` has {bound}: Great Expectations compares doubles" in said
    in_set = expect("expect_column_values_to_be_in_set", column="n", value_set=[1, bound])
    write_suite(settings, "windows", in_set)
    assert "`value_set` has" in suite_mistakes(settings, made[1])[0]


@pytest.mark.proves("howto-quality.md#write-a-suite")
@pytest.mark.parametrize(
    ("bound", "said"),
    [
        ("NaN", "`max_value` has nan, with which nothing can be compared"),
        ("-Infinity", "`max_value` has -inf, with which nothing can be compared"),
        ("0.12345678901234567890", "0.12345678901234567890, of which a double holds 0.12345678901234568"),
        ("90071992547409.930001", "90071992547409.930001, of which a double holds 90071992547409.94"),
    ],
)
def test_a_bound_that_is_no_number_or_has_more_digits_than_a_double_is_refused(
    made: Made, bound: str, said: str
) -> None:
    settings, definition = made
    path = write_suite(settings, "windows", between(max_value=0.5, min_value=0.1))
    path.write_text(path.read_text().replace("0.5", bound))
    (mistake,) = suite_mistakes(settings, definition)
    assert "expectations/p/windows.json" in mistake
    assert said in mistake
