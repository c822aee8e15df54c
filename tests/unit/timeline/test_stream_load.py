"""The record of a load by the stream is written once, read as it was written, and says how much is left."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rivertwice.core.errors import DamagedFileError, LostRaceError, RequestError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import EPOCH
from rivertwice.timeline.lineage import Timeline
from rivertwice.timeline.stream_load import StreamLoad

LOAD = StreamLoad(
    pipeline="p",
    bundle="b",
    cluster_id="c",
    topic_ids={"t": "id", "u": "id-2"},
    genesis={"t": {"0": 3, "1": 0}, "u": {"0": 0}},
    until={"t": {"0": 40, "1": 5}, "u": {"0": 10}},
    by="test",
    noted_at=EPOCH,
)
ROOT = Timeline("p", "t1", None, 0, LOAD.genesis, "b", {}, "c", LOAD.topic_ids, EPOCH)


@pytest.fixture
def home(tmp_path: Path) -> PipelineHome:
    return PipelineHome(tmp_path / "p")


def test_a_load_is_read_as_it_was_recorded_and_recorded_once(home: PipelineHome) -> None:
    assert StreamLoad.load(home) is None
    assert LOAD.record(home)
    assert not replace(LOAD, bundle="another").record(home)
    assert StreamLoad.load(home) == LOAD


@pytest.mark.parametrize(
    ("position", "left"),
    [
        ({"t": {"0": 3, "1": 0}, "u": {"0": 0}}, 52),
        ({}, 52),
        ({"t": {"0": 40, "1": 4}, "u": {"0": 10}}, 1),
        ({"t": {"0": 50, "1": 5, "2": 7}, "u": {"0": 10}}, 0),
        ({"t": {"0": 500, "1": 500}, "u": {"0": 9}}, 1),
    ],
    ids=["begin", "unknown", "one left", "beyond, and a new partition", "another topic"],
)
def test_what_is_left_is_counted_in_each_partition(position: dict[str, dict[str, int]], left: int) -> None:
    assert LOAD.records == 52
    assert (LOAD.count_left(position), LOAD.has_read(position)) == (left, not left)


def test_a_record_that_was_changed_is_refused(home: PipelineHome) -> None:
    LOAD.record(home)
    path = home.root / "first_load" / "stream.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"until": {"t": {"0": 4}}}))
    with pytest.raises(DamagedFileError, match=f"holds {LOAD.id}, but its content is load-"):
        StreamLoad.load(home)
    path.write_text(json.dumps(stored | {"format": 2}))
    with pytest.raises(RequestError, match="not of format 1"):
        StreamLoad.load(home)


def test_a_timeline_that_begins_elsewhere_is_refused() -> None:
    LOAD.require_begun_by(ROOT)
    with pytest.raises(LostRaceError, match="a first start made it while the load was recorded"):
        LOAD.require_begun_by(replace(ROOT, genesis={"t": {"0": 9, "1": 0}, "u": {"0": 0}}))
