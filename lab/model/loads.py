"""A first load by batch: archive, map, record, timeline, cover, head; then the stream closes its windows, and backfills publish them."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from lab.model.archive import run_archiver
from lab.model.backfills import plan_of, publish_plan, read_offsets
from lab.model.durable import Drain
from lab.model.process import Process, Steps, point
from lab.model.stream import DELAY_MS, TOPIC, WINDOW_MS
from lab.model.world import World
from rivertwice.backfill.load_plan import REASON, LoadPlan, LogMap, ask_for, cut_pieces
from rivertwice.backfill.model import BackfillPlan
from rivertwice.backfill.ranges import HalfOpenRange, subtract
from rivertwice.core.errors import LeaseLostError, LogGapError, LostRaceError, RequestError, ServiceError
from rivertwice.timeline.first_load import FirstLoad, LogZone
from rivertwice.timeline.intent import Intent
from rivertwice.timeline.sequence import EntryKind
from rivertwice.timeline.served_rows import publications_of

BLOCK = 2
MOST_WINDOWS = 2
_MS = timedelta(milliseconds=1)
_WINDOW = SimpleNamespace(length=WINDOW_MS * _MS, step=WINDOW_MS * _MS, closed_ms=lambda watermark_ms: watermark_ms)
_DEFINITION = SimpleNamespace(name="model", window=_WINDOW, source=(TOPIC, SimpleNamespace(watermark=DELAY_MS * _MS)))
MAPPED = point("load: event times read")
AT_REST = point("load: drivers kept away")
RECORDED = point("load: recorded")
CREATED = point("load: timeline created")
READ = point("load: sequence read")
COVERED = point("load: no rows published")
MOVED = point("load: head moved")
WANTED = point("load: stream wanted")
WAITS = point("load: waits for the stream")
PLANNED = point("load: backfill planned")


def run_load(world: World, me: Process) -> Steps:
    """Do what `start --from-batch` does: begin a first load, or continue the recorded one, to its last publication."""
    load = _recorded(world)
    if load is None or (world.head() is None and world.broken == "load recorded again"):
        load = yield from _begin(world, me)
    elif world.head() is None and not world.owner_lives():
        yield from _rest(world, me)
        yield from begin_after_load(world, load)
        _let_go(world, me)
    world.intent = Intent("running", "a person", world.now)
    yield WANTED
    if load is not None:
        yield from _publish(world, me, load)


def _recorded(world: World) -> FirstLoad | None:
    if world.load is None and world.head() is not None:
        message = "the stream began at the log's beginning"
        raise RequestError(message)
    return world.load


def _begin(world: World, me: Process) -> Any:
    topic_id = world.topic_id
    if world.broken != "loaded without an archive":
        yield from run_archiver(world, me)
        world.unlock("archive", me)
    plan = world.rules.plan_load(_DEFINITION, _read_map(world, topic_id))
    yield MAPPED
    if isinstance(plan, str):
        return None
    if world.broken != "loaded without an archive":
        _require_archived(world, plan)
    yield from _rest(world, me)
    if _recorded(world) is not None and world.broken != "load recorded again":
        message = "another process recorded a load"
        raise LostRaceError(message)
    load = FirstLoad(
        pipeline="model",
        timeline=world.free_name(),
        bundle="b1",
        fingerprint=world.fingerprint(),
        cluster_id="c",
        topic=TOPIC,
        topic_id=topic_id,
        ranges=plan.ranges,
        since_ms=plan.since_ms,
        before_ms=plan.before_ms,
        closed_ms=plan.closed_ms,
        accepted=plan.accepted,
        rejected=plan.rejected,
        by="a person",
        noted_at=world.now,
    )
    world.record_load(load, plan.zones)
    yield RECORDED
    yield from begin_after_load(world, load)
    _let_go(world, me)
    return load


def begin_after_load(world: World, load: FirstLoad) -> Steps:
    """Do what `loaded.begin_after_load` does, in its order."""
    world.timelines.setdefault(load.timeline, load.first_timeline())
    yield CREATED
    entries = list(world.sequence)
    yield READ
    if world.broken != "loaded windows are not covered" and load.cover not in _published(world):
        seq = entries[-1].seq if entries else 0
        world.append_entry(EntryKind.PUBLICATION, load.covering(seq + 1).to_payload(), seq)
        yield COVERED
        entries = list(world.sequence)
    if world.rules.select_head(entries) is None:
        seq = entries[-1].seq if entries else 0
        world.move_head(load.timeline, f"first start, after {load.id}", seq)
        yield MOVED


def _published(world: World) -> set[str]:
    return {publication.backfill for publication in publications_of(world.sequence)}


def _rest(world: World, me: Process) -> Steps:
    """Keep drivers away, as `at_rest` does; the lock goes with the process."""
    if world.broken == "loaded beside a driver":
        return
    if world.drain is not None and world.lives(world.drain.pid):
        message = "another operation keeps the stream at rest"
        raise LostRaceError(message)
    world.drain = Drain(me.pid, world.now, "first load")
    if world.owner_lives() or not world.lock("stream1", me):
        world.drain = None
        message = "a driver runs"
        raise LeaseLostError(message)
    yield AT_REST


def _let_go(world: World, me: Process) -> None:
    world.unlock("stream1", me)
    if world.drain is not None and world.drain.pid == me.pid:
        world.drain = None


def _read_map(world: World, topic_id: str) -> LogMap:
    """Return the event times of all records, in blocks."""
    if topic_id != "topic-1":
        message = "the archive is of another topic"
        raise LogGapError(message)
    ranges = {p: (world.archived.get(p, (begin, 0))[0], world.produced[p]) for p, begin in enumerate(world.begin)}
    zones: list[LogZone] = []
    rejected: dict[tuple[int, int], dict[str, int]] = {}
    for partition, (start, end) in ranges.items():
        for at in range(start, end, BLOCK):
            stop = min(end, at + BLOCK)
            kinds = [record for _, record in read_offsets(world, partition, (at, stop), topic_id)]
            times = [record.event_ms for record in kinds if record.kind != "bad"]
            zones.append(LogZone(partition, at, stop, len(times), min(times, default=None), max(times, default=None)))
            if len(times) < len(kinds):
                rejected[partition, at] = {"bad": len(kinds) - len(times)}
    return LogMap(TOPIC, ranges, zones, rejected)


def _require_archived(world: World, plan: LoadPlan) -> None:
    for partition, (start, end) in plan.ranges.items():
        held = world.archived.get(partition, (0, 0))
        if start < end and not held[0] <= start <= end <= held[1]:
            message = f"the archive lacks some of [{start}, {end}) of partition {partition}"
            raise LogGapError(message)


def unloaded(world: World, load: FirstLoad) -> tuple[HalfOpenRange, ...]:
    """Return the windows of a load that no backfill has published yet, by the product's rule."""
    head = world.head()
    path = [] if head is None else world.rules.trace_path(head, world.timelines.__getitem__)
    semantics = frozenset(world.timelines[part.timeline].fingerprint["semantics"] for part in path)
    ranges: tuple[HalfOpenRange, ...] = world.rules.find_unloaded(load, publications_of(world.sequence), semantics)
    return ranges


def _publish(world: World, me: Process, load: FirstLoad) -> Steps:
    for _ in range(world.patience):
        if _has_closed(world, load):
            break
        yield WAITS
    else:
        message = "the stream has not closed the windows to load"
        raise ServiceError(message)
    for piece in cut_pieces(unloaded(world, load), WINDOW_MS, MOST_WINDOWS):
        plan = _find_interrupted(world, piece)
        if plan is None:
            plan = plan_of(world, ask_for("model", piece, WINDOW_MS, WINDOW_MS))
            plan = world.plans.setdefault(plan.id, plan)
        yield PLANNED
        yield from publish_plan(world, me, plan)


def _has_closed(world: World, load: FirstLoad) -> bool:
    head = world.head()
    rows = [] if head is None else world.path_rows(head)
    return bool(rows) and load.before_ms <= rows[-1].batch_watermark_ms


def _find_interrupted(world: World, piece: HalfOpenRange) -> BackfillPlan | None:
    head, published = world.head(), _published(world)
    semantics = None if head is None else world.timelines[head].fingerprint["semantics"]
    for plan in reversed(world.plans.values()):
        is_ours = plan.reason == REASON and plan.semantics == semantics and plan.id not in published
        if is_ours and not subtract([piece], plan.ranges):
            return plan
    return None
