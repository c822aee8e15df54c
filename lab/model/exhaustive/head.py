"""Head move with the seal of the timeline: a restore, its repetition, giving it up, and a driver of another host that still commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lab.model.driver import IDLE
from lab.model.exhaustive.batch import BatchScene, run_calmly
from lab.model.exhaustive.search import COMES_RIGHT, Bounds, Move, Scene, Slot, copies_of, harm_in
from lab.model.mutation import Mutation
from lab.model.rules import Rules
from lab.model.stories import ACTORS
from lab.model.stream import Record
from lab.model.violations import fail
from lab.model.world import World
from rivertwice.savepoint.operations.record import Restore
from rivertwice.stream.begin import FIRST, StartPlan
from rivertwice.stream.seal import is_sealed
from rivertwice.timeline import lineage, sequence

NO_COMMIT = "no batch is committed to a timeline after its seal"
ON_PATH = "every committed batch is on the path of the one head"
LOG = [
    [Record("ok", 1), Record("ok", 21), Record("ok", 41), Record("ok", 61)],
    [Record("ok", 2), Record("ok", 3), Record("ok", 42), Record("ok", 43)],
]


def _first_head(entries: Any) -> Any:
    moves = [entry for entry in entries if entry.kind == sequence.EntryKind.HEAD]
    return moves[0].payload["timeline"] if moves else None


def _own_only(rows: Any, path: Any) -> Any:
    return lineage.select_on_path(rows, path[-1:])


def _first_start(_: Any, timelines: Any) -> StartPlan:
    return StartPlan(FIRST, create=FIRST not in timelines, move=True)


class HeadScene(BatchScene):
    """A restore and a driver of another host."""

    def __init__(self, *given: Any) -> None:
        """Begin with a timeline, of which a savepoint is proved."""
        super().__init__(*given)
        self.sealed: dict[str, int] = {}

    def durable(self) -> Any:
        """Return the world, and how many batches each sealed timeline had at its seal."""
        return super().durable(), tuple(self.sealed.items())

    def outside(self) -> Iterator[Move]:
        """Nothing is stopped: a driver that does not move is as good."""
        yield from ()

    def check(self) -> None:
        """Check the seal, and that what was committed counts."""
        world = self.world
        for timeline in world.timelines:
            rows = sum(row.timeline == timeline for row in world.commits)
            if not is_sealed(world.applied.get(f"model#{timeline}")):
                continue
            if self.sealed.setdefault(timeline, rows) != rows:
                fail(NO_COMMIT, f"{timeline}: {rows} batches, {self.sealed[timeline]} at its seal")
        head = world.head()
        assert head is not None, "it began with one"
        void = {(row.timeline, row.batch) for row in world.commits} - {
            (row.timeline, row.batch) for row in world.path_rows(head)
        }
        if void:
            fail(ON_PATH, f"{void}, the head is {head}")

    def is_good(self) -> bool:
        """Say whether the restore is done or given up, and everything is committed."""
        return not self.world.unfinished(Restore) and super().is_good()

    def finish(self) -> None:
        """Let a person finish the restore, and a driver commit the rest."""
        for _ in range(3):  # one that finds that the parent went on takes another child, the next time
            if self.world.unfinished(Restore):
                run_calmly(self.world, "restore")
        run_calmly(self.world, "standby", host=2, until=IDLE)
        self.check()
        super().finish()


def begin(rules: Rules, broken: str, bounds: Bounds) -> Callable[[], Scene]:
    """Return what begins the scene: three batches, a savepoint of the first one, and records for more."""
    world = World(LOG, Rules(), ACTORS)
    world.rate, world.produced, world.shared_lease = 2, [1, 1], True
    run_calmly(world, "driver", until=IDLE)
    run_calmly(world, "take")
    world.produced = [2, 2]
    run_calmly(world, "driver", until=IDLE)
    run_calmly(world, "prove")
    world.produced = [3, 2]
    world.rules, world.broken = rules, broken
    copy = copies_of(world)
    slots = {
        "restore": Slot("restore", 1, bounds["starts"]),
        "driver": Slot("standby", 2, bounds["drivers"]),
        **({"abandon": Slot("abandon")} if bounds["abandon"] else {}),
    }
    return lambda: HeadScene(copy(), slots, harm_in(bounds))


INVARIANTS = (
    NO_COMMIT,
    ON_PATH,
    "the sequence has no gap",
    "the head names a recorded timeline",
    "no head move voids a batch unasked",
    "a child continues where its parent ended",
    "a restored state is the recorded one",
    "each batch begins where the one before it ended",
    COMES_RIGHT,
)
MUTATIONS = (
    Mutation("the parent is not sealed before the head moves", "parent not sealed"),
    Mutation("a sealed restore is given up", "abandoned when sealed"),
    Mutation("the head moves though the parent went on", "moved without a last look"),
    Mutation("the head moves before the child's record", "head moved before the record"),
    Mutation("a child's record of another fork is taken for this one", rules={"is_same_fork": lambda *_: True}),
    Mutation("a restore writes into the timeline it came from", "restored into the same timeline"),
    Mutation("a restore continues from the savepoint's own batch", "restore forks at the savepoint"),
    Mutation("a restore replays with other ranges", "replay with other ranges"),
    Mutation("the oldest head move counts", rules={"select_head": _first_head}),
    Mutation("only the head's own batches count", rules={"select_on_path": _own_only}),
    Mutation("a seal is not seen", rules={"is_sealed": lambda _: False}),
    Mutation("every start is a first start", rules={"plan_start": _first_start}),
)
