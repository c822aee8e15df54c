"""A home that was copied, without a place that both share: whoever starts it in the copy is told, before anything runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from homes.project import REPOSITORY
from rivertwice.agent import launch
from rivertwice.cli.main import cli
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.stream.lease import acquire_lease
from rivertwice.timeline.intent import write_intent

SAID = "was copied or moved here"


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A home in which a driver has run, and a copy of it; no agent is really started."""
    monkeypatch.setattr(launch, "start_agent", lambda _: launch.AgentStatus(4711, None, utc_now(), {}))
    first, second = tmp_path / "first", tmp_path / "second"
    home = Settings(REPOSITORY, first).pipeline("flight_delays")
    acquire_lease(home, "t1", utc_now()).release()
    write_intent(home, "running", "test", utc_now())
    shutil.copytree(first, second)
    return first, second


def run(home: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["--project", str(REPOSITORY), "--home", str(home), *words])


@pytest.mark.parametrize("words", [("start", "flight_delays"), ("agent", "start")])
def test_the_copy_is_named_and_the_first_home_is_not(homes: tuple[Path, Path], words: tuple[str, ...]) -> None:
    first, second = homes
    assert SAID not in run(first, *words).output
    told = run(second, *words)
    assert told.exit_code == 0
    assert f"warning: flight_delays: the home {second}" in told.stderr
    assert SAID in told.stderr
    assert "run each pipeline in one of them only (`rivertwice stop NAME` in the other)" in told.stderr


def test_it_is_said_until_something_has_run_there(homes: tuple[Path, Path], caplog: Any) -> None:
    home = Settings(REPOSITORY, homes[1]).pipeline("flight_delays")
    run(homes[1], "start", "flight_delays")
    with caplog.at_level("WARNING"):
        acquire_lease(home, "t1", utc_now()).release()  # what the driver does, into its own log
    assert SAID in caplog.text
    assert SAID not in run(homes[1], "start", "flight_delays").output


def test_an_agent_in_a_copy_says_nothing_of_streams_that_are_not_wanted(homes: tuple[Path, Path]) -> None:
    write_intent(Settings(REPOSITORY, homes[1]).pipeline("flight_delays"), "stopped", "test", utc_now())
    assert SAID not in run(homes[1], "agent", "start").output


def test_a_shared_places_lease_keeps_both_apart_without_a_warning(
    homes: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIVERTWICE_SHARED", str(tmp_path / "shared"))
    assert SAID not in run(homes[1], "start", "flight_delays").output
