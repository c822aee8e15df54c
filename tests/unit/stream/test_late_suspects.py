"""Which topics of a batch may have late rows is told from their earliest event time alone."""

from __future__ import annotations

import pytest

from histories.kinds import make_definition
from rivertwice.stream.late import select_suspects
from rivertwice.timeline.counts import BatchCounts


def counts(min_event_s: int | None) -> BatchCounts:
    low = None if min_event_s is None else min_event_s * 1000
    return BatchCounts(1, 0, 1, low, low)


@pytest.mark.parametrize(
    ("kind", "event_s", "late_s"),
    [
        ("tumbling", 61, 120),  # [60, 120)
        ("hopping", 61, 80),  # of [20, 80), [40, 100) and [60, 120) the first
        ("session", 61, 76),  # alone it would have ended at 76
        ("joined intervals", 61, 80),
        ("rolling intervals", 61, 90),
    ],
)
def test_a_batch_is_suspect_once_its_earliest_events_window_has_ended(kind: str, event_s: int, late_s: int) -> None:
    definition = make_definition(kind)
    assert select_suspects(definition, {"events": counts(event_s)}, late_s * 1000) == ["events"]
    assert select_suspects(definition, {"events": counts(event_s)}, late_s * 1000 - 1) == []


def test_a_batch_that_accepted_nothing_is_not_suspect() -> None:
    assert select_suspects(make_definition("tumbling"), {"events": counts(None)}, 1 << 50) == []


@pytest.mark.proves("howto-correct.md#the-table-is-exact")
def test_tables_are_never_suspect() -> None:
    found = select_suspects(make_definition("as-of intervals"), {"events": counts(1), "names": counts(1)}, 1 << 50)
    assert found == ["events"]


def test_each_topic_is_looked_at_by_itself() -> None:
    both = {"events": counts(500), "others": counts(1)}
    assert select_suspects(make_definition("joined sources"), both, 100_000) == ["others"]
