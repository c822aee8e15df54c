"""The Spark job that compares versions: a bad request is refused, and a run that was stored is not compared again."""

from __future__ import annotations

from pathlib import Path

import pytest

from homes.versions import AT, World
from rivertwice.acts.job import run_job
from rivertwice.versions.comparisons import find_comparison, store_comparison


def main(arguments: list[str]) -> int:
    return run_job("version.compare", arguments)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path)
    for name, value in made.settings.to_env().items():
        monkeypatch.setenv(name, value)
    return made


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--pipeline", "../p", "--run", "a"], "cannot name a pipeline"),
        (["--pipeline", "p@v2", "--run", "x' OR 1=1"], "cannot name a comparison"),
    ],
)
def test_a_bad_request_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_a_comparison_without_proofs_is_stored_and_starts_no_spark(world: World) -> None:
    assert main(["--pipeline", "p@v2", "--run", "pc-1", "--by", "airflow"]) == 0
    stored = find_comparison(world.new, "pc-1")
    assert stored is not None
    assert stored.by == "airflow"
    assert stored.reasons[0] == "no reconcile has proved what p serves; run `rivertwice reconcile p`"


def test_a_run_of_the_same_name_is_not_compared_again(world: World) -> None:
    store_comparison(world.new, world.parity(), "pc-1", by="test", now=AT)
    assert main(["--pipeline", "p@v2", "--run", "pc-1"]) == 0
    stored = find_comparison(world.new, "pc-1")
    assert stored is not None
    assert stored.passed


def test_an_unknown_version_is_one_line_with_its_reason(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--pipeline", "p@v5", "--run", "pc-1"]) == 1
    assert capsys.readouterr().err.startswith("request: p@v5 is not a version of p")
