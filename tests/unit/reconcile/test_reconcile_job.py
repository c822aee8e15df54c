"""The job refuses a bad request before anything starts."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

JOB = Path(__file__).parents[3] / "spark_jobs" / "reconcile.py"


@pytest.fixture(scope="module")
def main() -> Callable[[list[str]], int]:
    return cast(Callable[[list[str]], int], runpy.run_path(str(JOB))["main"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pipeline", "flights; rm -rf /"], "cannot name a pipeline"),
        (["--pipeline", "../elsewhere"], "cannot name a pipeline"),
        (["--pipeline", "flights", "--from", "2013-06-30T00:00:00Z"], "both or neither"),
        (["--pipeline", "flights", "--from", "yesterday", "--to", "2013-07-01T00:00:00Z"], "no ISO 8601 timestamp"),
        (["--pipeline", "flights", "--from", "2013-07-01T00:00:00", "--to", "2013-07-02T00:00:00Z"], "no time zone"),
        (
            ["--pipeline", "flights", "--from", "2013-07-02T00:00:00Z", "--to", "2013-07-01T00:00:00Z"],
            "empty or reversed",
        ),
        (["--pipeline", "flights", "--run", "x' OR 1=1"], "cannot name a run"),
    ],
)
def test_a_bad_request_is_refused(
    arguments: list[str], message: str, main: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
