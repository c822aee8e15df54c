"""Delivery: two deliverers of one sink, on two hosts, and a network that delays, repeats and loses requests and answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import Any

from lab.model.deliveries import AGAIN, LIMITS, SENT, WAITS, look, truth_at
from lab.model.driver import IDLE
from lab.model.exhaustive.batch import WorldScene, run_calmly
from lab.model.exhaustive.search import COMES_RIGHT, START, Bounds, Move, Scene, Slot, copies_of, harm_in
from lab.model.judge_sinks import EQUAL, FORWARD, ONCE, SERVED, WHOLE
from lab.model.mutation import Mutation
from lab.model.process import Process
from lab.model.rules import Rules
from lab.model.sinks import Request, Sinks
from lab.model.stories import ACTORS
from lab.model.stream import Record
from lab.model.violations import fail
from lab.model.world import World
from rivertwice.core.errors import RivertwiceError
from rivertwice.deliver.model import BATCHES, DeliveryStep, Position, View
from rivertwice.deliver.plan import Limits, plan_next

DELAY, ARRIVE, TIME_OUT = "delay", "arrive", "time out"


class DeliverScene(WorldScene):
    """Deliverers of one sink over tables that stand still."""

    def __init__(
        self, tables: World, sinks: Sinks, sink: str, slots: Mapping[str, Slot], harm: Mapping[str, int]
    ) -> None:
        """Begin with tables that all scenes share, and a sink that has some of it."""
        world = copy(tables)
        world.sinks, world.locks, world.processes, world.names, world.counts = sinks, {}, {}, {}, {}
        super().__init__(world, slots, harm)
        self.sink = sink
        self.place = getattr(world.sinks, sink)

    def durable(self) -> Any:
        """Return the sink, the network and the locks: deliverers change nothing else."""
        return self.world.sinks, tuple(sorted(self.world.locks.items()))

    def moves(self) -> list[Move]:
        """Let the first deliverer of the first host be the first one of all: the hosts are alike."""
        found = super().moves()
        first, second = self.slots
        is_first = self.left[f"start {first}"] == self.slots[first].starts
        return [move for move in found if move != (START, second) or not is_first]

    def can_step(self, process: Process) -> bool:
        """Let a deliverer that waits for a lock look again only if it is free."""
        return process.at != WAITS or self.world.sinks.postgres.holder is None

    def can_lose(self, process: Process) -> bool:
        """Answers are lost of requests; a deliverer that waits for one for too long gives up."""
        return process.at in (SENT, AGAIN, WAITS)

    def outside(self) -> Iterator[Move]:
        """Let requests be delayed, and arrive late; and let the server end a transaction that stays open for too long."""
        for number, request in enumerate(self.world.sinks.network):
            if request.sender is None:
                yield (ARRIVE, str(number))
            elif self.left.get(DELAY):
                yield (DELAY, str(number))
        holder = self.world.sinks.postgres.holder
        if holder is not None and holder.sender is None:
            yield ("notice", "")
        if self.left.get(TIME_OUT) and (holder is not None or self.world.sinks.kafka.unfinished is not None):
            yield (TIME_OUT, "")

    def happen(self, move: Move) -> None:
        """Let it happen."""
        what, number = move
        sinks = self.world.sinks
        if what in (TIME_OUT, "notice"):
            sinks.time_out(self.sink)
            return
        request = sinks.network[int(number)]
        self.said = f"{what}: {_tell(request)}"
        (sinks.delay if what == DELAY else sinks.arrive)(request)

    def is_good(self) -> bool:
        """Say whether the sink has everything, and nothing is on its way any more."""
        view = look(self.world, self.place.position)
        assert view is not None, "the tables hold batches"
        return (
            plan_next(self.place.position, view, LIMITS) is None and not self.world.sinks.network and not self.running
        )

    def check(self) -> None:
        """Check that a reader holds what is served, once everything is delivered."""
        if self.is_good():
            position = self.place.position
            if self.place.reader.rows != dict(truth_at(self.world, position)):
                fail(EQUAL, self.place.reader.rows)

    def finish(self) -> None:
        """Let calm deliverers come to the end, when all starts are used up."""
        for _ in range(3):
            process = self.world.processes[self.world.spawn(f"deliver {self.sink}")]
            with suppress(RivertwiceError):
                deque(process.steps, maxlen=0)
            self.world.end(process)
        self.check()
        super().finish()


LOG = [
    [Record("ok", 1), Record("ok", 21), Record("ok", 41), Record("ok", 40), Record("ok", 61)],
    [Record("ok", 2), Record("ok", 22), Record("ok", 3), Record("ok", 23), Record("ok", 62)],
]
"""Three batches emit a window each. One record is late for the second window, so a backfill corrects that."""


def delivered_world(sink: str, rules: Rules, broken: str) -> World:
    """Return a world whose sink has two windows; another one is committed since, and a publication that corrects the second one."""
    world = World(LOG, Rules(), ACTORS)
    world.rate, world.produced = 2, [3, 3]
    run_calmly(world, "driver", until=IDLE)
    run_calmly(world, f"deliver {sink}")
    world.produced = [5, 5]
    run_calmly(world, "driver", until=IDLE)
    run_calmly(world, "backfill")
    getattr(world.sinks, sink).reader.truth = None
    world.rules, world.broken = rules, broken
    return world


def begin_kafka(rules: Rules, broken: str, bounds: Bounds) -> Callable[[], Scene]:
    """Return what begins the scene of a Kafka sink."""
    return _begin("kafka", rules, broken, bounds)


def begin_postgres(rules: Rules, broken: str, bounds: Bounds) -> Callable[[], Scene]:
    """Return what begins the scene of a PostgreSQL sink."""
    return _begin("postgres", rules, broken, bounds)


def _begin(sink: str, rules: Rules, broken: str, bounds: Bounds) -> Callable[[], Scene]:
    tables = delivered_world(sink, rules, broken)
    sinks = copies_of(tables.sinks)
    slots = {"one": Slot(f"deliver {sink}", 1, bounds["starts"]), "far": Slot(f"far deliver {sink}", 2, bounds["far"])}
    return lambda: DeliverScene(tables, sinks(), sink, slots, harm_in(bounds))


INVARIANTS = (WHOLE, ONCE, FORWARD, SERVED, EQUAL, COMES_RIGHT)


def _again(position: Position | None, view: View, limits: Limits) -> DeliveryStep | None:
    step = plan_next(position, view, limits)
    if step is None or position is None or step.kind != BATCHES:
        return step
    return replace(step, to=replace(step.to, batch=position.batch))


def _unpublished(position: Position | None, view: View, limits: Limits) -> DeliveryStep | None:
    return plan_next(position, replace(view, publications=()), limits)


_PLANNED = (
    Mutation("a step's position is not moved on", rules={"plan_next": _again}),
    Mutation("publications are not delivered", rules={"plan_next": _unpublished}),
)
KAFKA_MUTATIONS = (
    Mutation(
        "a transaction begins on the epoch of the one before", "a transaction begins on the epoch of the one before"
    ),
    Mutation("a new epoch without a look at the positions", "a new epoch without a look at the positions"),
    Mutation("the position is read before the epoch", "position read before the epoch"),
    Mutation("rows and position are two transactions", "rows and position in two transactions"),
    *_PLANNED,
)
POSTGRES_MUTATIONS = (
    Mutation("the position is compared without its lock", "position compared without its lock"),
    Mutation("the position is not compared", "position not compared"),
    Mutation("rows and position are two transactions", "rows and position in two transactions"),
    *_PLANNED,
)


def _tell(request: Request) -> str:
    of = "" if request.position is None else f" of step {request.position.number}"
    return f"{request.what}{of}, epoch {request.epoch}"
