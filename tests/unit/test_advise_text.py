"""What `advise` prints for people: instants and durations as people write them; and the delay that it writes into a definition."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from histories.kinds import definition_files
from homes.backfill import YAML, make_home
from homes.project import make_project, replace_text
from rivertwice.cli.cases import _measured, advice_text
from rivertwice.cli.main import cli
from rivertwice.core.instants import TimeRange
from rivertwice.core.settings import Settings
from rivertwice.definition.parts import format_duration, round_up
from rivertwice.versions.advise import suggest
from rivertwice.versions.advise_model import Advice, Outcome

AT = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_measured_time_is_never_a_number_of_milliseconds() -> None:
    assert _measured(timedelta(milliseconds=4_783_921)) == "1:19:44"
    assert _measured(timedelta(milliseconds=-4_783_921)) == "-1:19:44"
    assert _measured(timedelta(milliseconds=1_250)) == "1.2 s"
    assert _measured(None) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"), (0.2, "1 second"), (9.5, "10 seconds"), (61, "65 seconds"), (403.2, "7 minutes"), (3_600, "1 hour"),
        (3_601, "75 minutes"), (6_700, "2 hours"), (11_000, "4 hours"), (86_399, "1 day"), (260_000, "4 days"),
    ],
)  # fmt: skip
def test_a_delay_is_rounded_up_to_what_a_person_would_write(seconds: float, text: str) -> None:
    assert format_duration(round_up(timedelta(seconds=seconds))) == text


@given(st.timedeltas(timedelta(seconds=1), timedelta(days=400)), st.timedeltas(timedelta(0), timedelta(days=9)))
def test_rounding_up_never_shortens_and_adds_at_most_half(value: timedelta, more: timedelta) -> None:
    rounded = round_up(value)
    assert value <= rounded <= 2 * value
    assert rounded <= 1.5 * value or value < timedelta(seconds=2)
    assert round_up(rounded) == rounded
    assert round_up(value + more) >= rounded


@pytest.mark.proves("howto-correct.md#choose-the-watermark")
def test_advice_names_delays_that_a_person_would_write_and_the_command_that_applies_one() -> None:
    outcome = Outcome(timedelta(hours=1), True, 3, 1, {}, None, None, None, None)
    suggestions = suggest(1_000, 1_000, {61: 5, 402: 7, 3_700: 1})
    read = TimeRange(AT, AT + timedelta(days=1))
    advice = Advice("p", "t", 9, read, 1_000, 1_000, timedelta(seconds=1), (outcome,), suggestions, None, (), None)
    assert [suggestion.delay.total_seconds() for suggestion in suggestions] == [62, 403, 3_701]
    assert advice_text(advice).splitlines()[-4:] == [
        "to drop at most 1.0%: watermark: 65 seconds (drops at most 8)",
        "to drop at most 0.1%: watermark: 7 minutes (drops at most 1)",
        "to drop none: watermark: 75 minutes",
        "to apply one: rivertwice advise p --delay '7 minutes' --write",
    ]


def run(settings: Settings, *words: str, output: str = "text") -> Result:
    """Run the command where Spark may not be asked."""
    with mock.patch("rivertwice.engine.session.spark_session", side_effect=AssertionError("Spark was started")):
        return CliRunner().invoke(cli, ["--output", output, "advise", *words], env=settings.to_env())


COMMENTED = YAML.replace("watermark: 1 hour", "watermark: '1 hour'   # as the airline says: 1 hour\r")
DIFF = [
    "--- pipeline.yaml",
    "+++ pipeline.yaml",
    "@@ -11 +11 @@",
    "-    watermark: '1 hour'   # as the airline says: 1 hour",
    "+    watermark: '7 minutes'   # as the airline says: 1 hour",
]


@pytest.mark.proves("howto-correct.md#choose-the-watermark")
def test_a_delay_is_written_into_its_line_alone(tmp_path: Path) -> None:
    settings, _, _ = make_home(tmp_path)
    path = settings.definitions / "p" / "pipeline.yaml"
    path.write_bytes(COMMENTED.encode())
    path.chmod(0o664)
    words = ("p", "--delay", "7 min", "--write")
    dry = run(settings, *words, "--dry-run")
    assert (dry.exit_code, dry.stdout.splitlines()) == (0, DIFF), dry.output
    assert path.read_bytes() == COMMENTED.encode()
    done = run(settings, *words)
    assert done.stdout.splitlines() == [*DIFF, "next: rivertwice upgrade p"]
    assert path.read_bytes() == COMMENTED.replace("'1 hour'", "'7 minutes'").encode()
    assert path.stat().st_mode & 0o777 == 0o664
    again = json.loads(run(settings, *words, output="json").stdout)
    assert again == {"pipeline": "p", "diff": [], "written": False, "next": "rivertwice upgrade p"}


def test_of_several_sources_one_is_named_and_the_others_stay(tmp_path: Path) -> None:
    settings = make_project(tmp_path, {"histories": definition_files("joined sources")})
    path = settings.definitions / "histories" / "pipeline.yaml"
    before = path.read_text()
    refused = run(settings, "histories", "--delay", "30 s", "--write")
    assert refused.exit_code == 1
    assert (
        "the sources events, others of histories have a watermark; say which one with --source VIEW" in refused.stderr
    )
    done = run(settings, "histories", "--delay", "30 s", "--write", "--source", "others")
    assert done.stdout.splitlines()[-1] == "next: rivertwice start histories --wait"
    first, second, third = before.split("watermark: 20 s")
    assert path.read_text() == f"{first}watermark: 20 s{second}watermark: 30 seconds{third}"
    assert (
        "not nothing; say which one"
        in run(settings, "histories", "--delay", "1 s", "--write", "--source", "nothing").stderr
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("watermark: 1 hour\n    max_future: 1 hour", "watermark: &delay 1 hour\n    max_future: *delay"),
        ("max_future: 1 hour\n", "max_future: &delay 1 hour\n    <<: {watermark: 1 hour}\n"),
        ("watermark: 1 hour", "watermark: >-\n      1 hour"),
    ],
)
def test_what_is_not_written_for_a_source_alone_is_left_to_a_person(old: str, new: str, tmp_path: Path) -> None:
    settings, _, _ = make_home(tmp_path)
    path = settings.definitions / "p" / "pipeline.yaml"
    replace_text(path, old, new)
    if "<<" in new:
        replace_text(path, "    watermark: 1 hour\n", "")
    before = path.read_bytes()
    result = run(settings, "p", "--delay", "2 hours", "--write")
    assert (result.exit_code, path.read_bytes()) == (1, before), result.output
    assert "write `watermark: 2 hours` there by hand" in result.stderr


def test_what_has_no_watermark_gets_none(tmp_path: Path) -> None:
    settings = make_project(tmp_path, {"histories": definition_files("fold")})
    result = run(settings, "histories", "--delay", "2 hours", "--write")
    assert (result.exit_code, "no watermark, so no record of it is ever late" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    "words",
    [
        ("--write",),
        ("--write", "--delay", "1 s", "--delay", "2 s"),
        ("--write", "--delay", "1 s", "--by", "k"),
        ("--source", "events"),
        ("--dry-run",),
    ],
)
def test_options_that_do_not_belong_together_are_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    settings, _, _ = make_home(tmp_path)
    assert run(settings, "p", *words).exit_code == 2
