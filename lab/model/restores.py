"""Restore, the agent's fall-back, and giving up."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any, NoReturn

from lab.model.checkpoints import view_of
from lab.model.durable import Checkpoint
from lab.model.operations import WorldEffects, abandon_operation, run_operation
from lab.model.process import Process, Steps, point
from lab.model.savepoints import (
    describe_row,
    fetch,
    load_saved,
    newest,
    plan_rows,
    replay,
    replay_in_one,
    save_checkpoint,
)
from lab.model.stream import DELAY_MS, TOPIC
from lab.model.world import World
from rivertwice.core.errors import LostRaceError, RivertwiceError, SavepointError, ServiceError
from rivertwice.savepoint.manifest import StateBase
from rivertwice.savepoint.operations.engine import HEAD_MOVED
from rivertwice.savepoint.operations.fall_back import moved_since, select_candidates
from rivertwice.savepoint.operations.record import OperationStep, Restore
from rivertwice.savepoint.operations.steps import OperationPlan, Step, select_plan
from rivertwice.savepoint.plan import is_on_path
from rivertwice.stream.damage import CheckpointView
from rivertwice.timeline.watermarks import WatermarkRule

TAKEN_AT = point("planned restore: its savepoint taken")
DAMAGED = point("planned restore: checkpoint is damaged, the proved savepoint is its base")
REPLAYED_AT = point("restore: replayed and compared")
RENAMED = point("restore: checkpoint renamed")
CREATED_AT = point("restore: child's record put")
REFUSED = point("fall-back: refused")
RESTORED = point("fall-back: restored")


def run_restore(world: World, me: Process) -> Steps:
    """Restore the newest proved savepoint, or continue what was interrupted."""
    yield from run_operation(_plan(world), RestoreEffects(world, me, Restore), None)


def run_planned(world: World, me: Process) -> Steps:
    """Restore from a savepoint that is taken now, of the drained checkpoint, or continue that."""
    yield from run_operation(_plan(world, planned=True), RestoreEffects(world, me, Restore), StateBase.RESTING)


def _plan(world: World, *, planned: bool = False) -> OperationPlan[Restore]:
    unfinished = world.unfinished(Restore)
    return select_plan(planned=unfinished[-1].planned if unfinished else planned, upgrade=False)


def run_fall_back(world: World, me: Process) -> Steps:
    """Put the newest usable proved savepoint in the place of a damaged checkpoint."""
    position = None
    try:
        position = yield from _try_all(world, me)
    except RivertwiceError as error:
        world.fall_backs[me.pid] = (False, str(error), None)
        yield REFUSED
        return
    world.fall_backs[me.pid] = (True, "restored", position)
    yield RESTORED


def _try_all(world: World, me: Process) -> Any:
    memory = world.memory
    since = memory.failures[-1].at if memory is not None and memory.failures else None
    if moved_since(world.sequence, since, world.now) is not None and not world.unfinished(Restore):
        return None
    if world.owner_lives():
        message = "a driver lives"
        raise ServiceError(message)
    interrupted = [restore.savepoint for restore in world.unfinished(Restore)]
    head = world.head()
    path = [] if head is None else world.rules.trace_path(head, world.timelines.__getitem__)
    views = [savepoint.view() for savepoint in world.savepoints.values() if savepoint.exists]
    names = interrupted + [view.id for view in select_candidates(views, path) if view.id not in interrupted]
    for name in names:
        try:
            effects = RestoreEffects(world, me, Restore, keep_intent=True)
            restore = yield from run_operation(_plan(world), effects, name)
        except SavepointError:
            if world.unfinished(Restore):
                yield from run_abandon(world, me)
        else:
            return (restore.child, restore.forked_at)
    message = "no proved savepoint can be used"
    raise SavepointError(message)


def run_abandon(world: World, me: Process) -> Steps:
    """Give an interrupted restore up."""
    yield from abandon_operation(_plan(world), RestoreEffects(world, me, Restore))


class RestoreEffects(WorldEffects[Restore]):
    """The effects of a restore."""

    def begin(self, savepoint: str | None) -> Restore:
        """Decide what is to be done."""
        world = self.world
        parent = world.head()
        if savepoint == StateBase.RESTING:
            return self.begin_planned(parent)
        name = savepoint
        if name is None:
            path = [] if parent is None else world.rules.trace_path(parent, world.timelines.__getitem__)
            chosen = newest(world, proved=True, path=path)
            if chosen is None:
                message = "no savepoint is proved"
                raise SavepointError(message)
            name = chosen.name
            older = [
                candidate.name
                for candidate in world.savepoints.values()
                if candidate.exists and candidate.proof is not None and is_on_path(candidate.view().manifest, path)
            ]
            if world.nonce % 4 == 3 and older[0] not in world.refused:
                name = older[0]  # a person may name another one
        load_saved(world, name)
        if parent is None:
            message = "there is no head"
            raise SavepointError(message)
        world.nonce += 1
        return Restore(f"restore-{world.nonce:08x}", name, parent, world.free_name(), self.is_wanted(), world.now)

    def begin_planned(self, parent: str | None) -> Restore:
        """Begin a planned restore: with the newest proved savepoint of the parent's definition as the way back."""
        world = self.world
        if parent is None or not world.path_rows(parent):
            message = "there is no head, or it has no batch"
            raise SavepointError(message)
        origin = newest(world, proved=True, path=world.rules.trace_path(parent, world.timelines.__getitem__))
        if origin is None and world.broken != "planned without a way back":
            message = "no savepoint is proved, so there would be no way back"
            raise SavepointError(message)
        world.nonce += 1
        return Restore(
            f"restore-{world.nonce:08x}",
            StateBase.RESTING,
            parent,
            world.free_name(),
            self.is_wanted(),
            world.now,
            planned=True,
            origin=None if origin is None else origin.name,
        )

    def do(self, step: Step, record: Restore) -> Generator[str | int, None, Restore]:
        """Do a step."""
        if step.number == OperationStep.CHECKED:
            self.check(record)
            return record
        if step.number == OperationStep.DRAINED:
            return (yield from self.stop(record))
        if step.number == OperationStep.FORKED:
            forked: Restore = self.world.rules.plan_fork(record, self.world.path_rows(record.parent)[-1].batch)
            taken = None if self.saved is None else self.saved.view().manifest.batch
            is_based = taken is not None and (forked == record or taken == forked.forked_at)
            return forked if is_based or not record.planned else (yield from self.take(forked))
        if step.number == OperationStep.REPLAYED:
            return (yield from self.replay(record))
        return (yield from self.create(record))

    def check(self, restore: Restore) -> None:
        """Refuse what cannot be restored."""
        world, rules = self.world, self.world.rules
        last = world.path_rows(restore.parent)[-1]
        resting = describe_row(world, StateBase.RESTING, last, world.now)
        manifest = resting if self.saved is None else self.saved.view().manifest
        rules.require_fingerprint(manifest, world.fingerprint())
        rules.require_on_path(manifest, rules.trace_path(restore.parent, world.timelines.__getitem__))
        rules.check_topics(manifest.topic_ids, {TOPIC: world.topic_id}, "model")
        end = {partition: bounds[1] for partition, bounds in last.ranges(TOPIC).items()}
        rules.require_reach(end, dict(enumerate(world.begin)), batch=last.batch, topic=TOPIC)
        if restore.step < OperationStep.CHECKED:
            for name in restore.held:
                fetch(world, load_saved(world, name))

    def take(self, restore: Restore) -> Generator[str | int, None, Restore]:
        """Take the savepoint of the resting checkpoint; if that is damaged, the base is the origin."""
        world, before = self.world, self.saved
        rows = world.path_rows(restore.parent)
        checkpoint = world.checkpoints.get(restore.parent)
        view = CheckpointView(None, frozenset(), frozenset(), {}) if checkpoint is None else view_of(checkpoint)
        problem = world.rules.find_damage(view, rows, lambda _: WatermarkRule({TOPIC: DELAY_MS}))
        if problem is None:
            self.saved = yield from save_checkpoint(world, self.me, restore.parent, holder=restore.id)
            yield TAKEN_AT
        elif restore.origin is None:
            message = f"{restore.parent} is damaged ({problem}), and there is no way back"
            raise SavepointError(message)
        else:
            world.report_damage(problem)
            self.saved = load_saved(world, restore.origin)
            yield DAMAGED
        assert self.saved is not None
        if before is not None and before.name in restore.held and before.name not in (self.saved.name, restore.origin):
            world.release(before, self.me, restore.id)
        return replace(restore, savepoint=self.saved.name)

    def replay(self, restore: Restore) -> Generator[str | int, None, Restore]:
        """Make the child's checkpoint."""
        world, saved = self.world, self.saved
        assert saved is not None
        manifest = load_saved(world, saved.name).view().manifest
        if restore.step >= OperationStep.REPLAYED and restore.child in world.checkpoints:
            return restore
        world.checkpoints.pop(restore.child, None)
        work: Checkpoint = fetch(world, saved)
        until = restore.forked_at or 0
        if world.broken == "restore forks at the savepoint":
            until = manifest.batch
        plan = plan_rows(world, manifest, world.path_rows(restore.parent), until)
        if world.broken == "replay with other ranges" and len(plan.rows) > 1:
            replay_in_one(world, work, plan)
        else:
            replay(world, work, plan, manifest)
        yield REPLAYED_AT
        target = restore.parent if world.broken == "restored into the same timeline" else restore.child
        world.checkpoints[target] = work
        yield RENAMED
        return replace(restore, replayed=len(plan.rows))

    def create(self, restore: Restore) -> Generator[str | int, None, Restore]:
        """Record the child."""
        world = self.world
        parent = world.timelines[restore.parent]
        last = world.path_rows(restore.parent)[-1]
        if last.batch != restore.forked_at:
            message = f"{restore.parent} has batch {last.batch} meanwhile"
            raise LostRaceError(message)
        line = parent.fork(last, restore.child, world.now)
        if world.broken == "head moved before the record":
            world.move_head(restore.child, "too early", world.last_seq())
            yield HEAD_MOVED
        recorded = world.timelines.setdefault(restore.child, line)
        if not world.rules.is_same_fork(recorded, restore):
            self._take_another_child(restore)
        yield CREATED_AT
        return restore

    def again(self, record: Restore) -> Generator[str | int, None, Restore]:
        """Take another child."""
        yield from ()
        self._take_another_child(record)

    def _take_another_child(self, restore: Restore) -> NoReturn:
        self.write(
            replace(restore, step=OperationStep.CHECKED, child=self.world.free_name(), forked_at=None, replayed=0)
        )
        message = f"{restore.id} forked at {restore.forked_at}, but {restore.parent} went on"
        raise LostRaceError(message)
