"""The watermark of several sources, from what each accepted and where the query began.

batch      0     1     2     3     4
a's mark  10    20    30    40    50      largest event time less a's delay
b's mark   5     -     -    35     -
epoch      1     1     1     2     2
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homes.ledger import ledger_row
from rivertwice.reconcile.rederive import check_ledger, derive_chain, derive_chain_of_many
from rivertwice.timeline.counts import BatchCounts
from rivertwice.timeline.watermarks import WatermarkRule, next_watermarks, run_starts, watermarks_after

MIN = WatermarkRule({"a": 100, "b": 200})
MAX = WatermarkRule({"a": 100, "b": 200}, "max")
EPOCHS = [1, 1, 1, 2, 2]
MARKS = [{"a": 10, "b": 5}, {"a": 20}, {"a": 30}, {"a": 40, "b": 35}, {"a": 50}]


def counted(marks: dict[str, int]) -> dict[str, BatchCounts]:
    return {topic: BatchCounts(1, 0, 1, 0, mark + MIN.delays_ms[topic]) for topic, mark in marks.items()}


def test_a_mark_is_the_largest_event_time_less_the_delay_of_its_own_source() -> None:
    assert MIN.marks({"a": BatchCounts(2, 1, 1, 0, 150), "b": BatchCounts(1, 1)}) == {"a": 50}


def test_a_source_without_data_counts_as_zero_and_no_watermark_falls() -> None:
    assert MIN.raised(0, [{"a": 20}]) == 0
    assert MAX.raised(0, [{"a": 20}]) == 20
    assert MIN.raised(30, [{"a": 20, "b": 25}]) == 30
    assert MIN.raised(0, [{"a": 20, "b": 9}, {"b": 4}]) == 9
    assert MIN.raised(0, [{"a": -5, "b": 9}]) == 0


@pytest.mark.parametrize(
    ("index", "starts"),
    [
        (1, [0]),
        (3, [0, 2]),  # planned by the first driver's query, or by the second's that ran batch 2 once more
        (4, [3, 2]),  # the second driver began at 3, or at 2
        (5, [3, 2, 4]),  # nobody knows yet who plans it
    ],
)
def test_a_run_begins_where_a_driver_began_or_one_batch_before(index: int, starts: list[int]) -> None:
    assert run_starts(EPOCHS, index) == starts


def test_the_slowest_source_holds_the_watermark_after_a_restart() -> None:
    # planned by the query that began at 0 it knows b's 5; by one that began at 2 it knows nothing of b
    assert next_watermarks(EPOCHS, MARKS, 3, 5, MIN) == [5]
    assert next_watermarks(EPOCHS, MARKS, 4, 5, MIN) == [35]
    assert next_watermarks([1, 1, 2, 2], [{"a": 10, "b": 5}, {"a": 20, "b": 9}, {"a": 30}], 3, 9, MIN) == [9]
    assert next_watermarks([1, 2], [{"b": 5}, {"a": 20}], 2, 0, MIN) == [0, 5]


def rows(watermarks: list[int], epochs: list[int], marks: list[dict[str, int]]) -> list:
    return [
        ledger_row(n, epoch=epoch, batch_watermark_ms=mark, offsets_text="v1", by_topic=counted(found))
        for n, (epoch, mark, found) in enumerate(zip(epochs, watermarks, marks, strict=True))
    ]


def derived(watermarks: list[int], epochs: list[int], marks: list[dict[str, int]], rule: WatermarkRule) -> list[int]:
    found = rows(watermarks, epochs, marks)
    chain = derive_chain_of_many([row.by_topic for row in found], [rule] * len(found), found)
    assert chain.late == (0, *chain.batch[:-1])
    return list(chain.batch)


FORKED = [{"a": 10, "b": 5}, {"a": 20}, {"b": 18}]


@pytest.mark.parametrize("recorded", [18, 5])
def test_a_recorded_watermark_stands_if_a_query_may_have_made_it(recorded: int) -> None:
    # Epoch 2 ran batch 2. Did it run batch 1 once more, so that it knew a's 20 when it planned batch 3?
    path = [*rows([0, 5, 5], [1, 1, 2], FORKED)]
    assert watermarks_after(path, MIN) == [5, 18]
    assert derived([0, 5, 5, recorded], [1, 1, 2, 2], [*FORKED, {}], MIN)[-1] == recorded


def test_any_other_watermark_is_a_defect_and_the_ordinary_one_is_derived() -> None:
    assert derived([0, 5, 5, 17], [1, 1, 2, 2], [*FORKED, {}], MIN) == [0, 5, 5, 5]
    found = rows([0, 5, 5, 17], [1, 1, 2, 2], [*FORKED, {}])
    chain = derive_chain_of_many([row.by_topic for row in found], [MIN] * 4, found)
    defects = check_ledger(found, ["flights"], [BatchCounts(10, 0, 10, 0, 1)] * 4, chain)
    assert [(one.index, one.field, one.recorded, one.derived) for one in defects] == [(3, "batch_watermark_ms", 17, 5)]


EVENTS = st.none() | st.integers(0, 1_000)
STARTS = st.sampled_from(["goes on", "new driver", "new driver, batch before once more"])
HISTORY = st.lists(st.tuples(EVENTS, EVENTS, STARTS), min_size=1, max_size=12)


def played(history: list, rule: WatermarkRule) -> tuple[list[int], list[int], list[dict[str, int]]]:
    """What Spark does: (watermarks, epochs, marks). A driver that died before `commits/N` leaves N to be run once more."""

    def chosen(seen: dict[str, int]) -> int:
        values = [seen.get(topic, 0) for topic in rule.delays_ms]
        return max(values) if rule.policy == "max" else min(values)

    watermark, epoch = 0, 0
    seen: dict[str, int] = {}
    watermarks, epochs, marks = [], [], []
    for a, b, started in history:
        if started != "goes on" or not epochs:
            epoch, seen = epoch + 1, {}
        if started.endswith("once more") and marks:
            seen = dict(marks[-1])
            watermark = max(watermarks[-1], chosen(seen))
        watermarks.append(watermark)
        epochs.append(epoch)
        marks.append({topic: mark for topic, mark in (("a", a), ("b", b)) if mark is not None})
        for topic, mark in marks[-1].items():
            seen[topic] = max(mark, seen.get(topic, mark))
        watermark = max(watermark, chosen(seen))
    return watermarks, epochs, marks


@given(HISTORY, st.sampled_from([MIN, MAX]))
def test_what_spark_does_is_always_among_what_may_be(history: list, rule: WatermarkRule) -> None:
    watermarks, epochs, marks = played(history, rule)
    assert derived(watermarks, epochs, marks, rule) == watermarks


@given(HISTORY)
def test_the_largest_mark_does_not_depend_on_where_a_query_began(history: list) -> None:
    watermarks, epochs, marks = played(history, MAX)
    for index in range(1, len(epochs)):
        assert next_watermarks(epochs, marks, index, watermarks[index - 1], MAX) == [watermarks[index]]


@given(st.lists(EVENTS, min_size=1, max_size=12), st.integers(0, 50))
def test_one_source_needs_no_candidates(events: list, delay: int) -> None:
    counts = [BatchCounts(1, 0, int(at is not None), at, at) for at in events]
    chain = derive_chain(counts, [delay] * len(counts))
    marked = [
        ledger_row(n, batch_watermark_ms=mark, max_event_ms=at)
        for n, (mark, at) in enumerate(zip(chain.batch, events, strict=True))
    ]
    for index in range(len(marked) - 1):
        assert watermarks_after(marked, WatermarkRule({"flights": delay}), index) == [chain.batch[index + 1]]
