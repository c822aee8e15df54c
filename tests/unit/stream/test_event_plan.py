"""Batches of a backlog end at one event time in all partitions, always move on, and end at the log's end."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivertwice.log.addresses import Part
from rivertwice.stream.placing import NOTHING, BatchEnds, EventTimes, PartitionIndex, ProbeRequest, plan_cut
from streams.keyed import PARTITIONS, keyed_backlog, late_by_arrival, late_by_arrival_in_batches, late_in_batches

MINUTE = 60_000
Log = dict[Part, list[int | None]]


def log_of(*partitions: list[int | None]) -> Log:
    return {Part("t", number): events for number, events in enumerate(partitions)}


def plan(
    log: Log, times: EventTimes, starts: dict[Part, int], most: int, tolerance_ms: int
) -> tuple[BatchEnds | None, int]:
    """Return the next batch, and how many records were read to place it."""
    ends = {part: len(events) for part, events in log.items()}
    read = 0
    for _ in range(60):
        step = plan_cut(times.index(starts, ends), most, tolerance_ms)
        if not isinstance(step, ProbeRequest):
            return step, read
        for part, ranges in step.ranges.items():
            for start, end in ranges:
                assert starts[part] <= start < end <= ends[part], (step, starts, ends)
                for offset in range(start, end):
                    times.add(part, offset, log[part][offset])
                read += end - start
    raise AssertionError("sixty looks placed no batch")


def run(log: Log, most: int, tolerance_ms: int) -> list[dict[Part, int]]:
    """Return the ends of all batches but the last, which takes what is left."""
    times, starts, batches = EventTimes(), dict.fromkeys(log, 0), []
    while (step := plan(log, times, starts, most, tolerance_ms)[0]) is not None:
        assert all(starts[part] <= end <= len(log[part]) for part, end in step.ends.items())
        assert 0 < sum(step.ends.values()) - sum(starts.values()) <= most
        starts = dict(step.ends)
        batches.append(starts)
    assert sum(map(len, log.values())) - sum(starts.values()) <= most
    return batches


def drift_ms(log: Log, ends: dict[Part, int]) -> int:
    """Return by how much the furthest partition is ahead of the oldest record that is left."""
    read = [max((event for event in log[part][:end] if event is not None), default=None) for part, end in ends.items()]
    left = [event for part, end in ends.items() for event in log[part][end:] if event is not None]
    ahead = max((event for event in read if event is not None), default=None)
    return 0 if ahead is None or not left else max(0, ahead - min(left))


ordered = st.lists(st.integers(0, 90), max_size=300).map(
    lambda gaps: [sum(gaps[: n + 1]) * MINUTE for n in range(len(gaps))]
)


@given(st.lists(ordered, min_size=1, max_size=4), st.integers(1, 80), st.sampled_from([0, 7, 15, 60]))
@settings(max_examples=150, deadline=None)
def test_no_partition_ends_ahead_by_more_than_the_tolerance(partitions, most, minutes):
    log = log_of(*partitions)
    for ends in run(log, most, minutes * MINUTE):
        assert drift_ms(log, ends) <= minutes * MINUTE


events = st.lists(st.one_of(st.none(), st.integers(0, 10_000_000)), max_size=200)


@given(st.lists(events, min_size=1, max_size=4), st.integers(1, 500), st.integers(0, 10 * MINUTE))
@settings(max_examples=200, deadline=None)
def test_every_backlog_is_read_to_its_end_whatever_its_event_times(partitions, most, tolerance_ms):
    run(log_of(*partitions), most, tolerance_ms)


def test_eras_of_keys_are_read_together_where_proportional_batches_drift():
    # Partition 0 has a record a minute for four days; partition 1 lived on the first day alone, with as many records.
    steady = [number * MINUTE for number in range(5760)]
    brief = [number * MINUTE // 4 for number in range(5760)]
    log = log_of(steady, brief)
    batches = run(log, 500, 15 * MINUTE)
    assert max(drift_ms(log, ends) for ends in batches) <= 15 * MINUTE
    half = {Part("t", 0): 2880, Part("t", 1): 2880}
    assert drift_ms(log, half) > 24 * 60 * MINUTE


def test_batches_are_full_where_records_lie_close_together():
    dice = random.Random(5)
    log = log_of(*([number * 1000 * dice.randint(1, 4) // 2 for number in range(4000)] for _ in range(3)))
    log = {part: sorted(events) for part, events in log.items()}
    batches = [dict.fromkeys(log, 0), *run(log, 400, 15 * MINUTE)]
    sizes = [sum(after.values()) - sum(before.values()) for before, after in itertools.pairwise(batches)]
    assert min(sizes) > 300, sizes


def test_far_fewer_records_are_looked_at_than_are_read():
    log = log_of(*([number * 700 + 13 * shift for number in range(200_000)] for shift in range(4)))
    times, starts, looked = EventTimes(), dict.fromkeys(log, 0), 0
    for _ in range(20):
        cut, read = plan(log, times, starts, 10_000, 15 * MINUTE)
        assert cut is not None
        starts, looked = dict(cut.ends), looked + read
    assert looked < 0.1 * sum(starts.values())


def test_late_records_hold_no_partition_back():
    on_time = [number * MINUTE for number in range(1000)]
    late = [event - 600 * MINUTE if number % 3 == 0 else event for number, event in enumerate(on_time)]
    batches = run(log_of(on_time, late), 200, 10 * MINUTE)
    assert all(abs(ends[Part("t", 0)] - ends[Part("t", 1)]) <= 20 for ends in batches)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_keyed_backlog_is_no_later_than_by_the_order_it_was_sent_in(seed):
    records = keyed_backlog(seed, 20_000, days=8)
    parts = {Part("t", p): [record for record in records if record.partition == p] for p in range(PARTITIONS)}
    log = {part: [record.event_ms for record in queue] for part, queue in parts.items()}
    ends = [dict.fromkeys(log, 0), *run(log, 100, 15 * MINUTE), {part: len(queue) for part, queue in parts.items()}]
    placed = [
        [record for part, queue in parts.items() for record in queue[before[part] : after[part]]]
        for before, after in itertools.pairwise(ends)
    ]
    assert late_in_batches(placed) <= 1.2 * late_by_arrival_in_batches(records, 100)
    assert late_in_batches(placed) <= 1.2 * late_by_arrival(records)


def test_late_records_after_a_gap_are_no_point():
    part, times = Part("t", 0), EventTimes()
    for offset, event in ((50, 10), (51, 900), (52, 20)):
        times.add(part, offset, event)
    assert times.index({part: 40}, {part: 99})[part] == PartitionIndex(40, 99, NOTHING, [(52, 900), (53, 900)])
    for offset in range(40, 50):
        times.add(part, offset, 5)
    points = times.index({part: 40}, {part: 99})[part].points
    assert points == [*((offset, 5) for offset in range(41, 51)), (51, 10), (52, 900), (53, 900)]


def test_what_was_read_is_forgotten_and_its_frontier_is_kept():
    part, times = Part("t", 0), EventTimes()
    for offset, event in ((0, 70), (1, 30), (2, None), (3, 80)):
        times.add(part, offset, event)
    assert times.index({part: 2}, {part: 9})[part] == PartitionIndex(2, 9, 70, [(3, 70), (4, 80)])
    assert times.index({part: 4}, {part: 9})[part] == PartitionIndex(4, 9, 80, [])


def test_one_batch_that_takes_all_is_not_planned():
    index = {Part("t", 0): PartitionIndex(0, 60, NOTHING, ()), Part("t", 1): PartitionIndex(5, 45, NOTHING, ())}
    assert plan_cut(index, 100, MINUTE) is None
    assert isinstance(plan_cut(index, 99, MINUTE), ProbeRequest)


def test_a_partition_that_is_ahead_already_waits_for_the_others():
    log = log_of([number * MINUTE for number in range(1000)], [number * MINUTE for number in range(1000)])
    starts = {Part("t", 0): 600, Part("t", 1): 0}
    cut, _ = plan(log, EventTimes(), starts, 100, 15 * MINUTE)
    assert cut is not None
    assert cut.ends[Part("t", 0)] == 600
    assert 50 <= cut.ends[Part("t", 1)] <= 100


@pytest.mark.parametrize("most", [1, 2, 3])
def test_the_smallest_batches_move_on_too(most):
    run(log_of([5, 5, 5], [None, None], [7, 1, 7], []), most, 0)
