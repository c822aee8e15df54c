"""The explicit rewind, the driver that catches up for it, and giving it up."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from lab.model.durable import Drain
from lab.model.operations import WorldEffects, abandon_operation, run_operation
from lab.model.process import Process, Steps, point
from lab.model.savepoints import fetch
from lab.model.stream import TOPIC
from lab.model.world import World
from rivertwice.core.errors import SavepointError, ServiceError
from rivertwice.savepoint.operations.record import OperationStep, Rewind
from rivertwice.savepoint.operations.rewind_plan import Emitted
from rivertwice.savepoint.operations.rewind_plan import RewindInputs as Seen
from rivertwice.savepoint.operations.steps import REWIND, Step
from rivertwice.stream.checkpoint import Goal, covers
from rivertwice.timeline.ledger import LedgerRow

HELD = point("rewind: drain marker held")
COPIED_AT = point("rewind: child's checkpoint put")
CREATED_AT = point("rewind: child's record put")
STARTED = point("rewind: driver started that catches up")
CATCHES_UP = point("rewind: waits for it")


def run_rewind(world: World, me: Process) -> Steps:
    """Rewind to a proved savepoint, or continue what was interrupted; every second one stops before the head first."""
    cut_off = world.unfinished(Rewind)
    number = int(cut_off[-1].id[-1], 16) if cut_off else world.nonce + 1
    first = not cut_off or cut_off[-1].step < OperationStep.COMPARED
    stop_after = OperationStep.COMPARED if first and number % 2 else None
    yield from run_operation(REWIND, RewindEffects(world, me, Rewind), None, stop_after=stop_after)


def run_give_up(world: World, me: Process) -> Steps:
    """Give an unfinished rewind up."""
    yield from abandon_operation(REWIND, RewindEffects(world, me, Rewind))


class RewindEffects(WorldEffects[Rewind]):
    """The effects of a rewind."""

    def begin(self, savepoint: str | None) -> Rewind:
        """Decide what is to be done; a person names any proved savepoint, on the path or off it."""
        world = self.world
        head = world.head()
        proved = [
            candidate for candidate in world.savepoints.values() if candidate.exists and candidate.proof is not None
        ]
        if head is None or not proved:
            message = "there is no head, or no savepoint is proved"
            raise SavepointError(message)
        world.nonce += 1
        manifest = proved[world.nonce % len(proved)].view().manifest
        old = world.path_rows(head)
        new = [row for row in world.path_rows(manifest.timeline) if row.batch <= manifest.batch]
        if not old:
            message = f"{head} has no batch"
            raise SavepointError(message)
        facts = Seen(
            head=head,
            old_rows=old,
            new_rows=new,
            emitted=Emitted(0, 0),
            late=None,
            log_begins={TOPIC: dict(enumerate(world.begin))},
            topic_ids={TOPIC: world.topic_id},
            fingerprint=world.fingerprint(),
            publications=(),
            semantics=frozenset(),
        )
        for refusal in world.rules.find_refusals(manifest, facts, proved=True):
            raise refusal
        return Rewind(
            id=f"rewind-{world.nonce:08x}",
            savepoint=manifest.savepoint,
            parent=manifest.timeline,
            batch=manifest.batch,
            head=head,
            child=world.free_name(),
            was_running=self.is_wanted(),
            started_at=world.now,
            plan={},
        )

    def do(self, step: Step, record: Rewind) -> Generator[str | int, None, Rewind]:
        """Do a step."""
        world, saved = self.world, self.saved
        assert saved is not None
        if step.number == OperationStep.CHECKED:
            fetch(world, saved)
            return record
        if step.number == OperationStep.DRAINED:
            return (yield from self.stop(record))
        if step.number == OperationStep.COPIED:
            yield HELD
            world.checkpoints[record.child] = fetch(world, saved)
            yield COPIED_AT
            return record
        if step.number == OperationStep.BRANCHED:
            last = next(row for row in world.path_rows(record.parent) if row.batch == record.batch)
            line = world.timelines[record.parent].fork(last, record.child, world.now)
            world.timelines.setdefault(record.child, line)
            yield CREATED_AT
            return record
        return (yield from self.catch_up(record))

    def catch_up(self, rewind: Rewind) -> Generator[str | int, None, Rewind]:
        """Run a driver on the child until it has what the head has."""
        world = self.world
        if world.head() == rewind.child:
            return rewind
        last = world.path_rows(rewind.head)[-1]
        if world.broken != "rewind does not catch up":
            goal = Goal(rewind.child, rewind.id, last.end_offsets, last.batch_watermark_ms)
            yield from self._run_to_goal(goal)
        return replace(rewind, head_batch=last.batch)

    def again(self, record: Rewind) -> Generator[str | int, None, Rewind]:
        """Catch up with what the head has committed since."""
        caught_up = yield from self.catch_up(record)
        self.write(caught_up)
        return caught_up

    def _run_to_goal(self, goal: Goal) -> Generator[int]:
        world, me = self.world, self.me
        started: Process | None = None
        while True:
            if not world.owner_lives() and (started is None or not world.lives(started.pid)):
                row: LedgerRow = world.path_rows(goal.timeline)[-1]
                if world.rules.has_caught_up(goal, row.end_offsets, row.batch_watermark_ms):
                    return
                if started is not None:
                    if started.clean and covers(row.end_offsets, goal.offsets):
                        return
                    message = f"the driver that catches up on {goal.timeline} ended before it was there"
                    raise ServiceError(message)
                started = world.processes[world.spawn("catcher", parent=me.pid)]
                started.goal = goal
                yield STARTED
            world.drain = Drain(me.pid, world.now, goal.by)  # again and again: a start under way took it away
            yield CATCHES_UP
