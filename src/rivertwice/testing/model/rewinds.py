"""The explicit rewind, the driver that catches up for it, and giving it up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rivertwice.errors import LostRaceError, RivertwiceError, SavepointError, ServiceError
from rivertwice.savepoint import rewind_record as steps
from rivertwice.savepoint.rewind_plan import Emitted
from rivertwice.savepoint.rewind_plan import World as Seen
from rivertwice.savepoint.rewind_record import Rewind
from rivertwice.stream.catch_up import Goal, covers
from rivertwice.stream.seal import SEALED
from rivertwice.testing.model.process import Process, Steps, point
from rivertwice.testing.model.restores import LEASE, drain
from rivertwice.testing.model.savepoints import fetch, lease_saved, load_saved
from rivertwice.testing.model.stream import TOPIC
from rivertwice.testing.model.world import Drain, World
from rivertwice.timeline.intent import Intent
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.lineage import fork_of

RECORDED = point("rewind: recorded")
CHECKED = point("rewind: checked")
STOPPED = point("rewind: stream stopped")
HELD = point("rewind: drain marker held")
COPIED = point("rewind: savepoint copied")
COPY_RECORDED = point("rewind: copy recorded")
CREATED = point("rewind: timeline created")
CREATE_RECORDED = point("rewind: creation recorded")
STARTED = point("rewind: driver started that catches up")
CATCHES_UP = point("rewind: waits for it")
COMPARED = point("rewind: caught up and compared")
LOOKED = point("rewind: head and last batch looked at")
SEALED_AT = point("rewind: old head sealed")
MOVED = point("rewind: head moved")
MOVE_RECORDED = point("rewind: move recorded")
WANTED = point("rewind: stream wanted again")
DONE = point("rewind: done")
ENDED = point("give up: driver that catches up ended")
ABANDONED = point("give up: marked")


def run_rewind(world: World, me: Process) -> Steps:
    """Rewind to a proved savepoint, or go on with what was interrupted; every second one stops before the head first."""
    _lock(world, me)
    rules = world.rules
    rules.require_no_restore(list(world.operations.values()))
    found = rules.select_unfinished_rewind(list(world.rewinds.values()), None)
    rewind: Rewind = found or _begin(world)
    if found is None:
        yield RECORDED
    saved = None
    try:
        saved = load_saved(world, rewind.savepoint)
        yield from lease_saved(world, me, saved, rewind.id, LEASE)
        if rewind.step < steps.CHECKED:
            fetch(world, saved)
            rewind = _advance(world, rewind, steps.CHECKED)
            yield CHECKED
    except RivertwiceError:
        if rewind.step < steps.DRAINED:
            world.rewinds.pop(rewind.id, None)
            if saved is not None:
                world.release(saved, me, rewind.id)
        raise
    try:
        rewind = yield from _go_on(world, me, saved, rewind)
    except RivertwiceError:
        _let_go(world, rewind.id)
        raise
    if rewind.step >= steps.DONE:
        world.release(saved, me, rewind.id)


def run_give_up(world: World, me: Process) -> Steps:
    """Give an unfinished rewind up."""
    _lock(world, me)
    head = world.head()
    sealed = world.rules.is_sealed(world.applied.get(f"model#{head}"))
    found = world.rules.select_given_up(list(world.rewinds.values()), head, is_head_sealed=sealed)
    for _ in range(20):
        driver = _driver_of(world, found.child)
        if driver is None:
            break
        driver.asked = True
        yield ENDED
    else:
        message = f"the driver that catches up on {found.child} did not end"
        raise ServiceError(message)
    _advance(world, found, steps.ABANDONED)
    yield ABANDONED
    saved = world.savepoints.get(found.savepoint)
    if saved is not None:
        world.release(saved, me, found.id)
    intent = world.intent
    if found.was_running and intent is not None and (intent.desired, intent.by) == ("stopped", found.id):
        world.intent = Intent("running", f"{found.id} (given up)", world.now)


def _lock(world: World, me: Process) -> None:
    if not world.lock("restore", me):
        message = "another process restores or rewinds"
        raise LostRaceError(message)


def _advance(world: World, rewind: Rewind, step: int, **changes: Any) -> Rewind:
    changed = replace(rewind, step=step, **changes)
    world.rewinds[rewind.id] = changed
    return changed


def _begin(world: World) -> Rewind:
    head = world.head()
    proved = [one for one in world.savepoints.values() if one.exists and one.proof is not None]
    if head is None or not proved:
        message = "there is no head, or no savepoint is proved"
        raise SavepointError(message)
    world.nonce += 1
    manifest = proved[world.nonce % len(proved)].view().manifest  # a person names any, on the path or off it
    old = world.path_rows(head)
    new = [row for row in world.path_rows(manifest.timeline) if row.batch <= manifest.batch]
    if not old:
        message = f"{head} has no batch"
        raise SavepointError(message)
    seen = Seen(
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
    for refusal in world.rules.find_refusals(manifest, seen, proved=True):
        raise refusal
    running = world.intent is not None and world.intent.desired == "running"
    made = Rewind(
        id=f"rewind-{world.nonce:08x}",
        savepoint=manifest.savepoint,
        parent=manifest.timeline,
        batch=manifest.batch,
        head=head,
        child=world.free_name(),
        was_running=running,
        started_at=world.now,
        plan={},
    )
    world.rewinds[made.id] = made
    return made


def _go_on(world: World, me: Process, saved: Any, rewind: Rewind) -> Any:
    if rewind.step < steps.MOVED:
        rewind = yield from _stop(world, me, rewind)
        world.drain = Drain(me.pid, world.now, rewind.id)
        yield HELD
        if rewind.step < steps.COPIED:
            world.checkpoints[rewind.child] = fetch(world, saved)
            yield COPIED
            rewind = _advance(world, rewind, steps.COPIED)
            yield COPY_RECORDED
        if rewind.step < steps.CREATED:
            last = next(row for row in world.path_rows(rewind.parent) if row.batch == rewind.batch)
            line = fork_of(world.timelines[rewind.parent], last, rewind.child, world.now)
            world.timelines.setdefault(rewind.child, line)
            yield CREATED
            rewind = _advance(world, rewind, steps.CREATED)
            yield CREATE_RECORDED
        before = rewind.step
        rewind = yield from _catch_up(world, me, rewind)
        if before < steps.COMPARED and int(rewind.id[-1], 16) % 2:
            _let_go(world, rewind.id)  # stopped before the head: a person looks at the comparison
            return rewind
        rewind = yield from _move(world, me, rewind)
        _let_go(world, rewind.id)
    if rewind.was_running:
        world.intent = Intent("running", rewind.id, world.now)
        yield WANTED
    rewind = _advance(world, rewind, steps.DONE)
    yield DONE
    return rewind


def _let_go(world: World, by: str) -> None:
    if world.drain is not None and world.drain.by == by:
        world.drain = None


def _driver_of(world: World, timeline: str) -> Process | None:
    """Return the living owner if it catches up on a timeline."""
    owner = world.processes.get(world.owner[1][1]) if world.owner_lives() else None
    return owner if owner is not None and owner.goal is not None and owner.goal.timeline == timeline else None


def _stop(world: World, me: Process, rewind: Rewind) -> Any:
    wanted = world.intent is not None and world.intent.desired == "running"
    if wanted and not rewind.was_running:
        rewind = _advance(world, rewind, rewind.step, was_running=True)
    if _driver_of(world, rewind.child) is None:
        yield from drain(world, me, rewind.id, wanted=wanted)
    elif wanted:
        world.intent = Intent("stopped", rewind.id, world.now)
    rewind = _advance(world, rewind, max(rewind.step, steps.DRAINED))
    yield STOPPED
    return rewind


def _catch_up(world: World, me: Process, rewind: Rewind) -> Any:
    if world.head() == rewind.child:
        return rewind
    last = world.path_rows(rewind.head)[-1]
    if world.broken != "rewind does not catch up":
        yield from _run_to_goal(world, me, Goal(rewind.child, rewind.id, last.end_offsets, last.batch_watermark_ms))
    rewind = _advance(world, rewind, steps.COMPARED, head_batch=last.batch)
    yield COMPARED
    return rewind


def _run_to_goal(world: World, me: Process, goal: Goal) -> Steps:
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
        world.drain = Drain(me.pid, world.now, goal.by)  # again and again: a start that was under way took it away
        yield CATCHES_UP


def _move(world: World, me: Process, rewind: Rewind) -> Any:
    rules = world.rules
    while True:
        seen, last = world.last_seq(), world.path_rows(rewind.head)[-1]
        found = rules.decide_rewind_move(rewind, world.head(), last.batch)
        yield LOOKED
        if found == "move":
            world.seal(f"model#{rewind.head}", SEALED)
            yield SEALED_AT
            found = rules.decide_rewind_move(rewind, world.head(), world.path_rows(rewind.head)[-1].batch)
        if found == "move":
            world.move_head(rewind.child, f"rewind to {rewind.savepoint} ({rewind.id})", seen)
            yield MOVED
        elif found == "catch up":
            rewind = yield from _catch_up(world, me, rewind)
            continue
        rewind = _advance(world, rewind, steps.MOVED)
        yield MOVE_RECORDED
        return rewind
