"""A schedule while it runs: what was decided is done, step by step."""

from __future__ import annotations

from typing import Any

from lab.model.coverage import Coverage
from lab.model.events import apply_event
from lab.model.process import POINTS, Process
from lab.model.stories import QUIET, Decision
from lab.model.world import World
from rivertwice.core.errors import RivertwiceError


class Run:
    """A world, and what was decided in it so far."""

    def __init__(self, world: World, coverage: Coverage, *, trace: bool) -> None:
        """Begin; nothing has moved yet."""
        self.world = world
        self.coverage = coverage
        self.tracing = trace
        self.lines: list[str] = []
        self.decisions: list[Decision] = []
        self.woken: set[int] = set()

    def find(self, name: str) -> Process | None:
        """Return a living process by its name."""
        pid = self.world.names.get(name)
        return None if pid is None else self.world.processes[pid]

    def world_of(self, process: Process) -> World:
        """Return the world that a process acts in."""
        return self.world

    def happen(self, what: str, argument: Any) -> None:
        """Let something happen from outside."""
        apply_event(self.world, what, argument)

    def perform(self, decision: Decision) -> None:
        """Do what was decided; a decision that no longer fits the world is skipped."""
        self.decisions.append(decision)
        what, argument = decision
        if what not in ("step", "crash", "pause", "wake"):
            if self.tracing:
                self.lines.append(f"{what} {argument}")
            self.happen(what, argument)
            return
        process = self.find(argument)
        if process is None:
            return
        if what == "step":
            self.step(process)
        elif what == "crash":
            if process.at >= 0:
                self.coverage.crashed[process.at] += 1
            self.note(process, "is killed")
            self.world_of(process).end(process)
        elif what == "pause":
            if process.at >= 0:
                self.coverage.paused[process.at] += 1
            self.note(process, "is stopped by a signal")
            process.paused = True
        else:
            process.paused = False
            self.woken.add(process.pid)
            self.note(process, "wakes")

    def step(self, process: Process) -> None:
        """Let a process go to its next point, or to its end."""
        world, coverage = self.world_of(process), self.coverage
        if process.paused:
            return
        world.tick(0.25)
        if process.pid in self.woken:
            self.woken.discard(process.pid)
        elif world.claim is not None and world.claim.epoch == process.epoch:
            process.renewed_s = world.forward_s
        try:
            process.at = next(process.steps)
            coverage.reached[process.at] += 1
            coverage.steps += 1
            if self.tracing:
                self.note(process, POINTS[process.at])
        except StopIteration:
            self.note(process, "ends")
            world.end(process)
        except RivertwiceError as error:
            name = f"{process.kind}: {type(error).__name__}"
            coverage.errors[name] = coverage.errors.get(name, 0) + 1
            self.note(process, f"ends with {type(error).__name__}: {error}")
            world.end(process)
            self.has_failed(process, error)
        if coverage.states is not None:
            coverage.remember(self.state())

    def state(self) -> tuple[Any, ...]:
        """Return what tells the present state from others."""
        return state_of(self.world)

    def has_failed(self, process: Process, error: RivertwiceError) -> None:
        """Take note that a process ended with an error."""

    def note(self, process: Process, what: str) -> None:
        """Add a line to the trace."""
        if self.tracing and what not in QUIET:
            epoch = f" (epoch {process.epoch})" if process.epoch else ""
            self.lines.append(f"{process.name}{epoch}: {what}")


def state_of(world: World) -> tuple[Any, ...]:
    """Return what tells the present state of a world from others."""
    return (
        tuple(world.applied.values()),
        tuple(
            (len(checkpoint.offsets), max(checkpoint.commits, default=-1)) for checkpoint in world.checkpoints.values()
        ),
        tuple((process.kind, process.at, process.paused) for process in world.processes.values()),
        len(world.sequence),
        len(world.epochs),
        tuple(
            (savepoint.deleting, savepoint.proof is None, savepoint.manifest is None, len(savepoint.leases))
            for savepoint in world.savepoints.values()
        ),
        tuple(operation.step for operation in world.operations.values()),
        tuple(world.archived.values()),
        tuple(world.begin),
        tuple(world.produced),
        world.intent is not None and world.intent.desired,
    )
