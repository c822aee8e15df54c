"""Over random histories of a pipeline, a consumer that was killed again and again holds exactly what is served.

t1 ──0──1──2──3            head t1, position 3
          └──t2──3──4──5   head t2: the position is not on the path, one step converges
                 └──t3──5  a restore forks at the last batch: the position goes on, nothing comes twice
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivertwice.core.errors import RequestError
from rivertwice.deliver.model import BATCHES, MOVED
from rivertwice.deliver.plan import Limits, plan_next
from rivertwice.deliver.records import records_of
from simulated import sessions as simulated_sessions
from simulated.delivery import SESSIONS, SHAPE, WINDOW, Deliverer, World, result_row

pytestmark = pytest.mark.long

KEYS = "abc"


def grow(world: World, chance: random.Random, name: str) -> None:
    """Commit one batch: its watermark closes the windows up to it, each with rows of some keys."""
    before = max(world.closed(name), 0)
    closed = before + chance.choice([0, 0, WINDOW, WINDOW, 3 * WINDOW])
    starts = range(before // WINDOW * WINDOW, closed // WINDOW * WINDOW, WINDOW)
    rows = [(start, key, chance.randrange(3)) for start in starts for key in KEYS if chance.random() < 0.7]
    world.commit(name, closed, rows)


def catch_up(world: World, chance: random.Random, name: str, least: int) -> None:
    while world.closed(name) < least:
        grow(world, chance, name)


def act(world: World, chance: random.Random, seen: dict[str, int]) -> None:
    kind = chance.choice(["batch"] * 6 + ["publish"] * 2 + ["restore", "rewind", "short rewind", "replay"])
    head = world.head
    batches = world.path_batches(head)
    seen[kind] = seen.get(kind, 0) + 1
    name = f"t{len(world.lines) + 1}"
    if kind == "batch" or not batches:
        grow(world, chance, head)
    elif kind == "publish":
        closed = max(world.closed(head), 0) // WINDOW
        first = chance.randint(0, closed)
        last = chance.randint(first, closed)
        rows = [
            (number * WINDOW, key, chance.randrange(3))
            for number in range(first, last)
            for key in KEYS
            if chance.random() < 0.8
        ]
        semantics = chance.choice(["s", "s", "s", "other"])
        world.publish([(first * WINDOW, last * WINDOW)] if first < last else [], rows, semantics)
    elif kind == "restore":
        semantics = chance.choice([world.own[head]] * 3 + ["other"])  # an upgrade can keep the state
        world.begin(name, (head, batches[-1].batch), semantics)
        world.move_head(name)
    elif kind in ("rewind", "short rewind"):
        back = chance.choice(batches)
        world.begin(name, (head, back.batch), world.own[back.timeline])  # under the definition of the savepoint
        if kind == "rewind":  # the real one moves the head when the child has caught up
            catch_up(world, chance, name, world.closed(head))
        world.move_head(name)
    else:  # another definition's timeline, without a parent
        world.begin(name, None, chance.choice(["s", "other"]))
        catch_up(world, chance, name, world.closed(head))
        if world.path_batches(name):
            world.move_head(name)


@pytest.mark.proves("guarantees.md#all-sinks")
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_fold_of_delivered_records_is_what_is_served(seed: int) -> None:
    chance = random.Random(seed)
    world = World()
    world.begin("t1")
    world.move_head("t1")
    seen: dict[str, int] = {}
    limits = chance.choice([Limits(), Limits(batches=1), Limits(batches=3, rows=4)])
    deliverer = Deliverer(world, limits)
    for _ in range(chance.randint(1, 25)):
        act(world, chance, seen)
        deliverer.stumble(chance)
        if chance.random() < 0.3:
            deliverer.to_end()
            if world.path_batches(world.head):
                assert deliverer.consumer.holds() == world.served()
    deliverer.to_end()
    if world.path_batches(world.head):
        assert deliverer.consumer.holds() == world.served()


def history(*rows_per_batch: list[tuple[int, str, int]]) -> World:
    """t1 is the head, batch n closes all windows up to (n + 1) seconds."""
    world = World()
    world.begin("t1")
    world.move_head("t1")
    for number, rows in enumerate(rows_per_batch):
        world.commit("t1", (number + 1) * WINDOW, rows)
    return world


def test_a_restore_goes_on_behind_the_fork_and_nothing_comes_twice() -> None:
    world = history([(0, "a", 1)], [(1000, "a", 2)])
    deliverer = Deliverer(world, Limits())
    deliverer.to_end()
    world.begin("t2", ("t1", 1))
    world.move_head("t2")
    world.commit("t2", 3000, [(2000, "a", 3)])
    deliverer.to_end()
    assert deliverer.kinds == [BATCHES, BATCHES]
    assert [address.timeline for address, _ in deliverer.emitted] == ["t1", "t1", "t2"]
    assert deliverer.consumer.holds() == world.served() == {(0, "a"): 1, (1000, "a"): 2, (2000, "a"): 3}


def test_a_rewind_names_what_counts_no_more_and_leaves_alone_what_is_equal() -> None:
    world = history([(0, "a", 1)], [(1000, "a", 2), (1000, "b", 5), (1000, "c", 7)])
    deliverer = Deliverer(world, Limits())
    deliverer.to_end()
    world.begin("t2", ("t1", 0))
    world.commit("t2", 2000, [(1000, "a", 3), (1000, "c", 7)])
    world.move_head("t2")
    view = world.look(deliverer.position)
    step = plan_next(deliverer.position, view, Limits())
    assert step.kind == MOVED
    records = records_of(step, deliverer.position, view, SHAPE, world)
    told = [(one.op, one.values[2], one.address and one.address.timeline, one.replaces.batch) for one in records]
    assert told == [("correct", "a", "t2", 1), ("withdraw", "b", None, 1)]
    deliverer.to_end()
    assert deliverer.consumer.holds() == world.served()


@pytest.mark.proves("guarantees.md#all-sinks")
def test_a_publication_waits_for_the_batches_that_close_its_windows() -> None:
    world = history([(0, "a", 1)], [(1000, "a", 2)], [(2000, "a", 3)])
    world.publish([(1000, 2000)], [(1000, "b", 9)])
    deliverer = Deliverer(world, Limits(batches=1))
    deliverer.to_end()
    assert deliverer.kinds == ["batches", "batches", "publication", "batches"]
    assert deliverer.consumer.holds() == {(0, "a"): 1, (1000, "b"): 9, (2000, "a"): 3}


def test_a_publication_whose_windows_are_open_again_comes_when_they_close() -> None:
    world = history([(0, "a", 1)], [(1000, "a", 2)])
    world.publish([(1000, 2000)], [(1000, "b", 9)])
    world.begin("t2", ("t1", 0))
    world.move_head("t2")
    deliverer = Deliverer(world, Limits())
    deliverer.to_end()
    assert deliverer.consumer.holds() == {(0, "a"): 1} == world.served()
    world.commit("t2", 2000, [(1000, "a", 2)])
    deliverer.to_end()
    assert deliverer.consumer.holds() == {(0, "a"): 1, (1000, "b"): 9} == world.served()


def test_the_model_meets_every_kind_of_step() -> None:
    kinds: set[str] = set()
    for seed in range(40):
        chance = random.Random(seed)
        world = World()
        world.begin("t1")
        world.move_head("t1")
        deliverer = Deliverer(world, Limits(batches=2))
        for _ in range(12):
            act(world, chance, {})
            deliverer.step()
        kinds |= set(deliverer.kinds)
    assert kinds == {"batches", "publication", "move"}


def test_a_sink_whose_plan_forgets_publications_is_found_by_the_fold() -> None:
    world = history([(0, "a", 1)])
    world.publish([(0, 1000)], [(0, "a", 2)])
    deliverer = Deliverer(world, Limits())
    assert deliverer.step()
    assert deliverer.consumer.holds() != world.served()


def mirror(world: World, sessions: simulated_sessions.World, name: str, done: int) -> int:
    """Commit what a pipeline of sessions emitted behind `done` batches; return how many batches there are now."""
    for number in range(done, len(sessions.batches)):
        rows = [(row.start_ms, row.key, row.n, row.end_ms) for at, row in sessions.emitted if at == number]
        world.commit(name, sessions.watermarks[number], rows)
    return len(sessions.batches)


def mirror_publications(world: World, sessions: simulated_sessions.World) -> None:
    for one in sessions.publications[len(world.publications) :]:
        world.seq += 1
        world.publications.append(replace(one, seq=world.seq, semantics="s"))
    world.corrected = [
        {"_backfill": name, "_withdrawn": gone, **result_row((row.start_ms, row.key, row.n, row.end_ms))}
        for name, gone, row in sessions.corrections
    ]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_fold_of_delivered_sessions_is_what_is_served(
    seed: int,
) -> None:
    chance = random.Random(seed)
    sessions = simulated_sessions.World()
    world = World(shape=SESSIONS)
    world.begin("t1")
    world.move_head("t1")
    deliverer = Deliverer(world, chance.choice([Limits(), Limits(batches=1), Limits(batches=3, rows=4)]))
    name, done = "t1", 0
    for batch in [*simulated_sessions.random_batches(chance, chance.randint(20, 80)), []]:
        sessions.commit(batch)
        done = mirror(world, sessions, name, done)
        if chance.random() < 0.15 and sessions.records:
            low = chance.choice([one.at_ms for one in sessions.records])
            with suppress(RequestError):
                sessions.backfill((low, low + chance.choice([1, 5000, 500_000])))
            mirror_publications(world, sessions)
        if chance.random() < 0.05:
            back = chance.randrange(len(sessions.batches))
            world.begin(f"{name}-", (name, back))
            name = f"{name}-"
            sessions.rewind(chance, back + 1)
            done = mirror(world, sessions, name, back + 1)
            world.move_head(name)
        for _ in range(chance.randint(0, 3)):
            deliverer.step(lose=chance.random() < 0.3)
        if chance.random() < 0.2:
            deliverer.crash()
    deliverer.to_end()
    assert deliverer.consumer.holds() == world.served()


def sessions_of(*rows_per_batch: list[tuple[int, str, int, int]]) -> World:
    """t1 is the head, batch n closes all sessions up to 100 (n + 1)."""
    world = World(shape=SESSIONS)
    world.begin("t1")
    world.move_head("t1")
    for number, rows in enumerate(rows_per_batch):
        world.commit("t1", 100 * (number + 1), rows)
    return world


def test_a_published_session_withdraws_all_that_it_overlaps() -> None:
    world = sessions_of([(0, "a", 1, 12), (0, "b", 1, 12), (15, "a", 1, 25)])
    deliverer = Deliverer(world, Limits())
    deliverer.to_end()
    world.publish([(5, 30)], [(5, "a", 2, 30)])
    deliverer.to_end()
    assert deliverer.consumer.holds() == world.served() == {(5, 30, "a"): 2, (0, 12, "b"): 1}


def test_a_session_emitted_over_a_delivered_publication_is_left_out() -> None:
    world = sessions_of([(0, "a", 1, 12)])
    world.publish([(0, 15)], [(0, "a", 2, 15)])
    deliverer = Deliverer(world, Limits())
    deliverer.to_end()
    world.commit("t1", 200, [(8, "a", 1, 125), (130, "a", 1, 140)])
    deliverer.to_end()
    assert deliverer.consumer.holds() == world.served() == {(0, 15, "a"): 2, (130, 140, "a"): 1}


def test_two_rows_of_one_key_are_refused() -> None:
    from rivertwice.core.errors import LedgerError

    world = history([(0, "a", 1), (0, "a", 2)])
    with pytest.raises(LedgerError, match="only 1 different windows and keys"):
        Deliverer(world, Limits()).step()
