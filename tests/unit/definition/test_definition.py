from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from homes.project import FLIGHTS, REPOSITORY, edit_yaml, make_project, replace_text, write_definition
from rivertwice.cli.main import cli
from rivertwice.core.errors import DefinitionError
from rivertwice.definition.bundle import build_bundle, bundle_id, load_bundle
from rivertwice.definition.definition import load_all, load_definition, parse_files, read_files
from rivertwice.definition.json_schema_file import schema_of_definitions
from rivertwice.definition.parts import format_duration, parse_duration


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FLIGHTS, tmp_path / "flight_delays"))


def refusal(folder: Path) -> str:
    with pytest.raises(DefinitionError) as caught:
        load_definition(folder)
    return str(caught.value)


def test_the_flight_pipeline_says_what_the_story_needs() -> None:
    definition = load_all(REPOSITORY / "pipelines")["flight_delays"]
    view, source = definition.source
    assert (view, source.partitions, source.event_time) == ("flights", 4, "sched_dep")
    assert (source.watermark, source.max_future) == (timedelta(hours=1), timedelta(hours=2))
    assert definition.result_columns[:4] == ["window_start", "window_end", "origin", "flights"]
    assert "sched_dep" in source.required_fields
    assert definition.stream.trigger_seconds == 0.0


def test_the_published_json_schema_is_current() -> None:
    published = (REPOSITORY / "docs" / "pipeline.schema.json").read_text()
    assert published == schema_of_definitions(), (
        "write rivertwice.definition.json_schema_file.json_schema() to docs/pipeline.schema.json"
    )


@pytest.mark.proves("definitions.md#rules")
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("watermark: 1 hour", "watermark: soon", ["sources.flights.watermark", "'soon'", "'10 minutes'"]),
        ("watermark: 1 hour", "watermark: 60", ["sources.flights.watermark", "60", "whole number and a unit"]),
        ("policy: drop", "policy: keep", ["late.policy", "'drop', 'side_output' or 'correct'"]),
        ("policy: drop", "policy: side_output\n  debounce: 1 s", ["debounce is for policy correct", "is side_output"]),
        ("policy: drop", "horizon: 1 s", ["horizon is for policy correct", "the policy is drop"]),
        ("emit: final", "emit: always", ["emit", "'final' or 'updates'"]),
        ("name: flight_delays", "name: Flight Delays", ["name", "lower-case"]),
        ("name: flight_delays", "name: other", ["'other'", "the folder is 'flight_delays'"]),
        ("keys: [origin]", "keys: [_origin]", ["keys.0", "leading _ is reserved"]),
        ("keys: [origin]", "keys: [flights]", ["'flights' is given twice"]),
        ("count_column: flights", "count_column: rows", ["count_column 'rows'"]),
        ("event_time: sched_dep", "event_time: carrier", ["'carrier' is string", "type timestamp"]),
        ("flight: int", "flight: integer", ["'integer' is not a valid field type"]),
        ("required: [carrier", "required: [carier", ["'carier'", "not in schema"]),
        ("rule: in_set", "rule: among", ["rules.0", "not_null"]),
        ("min: 1, max: 9999", "min: 9, max: 1", ["min 9 above max 1"]),
        ("field: flight, min: 1", "field: carrier, min: 1", ["range over 'carrier' of type string"]),
        ('pattern: "[A-Z]{3}"', 'pattern: "[A-Z"', ["not a valid regular expression"]),
        (
            'pattern: "[A-Z]{3}"',
            r'pattern: "(?=A)(A|B)*"',
            ["sources.flights.rules", "dest_is_an_airport", "look ahead"],
        ),
        ("min_batches_to_retain: 200", "min_batches_to_retain: 2", ["min_batches_to_retain", "100"]),
        (
            "catch_up_share: 0",
            "catch_up_share: 1.5",
            ["stream.catch_up_share", "1.5 must be between 0 and 1", "such as 0.25"],
        ),
        ("catch_up_share: 0", "catch_up_share: -0.1", ["stream.catch_up_share", "-0.1 must be between 0 and 1"]),
        ("catch_up_share: 0", "catch_up_share: .nan", ["stream.catch_up_share", "nan must be between 0 and 1"]),
        ("emit: final", "emits: final", ["emits is not a field", "did you mean emit?"]),
        ("emit: final", "emit: final\nemit: final", ["'emit' is given again"]),
        ("emit: final", "emit: [", ["is not YAML"]),
        ("delay_sum: {compare: exact}", "delay_sum: {compare: tolerance}", ["columns.delay_sum", "tolerance"]),
        ("size: 1 hour", "size: 0 s", ["window.size", "positive"]),
        ("size: 1 hour", "size: 2 hours", ["window(sched_dep, '1 hour')", "window(sched_dep, '2 hours')"]),
    ],
)
def test_a_wrong_field_is_refused_with_file_field_value_and_remedy(
    folder: Path, old: str, new: str, words: list[str]
) -> None:
    replace_text(folder / "pipeline.yaml", old, new)
    message = refusal(folder)
    assert "flight_delays/" in message
    for word in words:
        assert word in message


def test_a_stored_bundle_with_a_pattern_that_is_refused_now_is_still_read(folder: Path) -> None:
    replace_text(folder / "pipeline.yaml", 'pattern: "[A-Z]{3}"', r'pattern: "(?=A)(A|B)*"')
    rule = parse_files(read_files(folder), "bundle").source[1].rules[1]
    assert rule.name == "dest_is_an_airport"


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "transform.sql").unlink()
    assert "transform.sql does not exist" in refusal(folder)


def test_a_second_source_of_windows_is_refused(folder: Path) -> None:
    path = folder / "pipeline.yaml"
    text = path.read_text()
    block = text[text.index("  flights:\n") : text.index("window:\n")]
    path.write_text(text.replace("window:\n", block.replace("flights:", "others:", 1) + "window:\n", 1))
    assert "windows and sessions take exactly one" in refusal(folder)


@given(st.integers(min_value=0, max_value=999_999_999))
def test_a_duration_reads_back_what_it_writes(milliseconds: int) -> None:
    value = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(value)) == value


@pytest.mark.parametrize("text", ["", "1", "hour", "-1 hour", "1.5 hours", "1 hours ago", "1 fortnight", "1  ss", None])
def test_what_is_no_duration_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is not a valid duration"):
        parse_duration(text)


REMOVED: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (
        lambda document: document["stream"].update(catch_up={"by_batch_when": "6 hours"}),
        "stream.catch_up was removed: only a person leaves a backlog to batch, with `rivertwice backfill catch-up NAME --by-batch`",
    ),
    (
        lambda document: document.update(airflow={"schedules": {"switch": "1 hour"}}),
        "airflow.schedules.switch was removed: a version serves when a person starts `operate__NAME`",
    ),
]


@pytest.mark.parametrize(("add", "said"), REMOVED)
def test_a_removed_field_is_refused_with_what_holds_instead(
    tmp_path: Path, add: Callable[[dict[str, Any]], object], said: str
) -> None:
    settings = make_project(tmp_path, {"flight_delays": FLIGHTS})
    edit_yaml(settings.definitions / "flight_delays", add)
    for command in (["lint", "flight_delays", "--without-spark"], ["pipelines"]):
        done = CliRunner().invoke(cli, ["--output", "json", *command], env=settings.to_env())
        assert done.exit_code != 0
        assert re.search(rf"pipeline.yaml: line \d+, column \d+: {re.escape(said)}; remove the field", done.output)


@pytest.mark.parametrize("add", [add for add, _ in REMOVED])
def test_a_stored_definition_with_a_removed_field_is_read_without_it(
    tmp_path: Path, add: Callable[[dict[str, Any]], object]
) -> None:
    settings = make_project(tmp_path, {"flight_delays": FLIGHTS})
    folder, bundles = settings.definitions / "flight_delays", settings.pipeline("flight_delays").bundles
    before = build_bundle(folder)
    edit_yaml(folder, add)
    files = read_files(folder)
    write_definition(bundles / bundle_id(files), files)
    write_definition(settings.frozen_definitions / "flight_delays", files)
    stored = load_bundle(bundles, bundle_id(files))
    assert (stored.definition, stored.fingerprint) == (before.definition, before.fingerprint)
    assert stored.renamed("flight_delays@v2").fingerprint.semantics == before.fingerprint.semantics
    assert build_bundle(settings.definition_folder("flight_delays")).definition == before.definition
