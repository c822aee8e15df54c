"""One key followed through the batches: what is dropped, what is emitted, and when a session comes apart."""

from __future__ import annotations

import itertools
import random

import pytest

from rivertwice.reconcile.sessions import Followed, follow_key

GAP = 10


def follow(batches: list[list[int]], late: list[int]) -> list[Followed]:
    """Follow times given batch by batch; positions count through."""
    arrivals = []
    for index, times in enumerate(batches):
        arrivals += [(index, time, len(arrivals) + number) for number, time in enumerate(times)]
    return follow_key(arrivals, GAP, late)


def spans(one: Followed) -> list[tuple[int, int]]:
    return [(part.start_us, part.end_us) for part in one.parts]


def test_records_that_touch_are_one_session_and_a_moment_more_is_another() -> None:
    #   0 ---- 10 ---- 20    21 ---- 31
    (one, other) = follow([[0, 10, 21]], [0])
    assert (spans(one), spans(other)) == ([(0, 20)], [(21, 31)])
    assert one.is_whole
    assert other.is_whole


def test_a_record_is_dropped_by_its_own_window_despite_a_neighbour() -> None:
    #   late watermark 20: t=10 ends at 20 and is dropped, t=15 of the same batch is not
    (one,) = follow([[10, 15]], [20])
    assert (one.truth.start_us, one.truth.end_us) == (10, 25)
    assert spans(one) == [(15, 25)]
    assert (one.late, one.split) == ((0,), ())


def test_a_record_after_its_sessions_emission_makes_another_session() -> None:
    #   [0, 10) is emitted at watermark 12; t=5 would end at 15, so it is accepted
    (one,) = follow([[0], [], [5]], [0, 0, 12])
    assert spans(one) == [(0, 10), (5, 15)]
    assert [part.generation for part in one.parts] == [0, 1]
    assert (one.truth.start_us, one.truth.end_us) == (0, 15)
    assert (one.late, one.split) == ((), (1,))


def test_a_record_lengthens_an_open_session_in_both_directions() -> None:
    (one,) = follow([[10], [2, 18]], [0, 11])
    assert one.is_whole
    assert spans(one) == [(2, 28)]


def test_a_record_between_two_open_sessions_joins_them() -> None:
    (one,) = follow([[0, 15], [7]], [0, 5])
    assert one.is_whole
    assert spans(one) == [(0, 25)]


def test_a_session_torn_by_a_dropped_record_alone_is_not_called_split() -> None:
    #   0 and 14 are open, 8 would join them but is dropped at watermark 19
    (one,) = follow([[0, 14], [8]], [0, 19])
    assert spans(one) == [(0, 10), (14, 24)]
    assert (one.late, one.split) == ((2,), ())


def test_a_record_that_no_batch_read_belongs_to_the_truth_only() -> None:
    (one,) = follow_key([(0, 0, 0), (-1, 8, 1)], GAP, [0])
    assert (one.truth.end_us, one.skipped) == (18, (1,))
    assert spans(one) == [(0, 10)]


@pytest.mark.parametrize("seed", range(200))
def test_every_record_has_one_place_and_no_generation_touches_itself(seed: int) -> None:
    chance = random.Random(seed)
    late = sorted(chance.randrange(0, 80) for _ in range(6))
    batches = [[chance.randrange(0, 100) for _ in range(chance.randrange(5))] for _ in late]
    found = follow(batches, [0, *late[1:]])
    rows = sorted(row for one in found for row in one.truth.rows)
    assert rows == list(range(sum(map(len, batches))))
    for one in found:
        placed = sorted([*one.late, *(row for part in one.parts for row in part.rows)])
        assert placed == sorted(one.truth.rows)
        assert one.is_whole or one.late or one.split
    by_generation: dict[int, list[tuple[int, int]]] = {}
    for one in found:
        for part in one.parts:
            by_generation.setdefault(part.generation, []).append((part.start_us, part.end_us))
    for parts in by_generation.values():
        parts.sort()
        assert all(end < start for (_, end), (start, _) in itertools.pairwise(parts))
