"""One definition that cannot be loaded does not end what is asked of the others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from homes.project import FLIGHTS, make_project
from rivertwice.agent.backoff import REACTIONS, FailureClass, Response
from rivertwice.cli.main import cli
from rivertwice.core.errors import DefinitionError
from rivertwice.core.instants import parse_iso, utc_now
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import build_bundle
from rivertwice.engine.checked import CHECKS_VERSION, CheckReport, check_bundle, judge_folder, note_cases, read_verdict
from rivertwice.engine.checks import describe_refusal
from rivertwice.stream.failures import classify_failure

AT = parse_iso("2026-01-02T00:00:00Z")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A project with a definition that is not YAML, named before one that holds."""
    broken = {"pipeline.yaml": "name: [", "transform.sql": "SELECT 1"}
    return make_project(tmp_path, {"flight_delays": FLIGHTS, "broken": broken})


@pytest.fixture
def run(settings: Settings) -> Callable[..., Result]:
    options = ["--output", "json", "--project", str(settings.project), "--home", str(settings.home)]
    return lambda *arguments: CliRunner().invoke(cli, [*options, *arguments])


def test_pipelines_lists_the_others_and_names_it(run: Callable[..., Result]) -> None:
    result = run("pipelines")
    listed = json.loads(result.stdout)
    assert (result.exit_code, [one["name"] for one in listed]) == (1, ["flight_delays", "broken"])
    assert "broken/pipeline.yaml is not YAML" in listed[1]["error"]
    assert "broken cannot be loaded" in result.stderr


def test_metrics_measures_the_others_and_names_it(run: Callable[..., Result]) -> None:
    result = run("agent", "metrics")
    listed = json.loads(result.stdout)
    assert (result.exit_code, [one["pipeline"] for one in listed]) == (1, ["flight_delays", "broken"])
    text = run("agent", "metrics", "--prometheus")
    assert text.exit_code == 1
    assert 'pipeline="flight_delays"' in text.stdout
    assert "broken cannot be loaded" in text.stderr


def test_the_state_of_delivery_is_shown_for_the_others_and_it_is_named(
    run: Callable[..., Result], settings: Settings
) -> None:
    sink = "deliver:\n  out: {to: kafka, topic: out, guarantee: exactly_once}\n"
    with (settings.definitions / "flight_delays" / "pipeline.yaml").open("a") as file:
        file.write(sink)
    result = run("deliver", "status")
    shown = json.loads(result.stdout)
    assert (result.exit_code, [one["sink"] for one in shown["flight_delays"]]) == (1, ["out"])
    assert "broken/pipeline.yaml is not YAML" in shown["broken"]["error"]
    assert "broken cannot be loaded" in result.stderr
    one = run("deliver", "status", "flight_delays")
    assert (one.exit_code, one.stderr) == (0, "")
    named = run("deliver", "status", "broken")
    assert (named.exit_code, "broken/pipeline.yaml is not YAML" in named.stderr) == (1, True)


def test_doctor_names_every_broken_definition_and_those_that_hold(
    run: Callable[..., Result], settings: Settings
) -> None:
    shutil.copytree(settings.definitions / "broken", settings.definitions / "worse")
    result = run("doctor")
    (found,) = (one for one in json.loads(result.stdout) if one["name"] == "pipelines")
    assert (result.exit_code, found["ok"]) == (1, False)
    for said in ("broken: ", "worse: ", "is not YAML", "these can be: flight_delays"):
        assert said in found["found"]


def test_a_refused_definition_ends_in_a_class_that_never_restarts() -> None:
    found = classify_failure(DefinitionError("x"))
    assert REACTIONS[FailureClass(found)].response is Response.STOP


def test_a_verdict_is_of_one_definition_these_checks_and_this_spark(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = settings.pipeline("flight_delays")
    bundle = build_bundle(settings.definitions / "flight_delays")
    known = {
        "format": 1,
        "bundle": bundle.id,
        "checks": CHECKS_VERSION,
        "spark": "4",
        "findings": ["f"],
        "unchecked": [],
        "keys": {},
        "risks": [],
        "columns": {},
    }
    monkeypatch.setattr("rivertwice.engine.checked.version", lambda _: "4")
    home.root.mkdir(parents=True)
    home.checked.write_text(json.dumps({**known, "at": "2026-01-01T00:00:00Z"}))
    found = read_verdict(home, bundle.id)
    assert found is not None
    assert (found.findings, found.holds) == (("f",), False)
    assert read_verdict(home, "another") is None
    assert found.cases is None
    note_cases(home, {"one": False, "two": False}, AT)
    note_cases(home, {"one": False, "two": True}, AT + timedelta(hours=1))
    note_cases(home, {}, AT + timedelta(hours=2))  # without a case nothing is known
    noted = read_verdict(home, bundle.id)
    assert noted is not None
    assert noted.cases is not None
    assert (noted.cases.count, noted.cases.failed, noted.cases.at - noted.cases.passed_at) == (
        2,
        ("two",),
        timedelta(hours=1),
    )
    with pytest.raises(DefinitionError, match="f"):
        check_bundle(home, bundle, _never, utc_now(), where="w").require()
    monkeypatch.setattr("rivertwice.engine.checked.CHECKS_VERSION", CHECKS_VERSION + 1)
    assert read_verdict(home, bundle.id) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 2}', "\x00", '{"format": 1, "at": "no"}'])
def test_a_verdict_that_cannot_be_read_is_made_again(settings: Settings, text: str) -> None:
    home = settings.pipeline("flight_delays")
    home.root.mkdir(parents=True)
    home.checked.write_text(text)
    assert read_verdict(home, "b") is None


def test_a_definition_that_spark_was_not_asked_about_is_not_called_checked(settings: Settings) -> None:
    def judge(name: str) -> str:
        return judge_folder(settings, settings.definitions / name, None, utc_now()).state

    assert (judge("flight_delays"), judge("broken")) == ("not checked", "broken")
    failing = judge_folder(settings, settings.definitions / "flight_delays", _never, utc_now())
    assert (failing.state, "the check itself failed (AssertionError: no Spark here)" in failing.unchecked[0]) == (
        "not checked",
        True,
    )
    assert CheckReport("b", (), (), {}, utc_now()).holds


STREAM = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred
pyspark.errors.exceptions.captured.ArithmeticException: [DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. SQLSTATE: 22012
== SQL (line 3, position 7) ==
sum(100 div (v - 2))
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[NO_VIEW] `x` cannot be found.\nHint. SQLSTATE: 42P01; line 4 pos 5;\n'Project",
            "line 4, column 6: it fails: [NO_VIEW] `x` cannot be found",
        ),
        (
            "\n[PARSE_SYNTAX_ERROR] Syntax error at ','. SQLSTATE: 42601 (line 6, pos 26)\n",
            "line 6, column 27: it fails: [PARSE_SYNTAX_ERROR] Syntax error at ','",
        ),
        (STREAM, "line 3, column 7: it fails: [DIVIDE_BY_ZERO] Division by zero. Use `try_divide`"),
        ("something odd\nand more", "it fails: something odd"),
    ],
)
def test_what_spark_says_is_one_line_that_begins_with_the_line_of_the_sql(text: str, said: str) -> None:
    assert describe_refusal(ValueError(text), "it fails") == said


def _never() -> None:
    message = "no Spark here"
    raise AssertionError(message)
