"""Two hosts rebuild `served` at once: what one made of an older look never replaces what the other has written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from homes.backfill import HOUR, emitted
from homes.erasure import BATCHES, ErasureWorld
from homes.ledger import ledger_row
from rivertwice.core.errors import LostRaceError
from rivertwice.definition.definition import load_definition
from rivertwice.storage.table import Table
from rivertwice.timeline import served
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.lineage import Timeline
from rivertwice.timeline.served import read_served, rebuild_served
from rivertwice.timeline.served_stamp import SERVED_KEY, read_served_stamp


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ErasureWorld:
    return ErasureWorld(tmp_path, monkeypatch)


def add_batch(world: ErasureWorld, batch: int) -> None:
    bundle = Timeline.load(world.home, "t1").bundle
    append_ledger(world.home, [ledger_row(batch, bundle=bundle, batch_watermark_ms=(batch + 2) * HOUR, emitted=1)])
    Table(world.home.tables.changelog).append(emitted("t1", batch, (batch, "new", 1)), transactions={"p#t1": batch})


def between(patch: pytest.MonkeyPatch, act: Any, times: int) -> None:
    """Do something before a write of a build, so many times."""
    left = [times]

    def before(real: Callable[..., int]) -> Callable[..., int]:
        def write(table: Table, rows: pa.Table, **rest: Any) -> int:
            if left[0]:
                left[0] -= 1
                act()
            return real(table, rows, **rest)

        return write

    for name in ("overwrite", "append_rows", "replace_rows"):
        patch.setattr(Table, name, before(getattr(Table, name)))


@pytest.fixture(params=["appended", "whole"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "whole":
        monkeypatch.setattr(served, "find_change", lambda *_: None)


@pytest.mark.proves("guarantees.md#served")
@pytest.mark.usefixtures("_way")
def test_an_older_look_does_not_hide_a_newer_one(world: ErasureWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    definition = load_definition(world.hosts[0].definitions / "p")
    here, there = (host.pipeline("p") for host in world.hosts)
    rebuild_served(here, definition)
    add_batch(world, BATCHES)

    def newer() -> None:
        add_batch(world, BATCHES + 1)
        rebuild_served(there, definition)

    between(monkeypatch, newer, 1)
    report = rebuild_served(here, definition)
    assert report.stamp is not None
    assert report.stamp.batch == BATCHES + 1
    assert not report.rebuilt, "the other host had done it"
    assert read_served_stamp(here) == report.stamp
    rows = read_served(here)
    assert rows is not None
    assert rows["k"].to_pylist().count("new") == 2


@pytest.mark.usefixtures("_way")
def test_a_rebuild_that_always_loses_says_so_and_writes_nothing(
    world: ErasureWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = load_definition(world.hosts[0].definitions / "p")
    home = world.home
    rebuild_served(home, definition)
    add_batch(world, BATCHES)
    table = home.tables.served
    between(monkeypatch, lambda: Table(table).append(Table(table).read().slice(0, 0)), 99)  # type: ignore[union-attr]
    with pytest.raises(LostRaceError, match="another writer changed served"):
        rebuild_served(home, definition)
    stamp = read_served_stamp(home)
    assert stamp is not None
    assert stamp.batch == BATCHES - 1


def test_a_first_build_does_not_replace_the_one_of_another_host(
    world: ErasureWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = load_definition(world.hosts[0].definitions / "p")

    def other_host() -> None:
        add_batch(world, BATCHES)
        rebuild_served(world.hosts[1].pipeline("p"), definition)

    between(monkeypatch, other_host, 1)
    assert read_served_stamp(world.home) is None
    report = rebuild_served(world.home, definition)
    assert report.stamp == read_served_stamp(world.home)
    assert report.stamp is not None
    assert report.stamp.batch == BATCHES
    assert [stamp["batch"] for _, stamp in Table(world.home.tables.served).commits(SERVED_KEY)] == [BATCHES]
