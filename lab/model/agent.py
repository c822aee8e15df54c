"""The agent, which keeps the intent true, and the keeper of `served`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np

from lab.model.durable import Drain, Served
from lab.model.process import Process, Steps, point
from lab.model.stream import WINDOW_MS, Address
from lab.model.world import World
from rivertwice.agent.decide import Action, ActionKind, DrainMarker, Observed
from rivertwice.agent.memory import (
    DIED,
    REFUSED,
    RESTORED,
    DriverRef,
    Ended,
    FallBack,
    FallBackEnded,
    Intended,
    Memory,
    lasting_pages,
    remember_fall_back,
)
from rivertwice.core.errors import ServiceError
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.sequence import Entry
from rivertwice.timeline.served_rows import publications_of
from rivertwice.timeline.serving import Publication

LOCKED = point("agent: lock taken")
REMEMBERED = point("agent: end remembered")
DECIDED = point("agent: decided")
INTENDED = point("agent: intention recorded")
STARTED = point("agent: driver started")
FELL_BACK = point("agent: fall-back started")
ASKED = point("agent: drain asked")
RECORDED = point("agent: action recorded")
SERVED_LOOKED = point("served: looked")
SERVED_BUILT = point("served: overwritten")
SERVED_WAITS = point("served: nothing new")


def run_agent(world: World, me: Process) -> Steps:
    """Supervise for ever: observe, decide, record, act, record."""
    if not world.lock("agent", me):
        message = "another agent supervises this home"
        raise ServiceError(message)
    yield LOCKED
    memory: Memory = world.memory or Memory()
    while True:
        observed, memory, changed = _observe(world, me, memory)
        if changed:
            world.memory = memory
            yield REMEMBERED
        action = world.rules.decide(world.intent, observed, world.now)
        yield DECIDED
        if action.kind is ActionKind.WAIT:
            idle = observed.owner is None and observed.launched is None
            if idle and observed.drain is not None and observed.drain.by_agent:
                world.drain = None
            continue
        memory = replace(memory, intended=Intended(str(action.kind), action.reason, world.now, done=False))
        world.memory = memory
        yield INTENDED
        memory = yield from _act(world, me, action, observed, memory)
        memory = replace(memory, intended=Intended(str(action.kind), action.reason, world.now, done=True))
        world.memory = memory
        yield RECORDED


def _observe(world: World, me: Process, memory: Memory) -> tuple[Observed, Memory, bool]:
    known = memory.driver
    known_lives = known is not None and world.lives(known.pid)
    owner = world.owner.get(1) if world.owner_lives() else None
    held = None if owner is None else DriverRef(owner[1], 0.0, owner[0], owner[2])
    changed = False
    if known is not None and not known_lives:
        memory = world.rules.remember_end(memory, _end_of(world, me, known), world.now)
        changed = True
    ended = _fall_back_end(world, memory.fall_back)
    if ended is not None:
        memory, changed = remember_fall_back(memory, ended), True
        world.judge.fell_back(restored=ended.outcome == RESTORED, position=ended.position)
    under_way = memory.fall_back is not None and world.lives(memory.fall_back.pid)
    launched = known if known_lives and (held is None or held.pid != getattr(known, "pid", None)) else None
    drain = world.drain
    marker = None if drain is None else DrainMarker(drain.since, drain.pid is None, world.lives(drain.pid))
    return (
        Observed(
            owner=held,
            launched=launched,
            heartbeat=world.heartbeat,
            drain=marker,
            defined=True,
            memory=memory,
            position_since=None,
            restoring=memory.fall_back.pid if under_way and memory.fall_back is not None else None,
        ),
        memory,
        changed,
    )


def _end_of(world: World, me: Process, driver: DriverRef) -> Ended:
    owner = world.owner.get(1)
    epoch = driver.epoch
    if epoch is None and owner is not None and owner[1] == driver.pid:
        epoch = owner[0]
    record = world.exit
    is_of_driver = record is not None and (record.epoch == epoch if epoch is not None else record.at >= driver.since)
    code = -9 if world.parents.get(driver.pid) == me.pid else None
    failure = world.rules.classify_exit(
        record.failure if is_of_driver and record else None, "", None if is_of_driver else code
    )
    beat = world.heartbeat
    position = None
    if beat is not None and beat.epoch == epoch and beat.batch is not None:
        position = (beat.timeline, beat.batch)
    clean = bool(is_of_driver and record and record.clean)
    if clean:
        world.judge.fell_back(restored=True, position=position)
    else:
        world.judge.driver_failed(driver.pid, failure, position)
    return Ended(
        replace(driver, epoch=epoch), failure, clean, record.message if is_of_driver and record else "killed", position
    )


def _fall_back_end(world: World, known: FallBack | None) -> FallBackEnded | None:
    if known is None or known.outcome or world.lives(known.pid):
        return None
    report = world.fall_backs.get(known.pid)
    if report is None:
        return FallBackEnded(DIED, "it said nothing", None)
    restored, message, position = report
    return FallBackEnded(RESTORED if restored else REFUSED, message, position)


def _act(world: World, me: Process, action: Action, observed: Observed, memory: Memory) -> Any:
    now: datetime = world.now
    if action.kind is ActionKind.START:
        world.judge.driver_starts(memory)
        if memory.broken_at is not None:
            memory = replace(memory, failures=(), broken_at=None, broken_because="")
        world.drain = None
        pid = world.spawn("driver", parent=me.pid)
        memory = replace(memory, driver=DriverRef(pid, 0.0, None, now), last_start_at=now, paged=lasting_pages(memory))
        yield STARTED
    elif action.kind is ActionKind.ADOPT:
        memory = replace(memory, driver=observed.owner)
    elif action.kind is ActionKind.DRAIN:
        if world.drain is None:
            world.drain = Drain(None, now)
        yield ASKED
    elif action.kind is ActionKind.RESTORE:
        before = memory.fall_back
        again = before is not None and before.outcome in (DIED, "")
        attempt = before.attempt + 1 if again and before is not None else 1
        pid = world.spawn("fall-back", parent=me.pid)
        memory = replace(memory, fall_back=FallBack(pid, 0.0, now, attempt))
        yield FELL_BACK
    elif action.kind is ActionKind.PAGE:
        memory = replace(memory, paged=(*memory.paged, action.page))
    elif action.kind is ActionKind.STOP_AND_PAGE:
        memory = replace(memory, broken_at=now, broken_because=action.reason)
    return memory


def run_keeper(world: World, me: Process) -> Steps:
    """Rebuild `served` whenever the sequence or the last batch moved."""
    while True:
        if world.broken != "served without its lock" and not world.lock("served", me):
            yield SERVED_WAITS
            continue
        look = look_served(world)
        if look is None or _same(world.served, look):
            world.unlock("served", me)
            yield SERVED_WAITS
            continue
        yield SERVED_LOOKED
        world.serve(look)
        yield SERVED_BUILT
        world.unlock("served", me)


def _same(shown: Served | None, look: Served) -> bool:
    return shown is not None and shown.stamp == look.stamp


def look_served(world: World) -> Served | None:
    """Return what `served` must show now, chosen by the product's rule; None before the first batch."""
    head = world.head()
    rows = [] if head is None else world.path_rows(head)
    if head is None or not rows:
        return None
    last = rows[-1]
    stamp = (world.last_seq(), last.timeline, last.batch)
    shown, mark = world.served, world.mark()
    if shown is not None and (shown.sequence, shown.timeline, shown.batch, shown.version) == (*stamp, mark):
        return shown
    return Served(*stamp, rows_served(world, head, rows, world.sequence), mark)


def rows_served(
    world: World, timeline: str, rows: Sequence[LedgerRow], entries: Sequence[Entry]
) -> dict[int, frozenset[Address]]:
    """Return what a timeline serves after these batches of its path and these entries of the sequence, by window end."""
    closed_ms = rows[-1].batch_watermark_ms
    streamed = {end: held for row in rows for end, held in world.changelog[row.timeline, row.batch]}
    publications: list[Publication] = publications_of(entries)
    if not publications:
        return {end: held for end, held in streamed.items() if end <= closed_ms}
    ends = sorted(
        streamed.keys() | {end for publication in publications for end in world.correction(publication.backfill)}
    )
    ends = [end for end in ends if end <= closed_ms]
    path = world.rules.trace_path(timeline, world.timelines.__getitem__)
    semantics = {world.timelines[part.timeline].fingerprint["semantics"] for part in path}
    starts = np.array([end - WINDOW_MS for end in ends], dtype=np.int64)
    winners = world.rules.select_winners(starts, publications, semantics).tolist()
    by_seq = {publication.seq: world.correction(publication.backfill) for publication in publications}
    chosen = {
        end: by_seq[seq].get(end) if seq >= 0 else streamed.get(end) for end, seq in zip(ends, winners, strict=True)
    }
    return {end: held for end, held in chosen.items() if held is not None}
