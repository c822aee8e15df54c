"""One name for one thing in every command; an old name works for one version and says the new one."""

from __future__ import annotations

from datetime import timedelta

import click
import pytest
from click.testing import CliRunner, Result

from homes.project import REPOSITORY
from rivertwice.cli.main import cli
from rivertwice.cli.options import INSTANT, range_options, renamed_option
from rivertwice.core.errors import RequestError
from rivertwice.core.instants import parse_instant, utc_now


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, [*words, "--project", str(REPOSITORY), "--home", "/nonexistent"])


@pytest.mark.parametrize(
    ("words", "old", "new"),
    [
        (("agent", "events", "--last", "5"), "--last", "--limit"),
        (("verdicts", "flight_delays", "--last", "5"), "--last", "--limit"),
        (("late", "list", "flight_delays", "--last", "5"), "--last", "--limit"),
        (("view", "flight_delays", "--last", "5"), "--last", "--limit"),
        (("acknowledge", "flight_delays", "--why", "x"), "--why", "--reason"),
        (("dead", "list", "flight_delays", "--reason", "json"), "--reason", "--kind"),
        (("dead", "amend", "flight_delays", "2@1", "--value", "{}", "--why", "x"), "--why", "--reason"),
        (("deliver", "discard", "flight_delays", "--sink", "x", "--why", "x"), "--why", "--reason"),
        (
            ("savepoint", "prove", "flight_delays", "sp-t1-1-00000000", "--wait-seconds", "1"),
            "--wait-seconds",
            "--timeout",
        ),
        (("try", "flight_delays", "--start", "2013-06-30"), "--start", "--from"),
        (("upgrade", "flight_delays", "--abandon", "--confirm"), "--confirm", "--yes"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_an_old_name_is_understood_and_the_new_one_is_said(words: tuple[str, ...], old: str, new: str) -> None:
    result = run(*words)
    assert f"rivertwice: {old} is now {new}; this version still accepts {old}" in result.stderr
    assert result.exit_code != 2, result.output
    shown = CliRunner().invoke(cli, [*words[:2], "--help"]).output
    assert f" {old} " not in shown or old == "--reason"
    assert new in shown


def test_what_was_reason_and_why_of_a_discard_is_kind_and_reason() -> None:
    result = run("dead", "discard", "flight_delays", "--reason", "tombstone", "--why", "test")
    assert "--reason and --why are now --kind and --reason" in result.stderr
    assert "no open dead letter has the reason 'tombstone'" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("dead", "discard", "flight_delays", "2@1"),
        ("privacy", "erase", "flight_delays", "--field", "x", "--value", "y"),
    ],
)
def test_a_decision_without_a_reason_is_refused(words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert "--reason '" in result.output


def test_an_instant_can_be_so_long_ago() -> None:
    before = utc_now()
    found = INSTANT.convert("90 minutes ago", None, None)
    assert before - timedelta(minutes=90) <= found <= utc_now() - timedelta(minutes=90)
    with pytest.raises(RequestError, match=r"'some time ago' is no instant: .*write it as '2 hours ago'"):
        INSTANT.convert("some time ago", None, None)


def test_the_new_name_wins_over_a_default_and_is_no_old_one() -> None:
    @click.command()
    @renamed_option("--last", "--limit", type=int)
    @click.option("--limit", type=int, default=50)
    @range_options
    @renamed_option("--start", "--from", dest="start", type=INSTANT)
    def command(limit: int, start: object, end: object) -> None:
        click.echo(f"{limit} {start} {end}")

    def ask(*words: str) -> Result:
        return CliRunner().invoke(command, words)

    assert ask().stdout == "50 None None\n"
    assert ask("--limit", "3").output == "3 None None\n"
    assert ask("--last", "3").stdout == "3 None None\n"
    day = parse_instant("2013-06-30")
    assert ask("--start", "2013-06-30", "--to", "2013-06-30").stdout == f"50 {day} {day}\n"
    assert ask("--last", "x").exit_code == 2
