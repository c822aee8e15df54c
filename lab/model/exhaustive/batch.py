"""Batch commit and replay: drivers of two hosts over one checkpoint and one changelog, killed and stopped anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from lab.model.driver import IDLE, OWNED, WATCHED
from lab.model.exhaustive.search import COMES_RIGHT, LONG_S, START, All, Bounds, Move, Scene, Slot, copies_of, harm_in
from lab.model.final import check_balance
from lab.model.mutation import Mutation
from lab.model.process import Process
from lab.model.rules import Rules
from lab.model.stories import ACTORS
from lab.model.stream import TOPIC, Record
from lab.model.violations import fail
from lab.model.world import World
from rivertwice.core.errors import RivertwiceError
from rivertwice.storage.lease_terms import decide_takeover

LOG = [[Record("ok", 21), Record("ok", 2)], [Record("bad", 3), Record("ok", 40)]]
"""Two batches of two records, with a bad record and one that is late by the second batch's own watermark; a third one without any."""


THERE = "no start removes the checkpoint of a stream that runs"
DRIVERS = ("driver", "standby")


def run_calmly(world: World, kind: str, *, host: int = 1, until: int = -1) -> None:
    """Run a process to its end, or to a point; time passes while it waits for a lease."""
    process = world.processes[world.spawn(kind, host=host)]
    with suppress(RivertwiceError):
        for at in process.steps:
            process.at, process.renewed_s = at, world.forward_s
            if process.at == WATCHED:
                world.tick(LONG_S)
            if process.at == until:
                break
    world.end(process)


def _same_epoch(held: Any, **observed: Any) -> Any:
    return replace(decide_takeover(held, **observed), epoch=1 if held is None else held.epoch)


class WorldScene(Scene):
    """Processes over a world of the model, in which time stands still but where a move says otherwise."""

    def __init__(self, world: World, slots: Mapping[str, Slot], harm: Mapping[str, int]) -> None:
        """Begin in a world without processes."""
        super().__init__(slots, harm)
        self.world = world

    def spawn(self, name: str, slot: Slot, pid: int) -> Process:
        """Start a process."""
        self.world.pids = pid - 1
        return self.world.processes[self.world.spawn(slot.kind, host=slot.host)]

    def end(self, process: Process) -> None:
        """Let a process be gone."""
        self.world.end(process)

    def durable(self) -> Any:
        """Return the world, and how often each superseded driver has committed."""
        return All(self.world), self.world.judge.stale

    def now_s(self) -> float:
        """Return the world's clock that nobody can set."""
        return self.world.forward_s

    def batches(self) -> int:
        """Return how many batches the head's path has."""
        head = self.world.head()
        return 0 if head is None else len(self.world.path_rows(head))


class BatchScene(WorldScene):
    """Drivers of two hosts. A start takes the lease in one move: taking it is a protocol that is explored by itself (`lease`)."""

    def moves(self) -> list[Move]:
        """Leave out starts that would find a lease which is renewed."""
        is_renewed = self.world.claim_renewed()
        return [
            move
            for move in super().moves()
            if move[0] != START or self.slots[move[1]].kind not in DRIVERS or not is_renewed
        ]

    def spawn(self, name: str, slot: Slot, pid: int) -> Process:
        """Start a driver, after so long that a lease which nobody renews is free."""
        process = super().spawn(name, slot, pid)
        if slot.kind not in DRIVERS:
            return process
        while process.at != OWNED:
            process.at = next(process.steps)
            if process.at == WATCHED:
                self.world.tick(LONG_S)
        return process

    def outside(self) -> Iterator[Move]:
        """Let the driver that holds the lease be stopped for long, and wake."""
        for name, process in self.running.items():
            if process.paused:
                yield ("wake", name)
            elif self.left.get("stop") and self.world.claim is not None and process.epoch == self.world.claim.epoch:
                yield ("stop", name)

    def happen(self, move: Move) -> None:
        """Stop a process, or wake it."""
        self.running[move[1]].paused = move[0] == "stop"

    def perform(self, move: Move) -> None:
        """Do a move; whoever is awake renews."""
        super().perform(move)
        for process in self.running.values():
            if not process.paused and self.world.claim is not None and process.epoch == self.world.claim.epoch:
                process.renewed_s = self.world.forward_s

    def is_good(self) -> bool:
        """Say whether everything is committed."""
        head = self.world.head()
        rows = [] if head is None else self.world.path_rows(head)
        return bool(rows) and [int(end) for end in rows[-1].end_offsets[TOPIC].values()] == self.world.produced

    def check(self) -> None:
        """Look for the checkpoint, and count every pair once more where drivers are at rest, from the log alone."""
        head = self.world.head()
        if self.world.commits and head not in self.world.checkpoints:
            fail(THERE, head)
        if head is not None and self._is_at_rest():
            check_balance(self.world, head)

    def _is_at_rest(self) -> bool:
        return bool(self.running) and all(process.at == IDLE for process in self.running.values())

    def finish(self) -> None:
        """Let a driver come to the end of the log, when all starts are used up."""
        run_calmly(self.world, "standby", host=2, until=IDLE)
        head = self.world.head()
        assert head is not None, "the driver has begun"
        check_balance(self.world, head)
        super().finish()


def begin(rules: Rules, broken: str, bounds: Bounds) -> Callable[[], Scene]:
    """Return what begins the scene."""
    world = World(LOG, rules, ACTORS, broken)
    world.rate, world.produced, world.shared_lease = 2, [2, 2], True
    world.uncleaned = 1
    copy = copies_of(world)
    slots = {"driver": Slot("driver", 1, bounds["starts"]), "standby": Slot("standby", 2, bounds["starts"])}
    return lambda: BatchScene(copy(), slots, harm_in(bounds))


INVARIANTS = (
    "every (record, window) pair is in exactly one place",
    "a committed batch never changes",
    "no gap between batches",
    "each batch begins where the one before it ended",
    "the chain of watermarks",
    "a superseded driver ends its batch at most",
    THERE,
    "the ledger holds every committed batch once",
    "the sequence has no gap",
    COMES_RIGHT,
)
MUTATIONS = (
    Mutation("the lease is not checked", "lease not checked"),
    Mutation("a holder that cannot renew continues writing", "lease not checked", {"must_stop": lambda **_: False}),
    Mutation("an epoch is used again", rules={"decide_takeover": _same_epoch}),
    Mutation("the remains of a first plan are left", rules={"is_unplanned": lambda *_: False}),
    Mutation("the ledger is not healed at a start, nor copied", "ledger not healed"),
    Mutation("the ledger is not healed at a replay", "ledger not healed at a replay"),
    Mutation(
        "a batch that is committed is committed again", "transaction not checked", {"is_applied": lambda *_: False}
    ),
    Mutation("a committed batch is never recognised", rules={"is_applied": lambda *_: False}),
    Mutation("rows are late by the batch's own watermark", "late by the own watermark"),
    Mutation("rows and ledger row are two commits", "two commits for one batch"),
    Mutation("dead letters without a transaction", "dead letters without a transaction"),
    Mutation("a start removes a checkpoint that it had not seen when it looked", "remains removed unseen"),
    Mutation("an entry of the sequence does not assert its predecessor", rules={"check_predecessor": lambda *_: None}),
)
