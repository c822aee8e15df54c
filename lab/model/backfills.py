"""A backfill: plan, compute, audit, publish; the task of Airflow that does it may run twice."""

from __future__ import annotations

from datetime import timedelta

from lab.model.process import Process, Steps, point
from lab.model.stream import TOPIC, WINDOW_MS, Address, Record, window_end
from lab.model.world import World
from rivertwice.backfill.model import BackfillPlan, BackfillRequest, BackfillView, BatchZone
from rivertwice.backfill.ranges import subtract
from rivertwice.core.errors import AuditError, LogGapError, LostRaceError, RequestError
from rivertwice.core.instants import EPOCH, TimeRange
from rivertwice.timeline.sequence import EntryKind
from rivertwice.timeline.served_rows import publications_of
from rivertwice.timeline.serving import Publication

CHUNK = 6
OBSERVED = point("backfill: observed")
PLANNED = point("backfill: plan saved")
LOOKED = point("backfill: chunks looked at")
COMMITTED = point("backfill: chunk committed")
AUDITED = point("backfill: audit stored")
READ = point("publish: sequence read")
CHECKED = point("publish: checked")
PUBLISHED = point("publish: entry appended")


def run_backfill(world: World, me: Process) -> Steps:
    """Recompute every closed window of the head's path and publish it."""
    plan = plan_of(world, _request(world))
    yield OBSERVED
    plan = world.plans.setdefault(plan.id, plan)
    yield PLANNED
    yield from publish_plan(world, me, plan)


def plan_of(world: World, request: BackfillRequest) -> BackfillPlan:
    """Return the plan of a request."""
    plan: BackfillPlan = world.rules.plan_backfill(request, _view(world), chunk_records=CHUNK)
    return plan


def publish_plan(world: World, me: Process, plan: BackfillPlan) -> Steps:
    """Compute a plan, audit it and publish it; what is done is not done again."""
    yield from _compute(world, me, plan)
    complete = len(world.corrections.get(plan.id, {})) == len(plan.chunks)
    if not complete and world.broken != "audit skipped":
        message = "not all chunks are committed"
        raise AuditError(message)
    world.audits[plan.id] = True
    yield AUDITED
    yield from _publish(world, plan)


def _request(world: World) -> BackfillRequest:
    head = world.head()
    rows = [] if head is None else world.path_rows(head)
    closed = rows[-1].batch_watermark_ms if rows else 0
    end = closed // WINDOW_MS * WINDOW_MS
    if end <= 0:
        message = "no window is closed"
        raise RequestError(message)
    start = end - 3 * WINDOW_MS if world.last_seq() % 2 else 0
    return BackfillRequest(
        "model", TimeRange(EPOCH + timedelta(milliseconds=max(0, start)), EPOCH + timedelta(milliseconds=end))
    )


def _view(world: World) -> BackfillView:
    head = world.head()
    assert head is not None
    line, rows = world.timelines[head], world.path_rows(head)
    kafka = {p: (world.begin[p], world.produced[p]) for p in range(len(world.begin))}
    return BackfillView(
        pipeline="model",
        window_ms=WINDOW_MS,
        closed_ms=rows[-1].batch_watermark_ms if rows else None,
        batches=tuple(
            BatchZone(r.timeline, r.batch, {TOPIC: r.ranges(TOPIC)}, r.accepted, r.min_event_ms, r.max_event_ms)
            for r in rows
        )
        + _loaded(world),
        as_of={TOPIC: {int(p): o for p, o in rows[-1].end_offsets[TOPIC].items()}} if rows else {},
        topic_ids=line.topic_ids,
        archive={TOPIC: dict(world.archived)},
        kafka={TOPIC: kafka if line.topic_ids[TOPIC] == world.topic_id else {}},
        bundle=line.bundle,
        semantics=line.fingerprint["semantics"],
        sequence=world.last_seq(),
        publications=tuple(publications_of(world.sequence)),
    )


def _loaded(world: World) -> tuple[BatchZone, ...]:
    """Return the zones of what a first load left out."""
    load = world.load
    if load is None or world.broken == "backfills read the stream's records only":
        return ()
    return tuple(
        BatchZone(
            load.timeline,
            -1,
            {TOPIC: {zone.partition: (zone.start, zone.end)}},
            zone.accepted,
            zone.min_event_ms,
            zone.max_event_ms,
        )
        for zone in world.load_zones
    )


def _compute(world: World, me: Process, plan: BackfillPlan) -> Steps:
    if not world.lock(f"backfill {plan.id}", me):
        message = f"another process computes {plan.id}"
        raise LostRaceError(message)
    done = world.applied.get(f"backfill/{plan.id}", -1)
    yield LOOKED
    chunks = plan.chunks[:-1] if world.broken == "audit skipped" else plan.chunks
    for chunk in chunks[done + 1 :]:
        records: list[tuple[Address, Record]] = []
        for partition, runs in chunk.offsets.get(TOPIC, {}).items():
            for run in runs:
                records += read_offsets(world, partition, run, plan.topic_ids[TOPIC])
        rows: dict[int, set[Address]] = {}
        for address, record in records:
            end = window_end(record.event_ms)
            if record.kind == "ok" and any(start < end <= stop for start, stop in chunk.ranges):
                rows.setdefault(end, set()).add(address)
        world.append_chunk(plan, chunk.index, {end: frozenset(held) for end, held in rows.items()})
        yield COMMITTED
    world.unlock(f"backfill {plan.id}", me)


def read_offsets(world: World, partition: int, run: tuple[int, int], topic_id: str) -> list[tuple[Address, Record]]:
    """Read offsets, each once: what the archive has from there, the rest from Kafka."""
    old = world.archived.get(partition, (0, 0))
    inside = (max(run[0], old[0]), min(run[1], old[1]))
    records = world.read_archive({partition: inside}) if inside[0] < inside[1] else []
    for part in subtract([run], [inside] if inside[0] < inside[1] else []):
        if world.topic_id != topic_id:
            message = "the topic is another one now"
            raise LogGapError(message)
        records += world.read_kafka({partition: part})
    if world.broken == "the seam read twice" and inside[0] < inside[1] < run[1]:
        records += world.read_kafka({partition: (inside[1], min(inside[1] + 1, run[1]))})
    world.log_judge.read_once(partition, run, records)
    return records


def _publish(world: World, plan: BackfillPlan) -> Steps:
    for _ in range(5):
        entries = list(world.sequence)
        yield READ
        published = publications_of(entries)
        if (
            any(publication.backfill == plan.id for publication in published)
            and world.broken != "published without a look"
        ):
            return
        if not world.audits.get(plan.id):
            message = f"{plan.id} has no passed audit"
            raise AuditError(message)
        head = world.rules.select_head(entries)
        line = None if head is None else world.timelines[head]
        rows = [] if head is None else world.path_rows(head)
        world.rules.check_head(plan, line, rows[-1].batch_watermark_ms if rows else 0)
        world.rules.check_not_older(plan, published)
        yield CHECKED
        last_seq = entries[-1].seq if entries else 0
        if world.broken == "publication without its predecessor":
            last_seq = world.last_seq()
        entry = Publication(last_seq + 1, plan.id, plan.ranges, plan.semantics, plan.bundle, plan.as_of)
        try:
            world.append_entry(EntryKind.PUBLICATION, entry.to_payload(), last_seq)
        except LostRaceError:
            continue
        yield PUBLISHED
        return
    message = f"{plan.id} lost every race"
    raise LostRaceError(message)
