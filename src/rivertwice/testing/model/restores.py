"""Restore, the agent's fall-back, and giving up."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from rivertwice.errors import LostRaceError, RivertwiceError, SavepointError, ServiceError
from rivertwice.savepoint import operation as steps
from rivertwice.savepoint.fallback import moved_since, select_candidates
from rivertwice.savepoint.operation import Operation
from rivertwice.savepoint.plan import is_on_path
from rivertwice.stream.seal import SEALED
from rivertwice.testing.model.process import Process, Steps, point
from rivertwice.testing.model.savepoints import fetch, lease_saved, load_saved, newest, plan_rows, replay, replay_in_one
from rivertwice.testing.model.stream import TOPIC
from rivertwice.testing.model.world import Checkpoint, Drain, World
from rivertwice.timeline.intent import Intent
from rivertwice.timeline.lineage import fork_of

LEASE = timedelta(hours=6)
RECORDED = point("restore: recorded")
CHECKED = point("restore: checked")
STOP_WANTED = point("restore: stop wanted")
DRAIN_PUT = point("restore: drain marker put")
WAITS = point("restore: waits for the driver")
DRAINED = point("restore: drained")
FORKED = point("restore: fork decided")
REPLAYED = point("restore: replayed")
RENAMED = point("restore: checkpoint renamed")
REPLAY_RECORDED = point("restore: replay recorded")
CREATED = point("restore: timeline created")
CREATE_RECORDED = point("restore: creation recorded")
LOOKED = point("restore: head and last batch looked at")
SEALED_AT = point("restore: parent sealed")
LOOKED_AGAIN = point("restore: last batch looked at again")
MOVED = point("restore: head moved")
MOVE_RECORDED = point("restore: move recorded")
WANTED = point("restore: stream wanted again")
DONE = point("restore: done")
ABANDONED = point("abandon: marked")
REFUSED = point("fall-back: refused")
RESTORED = point("fall-back: restored")


def run_restore(world: World, me: Process) -> Steps:
    """Restore the newest proved savepoint, or go on with what was interrupted."""
    yield from _restore(world, me, None, keep_intent=False)


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
    if moved_since(world.sequence, since, world.now) is not None and not world.unfinished():
        return None
    if world.owner_lives():
        message = "a driver lives"
        raise ServiceError(message)
    interrupted = [operation.savepoint for operation in world.unfinished()]
    head = world.head()
    path = [] if head is None else world.rules.trace_path(head, world.timelines.__getitem__)
    there = [one.view() for one in world.savepoints.values() if one.exists]
    names = interrupted + [one.id for one in select_candidates(there, path) if one.id not in interrupted]
    for name in names:
        try:
            operation = yield from _restore(world, me, name, keep_intent=True)
        except SavepointError:
            yield from _abandon(world, me)
        else:
            return (operation.child, operation.forked_at)
    message = "no proved savepoint can be used"
    raise SavepointError(message)


def run_abandon(world: World, me: Process) -> Steps:
    """Give an interrupted restore up."""
    yield from _abandon(world, me)


def _abandon(world: World, me: Process) -> Steps:
    _lock(world, me)
    unfinished = world.unfinished()
    if not unfinished:
        return
    found = unfinished[-1]
    sealed = world.rules.is_sealed(world.applied.get(f"model#{found.parent}"))
    if found.step >= steps.MOVED or world.head() == found.child or (sealed and world.broken != "abandoned when sealed"):
        message = f"{found.id} can only be finished"
        raise LostRaceError(message)
    world.operations[found.id] = replace(found, step=steps.ABANDONED)
    yield ABANDONED
    saved = world.savepoints.get(found.savepoint)
    if saved is not None:
        world.release(saved, me, found.id)
    if found.was_running and world.intent is not None and world.intent.by == found.id:
        world.intent = Intent("running", f"{found.id} (given up)", world.now)


def _lock(world: World, me: Process) -> None:
    if not world.lock("restore", me):
        message = "another process restores"
        raise LostRaceError(message)


def _advance(world: World, operation: Operation, step: int, **changes: Any) -> Operation:
    changed = replace(operation, step=step, **changes)
    world.operations[operation.id] = changed
    return changed


def _restore(world: World, me: Process, name: str | None, *, keep_intent: bool) -> Any:
    _lock(world, me)
    world.rules.require_no_rewind(list(world.rewinds.values()))
    found = world.rules.select_unfinished(list(world.operations.values()), name)
    operation: Operation = found or _begin(world, name, keep_intent=keep_intent)
    if found is None:
        yield RECORDED
    saved = None
    try:
        saved = load_saved(world, operation.savepoint)
        yield from lease_saved(world, me, saved, operation.id, LEASE)
        operation = yield from _check(world, saved, operation)
    except RivertwiceError:
        if operation.step < steps.DRAINED:
            world.operations.pop(operation.id, None)
            if saved is not None:
                world.release(saved, me, operation.id)
        raise
    operation = yield from _go_on(world, me, saved, operation)
    world.release(saved, me, operation.id)
    return operation


def _begin(world: World, name: str | None, *, keep_intent: bool) -> Operation:
    parent = world.head()
    if name is None:
        path = [] if parent is None else world.rules.trace_path(parent, world.timelines.__getitem__)
        chosen = newest(world, proved=True, path=path)
        if chosen is None:
            message = "no savepoint is proved"
            raise SavepointError(message)
        name = chosen.name
        older = [
            one.name
            for one in world.savepoints.values()
            if one.exists and one.proof is not None and is_on_path(one.view().manifest, path)
        ]
        if world.nonce % 4 == 3 and older[0] not in world.refused:
            name = older[0]  # a person may name another one
    load_saved(world, name)
    if parent is None:
        message = "there is no head"
        raise SavepointError(message)
    running = world.intent is not None and world.intent.desired == "running" and not keep_intent
    world.nonce += 1
    operation = Operation(f"restore-{world.nonce:08x}", name, parent, world.free_name(), running, world.now)
    world.operations[operation.id] = operation
    return operation


def _check(world: World, saved: Any, operation: Operation) -> Any:
    if operation.step >= steps.CREATED:
        return operation
    rules, manifest = world.rules, saved.manifest
    rules.require_fingerprint(manifest, world.fingerprint())
    rules.require_on_path(manifest, rules.trace_path(operation.parent, world.timelines.__getitem__))
    rules.check_topics(manifest.topic_ids, {TOPIC: world.topic_id}, "model")
    last = world.path_rows(operation.parent)[-1]
    end = {partition: bounds[1] for partition, bounds in last.ranges(TOPIC).items()}
    rules.require_reach(end, dict(enumerate(world.begin)), batch=last.batch, topic=TOPIC)
    if operation.step < steps.CHECKED:
        fetch(world, saved)
        operation = _advance(world, operation, steps.CHECKED)
        yield CHECKED
    return operation


def _go_on(world: World, me: Process, saved: Any, operation: Operation) -> Any:
    if operation.step < steps.MOVED:
        yield from drain(world, me, operation.id, wanted=operation.was_running)
    if operation.step < steps.DRAINED:
        operation = _advance(world, operation, steps.DRAINED)
        yield DRAINED
    if operation.step < steps.CREATED:
        last = world.path_rows(operation.parent)[-1].batch
        operation = world.rules.plan_fork(operation, last)
        world.operations[operation.id] = operation
        yield FORKED
        operation = yield from _replay(world, saved, operation)
        operation = yield from _create(world, operation)
    if operation.step < steps.MOVED:
        operation = yield from _move(world, operation)
    if operation.step < steps.DONE:
        if operation.was_running:
            world.intent = Intent("running", operation.id, world.now)
            yield WANTED
        operation = _advance(world, operation, steps.DONE)
        yield DONE
    return operation


def drain(world: World, me: Process, by: str, *, wanted: bool) -> Steps:
    """Want the stream stopped and wait for its driver's end."""
    if wanted or world.owner_lives():
        world.intent = Intent("stopped", by, world.now)
        yield STOP_WANTED
        if world.drain is None:
            world.drain = Drain(me.pid, world.now, by)
        yield DRAIN_PUT
    for _ in range(12):
        if not world.owner_lives():
            world.drain = None
            return
        yield WAITS
    world.drain = None
    message = "the driver did not stop in time"
    raise ServiceError(message)


def _replay(world: World, saved: Any, operation: Operation) -> Any:
    if operation.step >= steps.REPLAYED and operation.child in world.checkpoints:
        return operation
    world.checkpoints.pop(operation.child, None)
    work: Checkpoint = fetch(world, saved)
    until = operation.forked_at or 0
    if world.broken == "restore forks at the savepoint":
        until = saved.manifest.batch
    plan = plan_rows(world, saved.manifest, world.path_rows(operation.parent), until)
    if world.broken == "replay with other ranges" and len(plan.rows) > 1:
        replay_in_one(world, work, plan)
    else:
        replay(world, work, plan, saved.manifest)
    yield REPLAYED
    target = operation.parent if world.broken == "restored into the same timeline" else operation.child
    world.checkpoints[target] = work
    yield RENAMED
    operation = _advance(world, operation, steps.REPLAYED, replayed=len(plan.rows))
    yield REPLAY_RECORDED
    return operation


def _create(world: World, operation: Operation) -> Any:
    parent = world.timelines[operation.parent]
    last = world.path_rows(operation.parent)[-1]
    if last.batch != operation.forked_at:
        message = f"{operation.parent} has batch {last.batch} meanwhile"
        raise LostRaceError(message)
    line = fork_of(parent, last, operation.child, world.now)
    if world.broken == "head moved before the record":
        world.move_head(operation.child, "too early", world.last_seq())
        yield MOVED
    recorded = world.timelines.setdefault(operation.child, line)
    if not world.rules.is_same_fork(recorded, operation):
        _fork_again(world, operation, last.batch)
    yield CREATED
    operation = _advance(world, operation, steps.CREATED)
    yield CREATE_RECORDED
    return operation


def _fork_again(world: World, operation: Operation, last: int) -> None:
    _advance(world, operation, steps.CHECKED, child=world.free_name(), forked_at=None, replayed=0)
    message = f"{operation.id} forked at {operation.forked_at}, but {operation.parent} has batch {last}"
    raise LostRaceError(message)


def _move(world: World, operation: Operation) -> Any:
    seen, head = world.last_seq(), world.head()
    last = world.path_rows(operation.parent)[-1].batch
    found = world.rules.decide_move(operation, head, last)
    yield LOOKED
    if found == "fork again":
        _fork_again(world, operation, last)
    if found == "move":
        if world.broken != "parent not sealed":
            world.seal(f"model#{operation.parent}", SEALED)
            yield SEALED_AT
            last = world.path_rows(operation.parent)[-1].batch
            if world.rules.decide_move(operation, head, last) == "fork again":
                _fork_again(world, operation, last)
            yield LOOKED_AGAIN
        world.move_head(operation.child, f"restore of {operation.savepoint} ({operation.id})", seen)
        yield MOVED
    operation = _advance(world, operation, steps.MOVED)
    yield MOVE_RECORDED
    return operation
