"""The same plan gives the same bytes; what it says of its shares is so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.faults.events import EventPlan, plan_events
from lab.oracle.rules import Record, Row, read_record
from rivertwice.core.errors import RequestError

PLAN = EventPlan(seed=3, records=500)


def read(plan: EventPlan) -> list[Row | str]:
    return [
        read_record(Record(one.partition, place, one.value, one.timestamp_ms, one.headers))
        for place, one in enumerate(plan_events(plan))
    ]


def test_a_seed_is_one_story_and_another_seed_another() -> None:
    assert plan_events(PLAN) == plan_events(PLAN)
    assert plan_events(PLAN) != plan_events(replace(PLAN, seed=4))


def test_without_shares_every_record_is_accepted_and_counted() -> None:
    plain = replace(PLAN, poison_share=0, future_share=0, excluded_share=0)
    rows = [row for row in read(plain) if isinstance(row, Row)]
    assert len(rows) == 500 + plain.partitions  # the closing records
    assert not any(row.excluded for row in rows)


def test_shares_of_poison_future_excluded_and_repeats_are_in_the_story() -> None:
    found = read(replace(PLAN, poison_share=0.2, future_share=0.1, excluded_share=0.1))
    reasons = [row for row in found if isinstance(row, str)]
    assert reasons.count("future") > 20
    assert len(set(reasons)) == 11
    assert sum(isinstance(row, Row) and row.excluded for row in found) > 20
    assert len(plan_events(replace(PLAN, duplicate_share=0.3))) > 600


def test_idle_partitions_get_nothing_and_a_skewed_one_gets_more() -> None:
    events = plan_events(replace(PLAN, idle_partitions=1, skew=0.8))
    counts = [sum(event.partition == partition for event in events) for partition in range(3)]
    assert counts[2] == 0
    assert counts[0] > 4 * counts[1]
    with pytest.raises(RequestError, match="leave one busy"):
        plan_events(replace(PLAN, idle_partitions=3))


def test_the_next_chapter_begins_after_the_closing_records() -> None:
    last = max(event.timestamp_ms for event in plan_events(PLAN))
    assert PLAN.end_ms > last
