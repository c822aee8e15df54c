"""The streaming driver: start, lease, batches, drain; and the double start that must lose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.model.checkpoints import compute_planned, planned_of, ranges_between, start_of, view_of
from lab.model.durable import Checkpoint, commit_text, offsets_text
from lab.model.loads import begin_after_load
from lab.model.process import Process, Steps, point
from lab.model.stream import DELAY_MS, TOPIC, Computed, split_rate
from lab.model.world import KEPT, World
from rivertwice.core.errors import CheckpointError, LeaseLostError, LedgerError, LogGapError, RivertwiceError
from rivertwice.storage.lease_terms import LeaseRecord, Terms
from rivertwice.stream.checkpoint import PlannedBatch, covers
from rivertwice.stream.failures import DRAINED, classify_failure
from rivertwice.stream.side import encode_ranges
from rivertwice.timeline.counts import BatchCounts
from rivertwice.timeline.intent import Exit, Heartbeat
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.lineage import Timeline
from rivertwice.timeline.watermarks import WatermarkRule

TERMS = Terms()
_RULE = WatermarkRule({TOPIC: DELAY_MS})
LOCKED = point("start: lock taken")
WATCHED = point("start: lease on the store watched")
FREE = point("start: lease on the store found free")
READ_EPOCHS = point("start: epochs read")
PUT_EPOCH = point("start: epoch put")
OWNED = point("start: owner written")
HEALED = point("start: ledger healed")
READ_SEQUENCE = point("start: sequence read")
CREATED = point("start: timeline created")
MOVED = point("start: head moved")
CHECKED = point("start: definition, topic and checkpoint checked")
OPENED = point("start: checkpoint opened")
IDLE = point("batch: nothing to read")
BEGUN = point("batch: offsets/0 half written")
PLANNED = point("batch: offsets/N written")
LEASED = point("batch: lease checked")
LOOKED = point("batch: changelog looked at")
SKIPPED = point("batch: committed already, state written again")
COMPUTED = point("batch: state written")
LOOKED_DEAD = point("batch: dead letters looked at")
DEAD = point("batch: dead letters written")
LEASED_AGAIN = point("batch: lease checked again")
COMMITTED = point("batch: committed")
COPIED = point("batch: ledger row copied")
FINISHED = point("batch: commits/N written")
LEFT = point("driver: exit written")


def run_driver(world: World, me: Process) -> Steps:
    """Run a driver to its end; every end except a crash records why."""
    try:
        yield from _drive(world, me)
    except RivertwiceError as error:
        if me.host == 1:
            world.exit = Exit(me.epoch, world.now, classify_failure(error), str(error), clean=False)
        yield LEFT
        return
    if me.host == 1:
        world.exit = Exit(me.epoch, world.now, DRAINED, "drained", clean=True)
    me.clean = True
    yield LEFT


def _drive(world: World, me: Process) -> Steps:
    yield from _acquire(world, me)
    healed = {(row.timeline, row.batch): row for row in world.read_ledger()}
    if world.broken != "ledger not healed":
        world.copy_to_ledger(healed)
    yield HEALED
    line, rows = yield from _resolve(world, me)
    checkpoint = _open(world, line, rows)
    yield OPENED
    if rows:
        last = rows[-1]
        _beat(world, me, "running", last, line.timeline)
    elif me.host == 1:
        world.heartbeat = Heartbeat(me.epoch, me.pid, line.timeline, "starting", world.now)
    while True:
        batch = max(checkpoint.commits, default=line.first_batch - 1) + 1
        if batch not in checkpoint.offsets:
            if _must_leave(world, me):
                return
            text = _plan(world, checkpoint, batch)
            if text is None:
                if me.goal is not None and covers(start_of(checkpoint, batch), me.goal.offsets):
                    return  # every record is read; none is left that could raise the watermark
                _say_idle(world, me)
                yield IDLE
                continue
            yield from _put_plan(checkpoint, batch, text)
            yield PLANNED
        row = yield from _write(world, me, line, checkpoint, batch)
        if me.goal is not None and world.rules.has_caught_up(me.goal, row.end_offsets, row.batch_watermark_ms):
            return


def _open(world: World, line: Timeline, rows: Sequence[LedgerRow]) -> Checkpoint:
    """Open the checkpoint as Spark does, with what is done before."""
    checkpoint = world.checkpoints.setdefault(line.timeline, Checkpoint(line.genesis))
    if world.rules.is_unplanned(view_of(checkpoint), line, rows):
        checkpoint.remains = False
    if checkpoint.remains and not checkpoint.offsets:
        message = "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"
        raise CheckpointError(message)
    return checkpoint


def _put_plan(checkpoint: Checkpoint, batch: int, text: str) -> Steps:
    """Write `offsets/N` as Spark does: under another name first, then under its own, unless another process was faster."""
    if not checkpoint.offsets:
        checkpoint.remains = True
        yield BEGUN
    if batch in checkpoint.offsets:
        message = "CONCURRENT_STREAM_LOG_UPDATE"
        raise LeaseLostError(message)
    checkpoint.offsets[batch] = text
    checkpoint.remains = False


def _must_leave(world: World, me: Process) -> bool:
    if me.host == 2:
        return world.standby_leaves
    if me.goal is None:
        return world.drain is not None
    return me.asked or (world.drain is not None and world.drain.by != me.goal.by)


def _acquire(world: World, me: Process) -> Steps:
    if world.broken != "lock not taken" and not world.lock(f"stream{me.host}", me):
        message = f"process {world.locks[f'stream{me.host}']} owns the stream"
        raise LeaseLostError(message)
    yield LOCKED
    if world.shared_lease:
        yield from _claim_shared(world, me)
    else:
        newest = max(world.epochs, default=0)
        yield READ_EPOCHS
        me.epoch = newest + 1
        while me.epoch in world.epochs:
            me.epoch += 1
    world.start_epoch(me)
    yield PUT_EPOCH
    world.owner[me.host] = (me.epoch, me.pid, world.now)
    yield OWNED


def _claim_shared(world: World, me: Process) -> Steps:
    claim, since, home = world.claim, world.forward_s, f"host{me.host}"
    for _ in range(world.watches):
        if world.claim is not claim or world.claim_renewed():
            claim, since = world.claim, world.forward_s
        takeover = world.rules.decide_takeover(
            claim, home=home, unchanged_s=world.forward_s - since, floor=max(world.epochs, default=0)
        )
        if takeover.take:
            world.judge.lease_is_taken(claim, home)
        yield FREE if takeover.take else WATCHED
        if takeover.take and world.claim is claim:
            me.epoch = takeover.epoch
            world.claim = LeaseRecord(me.epoch, home, TERMS, released=False)
            me.renewed_s = world.forward_s
            return
    message = "a driver of another host holds the lease"
    raise LeaseLostError(message)


def check_lease(world: World, me: Process) -> None:
    """Stop a driver that lost its lease, or may have."""
    if world.broken == "lease not checked":
        return
    if world.shared_lease:
        # A real driver whose time is over asks the store once more, and continues if it is still the holder. Here it gets no answer.
        late = world.rules.must_stop(renewed_at=me.renewed_s, now=world.forward_s, terms=TERMS)
        lost = late or world.rules.is_lost(world.claim, me.epoch)
    else:
        lost = max(world.epochs) != me.epoch
    if lost:
        message = f"epoch {max(world.epochs)} has started, this driver is epoch {me.epoch}"
        raise LeaseLostError(message)


def _resolve(world: World, me: Process) -> Any:
    """Do what `begin.resolve_timeline` and `damage.check_checkpoint` do; return the timeline and its ledger."""
    rules, last_seq = world.rules, world.last_seq()
    hashes = me.fingerprint = world.fingerprint()
    head = rules.select_head(world.sequence) if me.goal is None else me.goal.timeline
    load = world.load if head is None and world.broken != "a start looks for no load" else None
    if load is not None:
        yield from begin_after_load(world, load)
        head = load.timeline
    plan = rules.plan_start(head, list(world.timelines))
    has_remains = plan.timeline in world.checkpoints or world.broken == "remains removed unseen"
    topics = {TOPIC: world.topic_id}
    yield READ_SEQUENCE
    if plan.create:
        if has_remains:
            world.checkpoints.pop(plan.timeline, None)
        genesis = world.offsets(world.begin)
        line = Timeline("model", plan.timeline, None, 0, genesis, "b1", hashes, "c", topics, world.now)
        if world.broken != "head moved before the record":
            world.timelines.setdefault(plan.timeline, line)
        yield CREATED
    if plan.move:
        world.move_head(plan.timeline, "first start", last_seq)
        yield MOVED
        if plan.create and world.broken == "head moved before the record":
            world.timelines.setdefault(plan.timeline, line)
    line = world.timelines[plan.timeline]
    rules.check_fingerprint(line.fingerprint, hashes, "model", line.timeline)
    rules.check_topics(line.topic_ids, topics, "model")
    rows = world.path_rows(line.timeline)
    checkpoint = world.checkpoints.get(line.timeline)
    if rows and checkpoint is not None:
        problem = rules.find_damage(view_of(checkpoint), rows, lambda _: _RULE)
        if problem is not None:
            world.report_damage(problem)
            raise CheckpointError(problem)
    yield CHECKED
    return line, rows


def _plan(world: World, checkpoint: Checkpoint, batch: int) -> str | None:
    """Plan a batch as Spark does: new records, or a watermark that rose; None if there is neither."""
    begin = [int(value) for value in start_of(checkpoint, batch)[TOPIC].values()]
    watermark = int(checkpoint.commits[batch - 1].rpartition(":")[2][:-1]) if batch - 1 in checkpoint.commits else 0
    before = planned_of(checkpoint, batch - 1).batch_watermark_ms if batch - 1 in checkpoint.offsets else 0
    ends = split_rate(begin, world.ends(), world.rate)
    if ends == begin and watermark == before:
        return None
    for partition, offset in enumerate(begin):
        if offset < world.begin[partition] or offset > world.produced[partition]:
            message = f"offset {offset} of partition {partition}: Some data may have been lost"
            raise LogGapError(message)
    return offsets_text(world.offsets(ends), watermark, int(world.forward_s))


def _write(world: World, me: Process, line: Timeline, checkpoint: Checkpoint, batch: int) -> Any:
    check_lease(world, me)  # step 1
    yield LEASED
    if batch not in checkpoint.offsets:
        message = f"batch {batch} runs without offsets/{batch}"
        raise LedgerError(message)
    world.rules.check_own(line, batch)
    planned, start = planned_of(checkpoint, batch), start_of(checkpoint, batch)  # step 2
    app = f"model#{line.timeline}"
    done = world.applied.get(app)
    yield LOOKED
    if world.rules.is_sealed(done):
        message = f"timeline {line.timeline} is sealed"
        raise LeaseLostError(message)
    computed = compute_planned(world, checkpoint, batch)
    if world.rules.is_applied(done, batch):  # step 3
        if world.broken not in ("ledger not healed", "ledger not healed at a replay"):
            world.copy_to_ledger({(row.timeline, row.batch): row for row in world.read_ledger()})
        recorded = {row.batch: row for row in world.read_ledger() if row.timeline == line.timeline}
        world.rules.check_replay(recorded.get(batch), planned, start)
        _check_log(world, line)
        checkpoint.state[batch] = computed.state
        yield SKIPPED
        row = recorded[batch]
    else:
        row = yield from _commit(world, me, line, checkpoint, planned, start, computed)
    _beat(world, me, "running", row)
    _finish(world, checkpoint, batch, row)
    yield FINISHED
    return row


def _commit(
    world: World, me: Process, line: Timeline, checkpoint: Checkpoint, planned: PlannedBatch, start: Any, made: Computed
) -> Any:
    batch, app = planned.batch, f"model#{line.timeline}"
    checkpoint.state[batch] = made.state  # step 4
    yield COMPUTED
    if world.sick:
        message = "a bug in the transform"
        raise RivertwiceError(message)
    counts = BatchCounts(made.read, len(made.dead), made.accepted, made.min_event_ms, made.max_event_ms)
    _check_log(world, line)
    world.rules.check_counts(counts, ranges_between(start, planned.end_offsets), batch)
    row = ledger_row(world, me, line, planned, start, made)
    if not made.dead:
        world.rules.check_same_range(world.dead_ranges.get((f"{app}/dead", batch)), row.parts(), batch, "dead letters")
    if made.dead:  # step 5
        done = world.applied.get(f"{app}/dead", -1)
        yield LOOKED_DEAD
        if done < batch or world.broken == "dead letters without a transaction":
            world.append_dead(f"{app}/dead", line.timeline, batch, made.dead)
            world.dead_ranges[f"{app}/dead", batch] = encode_ranges(row.parts())
            yield DEAD
        else:
            world.rules.check_same_range(
                world.dead_ranges.get((f"{app}/dead", batch)), row.parts(), batch, "dead letters"
            )
    check_lease(world, me)
    yield LEASED_AGAIN
    if world.broken == "two commits for one batch":
        world.changelog.setdefault((line.timeline, batch), ())
        world.changelog[line.timeline, batch] += made.rows
        yield COMMITTED
        world.append_batch(app, row, ())
    else:
        world.append_batch(app, row, made.rows)  # step 6
    world.committed(me, row, made)
    yield COMMITTED
    if world.broken != "ledger row not copied":
        world.copy_to_ledger({(row.timeline, batch): row})  # step 7
    yield COPIED
    return row


def _check_log(world: World, line: Timeline) -> None:
    if world.broken != "topic not looked at again":
        world.rules.check_topics(line.topic_ids, {TOPIC: world.topic_id}, "model")


def _finish(world: World, checkpoint: Checkpoint, batch: int, row: LedgerRow) -> None:
    """Write `commits/N` and purge what the checkpoint no longer needs."""
    if batch in checkpoint.commits:
        message = "CONCURRENT_STREAM_LOG_UPDATE"
        raise LeaseLostError(message)
    checkpoint.commits[batch] = commit_text(world.rules.watermark_after(row, DELAY_MS))
    for files in (checkpoint.offsets, checkpoint.commits, checkpoint.state):
        for old in [number for number in files if number <= batch - KEPT]:
            del files[old]


def ledger_row(
    world: World, me: Process, line: Timeline, planned: PlannedBatch, start: Any, made: Computed
) -> LedgerRow:
    """Return a batch's ledger row."""
    return LedgerRow(
        pipeline="model",
        timeline=line.timeline,
        batch=planned.batch,
        epoch=me.epoch,
        bundle=world.bundle,
        cluster_id="c",
        topic_ids=line.topic_ids,
        start_offsets=start,
        end_offsets=planned.end_offsets,
        offsets_text=planned.text,
        batch_watermark_ms=planned.batch_watermark_ms,
        batch_timestamp_ms=planned.batch_timestamp_ms,
        read=made.read,
        bad=len(made.dead),
        accepted=made.accepted,
        min_event_ms=made.min_event_ms,
        max_event_ms=made.max_event_ms,
        emitted=len(made.rows),
        digest=made.digest,
        references={},
        committed_at=world.now,
    )


def _beat(world: World, me: Process, state: str, row: LedgerRow, timeline: str | None = None) -> None:
    """Report a batch; before a child's first batch report its parent's last one, with the child's own name."""
    if me.host == 1:
        beat_timeline = timeline or row.timeline
        world.heartbeat = Heartbeat(me.epoch, me.pid, beat_timeline, state, world.now, batch=row.batch, lag=0)


def _say_idle(world: World, me: Process) -> None:
    beat = world.heartbeat
    if me.host == 1 and beat is not None and beat.epoch == me.epoch:
        world.heartbeat = Heartbeat(me.epoch, me.pid, beat.timeline, "idle", world.now, batch=beat.batch, lag=0)
