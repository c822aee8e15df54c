"""Offsets without a record: their runs, and what a replay makes of them."""

from __future__ import annotations

from homes.ledger import ledger_row
from rivertwice.log.reader import count_runs, merge_close, runs_between
from rivertwice.savepoint.plan import ReplayTopic, ReplayTopics, absent_until


def test_runs_are_what_no_record_covers_before_between_and_after() -> None:
    records = [(0, 2), (1, 0), (0, 3), (0, 6), (1, 1)]
    runs = runs_between(records, {0: (1, 9), 1: (0, 2), 2: (4, 6), 3: (5, 5)})
    assert runs == {0: ((1, 2), (4, 6), (7, 9)), 2: ((4, 6),)}
    assert count_runs(runs) == {0: 5, 2: 2}


def test_a_replay_topic_continues_where_its_records_moved_to() -> None:
    rows = [
        ledger_row(3),
        ledger_row(4, absent={"flights": {"0": 4}}),
        ledger_row(5),
        ledger_row(6, absent={"flights": {"0": 1}}),
    ]
    absent = absent_until(rows, "flights")
    assert absent == {"0": [(40, 0), (50, 4), (60, 4), (70, 5)]}
    assert absent_until(rows, "other") == absent_until(rows[:1], "flights") == {}
    topics = ReplayTopics((ReplayTopic("s", "flights", {"0": 30}, absent),))
    assert topics.has_absent
    places = [topics.shift({"flights": {"0": end}})["s"]["0"] for end in (20, 30, 40, 50, 60, 70)]
    assert places == [0, 0, 10, 16, 26, 35]


def test_too_many_runs_are_joined_where_they_lie_closest() -> None:
    runs = [(0, 1), (5, 6), (7, 9), (20, 21), (22, 30)]
    assert merge_close(runs, 5) == runs
    assert merge_close(runs, 3) == [(0, 1), (5, 9), (20, 30)]
    assert merge_close(runs, 1) == [(0, 30)]
