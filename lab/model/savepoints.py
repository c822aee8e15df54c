"""Savepoints: taken hot, proved by a replay, pruned; and the replay that proof and restore share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from lab.model.checkpoints import compute_planned
from lab.model.durable import Checkpoint, commit_text
from lab.model.process import Process, Steps, point
from lab.model.saved import Saved
from lab.model.stream import DELAY_MS, TOPIC, compute_batch
from lab.model.verdicts import TOLERANCE
from lab.model.world import World
from rivertwice.core.errors import LedgerError, LogGapError, LostRaceError, ReplayMismatchError, SavepointError
from rivertwice.savepoint.manifest import Manifest
from rivertwice.savepoint.operations.record import Restore
from rivertwice.savepoint.plan import KAFKA, ReplayPlan, is_on_path
from rivertwice.stream.checkpoint import parse_offsets
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.lineage import Segment

LEASE = timedelta(hours=1)
HOLD = timedelta(hours=6)
ABANDONED = timedelta(hours=1)
COPIED_COMMITS = point("copy: commits copied")
COPIED_OFFSETS = point("copy: offsets copied")
COPIED_STATE = point("copy: state copied")
TRIMMED = point("copy: trimmed to a committed batch")
MARKED = point("take: mark put")
FILES = point("take: files put")
MARK_SEEN = point("take: mark looked at")
TAKEN = point("take: manifest put")
UNMARKED = point("take: mark gone")
READ = point("prove: savepoint read")
LEASED = point("prove: lease put")
LEASE_KEPT = point("prove: nobody deletes it")
FETCHED = point("prove: fetched")
WAITS = point("prove: waits for batches")
REPLAYED = point("prove: replayed and compared")
PROVED = point("prove: proof put")
PROVED_FROM_ORIGIN = point("prove: proof of a planned restore's savepoint put")
RELEASED = point("prove: lease released")
LISTED = point("prune: savepoints listed")
MARK_PUT = point("prune: mark put")
CHOSEN = point("prune: nobody holds it")
DECIDED = point("prune: deletion decided")
EMPTIED = point("prune: files gone")
DELETED = point("prune: manifest and mark gone")
SPARED = point("prune: mark taken away again")


def copy_committed(world: World, timeline: str) -> Any:
    """Copy a timeline's checkpoint hot and trim it; return the copy and the ledger row of its last batch."""
    live = world.checkpoints.get(timeline)
    if live is None:
        message = f"timeline {timeline} has no checkpoint"
        raise SavepointError(message)
    copy = Checkpoint(live.initial)
    if world.broken == "offsets copied before commits":
        copy.offsets = dict(live.offsets)
        yield COPIED_OFFSETS
    copy.commits = dict(live.commits)
    yield COPIED_COMMITS
    if world.broken != "offsets copied before commits":
        copy.offsets = dict(live.offsets)
        yield COPIED_OFFSETS
    copy.state = dict(live.state)
    yield COPIED_STATE
    rows = {row.batch: row for row in world.path_rows(timeline)}
    paths = [f"commits/{n}" for n in copy.commits] + [f"offsets/{n}" for n in copy.offsets]
    batch = world.rules.select_batch(paths, rows.keys())
    for path in world.rules.select_surplus(paths, batch):
        folder, _, number = path.partition("/")
        getattr(copy, folder).pop(int(number), None)
    if copy.offsets.get(batch) != rows[batch].offsets_text:
        message = f"offsets/{batch} of {timeline} is not what the ledger recorded"
        raise LedgerError(message)
    yield TRIMMED
    return copy, rows[batch]


def run_take(world: World, me: Process) -> Steps:
    """Take a savepoint of the head timeline."""
    timeline = world.head()
    if timeline is None:
        message = "there is no head timeline"
        raise SavepointError(message)
    yield from save_checkpoint(world, me, timeline, holder="")


def save_checkpoint(world: World, me: Process, timeline: str, *, holder: str) -> Any:
    """Take a savepoint of a timeline's checkpoint, and return it; with a holder its lease is there before its manifest."""
    copy, row = yield from copy_committed(world, timeline)
    world.nonce += 1
    name = f"sp-{row.timeline}-{row.batch}-{world.nonce:08x}"
    saved = world.savepoints.setdefault(name, Saved(name))
    saved.taking = world.now
    created_at = world.now
    yield MARKED
    if holder and world.broken != "planned savepoint not leased":
        yield from lease_saved(world, me, saved, holder, HOLD)
    if world.broken == "manifest before the files":
        world.put_manifest(saved, describe_row(world, name, row, created_at))
        yield TAKEN
    saved.content = copy
    yield FILES
    if saved.taking is None or world.savepoints.get(name) is not saved:
        message = f"prune cleared {name} while it was copied"
        raise LostRaceError(message)
    yield MARK_SEEN
    world.put_manifest(saved, describe_row(world, name, row, created_at))
    yield TAKEN
    if saved.taking is None or world.savepoints.get(name) is not saved:
        saved.manifest = None
        message = f"prune cleared {name} while its manifest was put"
        raise LostRaceError(message)
    saved.taking = None
    yield UNMARKED
    return saved


def describe_row(world: World, name: str, row: LedgerRow, created_at: Any) -> Manifest:
    """Return the manifest of a savepoint at a ledger row."""
    return Manifest(
        savepoint=name,
        pipeline="model",
        timeline=row.timeline,
        batch=row.batch,
        epoch=row.epoch,
        created_at=created_at,
        reason="model",
        offsets=row.end_offsets,
        offsets_text=row.offsets_text,
        watermark_ms=row.batch_watermark_ms,
        cluster_id=row.cluster_id,
        topic_ids=row.topic_ids,
        bundle=row.bundle,
        fingerprint=world.timelines[row.timeline].fingerprint,
        pins={},
        files={},
    )


def load_saved(world: World, name: str) -> Saved:
    """Return a savepoint that exists.

    Raises:
        SavepointError: it does not, or is being deleted.
    """
    saved = world.savepoints.get(name)
    if saved is None or not saved.exists:
        message = f"savepoint {name} does not exist"
        raise SavepointError(message)
    return saved


def lease_saved(world: World, me: Process, saved: Saved, holder: str, length: timedelta) -> Steps:
    """Keep prune away from a savepoint.

    Raises:
        SavepointError: it is being deleted.
    """
    yield READ
    until = world.now + length
    if world.broken != "savepoint not leased":
        saved.leases[holder] = until
    yield LEASED
    if saved.deleting and world.broken != "lease without a second look":
        saved.leases.pop(holder, None)
        message = f"savepoint {saved.name} is being deleted"
        raise SavepointError(message)
    saved.using[holder] = until
    yield LEASE_KEPT


def fetch(world: World, saved: Saved) -> Checkpoint:
    """Return a savepoint's checkpoint, every file compared with the manifest.

    Raises:
        SavepointError: a file is missing or differs.
    """
    if saved.content is None or (saved.rotten and world.broken != "hashes not compared"):
        world.refused.add(saved.name)
        message = f"savepoint {saved.name} is damaged"
        raise SavepointError(message)
    return saved.content.copied()


def newest(world: World, *, proved: bool, path: Sequence[Segment] = ()) -> Saved | None:
    """Return the newest savepoint that exists, or the newest proved one; a person passes over what was refused.

    With a path it must be on that path.
    """
    candidates = [
        savepoint for savepoint in world.savepoints.values() if savepoint.exists and savepoint.name not in world.refused
    ]
    candidates = [savepoint for savepoint in candidates if not path or is_on_path(savepoint.view().manifest, path)]
    fitting = [savepoint for savepoint in candidates if savepoint.proof is not None or not proved]
    return max(fitting, key=lambda savepoint: (savepoint.manifest.created_at, savepoint.name), default=None)  # type: ignore[union-attr]


def replay(world: World, work: Checkpoint, plan: ReplayPlan, manifest: Manifest) -> None:
    """Replay recorded batches over a copy, with their recorded ranges, each compared with the ledger.

    Raises:
        ReplayMismatchError: a batch gave another output.
        LogGapError: the records are gone.
    """
    for row in plan.rows:
        if row.batch - 1 not in work.state:
            message = f"the copy holds no state of batch {row.batch - 1}"
            raise SavepointError(message)
        ranges = row.ranges(TOPIC)
        records = world.read_kafka(ranges) if plan.source == KAFKA else _from_topic(world, ranges, manifest)
        work.offsets[row.batch] = row.offsets_text
        made = compute_planned(world, work, row.batch, records)
        if world.broken != "hashes not compared" and made.digest != row.digest:
            message = f"batch {row.batch} gave {made.digest}, recorded {row.digest}"
            world.judge.replay_differed(message)
            raise ReplayMismatchError(message)
        work.state[row.batch] = made.state
        work.commits[row.batch] = commit_text(world.rules.watermark_after(row, DELAY_MS))


def replay_in_one(world: World, work: Checkpoint, plan: ReplayPlan) -> None:
    """Replay all batches as one that reads a record more, which is what must not be done."""
    first, last = plan.rows[0], plan.rows[-1]
    late = int(parse_offsets(work.offsets[first.batch - 1], 0).batch_watermark_ms) if first.batch else 0
    records = [pair for row in plan.rows for pair in world.read_kafka(row.ranges(TOPIC))]
    more = {int(p): (int(o), min(int(o) + 1, world.produced[int(p)])) for p, o in last.end_offsets[TOPIC].items()}
    records += world.read_kafka(more)
    made = compute_batch(work.state[first.batch - 1], records, late_ms=late, watermark_ms=last.batch_watermark_ms)
    for row in plan.rows:
        work.offsets[row.batch] = row.offsets_text
        work.state[row.batch] = made.state
        work.commits[row.batch] = commit_text(world.rules.watermark_after(row, DELAY_MS))


def _from_topic(world: World, ranges: Mapping[int, tuple[int, int]], manifest: Manifest) -> Any:
    """Read as `read_ranges` does for a replay topic: the archive first, Kafka for the rest, each offset once."""
    records: list[Any] = []
    for partition, (start, end) in ranges.items():
        low, high = world.archived.get(partition, (0, 0))
        inside = (max(start, low), min(end, high))
        if inside[0] >= inside[1]:
            inside = (start, start)
        if manifest.topic_ids[TOPIC] != world.topic_id and inside[0] > start:
            message = "the topic is another one now"
            raise LogGapError(message)
        if inside[0] > start:
            records += world.read_kafka({partition: (start, inside[0])})
        records += world.read_archive({partition: inside})
        if manifest.topic_ids[TOPIC] != world.topic_id and inside[1] < end:
            message = "the topic is another one now"
            raise LogGapError(message)
        records += world.read_kafka({partition: (inside[1], end)})
    return records


def plan_rows(world: World, manifest: Manifest, rows: Sequence[LedgerRow], until: int) -> ReplayPlan:
    """Plan a replay by the product's rule."""
    begin = dict(enumerate(world.begin)) if manifest.topic_ids[TOPIC] == world.topic_id else {0: 1 << 62, 1: 1 << 62}
    plan: ReplayPlan = world.rules.plan_replay(
        manifest, rows, until=until, begin={TOPIC: begin}, bundles=set(TOLERANCE)
    )
    return plan


def run_prove(world: World, me: Process) -> Steps:
    """Prove a savepoint that is not proved yet."""
    fitting = [savepoint for savepoint in world.savepoints.values() if savepoint.exists and savepoint.proof is None]
    if not fitting:
        return
    waiting = [
        savepoint for savepoint in fitting if savepoint.name in {restore.savepoint for restore in world.awaiting()}
    ]
    saved = waiting[-1] if waiting and me.pid % 3 else fitting[me.pid % len(fitting)]
    manifest = saved.manifest
    assert manifest is not None
    awaiting = [restore for restore in world.awaiting() if restore.savepoint == saved.name]
    holder = f"prove-{me.name}"
    if awaiting:
        yield from _prove_from_origin(world, me, saved, awaiting[-1], holder)
        return
    world.rules.require_fingerprint(manifest, world.fingerprint())
    yield from lease_saved(world, me, saved, holder, LEASE)
    try:
        proof, state = yield from _prove(world, saved, manifest)
        yield from lease_saved(world, me, saved, holder, LEASE)  # it may have run out
    except (SavepointError, LogGapError, LedgerError):
        world.release(saved, me, holder)
        raise
    if proof and saved.proof is None:
        world.put_proof(saved, proof, state)
        yield PROVED
    world.release(saved, me, holder)
    yield RELEASED


def _prove(world: World, saved: Saved, manifest: Manifest) -> Any:
    work = fetch(world, saved)
    state = work.state.get(manifest.batch)
    yield FETCHED
    head = world.head()
    assert head is not None
    path = world.rules.trace_path(head, world.timelines.__getitem__)
    timeline = head if is_on_path(manifest, path) else manifest.timeline
    for _ in range(8):
        follow = [row for row in world.path_rows(timeline) if row.batch > manifest.batch]
        if len(follow) >= 2 or not world.owner_lives():
            break
        yield WAITS
    second, at = yield from copy_committed(world, timeline)
    rows = world.path_rows(timeline)
    held = min(second.commits)
    last = world.rules.select_proof_end(manifest.batch, wanted=2, committed=at.batch, retained=held)
    plan = plan_rows(world, manifest, rows, last)
    replay(world, work, plan, manifest)
    if last not in work.state or last not in second.state:
        message = f"no state of batch {last} to compare"
        raise SavepointError(message)
    if work.state[last] != second.state[last] and world.broken != "hashes not compared":
        message = f"the state after batch {last} differs"
        world.judge.replay_differed(message)
        raise ReplayMismatchError(message)
    yield REPLAYED
    return ({"batches": len(plan.rows), "last": last} if plan.rows else None), state


def _prove_from_origin(world: World, me: Process, saved: Saved, restore: Restore, holder: str) -> Steps:
    """Prove a planned restore's savepoint: replay the batches between a proved savepoint and this one."""
    manifest = saved.view().manifest
    path = world.rules.trace_path(manifest.timeline, world.timelines.__getitem__)
    views = [other.view() for other in world.savepoints.values() if other.exists]
    view = world.rules.select_origin(restore, saved.view(), views, path)
    if view is None:
        message = f"no proved savepoint before {saved.name}"
        raise SavepointError(message)
    origin = world.savepoints[view.id]
    try:
        for each in (saved, origin):
            yield from lease_saved(world, me, each, holder, HOLD)
        work, second = fetch(world, origin), fetch(world, saved)
        yield FETCHED
        plan = plan_rows(world, view.manifest, world.path_rows(manifest.timeline), manifest.batch)
        replay(world, work, plan, view.manifest)
        state = second.state.get(manifest.batch)
        if state is None:
            message = f"{saved.name} holds no state of batch {manifest.batch}"
            raise SavepointError(message)
        if work.state[manifest.batch] != state and world.broken != "hashes not compared":
            message = f"the state after batch {manifest.batch} differs"
            world.judge.replay_differed(message)
            raise ReplayMismatchError(message)
        yield REPLAYED
        yield from lease_saved(world, me, saved, holder, HOLD)  # it may have run out
        if saved.proof is None:
            world.put_proof(saved, {"batches": len(plan.rows), "last": manifest.batch}, state)
            yield PROVED_FROM_ORIGIN
    except (SavepointError, LogGapError, LedgerError):
        for each in (saved, origin):
            world.release(each, me, holder)
        raise
    for each in (saved, origin):
        world.release(each, me, holder)
    yield RELEASED


def run_prune(world: World, me: Process) -> Steps:
    """Delete what is neither protected nor among the newest, and what died half-way."""
    if world.broken != "prune without its lock" and not world.lock("prune", me):
        message = "another process prunes"
        raise LostRaceError(message)
    views = [savepoint.view() for savepoint in world.savepoints.values() if savepoint.exists]
    damaged = [view.id for view in views if world.savepoints[view.id].rotten]
    needed = dict.fromkeys(_restoring(world), "a restore") if world.broken != "prune forgets restores" else {}
    head = world.head()
    path = [] if head is None else world.rules.trace_path(head, world.timelines.__getitem__)
    awaiting = world.rules.protect_awaiting(world.awaiting())
    protected = world.rules.select_protected(
        views, now=world.now, needed=needed, damaged=damaged, path=path, awaiting=awaiting
    )
    chosen = world.rules.select_prunable(views, protected, keep=0)
    yield LISTED
    for view in chosen:
        saved = world.savepoints.get(view.id)
        if saved is not None:
            yield from _delete(world, saved, proved=view.proof is not None)
    for saved in list(world.savepoints.values()):
        if saved.deleting or (
            saved.manifest is None and saved.taking is not None and saved.taking + ABANDONED < world.now
        ):
            yield from _delete(world, saved, proved=None)


def _restoring(world: World) -> list[str]:
    return world.needed()


def _delete(world: World, saved: Saved, *, proved: bool | None) -> Steps:
    began = saved.deleting
    if not began:
        saved.deleting = "marked"
        yield MARK_PUT
    if began != "decided":
        holder = world.rules.find_holder(
            saved.view().leases if saved.manifest is not None else (),
            pinned=saved.pinned,
            proved_since=saved.proof is not None and proved is not True,
            needed=(saved.name in _restoring(world) and world.broken != "prune forgets restores")
            or saved.name in world.rules.protect_awaiting(world.awaiting()),
            now=world.now,
        )
        unchecked = world.broken == "prune finishes marks unseen" and proved is None
        if holder is not None and not unchecked and world.broken != "prune without a second look":
            saved.deleting = ""
            yield SPARED
            return
        yield CHOSEN
        saved.deleting = "decided"
        yield DECIDED
    world.saved_judge.deletes(saved)
    saved.content, saved.taking, saved.proof, saved.pinned = None, None, None, False
    saved.leases.clear()
    yield EMPTIED
    saved.manifest = None
    world.savepoints.pop(saved.name, None)
    yield DELETED
