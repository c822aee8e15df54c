"""What must hold at rest: everything is counted once more, from the log alone."""

from __future__ import annotations

from lab.model.agent import look_served
from lab.model.process import Process
from lab.model.savepoints import plan_rows, replay
from lab.model.stream import TOPIC, Address, window_end
from lab.model.violations import fail
from lab.model.world import World
from rivertwice.core.errors import LedgerError, LogGapError


def check_final(world: World) -> None:
    """Check the balance, the ledger, `served`, the archive and every proved savepoint."""
    head = world.head()
    if head is None:
        return
    check_balance(world, head)
    look = look_served(world)
    if look is not None and (world.served is None or dict(world.served.rows) != dict(look.rows)):
        fail("served shows the head's path", f"batch {look.batch} of {look.timeline}")
    for saved in world.savepoints.values():
        if saved.proof is not None and saved.exists and saved.manifest is not None:
            if not saved.rotten and saved.content is not None:
                world.saved_judge.proved(saved, saved.content.state.get(saved.manifest.batch))
            world.saved_judge.exists(saved)


def check_reconciles(world: World) -> None:
    """Reconcile once more, from a seal and as a whole, if the schedule had any: nothing moves meanwhile."""
    if world.erasure is not None:
        _finish(world, "erase")
    if not world.reconciles.names:
        return
    for kind in ("reconcile", "reconcile full"):
        _finish(world, kind)


def _finish(world: World, kind: str) -> None:
    """Run an actor to its end; records that are gone end a reconcile."""
    process = Process(0, f"last {kind}", kind)
    world.locks.pop("erase", None)
    try:
        for _ in world.actors[kind](world, process):
            pass
    except (LogGapError, LedgerError):
        return


def check_balance(world: World, head: str) -> None:
    """Check that each pair up to the committed offset is in exactly one of emitted, open, late, dead, excluded."""
    rows = world.path_rows(head)
    truth = world.judge.path(head)[::-1]
    if [(row.timeline, row.batch) for row in rows] != truth:
        fail("the ledger holds every committed batch once", f"{len(rows)} rows of {len(truth)}")
    if not rows:
        return
    emitted: dict[Address, int] = {}
    windows: set[int] = set()
    for row in rows:
        for end, held in world.changelog[row.timeline, row.batch]:
            if end in windows:
                fail("no window is emitted twice", end)
            windows.add(end)
            for address in held:
                emitted[address] = end
    dead = [address for timeline, batch, address in world.dead if (timeline, batch) in set(truth)]
    if len(set(dead)) != len(dead):
        fail("every pair in exactly one place", "a dead letter counts twice")
    last, closed = rows[-1], rows[-1].batch_watermark_ms
    checkpoint = world.checkpoints[head]
    state = checkpoint.state.get(last.batch, {})
    opened = {address for held in state.values() for address in held}
    # A successor that replays a batch after its topic was made again computes a state of other records, and then stops at the topic's id. No
    # start ever loads it: every one compares the id first.
    lasts = world.timelines[head].topic_ids[TOPIC] == world.topic_id
    sound = last.batch in checkpoint.state and not world.judge.damaged and lasts
    for row, late_ms in zip(rows, world.rules.late_watermarks_ms(rows), strict=True):
        for address, record in world.judge.true_records(row):
            end = window_end(record.event_ms)
            places = [
                address in emitted,
                address in opened if sound else record.kind == "ok" and late_ms < end > closed,
                record.kind == "ok" and end <= late_ms,
                address in dead,
                record.kind == "skip",
            ]
            if sum(places) != 1:
                fail("every pair in exactly one place", f"{address} {record}: {places}")
    if last.end_offsets[TOPIC] and any(row.read != len(world.judge.true_records(row)) for row in rows):
        fail("every record is read once", head)


def check_proved(world: World) -> None:
    """Restore every proved savepoint of the head's path once more, as far as the log reaches."""
    head = world.head()
    rows = [] if head is None else world.path_rows(head)
    for saved in world.savepoints.values():
        if saved.proof is None or not saved.exists or saved.manifest is None or saved.rotten or saved.content is None:
            continue
        manifest = saved.manifest
        if not any((row.timeline, row.batch) == (manifest.timeline, manifest.batch) for row in rows):
            continue
        if manifest.topic_ids[TOPIC] != world.topic_id or any(world.begin):
            continue
        work = saved.content.copied()
        replay(world, work, plan_rows(world, manifest, rows, rows[-1].batch), manifest)
        if work.state[rows[-1].batch] != world.judge.made[rows[-1].timeline, rows[-1].batch].state:
            fail("a proved savepoint restores to the recorded state", saved.name)
