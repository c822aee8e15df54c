"""What `advise` prints for people: instants and durations as people write them."""

from __future__ import annotations

from datetime import timedelta

from rivertwice.cli.cases import _measured


def test_a_measured_time_is_never_a_number_of_milliseconds() -> None:
    assert _measured(timedelta(milliseconds=4_783_921)) == "1:19:44"
    assert _measured(timedelta(milliseconds=-4_783_921)) == "-1:19:44"
    assert _measured(timedelta(milliseconds=1_250)) == "1.2 s"
    assert _measured(None) is None
