"""Of a stream that emits updates a sink holds the newest row of every window, open ones too, over random histories.

t1 ──0──1──2──3            window [0, 10) a: 1, a: 3 | closed          published since: a: 4
          └──t2──3──4      window [10, 20)            a: 1, a: 2       open: what the newest batch says
"""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivertwice.deliver.model import MOVED, WITHDRAW, DeliveredRecord
from rivertwice.deliver.plan import Limits
from rivertwice.timeline.served_rows import newest_by
from simulated.delivery import CHANGELOG, SHAPE, WINDOW, Consumer, Deliverer, World

pytestmark = pytest.mark.long

UPDATES = replace(SHAPE, updates_ms=WINDOW)
KEYS = "abc"


class Upserting(Consumer):
    """A table that sets and takes away by key, as PostgreSQL does."""

    def take(self, record: DeliveredRecord) -> None:
        if record.old is not None:
            assert self.rows[record.key].values == record.old
        if record.op == WITHDRAW:
            assert record.key in self.rows
            del self.rows[record.key]
        else:
            self.rows[record.key] = record


def grow(world: World, chance: random.Random, name: str) -> None:
    """Commit one batch: rows of windows that are open, some again, then the watermark moves."""
    before = max(world.closed(name), 0)
    starts = range(before // WINDOW * WINDOW, before + 4 * WINDOW, WINDOW)
    rows = [(start, key, chance.randrange(50)) for start in starts for key in KEYS if chance.random() < 0.4]
    world.commit(name, before + chance.choice([0, 0, WINDOW, 3 * WINDOW]), rows)


def act(world: World, chance: random.Random) -> None:
    kind = chance.choice(["batch"] * 6 + ["publish"] * 2 + ["restore", "rewind", "replay"])
    head, name = world.head, f"t{len(world.lines) + 1}"
    batches = world.path_batches(head)
    if kind == "batch" or not batches:
        grow(world, chance, head)
    elif kind == "publish":
        closed = max(world.closed(head), 0) // WINDOW
        first = chance.randint(0, closed)
        last = chance.randint(first, closed)
        rows = [(at * WINDOW, key, 90) for at in range(first, last) for key in KEYS if chance.random() < 0.6]
        world.publish([(first * WINDOW, last * WINDOW)] if first < last else [], rows)
    else:
        world.begin(
            name, {"restore": (head, batches[-1].batch), "rewind": (head, chance.choice(batches).batch)}.get(kind)
        )
        for _ in range(chance.randrange(4)):
            grow(world, chance, name)
        if world.path_batches(name):
            world.move_head(name)


def shown(world: World) -> dict[tuple[object, ...], object]:
    """Closed windows as they are served, open ones by their newest row, by a loop."""
    line, closed = world.lines[world.head], world.closed(world.head)
    found: dict[tuple[object, ...], object] = {}
    for batch in world.path_batches(world.head):
        for row in world.rows:
            if (row["_timeline"], row["_batch"]) == (batch.timeline, batch.batch):
                found[_start(row), row["k"]] = row["n"]
    for entry in world.publications:
        if entry.semantics not in line.semantics:
            continue
        for first, last in entry.ranges:
            covered = [
                place for place in found if first <= int(str(place[0])) < last and int(str(place[0])) + WINDOW <= closed
            ]
            for place in covered:
                del found[place]
            for row in world.corrected:
                if (
                    row["_backfill"] == entry.backfill
                    and first <= _start(row) < last
                    and _start(row) + WINDOW <= closed
                ):
                    found[_start(row), row["k"]] = row["n"]
    return found


def _start(row: dict[str, object]) -> int:
    at = row["window_start"]
    return round(at.timestamp() * 1000)  # type: ignore[attr-defined]


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_sink_of_updates_holds_the_newest_row_of_every_window(seed: int) -> None:
    chance = random.Random(seed)
    world = World(shape=UPDATES)
    world.begin("t1")
    world.move_head("t1")
    limits = chance.choice([Limits(), Limits(batches=1), Limits(batches=3, rows=4)])
    deliverer = Deliverer(world, limits, Upserting(UPDATES))
    for _ in range(chance.randint(1, 25)):
        act(world, chance)
        deliverer.stumble(chance)
        if chance.random() < 0.3:
            deliverer.to_end()
            if world.path_batches(world.head):
                assert deliverer.consumer.holds() == shown(world)
    deliverer.to_end()
    if world.path_batches(world.head):
        assert deliverer.consumer.holds() == shown(world)


def test_an_open_window_is_delivered_with_every_batch_that_changes_it() -> None:
    world = World(shape=UPDATES)
    world.begin("t1")
    world.move_head("t1")
    deliverer = Deliverer(world, Limits(batches=1), Upserting(UPDATES))
    for closed, value in ((0, 1), (500, 2), (1000, 3)):
        world.commit("t1", closed, [(0, "a", value)])
        deliverer.to_end()
        assert deliverer.consumer.holds() == {(0, "a"): value}
    assert len(deliverer.emitted) == 3


def test_of_batches_that_go_together_the_last_row_alone_is_told() -> None:
    world = World(shape=UPDATES)
    world.begin("t1")
    world.move_head("t1")
    for value in (1, 2, 3):
        world.commit("t1", 0, [(0, "a", value), (0, str(value), 0)])
    deliverer = Deliverer(world, Limits(), Upserting(UPDATES))
    deliverer.to_end()
    assert len(deliverer.emitted) == 4
    assert deliverer.consumer.holds()[0, "a"] == 3


def test_a_rewind_takes_back_what_an_open_window_had() -> None:
    world = World(shape=UPDATES)
    world.begin("t1")
    world.move_head("t1")
    world.commit("t1", 0, [(0, "a", 1)])
    world.commit("t1", 0, [(0, "a", 2), (1000, "b", 1)])
    deliverer = Deliverer(world, Limits(), Upserting(UPDATES))
    deliverer.to_end()
    world.begin("t2", ("t1", 0))
    world.move_head("t2")
    deliverer.to_end()
    assert deliverer.kinds[-1] == MOVED
    assert deliverer.consumer.holds() == {(0, "a"): 1}


def test_a_publication_without_a_key_removes_it_from_an_open_window() -> None:
    world = World(shape=UPDATES)
    world.begin("t1")
    world.move_head("t1")
    world.commit("t1", 0, [(0, "a", 1), (0, "b", 1)])
    world.commit("t1", 1000, [(0, "a", 2)])
    world.publish([(0, 1000)], [(0, "a", 9)])
    world.begin("t2", ("t1", 0))  # the window is open again
    world.move_head("t2")
    deliverer = Deliverer(world, Limits(), Upserting(UPDATES))
    deliverer.to_end()
    assert deliverer.consumer.holds() == {(0, "a"): 1, (0, "b"): 1}
    world.commit("t2", 1000, [])
    deliverer.to_end()
    assert deliverer.consumer.holds() == {(0, "a"): 9}


@pytest.mark.parametrize("rows", [[], [(0, "a", 1)], [(0, "a", 1), (0, "a", 2), (0, "b", 3)]])
def test_the_newest_of_an_address_is_that_of_the_last_batch(rows: list[tuple[int, str, int]]) -> None:
    world = World(shape=UPDATES)
    world.begin("t1")
    for row in rows:
        world.commit("t1", 0, [row])
    found = newest_by(pa.Table.from_pylist(world.rows, schema=CHANGELOG), ["window_start", "window_end", "k"])
    assert {row["k"]: row["n"] for row in found.to_pylist()} == {key: value for _, key, value in rows}
