"""The job refuses a bad request before anything starts."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).parents[3] / "spark_jobs" / "reconcile.py"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pipeline", "flights; rm -rf /"], "cannot name a pipeline"),
        (["--pipeline", "../elsewhere"], "cannot name a pipeline"),
        (["--pipeline", "flights", "--from", "2013-06-30T00:00:00Z"], "the range has no end"),
        (
            ["--pipeline", "flights", "--from", "yesterday", "--to", "2013-07-01T00:00:00Z"],
            "is not an instant with a zone",
        ),
        (
            ["--pipeline", "flights", "--from", "2013-07-01T00:00:00", "--to", "2013-07-02T00:00:00Z"],
            "is not an instant with a zone",
        ),
        (
            ["--pipeline", "flights", "--from", "2013-07-02T00:00:00Z", "--to", "2013-07-01T00:00:00Z"],
            "empty or reversed",
        ),
        (["--pipeline", "flights", "--run", "x' OR 1=1"], "cannot name a run"),
    ],
)
def test_a_bad_request_is_refused(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["reconcile.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(JOB), run_name="__main__")
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
