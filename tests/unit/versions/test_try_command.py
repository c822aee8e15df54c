"""What `rivertwice try` says without Spark: nothing differs, nothing can be run, or the definition cannot be loaded."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from homes.backfill import make_home
from homes.project import replace_text
from rivertwice.cli.cases import trial_text
from rivertwice.cli.main import cli
from rivertwice.core.settings import Settings
from rivertwice.versions.try_model import (
    COMPARED,
    INCOMPARABLE,
    ColumnChange,
    Comparison,
    Example,
    Retyped,
    RowChange,
    SchemaChange,
    Trial,
    TrialRange,
    Version,
)

AT = (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 1, tzinfo=UTC))
STRETCH = TrialRange(*AT, windows=1, records=9)
COMMENT = ("-- a comment\n", "")


def run(settings: Settings, *arguments: str) -> Result:
    """Run the command where neither Spark nor Kafka may be asked."""
    with mock.patch("rivertwice.engine.session.spark_session", side_effect=AssertionError("Spark was started")):
        return CliRunner().invoke(cli, ["--output", "json", "try", "p", *arguments], env=settings.to_env())


def edit(settings: Settings, file: str, old: str, new: str) -> None:
    replace_text(settings.definitions / "p" / file, old, new)


def test_the_same_definition_is_said_to_be_the_same_at_once(tmp_path: Path) -> None:
    settings, _, bundle = make_home(tmp_path)
    edit(settings, "transform.sql", "SELECT", "-- a comment\nSELECT")
    result = run(settings, "--fail-on-difference")
    assert result.exit_code == 0, result.output
    said: dict[str, Any] = json.loads(result.stdout)
    assert (said["outcome"], said["differs"], said["changes"], said["rows"]) == ("same", False, [], None)
    assert said["old"]["bundle"] == bundle.id != said["new"]["bundle"]
    assert said["old"]["semantics"] == said["new"]["semantics"]


def test_a_changed_watermark_is_left_to_the_advisor(tmp_path: Path) -> None:
    settings, _, _ = make_home(tmp_path)
    edit(settings, "pipeline.yaml", "watermark: 1 hour", "watermark: 2 hours")
    said = json.loads(run(settings).stdout)
    assert (said["outcome"], said["changes"]) == ("same", ["watermark"])
    assert "`rivertwice advise p`" in said["reason"]


@pytest.mark.parametrize(
    ("file", "old", "new", "arguments", "words"),
    [
        ("pipeline.yaml", "keys: [k]", "kyes: [k]", (), "kyes"),
        ("transform.sql", "count(*)", "count(*) AS x, rand()", (), "transform.sql"),
        ("pipeline.yaml", "topic: flights", "topic: others", (), "reads others, which its stream does not read"),
        ("transform.sql", "count(*)", "sum(1)", ("--from", "2013-06-30"), "only --from is given"),
        ("transform.sql", "count(*)", "sum(1)", ("--from", "2013-06-30", "--to", "2013-06-30"), "is empty"),
        (
            "transform.sql",
            "count(*)",
            "sum(1)",
            ("--from", "2013-06-30", "--to", "2013-07-01", "--last", "1 hour"),
            "leave one of them out",
        ),
    ],
)
def test_what_cannot_be_run_is_refused(
    file: str, old: str, new: str, arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    settings, _, _ = make_home(tmp_path)
    edit(settings, file, old, new)
    result = run(settings, *arguments)
    assert (result.exit_code, words in result.stderr) == (1, True), result.output


def test_a_pipeline_that_never_ran_has_nothing_to_compare_with(tmp_path: Path) -> None:
    settings, home, _ = make_home(tmp_path)
    result = run(Settings(project=settings.project, home=tmp_path / "empty"))
    assert (result.exit_code, "p never ran" in result.stderr) == (1, True), result.output
    assert home.root.exists()


def trial(outcome: str = COMPARED, reason: str = "", **values: Any) -> Trial:
    sides = Version("a" * 64, "s" * 64, "t1"), Version("b" * 64, "r" * 64)
    parts: dict[str, Any] = {
        "stretch": STRETCH,
        "schema": SchemaChange(),
        "rows": Comparison(3, 3, equal=3, windows=1),
        **values,
    }
    return Trial("p", "log", outcome, reason, *sides, ("transform",), **parts)


def test_the_columns_are_named_before_the_rows() -> None:
    schema = SchemaChange({"top": "bigint"}, {"low": "int"}, {"total": Retyped("double", "bigint")})
    lines = trial_text(trial(schema=schema)).splitlines()
    assert lines[3:6] == [
        "column   top bigint is added",
        "column   low int is gone",
        "column   total was double, is bigint",
    ]
    assert lines[6] == "rows     3 equal, 0 changed, 0 only new, 0 only old; 0 of 1 windows with rows differ"
    assert trial(schema=schema).differs
    assert not trial().differs


def test_examples_show_both_values_of_what_changed() -> None:
    rows = Comparison(
        2,
        3,
        changed=1,
        only_new=1,
        repeated=1,
        windows=1,
        windows_differing=1,
        columns=(ColumnChange("total", 1, 4.0),),
        examples=(
            Example("changed", *AT, {"k": "a"}, {"total": RowChange(Decimal("7.50"), Decimal("3.50"))}),
            Example("only new", *AT, {"k": None}, {"total": RowChange(None, 1)}),
        ),
    )
    text = trial_text(trial(rows=rows))
    assert "total 7.50 → 3.50" in text
    assert "k=null" in text
    assert "1 more rows differ; --limit shows more" in text
    assert "1 with several rows of one key (not compared)" in text


def test_rows_that_cannot_be_compared_count_as_a_difference() -> None:
    made = trial(INCOMPARABLE, "the windows changed", rows=Comparison(3, 6))
    assert trial_text(made).splitlines()[-1] == "rows     3 old, 6 new; not compared: the windows changed"
    assert made.differs
