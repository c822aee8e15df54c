"""Over random histories of sessions a backfill brings what it was asked for to the truth, whole, and leaves all else alone.

time        0     5    10    15    20    25
stream      [---- a ---)                        emitted
                  [--------- a ----)            came when the first had been
asked                        [--------)
published   [---------- a ---------)            whole: the truth of the same records
"""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivertwice.core.errors import RequestError
from simulated.sessions import GAP, Row, World, overlap, random_batches

pytestmark = pytest.mark.long

SEEDS = st.integers(0, 2**32 - 1)


def stream(chance: random.Random, count: int | None = None) -> World:
    world = World()
    for batch in random_batches(chance, chance.randint(20, 150) if count is None else count):
        world.commit(batch)
    world.commit([])
    return world


def wrong_rows(world: World) -> list[Row]:
    return sorted(set(world.served()) ^ {row for row in world.truth() if row.end_ms <= world.closed_ms})


def some_range(chance: random.Random, world: World) -> tuple[int, int]:
    """Return a range, often one that begins or ends within a session that is served otherwise than it should be."""
    times = [one.at_ms for one in world.records]
    wrong = wrong_rows(world)
    if wrong and chance.random() < 0.7:
        row = chance.choice(wrong)
        low = chance.randint(row.start_ms - 100, row.end_ms)
    else:
        low = chance.randint(min(times) - 2 * GAP, max(times) + GAP) // 100 * 100
    return low, low + chance.choice([1, 100, 500, GAP, 5 * GAP, 50 * GAP])


def backfill(world: World, asked: tuple[int, int], chunk_records: int = 1_000_000) -> bool:
    """Run it and say whether there was anything to do; compare what is served with a search."""

    def means(hull: Row) -> bool:
        return hull.start_ms < asked[1] and asked[0] < hull.end_ms

    before = set(world.served())
    gone, come = world.chosen(means)
    if not gone | come:
        with pytest.raises(RequestError, match=r"is settled|holds no session"):
            world.backfill(asked, chunk_records=chunk_records)
        assert set(world.served()) == before
        return False
    plan = world.backfill(asked, chunk_records=chunk_records)
    assert plan.windows == len(come)
    assert set(world.served()) == (before - gone) | come
    return True


@settings(max_examples=80, deadline=None)
@given(SEEDS)
def test_after_a_backfill_only_what_was_asked_has_changed_to_the_truth(seed: int) -> None:
    chance = random.Random(seed)
    world = stream(chance)
    asked = some_range(chance, world)
    if not backfill(world, asked, chance.choice([1, 3, 1_000_000])):
        return
    once = world.served()
    assert backfill(world, asked)
    assert world.served().keys() == once.keys()


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_two_backfills_of_overlapping_ranges_agree_in_any_order(seed: int) -> None:
    found = []
    for order in (1, -1):
        chance = random.Random(seed)
        world = stream(chance)
        low, high = some_range(chance, world)
        other = low + chance.randint(-2 * GAP, high - low), high + chance.randint(0, 20 * GAP)
        done = [backfill(world, asked) for asked in [(low, high), (min(other), max(other) + 1)][::order]]
        found.append((set(world.served()), any(done)))
    assert found[0] == found[1]


@settings(max_examples=12, deadline=None)
@given(SEEDS)
def test_later_output_of_the_stream_is_served_beside_what_was_published(seed: int) -> None:
    chance = random.Random(seed)
    world = World()
    for batch in [*random_batches(chance, 150), [], []]:
        if world.records and chance.random() < 0.15:
            backfill(world, some_range(chance, world))
        before, emitted = (set(world.served()) if world.batches else set()), len(world.emitted)
        world.commit(batch)
        assert set(world.served()) == before | {row for _, row in world.emitted[emitted:]}


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_sessions_that_are_wanting_are_published_and_no_others(seed: int) -> None:
    chance = random.Random(seed)
    world = stream(chance)
    stale = [row for row in wrong_rows(world) if chance.random() < 0.7]

    def means(hull: Row) -> bool:
        return any(hull.key == row.key and hull.start_ms < row.end_ms and row.start_ms < hull.end_ms for row in stale)

    before = set(world.served())
    gone, come = world.chosen(means)
    if not gone | come:
        with pytest.raises(RequestError, match=r"is settled|is stale"):
            world.backfill(stale=stale)
        return
    plan = world.backfill(stale=stale)
    assert plan.windows == len(come)
    assert plan.late
    assert set(world.served()) == (before - gone) | come


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_a_backfill_that_read_less_never_takes_a_record_away(seed: int) -> None:
    #  planned A ... batches ... planned and published B ... published A: refused where they meet, harmless elsewhere
    chance = random.Random(seed)
    world = stream(chance, 60)
    with suppress(RequestError):
        first = world.plan(some_range(chance, world))
        computed = world.compute(first)
        for batch in random_batches(random.Random(seed + 1), 60):
            world.commit(batch)
        backfill(world, some_range(chance, world))
        published = {row for row, made in world.served().items() if made is not None}
        if any(overlap(new, old) for new in published for _, _, old in computed):
            with pytest.raises(RequestError, match="read less of the log"):
                world.publish(first, computed)
        else:
            world.publish(first, computed)
        assert published <= set(world.served())


def test_a_split_session_is_published_whole_though_its_end_was_asked() -> None:
    #   t=0 is emitted as [0, 1000) at watermark 1200; 500 is accepted, for it ends at 1500
    world = World()
    world.commit([("a", 0, 1)])
    world.commit([("b", 3200, 1)])
    world.commit([])
    world.commit([("a", 500, 2)])
    world.commit([("b", 9000, 1)])
    world.commit([])
    assert set(world.served()) == {Row("a", 0, 1000, 1, 1), Row("a", 500, 1500, 1, 2), Row("b", 3200, 4200, 1, 1)}
    plan = world.backfill((1200, 1300))
    assert set(world.served()) == {Row("a", 0, 1500, 2, 3), Row("b", 3200, 4200, 1, 1)}
    assert plan.sessions is not None
    assert (plan.sessions.beyond_count, plan.sessions.beyond[0].key, plan.late) == (1, '{"k": "a"}', 1)


@pytest.mark.proves("howto-correct.md#sessions")
def test_an_open_session_is_left_out_and_the_plan_says_so() -> None:
    world = World()
    world.commit([("a", 10_000, 1), ("b", 9000, 1), ("b", 9900, 1), ("b", 10_800, 1), ("b", 11_700, 1)])
    world.commit([("c", 14_500, 1)])
    world.commit([])
    # Closed until 12500: the session of b still runs, and what ended after 11500 may still be joined.
    plan = world.plan((9000, 12_000))
    assert plan.windows == 1
    assert [cut.why.split(":")[0] for cut in plan.cut] == ["open"]
    with pytest.raises(RequestError, match=r"is settled: only one that ended by 1970-01-01T00:00:11\.500000Z"):
        world.plan((11_100, 11_200))


def test_a_range_without_a_session_is_refused() -> None:
    world = World()
    world.commit([("a", 10_000, 1)])
    world.commit([("a", 90_000, 1)])
    world.commit([])
    with pytest.raises(RequestError, match="holds no session in"):
        world.plan((30_000, 40_000))
