"""While an operation keeps a pipeline at rest no other one may, and none may while a driver runs, on whatever host."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from rivertwice.core.errors import LeaseLostError, LostRaceError
from rivertwice.core.settings import Settings
from rivertwice.storage.local import read_json, replace_json
from rivertwice.stream import lease as room
from rivertwice.stream.lease import acquire_lease, at_rest, marker_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_marker_stands_for_the_block_only_and_names_who_put_it(tmp_path: Path) -> None:
    home = Settings(tmp_path, tmp_path / "home").pipeline("p")
    home.root.mkdir(parents=True)
    with at_rest(home, "er-1", NOW, running="x"):
        marker = read_json(home.drain)
        assert marker is not None
        assert marker["by"] == "er-1"
        with (
            pytest.raises(LostRaceError, match="another operation keeps the stream of p at rest"),
            at_rest(home, "er-2", NOW, running="x"),
        ):
            pytest.fail("two at once")
        assert home.drain.exists()
    assert not home.drain.exists()


def test_a_marker_that_another_put_meanwhile_is_left(tmp_path: Path) -> None:
    home = Settings(tmp_path, tmp_path / "home").pipeline("p")
    home.root.mkdir(parents=True)
    other = marker_of("er-2", NOW)
    with at_rest(home, "er-1", NOW, running="x"):
        replace_json(home.drain, other)
    assert read_json(home.drain) == other


def test_a_marker_of_a_process_that_died_holds_nothing(tmp_path: Path) -> None:
    home = Settings(tmp_path, tmp_path / "home").pipeline("p")
    home.root.mkdir(parents=True)
    replace_json(home.drain, {"format": 1, "by": "er-0", "at": "x", "pid": 2**22 + 1, "pid_started": 1.0})
    with at_rest(home, "er-1", NOW, running="x"):
        assert (read_json(home.drain) or {})["by"] == "er-1"


def test_a_driver_that_runs_is_left_alone_and_named(tmp_path: Path) -> None:
    home = Settings(tmp_path, tmp_path / "home").pipeline("p")
    lease = acquire_lease(home, "t1", NOW)
    try:
        with (
            pytest.raises(LeaseLostError, match="so its tables move"),
            at_rest(home, "er-1", NOW, running="its tables move"),
        ):
            pytest.fail("beside a driver")
        assert not home.drain.exists()
    finally:
        lease.release()


def test_another_hosts_driver_is_asked_for_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Settings(tmp_path, tmp_path / "home").pipeline("p")
    home.root.mkdir(parents=True)

    def renews(*_: object) -> None:
        raise LeaseLostError("a driver on another host renews")

    monkeypatch.setattr(room, "hold_lease", renews)
    with pytest.raises(LeaseLostError, match="another host"), at_rest(home, "er-1", NOW, running="x"):
        pytest.fail("beside another host")
    assert not home.drain.exists()
