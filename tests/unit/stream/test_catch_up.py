from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivertwice.core.errors import RequestError
from rivertwice.core.settings import Settings
from rivertwice.storage.local import replace_json
from rivertwice.stream.checkpoint import Goal, covers, is_asked_to_drain

GOAL = Goal("t2", "rewind-1", {"flights": {"0": 10, "1": 7}}, 5_000)


def test_a_goal_survives_a_command_line():
    assert Goal.from_text(GOAL.to_text()) == GOAL
    with pytest.raises(RequestError, match="not a goal"):
        Goal.from_text('{"timeline": "t2"}')


@pytest.mark.parametrize(
    ("ends", "watermark", "there"),
    [
        ({"0": 10, "1": 7}, 5_000, True),
        ({"0": 11, "1": 7, "2": 3}, 6_000, True),
        ({"0": 10, "1": 6}, 5_000, False),  # one partition is behind
        ({"0": 10}, 5_000, False),  # one was not read at all
        ({"0": 10, "1": 7}, 4_999, False),  # windows that the head has closed would be open again
    ],
)
def test_a_timeline_has_caught_up_when_no_partition_or_watermark_lags(ends, watermark, there):
    assert GOAL.is_reached_by({"flights": ends}, watermark) is there


@given(
    st.dictionaries(st.sampled_from("012"), st.integers(0, 9)),
    st.dictionaries(st.sampled_from("012"), st.integers(0, 9)),
)
def test_what_covers_both_covers_the_larger_of_each(one, other):
    larger = {key: max(one.get(key, 0), other.get(key, 0)) for key in {*one, *other}}
    assert covers({"t": larger}, {"t": one})
    assert covers({"t": larger}, {"t": other})
    assert covers({"t": one}, {"t": larger}) == all(one.get(key, 0) >= value for key, value in larger.items())


def test_only_the_operations_own_drain_marker_does_not_stop_its_driver(tmp_path):
    home = Settings(tmp_path / "project", tmp_path / "home").pipeline("p")
    assert not is_asked_to_drain(home, "rewind-1")
    replace_json(home.drain, {"by": "rewind-1"})
    assert not is_asked_to_drain(home, "rewind-1")
    assert is_asked_to_drain(home)
    assert is_asked_to_drain(home, "rewind-2")
    home.drain.write_text("")
    assert is_asked_to_drain(home, "rewind-1")
