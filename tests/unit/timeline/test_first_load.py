"""The record of a first load is written once, read as it was written, and refused if it was not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from homes.first_load import ZONES
from rivertwice.core.errors import DamagedFileError, RequestError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import EPOCH
from rivertwice.timeline.first_load import FirstLoad, LogZone, covered_by, read_zones, record_load

LOAD = FirstLoad(
    "p",
    "t1",
    "b",
    {"semantics": "s"},
    "c",
    "t",
    "id",
    {0: (0, 40), 1: (5, 5)},
    0,
    100,
    120,
    36,
    {"malformed": 4},
    "test",
    EPOCH,
)


@pytest.fixture
def home(tmp_path: Path) -> PipelineHome:
    return PipelineHome(tmp_path / "p")


def test_a_load_is_read_as_it_was_recorded(home: PipelineHome) -> None:
    assert FirstLoad.load(home) is None
    assert record_load(home, LOAD, ZONES)
    assert FirstLoad.load(home) == LOAD
    assert read_zones(home, LOAD) == ZONES
    assert LOAD.genesis == {"t": {"0": 40, "1": 5}}
    assert [LOAD.has(start) for start in (-1, 0, 99, 100)] == [False, True, True, False]


def test_a_second_load_is_not_recorded(home: PipelineHome) -> None:
    record_load(home, LOAD, ZONES)
    assert not record_load(home, FirstLoad(**{**vars(LOAD), "before_ms": 200}), ZONES)
    assert FirstLoad.load(home) == LOAD


def test_a_record_that_was_altered_is_refused(home: PipelineHome) -> None:
    record_load(home, LOAD, ZONES)
    path = home.root / "first_load" / "load.json"
    path.write_text(path.read_text().replace('"before_ms": 100', '"before_ms": 90'))
    with pytest.raises(DamagedFileError, match=f"holds {LOAD.id}, but its content is load-"):
        FirstLoad.load(home)
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "format": 2}))
    with pytest.raises(RequestError, match="not of format 1"):
        FirstLoad.load(home)


def test_event_times_that_are_gone_or_do_not_cover_all_are_refused(home: PipelineHome) -> None:
    record_load(home, LOAD, ZONES[:3])
    with pytest.raises(DamagedFileError, match="does not cover"):
        read_zones(home, LOAD)
    for path in (home.root / "first_load").glob("zones-*"):
        path.unlink()
    with pytest.raises(DamagedFileError, match="is gone"):
        read_zones(home, LOAD)


def test_zones_with_a_hole_cover_what_is_before_it() -> None:
    zones = [LogZone(0, 0, 5, 0, None, None), LogZone(0, 7, 9, 0, None, None), LogZone(1, 3, 4, 0, None, None)]
    assert covered_by(zones) == {0: (0, 5), 1: (3, 4)}
