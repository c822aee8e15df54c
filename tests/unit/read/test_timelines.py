"""The drawing of timelines: lanes, forks, what each serves, marks, a scale, and bounds."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homes.savepoint import NOW, TOPIC, row
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.read.timelines import (
    MOST_MARKS,
    MOST_OFF_PATH,
    MOST_ON_PATH,
    OTHER,
    RESTORE,
    REWIND,
    START,
    UPGRADE,
    describe_serving,
    scale_of,
    select_shown,
    view_timelines,
    way_of,
)
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.lineage import Fork, Timeline, create_timeline
from rivertwice.timeline.sequence import last_seq, move_head, publish

FINGERPRINT = {"state": "s", "semantics": "m", "decode": "d"}


def after(hours: float) -> Any:
    return NOW + timedelta(hours=hours)


def add(home: PipelineHome, name: str, fork: Fork | None, reason: str | None, **changes: Any) -> None:
    first = 0 if fork is None else fork.batch + 1
    fingerprint = {**FINGERPRINT, **changes.get("fingerprint", {})}
    create_timeline(
        home, Timeline("p", name, fork, first, {TOPIC: {"0": 0}}, "b" * 64, fingerprint, "c", {TOPIC: "id"}, NOW)
    )
    if reason is not None:
        move_head(home, name, reason=reason, expected_seq=last_seq(home), now=changes.get("at", NOW))


def backfill(home: PipelineHome, name: str, hours: float) -> None:
    payload = {"backfill": name, "ranges": [[0, 3_600_000], [7_200_000, 10_800_000]]}
    publish(home, payload, expected_seq=last_seq(home), now=after(hours))


@pytest.fixture
def home(tmp_path: Path) -> PipelineHome:
    """A rewind, an upgrade, and a restore that was given up.

    t1  0 1 2 3 | 4 5 6       4 to 6 count no more
    t2          4 5 |         rewound to t1@3
    t3              6 7       upgraded after t2@5, the head
    t4          (nothing)     left t1@3, never the head
    """
    made = Settings(tmp_path / "project", tmp_path / "home").pipeline("p")
    add(made, "t1", None, "first start")
    append_ledger(made, [row(batch, committed_at=after(batch)) for batch in range(7)])
    backfill(made, "bf-1", 2.5)
    add(made, "t2", Fork("t1", 3), "rewind to sp-t1-3-aaaaaaaa (rewind-1)", at=after(8))
    append_ledger(made, [row(batch, "t2", committed_at=after(5 + batch)) for batch in (4, 5)])
    add(
        made,
        "t3",
        Fork("t2", 5),
        "planned upgrade to bundle abc from sp-t2-5-aaaaaaaa (restore-1)",
        at=after(11),
        fingerprint={"semantics": "n"},
    )
    append_ledger(made, [row(batch, "t3", committed_at=after(6 + batch)) for batch in (6, 7)])
    add(made, "t4", Fork("t1", 3), None)
    backfill(made, "bf-2", 12.5)
    return made


def test_each_lane_says_what_it_serves_and_how_it_came(home: PipelineHome) -> None:
    drawn = view_timelines(home)
    assert (drawn.head, drawn.newest) == ("t3", 7)
    lanes = {lane.timeline: lane for lane in drawn.lanes}
    assert list(lanes) == ["t1", "t2", "t3", "t4"]
    assert [lanes[name].way for name in lanes] == [START, REWIND, UPGRADE, OTHER]
    assert [lanes[name].serves for name in lanes] == [(0, 3), (4, 5), (6, 7), None]
    assert lanes["t1"].text == "serves what batches 0 to 3 emitted; 3 later batches count no more"
    assert lanes["t4"].text == "not served: none of its batches counts"
    assert [(lanes[name].parent, lanes[name].fork) for name in lanes] == [(None, None), ("t1", 3), ("t2", 5), ("t1", 3)]
    assert (lanes["t3"].is_head, lanes["t3"].changed, lanes["t2"].changed) == (True, ("semantics",), ())


def test_marks_lie_at_the_newest_batch_of_their_instant(home: PipelineHome) -> None:
    marks = [(mark.way, mark.timeline, mark.batch) for mark in view_timelines(home).marks]
    assert marks == [
        (START, "t1", 0), ("publication", "t1", 2), (REWIND, "t2", 4), (UPGRADE, "t3", 6), ("publication", "t3", 6),
    ]  # fmt: skip
    (first, last) = [mark.text for mark in view_timelines(home).marks if mark.kind == "publication"]
    assert first == "bf-1: 2 ranges of windows from 1970-01-01T00:00:00Z to 1970-01-01T03:00:00Z"
    assert last.startswith("bf-2")


def test_every_batch_of_the_drawing_has_its_place(home: PipelineHome) -> None:
    drawn = view_timelines(home)
    places = dict(drawn.scale)
    assert {lane.first for lane in drawn.lanes} | {mark.batch for mark in drawn.marks} <= set(places)
    assert (min(places.values()), max(places.values())) == (0.0, 1.0)


def test_a_pipeline_that_never_ran_draws_nothing(tmp_path: Path) -> None:
    drawn = view_timelines(Settings(tmp_path, tmp_path / "home").pipeline("p"))
    assert (drawn.head, drawn.lanes, drawn.marks, drawn.scale) == (None, (), (), ())


def test_a_long_history_is_drawn_bounded_and_says_what_is_left_out(tmp_path: Path) -> None:
    home = Settings(tmp_path / "project", tmp_path / "home").pipeline("p")
    add(home, "t1", None, "first start")
    for number in range(2, 15):
        add(home, f"t{number}", Fork(f"t{number - 1}", number), f"restore from sp-x ({number})")
    for number in range(15, 24):
        add(home, f"t{number}", Fork("t2", 3), None)
    for number in range(50):
        backfill(home, f"bf-{number}", number)
    drawn = view_timelines(home)
    assert len(drawn.lanes) == MOST_ON_PATH + MOST_OFF_PATH
    assert len(drawn.marks) == MOST_ON_PATH + MOST_MARKS
    assert drawn.left_out == {"timelines": 7, "moves": 4, "publications": 10}
    assert drawn.lanes[-1].timeline == "t23"


@pytest.mark.parametrize(
    ("reason", "way"),
    [
        ("first start, after load-1", START),
        ("planned restore from sp-t1-3-aaaaaaaa (restore-1)", RESTORE),
        ("went on past gap-1: flights/0", "gap"),
        ("somebody's own words", OTHER),
    ],
)
def test_the_kind_of_a_head_move_follows_from_its_stored_reason(reason: str, way: str) -> None:
    assert way_of(reason) == way


def test_the_newest_timelines_are_drawn_in_order_of_creation() -> None:
    names = [f"t{number}" for number in range(1, 31)]
    path = names[:20]
    assert select_shown(names, path) == [*names[10:20], *names[24:30]]


def test_a_head_without_a_batch_serves_what_its_parent_does() -> None:
    assert describe_serving(None, None, is_head=True) == "the head; it has no batch itself yet"
    assert describe_serving((4, 4), 4, is_head=True) == "serves what batch 4 emitted"


@given(st.lists(st.integers(0, 10**7), min_size=2, unique=True))
def test_the_scale_keeps_the_order_and_fills_the_width(batches: list[int]) -> None:
    scale = scale_of(batches)
    places = [place for _, place in scale]
    assert [batch for batch, _ in scale] == sorted(batches)
    assert places == sorted(places)
    assert (places[0], places[-1]) == (0.0, 1.0)
