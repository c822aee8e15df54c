"""What must hold of savepoints: those that exist, those that are proved, and those that are deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.model.stream import State
from lab.model.violations import fail
from rivertwice.savepoint.operations.record import Operation, OperationStep, Restore

if TYPE_CHECKING:
    from lab.model.saved import Saved
    from lab.model.world import World


def is_planned(operation: Operation) -> bool:
    """Say whether an operation takes its savepoint itself."""
    return isinstance(operation, Restore) and operation.planned


class SavepointJudge:
    """Every check that is made when a savepoint comes into being, is proved or goes."""

    def __init__(self, world: World) -> None:
        """Watch a world from its beginning."""
        self.world = world

    def exists(self, saved: Saved) -> None:
        """Check that a savepoint that exists is whole."""
        if saved.content is None and not saved.deleting and saved.name in self.world.savepoints:
            fail("a savepoint with a manifest is whole", saved.name)

    def proved(self, saved: Saved, state: State | None) -> None:
        """Check that a savepoint that is being proved, or was, holds the recorded state."""
        manifest = saved.manifest
        assert manifest is not None
        if state != self.world.judge.made[manifest.timeline, manifest.batch].state:
            fail("a proved savepoint restores to the recorded state", saved.name)

    def deletes(self, saved: Saved) -> None:
        """Check that no process needs what is deleted."""
        world = self.world
        if saved.manifest is None:
            return
        # A lease counts once its holder has looked for the mark; before that, the process that finds the mark gives it back.
        if saved.pinned or any(until > world.now for until in saved.using.values()):
            fail("prune spares the pinned and the leased", saved.name)
        if saved.name in world.needed():
            fail("prune spares what a restore needs", saved.name)
        if saved.name in self._ways_back():
            fail("prune spares the way back until the proof", saved.name)
        if saved.proof is not None and not saved.rotten:
            newer = [
                savepoint
                for savepoint in world.savepoints.values()
                if savepoint.manifest is not None
                and savepoint.proof is not None
                and not savepoint.rotten
                and not savepoint.deleting
            ]
            if not any(
                savepoint.manifest.created_at >= saved.manifest.created_at for savepoint in newer if savepoint.manifest
            ):
                fail("prune spares the newest proved", saved.name)

    def _ways_back(self) -> set[str]:
        """Return the savepoints that planned restores on the head's path need until theirs is proved."""
        world = self.world
        head = world.head()
        counting = {key[0] for key in (world.judge.path(head) if head is not None else [])} | {head}
        names: set[str] = set()
        for operation in world.operations.values():
            base = world.savepoints.get(operation.savepoint)
            if (
                is_planned(operation)
                and operation.step == OperationStep.DONE
                and operation.child in counting
                and base is not None
            ):
                names |= set(operation.held) if base.proof is None else set()
        return names
