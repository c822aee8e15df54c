"""The keeper of `served`: rebuilds what moved, once, and survives errors."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest

from homes import torn
from rivertwice.agent.served import ServedKeeper, state_of
from rivertwice.core.settings import Settings
from rivertwice.storage.table import Table
from rivertwice.storage.table_log import EMPTY
from rivertwice.timeline.served import read_served


def commit(table: Path, version: int) -> None:
    (table / "_delta_log").mkdir(parents=True, exist_ok=True)
    (table / "_delta_log" / f"{version:020d}.json").touch()


def test_the_newest_commit_is_read_from_file_names(tmp_path: Path) -> None:
    assert Table(tmp_path).newest_commit() == -1
    commit(tmp_path, 3)
    commit(tmp_path, 12)
    (tmp_path / "_delta_log" / f"{99:020d}.checkpoint.parquet").touch()
    (tmp_path / "_delta_log" / "_last_checkpoint").touch()
    assert Table(tmp_path).newest_commit() == 12


def test_served_is_rebuilt_once_per_move_and_again_after_an_error(tmp_path: Path) -> None:
    settings = Settings(project=tmp_path, home=tmp_path / "home")
    tables = settings.pipeline("p").tables
    built: list[tuple[int, int, int]] = []
    errors = [OSError("disk")]

    def build(settings: Settings, name: str) -> None:
        if errors:
            raise errors.pop()
        built.append(state_of(settings.pipeline(name)))

    keeper = ServedKeeper(settings, lambda: ["p"], threading.Event(), build)
    assert not keeper.refresh("p")  # before the first head nothing can be served
    commit(tables.sequence, 0)
    assert not keeper.refresh("p")  # the error
    assert keeper.refresh("p")
    assert not keeper.refresh("p")
    commit(tables.changelog, 0)
    assert keeper.refresh("p")
    assert built == [(0, -1, -1), (0, 0, -1)]


def test_served_is_rebuilt_for_a_version_that_has_another_table(tmp_path: Path) -> None:
    settings = Settings(project=tmp_path, home=tmp_path / "home")
    home = settings.pipeline("p@v2")
    built: list[object] = []

    def build(_: Settings, name: str) -> None:
        built.append(home.tables.served)
        commit(home.tables.served, len(built))

    keeper = ServedKeeper(settings, lambda: ["p@v2"], threading.Event(), build)
    commit(home.tables.sequence, 0)
    assert keeper.refresh("p@v2")
    assert not keeper.refresh("p@v2")
    home.serving_note.parent.mkdir(parents=True)
    home.serving_note.write_text("p@v2\n")
    assert keeper.refresh("p@v2")
    assert not keeper.refresh("p@v2")
    shutil.rmtree(home.own_served)
    home.serving_note.unlink()  # it ceased to serve, and the sequence did not move
    assert keeper.refresh("p@v2")
    assert built == [home.own_served, home.public_served, home.own_served]


def test_the_keeper_looks_once_more_when_it_is_told_to_stop(tmp_path: Path) -> None:
    settings = Settings(project=tmp_path, home=tmp_path / "home")
    commit(settings.pipeline("p").tables.sequence, 0)
    built: list[str] = []
    stop = threading.Event()
    stop.set()
    keeper = ServedKeeper(settings, lambda: ["p"], stop, lambda _, name: built.append(name))
    keeper.start()
    keeper.join(5)
    assert built == ["p"]


@pytest.mark.proves("guarantees.md#served")
def test_a_damaged_changelog_is_paged_once_and_what_is_served_stays(tmp_path: Path) -> None:
    settings, home, bundle = torn.make_home(tmp_path)
    keeper = ServedKeeper(settings, lambda: ["p"], threading.Event())
    assert keeper.refresh("p")
    before = read_served(home)
    torn.add_batch(home, bundle, 6)
    torn.tear_commit(home.tables.changelog, "ledger", 3, EMPTY)
    assert not keeper.refresh("p")
    assert not keeper.refresh("p")
    alerts = [json.loads(line) for line in (settings.home / "alerts.jsonl").read_text().splitlines()]
    assert [(one["kind"], one["severity"], one["pipeline"]) for one in alerts] == [("table_damage", "critical", "p")]
    assert "table changelog is damaged" in alerts[0]["message"]
    assert "`rivertwice admin repair p`" in alerts[0]["message"]
    assert read_served(home).equals(before)
