"""Options that several commands share: reasons and instants."""

from __future__ import annotations

from datetime import timedelta

import pytest
from click.testing import CliRunner, Result

from homes.project import REPOSITORY
from rivertwice.cli.main import cli
from rivertwice.cli.options import INSTANT
from rivertwice.core.errors import RequestError
from rivertwice.core.instants import utc_now


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, [*words, "--project", str(REPOSITORY), "--home", "/nonexistent"])


@pytest.mark.parametrize(
    "words",
    [
        ("dead", "discard", "flight_delays", "2@1"),
        ("admin", "privacy", "erase", "flight_delays", "--field", "x", "--value", "y"),
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
    with pytest.raises(RequestError, match=r"'some time ago' is not a valid instant: .*write it as '2 hours ago'"):
        INSTANT.convert("some time ago", None, None)
