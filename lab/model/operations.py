"""The engine of operations in the model's world: the same steps and decisions, other effects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Generic

from lab.model.durable import Drain
from lab.model.process import Process, Steps, point
from lab.model.saved import Saved
from lab.model.savepoints import lease_saved, load_saved
from lab.model.world import World
from rivertwice.core.errors import LostRaceError, ServiceError
from rivertwice.savepoint.manifest import StateBase
from rivertwice.savepoint.operations import engine
from rivertwice.savepoint.operations.record import Operation, OperationStep
from rivertwice.savepoint.operations.steps import PLANS, OperationPlan, R, Step
from rivertwice.stream.seal import SEALED
from rivertwice.timeline.intent import Intent

LEASE = timedelta(hours=6)
_ANY = (engine.LOOKED, engine.SEALED, engine.HEAD_MOVED, engine.WANTED)
POINTS = {
    (plan.noun, name): point(f"{plan.noun}: {name}")
    for plan in PLANS
    for name in (plan.name_of(OperationStep.RECORDED), *(step.name for step in plan.steps), "given up", *_ANY)
}
STOP_WANTED = point("operation: stop wanted")
DRAIN_PUT = point("operation: drain marker put")
WAITS = point("operation: waits for the driver")
ENDED = point("operation: driver that catches up ended")


class WorldEffects(ABC, Generic[R]):
    """The effects of an operation on the world; a subclass adds what is its own."""

    pipeline = "model"

    def __init__(self, world: World, me: Process, kind: type[R], *, keep_intent: bool = False) -> None:
        """Let a process do an operation."""
        self.world = world
        self.me = me
        self.kind: type[R] = kind
        self.keep_intent = keep_intent
        self.saved: Saved | None = None

    def operations(self) -> Sequence[Operation]:
        """Return all operations, oldest first."""
        all_operations = list(self.world.operations.values())
        if self.world.broken == "begun under another operation":
            return [operation for operation in all_operations if isinstance(operation, self.kind)]
        return all_operations

    def write(self, record: Operation) -> None:
        """Write the record."""
        self.world.operations[record.id] = record

    def forget(self, record: R) -> None:
        """Remove the record."""
        self.world.operations.pop(record.id, None)

    def accept(self, interrupted: R) -> None:
        """Continue the operation that was cut off."""

    @abstractmethod
    def begin(self, savepoint: str | None) -> R:
        """Decide what is to be done."""

    def lease(self, record: R) -> Generator[str | int]:
        """Load the savepoint, and keep prune away from all that the operation needs."""
        self.saved = None if record.savepoint == StateBase.RESTING else load_saved(self.world, record.savepoint)
        for name in record.held:
            yield from lease_saved(self.world, self.me, load_saved(self.world, name), record.id, LEASE)

    @abstractmethod
    def do(self, step: Step, record: R) -> Generator[str | int, None, R]:
        """Do a step."""

    @abstractmethod
    def again(self, record: R) -> Generator[str | int, None, R]:
        """Take over what the serving timeline has committed since."""

    def is_wanted(self) -> bool:
        """Say whether the stream is wanted running, so that it must be stopped, and wanted again at the end."""
        intent = self.world.intent
        return not self.keep_intent and intent is not None and intent.desired == "running"

    def hold(self, record: R) -> None:
        """Let nobody but the operation's own driver start the stream."""
        self.world.drain = Drain(self.me.pid, self.world.now, record.id)

    def let_go(self, record: Operation) -> None:
        """Undo `hold`."""
        if self.world.drain is not None and self.world.drain.by == record.id:
            self.world.drain = None

    def release(self, record: Operation) -> None:
        """End the leases."""
        for name in record.held:
            saved = self.world.savepoints.get(name)
            if saved is not None:
                self.world.release(saved, self.me, record.id)

    def clear(self, record: Operation) -> None:
        """Remove nothing: the model has no scratch folder."""

    def driver_of(self, timeline: str) -> Process | None:
        """Return the living owner if it catches up on a timeline."""
        world = self.world
        owner = world.processes.get(world.owner[1][1]) if world.owner_lives() else None
        return owner if owner is not None and owner.goal is not None and owner.goal.timeline == timeline else None

    def end_own_driver(self, record: Operation) -> Generator[str | int]:
        """End a driver that catches up for the operation."""
        for _ in range(20):
            driver = self.driver_of(record.child)
            if driver is None:
                return
            driver.asked = True
            yield ENDED
        message = f"the driver that catches up on {record.child} did not end"
        raise ServiceError(message)

    def intent(self) -> Intent | None:
        """Return the desired state of the stream."""
        return self.world.intent

    def want(self, desired: str, by: str) -> None:
        """Want the stream running or stopped."""
        self.world.intent = Intent(desired, by, self.world.now)

    def head(self) -> str | None:
        """Return the timeline that serves."""
        return self.world.head()

    def last_seq(self) -> int:
        """Return the number of the sequence's newest entry."""
        return self.world.last_seq()

    def last_batch(self, record: R) -> int:
        """Return the last committed batch of the timeline that serves until the head moves."""
        if self.world.broken == "moved without a last look" and record.reached is not None:
            return record.reached
        return self.world.path_rows(record.serving)[-1].batch

    def is_sealed(self, timeline: str) -> bool:
        """Say whether a timeline takes no further batch."""
        sealed: bool = self.world.rules.is_sealed(self.world.applied.get(f"model#{timeline}"))
        return sealed and self.world.broken != "abandoned when sealed"

    def seal(self, timeline: str) -> None:
        """Let a timeline take no further batch."""
        if self.world.broken != "parent not sealed":
            self.world.seal(f"model#{timeline}", SEALED)

    def move_head(self, record: R, expected_seq: int) -> None:
        """Let the child serve."""
        noun = record.id.partition("-")[0]
        self.world.move_head(record.child, f"{noun} of {record.savepoint} ({record.id})", expected_seq)

    def stop(self, record: R) -> Generator[str | int, None, R]:
        """Bring the stream to rest; a driver that works for the operation itself is left alone."""
        world = self.world
        wanted = self.is_wanted()
        if wanted and not record.was_running:
            record = replace(record, was_running=True)
            self.write(record)
        if self.driver_of(record.child) is not None:
            if wanted:
                self.want("stopped", record.id)
            return record
        if wanted or world.owner_lives():
            self.want("stopped", record.id)
            yield STOP_WANTED
            if world.drain is None:
                world.drain = Drain(self.me.pid, world.now, record.id)
            yield DRAIN_PUT
        for _ in range(12):
            if not world.owner_lives():
                world.drain = None
                return record
            yield WAITS
        world.drain = None
        message = "the driver did not stop in time"
        raise ServiceError(message)


def in_points(plan: OperationPlan[Any], steps: Generator[str | int, None, Any]) -> Steps:
    """Let the engine's steps be the model's points."""
    while True:
        try:
            at = next(steps)
        except StopIteration as stop:
            return stop.value
        yield POINTS[plan.noun, at] if isinstance(at, str) else at


def run_operation(
    plan: OperationPlan[R], effects: WorldEffects[R], savepoint: str | None, *, stop_after: int | None = None
) -> Generator[int, None, R]:
    """Run an operation, or resume the one that was cut off; return its record."""
    _lock(effects.world, effects.me)
    ran = yield from in_points(plan, engine.run(plan, effects, savepoint, stop_after=stop_after))
    record: R = ran.record
    return record


def abandon_operation(plan: OperationPlan[R], effects: WorldEffects[R]) -> Steps:
    """Give up what was cut off."""
    _lock(effects.world, effects.me)
    yield from in_points(plan, engine.abandon(plan, effects))


def _lock(world: World, me: Process) -> None:
    if not world.lock("restore", me):
        message = "another process works on an operation"
        raise LostRaceError(message)
