"""What `rivertwice try` says without Spark: nothing differs, nothing can be run, or the definition cannot be loaded."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from histories.kinds import definition_files
from homes.backfill import SQL, YAML, add_timeline, make_home
from homes.ledger import NOW, ledger_row
from homes.project import make_project, replace_text
from rivertwice.cli.cases import trial_text
from rivertwice.cli.main import cli
from rivertwice.core.instants import TimeRange, from_ms
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import build_bundle
from rivertwice.definition.definition import parse_files
from rivertwice.timeline.sequence import move_head
from rivertwice.versions.try_delay import choose_windows
from rivertwice.versions.try_model import (
    COMPARED,
    INCOMPARABLE,
    LAST,
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


def test_another_delay_is_tried_without_a_changed_file(tmp_path: Path) -> None:
    settings, _, bundle = make_home(tmp_path)
    edit(settings, "pipeline.yaml", "watermark: 1 hour", "watermark: 9 hours")
    said = json.loads(run(settings, "--watermark", "60 min").stdout)
    assert (said["outcome"], said["changes"], said["new"]["bundle"]) == ("same", [], bundle.id)
    assert said["reason"] == "the stream of p has this watermark delay, so no row can differ"
    for words, why in (
        (("--watermark", "9 hours"), "`rivertwice advise p --delay '9 hours'` counts what the delay drops"),
        (("--watermark", "2 hours", "--from", "1990-01-01", "--to", "1990-01-02"), "is closed by both delays"),
        (("--watermark", "2 hours", "--against", "served"), "leave --against out"),
    ):
        result = run(settings, *words)
        assert (result.exit_code, why in result.stderr) == (1, True), result.output


@pytest.mark.parametrize("is_session", [True, False])
def test_another_delay_of_what_is_not_computed_by_it_is_refused(is_session: bool, tmp_path: Path) -> None:
    settings, home, _ = make_home(tmp_path, session=is_session)
    if not is_session:
        several = make_project(tmp_path / "several", {"p": definition_files("joined sources")})
        edit(several, "pipeline.yaml", "name: histories", "name: p")
        bundle = build_bundle(several.definitions / "p")
        bundle.save(home.bundles)
        add_timeline(home, bundle, "t2", None, 0)
        move_head(home, "t2", reason="test", expected_seq=1, now=NOW)
    result = run(settings, "--watermark", "2 hours")
    why = (
        "only rows of tumbling and hopping windows"
        if is_session
        else "advice is given for pipelines of one stream only"
    )
    assert (result.exit_code, why in result.stderr) == (1, True), result.output


HOUR_MS = 3_600_000
BATCHES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), min_size=1, max_size=12)


@given(BATCHES, st.sampled_from(["20 minutes", None]), st.integers(0, 5), st.integers(0, 40), st.integers(1, 20))
def test_the_windows_of_a_trial_are_those_that_both_delays_close(
    batches: list[tuple[int, int]], slide: str | None, delay: int, start: int, length: int
) -> None:
    hop, call = ("", "") if slide is None else (f", slide: {slide}", f", '{slide}'")
    files = {
        "pipeline.yaml": YAML.replace("{size: 1 hour}", f"{{size: 1 hour{hop}}}"),
        "transform.sql": SQL.replace("'1 hour')", f"'1 hour'{call})"),
    }
    definition = parse_files({name: text.encode() for name, text in files.items()}, "p")
    path = [
        ledger_row(n, min_event_ms=low * HOUR_MS // 2, max_event_ms=(low + more) * HOUR_MS // 2)
        for n, (low, more) in enumerate(batches)
    ]
    asked = TimeRange(from_ms(start * HOUR_MS // 2), from_ms((start + length) * HOUR_MS // 2))
    found = choose_windows(definition, path, asked, LAST, delay * timedelta(hours=1))
    step = HOUR_MS if slide is None else HOUR_MS // 3
    closed = max((row.max_event_ms or 0 for row in path[:-1]), default=-(10**9)) - delay * HOUR_MS
    low = min(row.min_event_ms or 0 for row in path)
    wanted = [
        at
        for at in range(0, 60 * HOUR_MS, step)
        if asked.start <= from_ms(at) < asked.end and at + HOUR_MS <= closed and at + HOUR_MS > low
    ]
    with_records = [
        n
        for n, row in enumerate(path)
        if wanted and (row.min_event_ms or 0) < wanted[-1] + HOUR_MS and (row.max_event_ms or 0) >= wanted[0]
    ]
    if not with_records:
        assert found is None
        return
    assert found is not None
    assert (found.start_ms, found.end_ms, found.windows) == (wanted[0], wanted[-1] + HOUR_MS, len(wanted))
    assert list(found.batches) == with_records
    later = [
        at for at in range(0, 60 * HOUR_MS, step) if asked.start <= from_ms(at) < asked.end and at + HOUR_MS > closed
    ]
    assert found.open_from_ms == (later[0] if later else None)
    newest = choose_windows(definition, path, None, 2 * timedelta(hours=1), delay * timedelta(hours=1))
    if newest is not None:
        assert newest.end_ms <= closed < newest.end_ms + step
        assert newest.end_ms - newest.start_ms <= 2 * HOUR_MS


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


def test_a_tried_delay_is_named_instead_of_a_bundle() -> None:
    lines = trial_text(trial(watermark=timedelta(hours=2))).splitlines()
    assert lines[:2] == [
        "old      bundle aaaaaaaaaaaa (timeline t1)",
        "new      the same with the watermark delay 2 hours: what the stream would emit",
    ]


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
