"""Look at a stream's backlog, and hand the oldest part of it over to batch: the stream continues with the newest records.

1. The records that it skips are archived, all of them. 2. They are recorded as a gap (`log.gaps`) with the cause `handed over`. 3. The
stream continues after the gap on a new timeline, with the state as it was (`retention.accept`). A reconcile reads the skipped records
from the archive, names the windows that they belong to, and a backfill publishes these. No record is lost, and no row is called equal
before that.

A crash before step 3 leaves the stream as it was; the archive has more. In step 3 it is that of an accepted gap.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from rivertwice.core import PipelineHome, Progress, RequestError, Settings
from rivertwice.definition import Definition, load_bundle_definition
from rivertwice.log import (
    Acceptance,
    Gap,
    GapReason,
    archived_ranges,
    drop_empty,
    extend_archive,
    first_stamps,
    intersect,
    kafka,
)
from rivertwice.retention.accept import continue_after
from rivertwice.retention.backlog import BATCHES, Backlog, HandOver, measure_pace, select_skipped
from rivertwice.retention.view import view_retention
from rivertwice.stream import at_rest, next_offsets
from rivertwice.timeline import LedgerRow, Timeline, committed_batches, head, newest_batches, path_of

ARRIVING = timedelta(minutes=10)
"""So long a time before the newest record says how fast records arrive."""
_MS = timedelta(milliseconds=1)


def view_backlog(settings: Settings, pipeline: str, now: datetime) -> list[Backlog]:
    """Return what waits, by topic.

    Raises:
        RequestError: the pipeline never ran.
        ServiceError: Kafka does not answer.
    """
    home, line, definition = _running(settings, pipeline)
    path = path_of(home, line.timeline)
    rows = newest_batches(home, committed_batches(home, path), path, BATCHES)
    pace = measure_pace(rows)
    clocks = {
        topic.log.topic: [
            lease.clock.left for lease in topic.leases if lease.kind == "stream" and lease.clock.left is not None
        ]
        for topic in view_retention(settings, pipeline, now).topics
    }
    backlogs = []
    for topic in definition.topics:
        share = sum(_read_of(row, topic) for row in rows) / max(1, sum(row.read for row in rows))
        backlogs.append(
            _backlog(
                settings, home, line, topic, None if pace is None else pace * share, min(clocks[topic], default=None)
            )
        )
    return backlogs


def plan_hand_over(settings: Settings, pipeline: str, backlog: Backlog, keep: timedelta | None) -> HandOver:
    """Return which records the stream would skip; nothing is changed.

    Args:
        keep: how much of the newest, by timestamps, the stream reads itself; None: twice what a window stays open.

    Raises:
        RequestError: it cannot be handed over, or there is nothing to skip.
    """
    _, _, definition = _running(settings, pipeline)
    refusal = find_hand_over_obstacle(definition)
    if refusal is not None:
        message = f"{pipeline} cannot leave a part of its log to batch: {refusal}; let it catch up"
        raise RequestError(message)
    kept = 2 * open_for(definition) if keep is None else keep
    if backlog.newest_ms is None:
        message = f"{backlog.topic} has no record, so there is nothing to hand over"
        raise RequestError(message)
    cut_ms = backlog.newest_ms - kept // _MS
    ranges = select_skipped(backlog.waiting, kafka.offsets_at(settings, backlog.topic, cut_ms))
    if not ranges:
        message = (
            f"all that waits in {backlog.topic} is of the newest {kept}, which the stream reads itself; let it catch up, or "
            "name a shorter --keep"
        )
        raise RequestError(message)
    return HandOver(backlog.topic, ranges, cut_ms)


def find_hand_over_obstacle(definition: Definition) -> str | None:
    """Return why a part of a stream's log cannot be left to batch, or None. Pure."""
    if not definition.has_lone_windows:
        return "each row of a fold depends on all records of its key before it"
    if len(definition.topics) > 1:
        return "it reads several topics, and each would be cut at another place"
    return None


def open_for(definition: Definition) -> timedelta:
    """Return how long a window stays open: its length and the watermark delay. Pure."""
    _, source = definition.source
    return definition.window.length + (source.watermark or timedelta())


def hand_over(
    settings: Settings, pipeline: str, plan: HandOver, *, by: str, now: datetime, progress: Progress
) -> Acceptance:
    """Leave records to batch; the stream must not run. See the module's steps.

    Raises:
        LogGapError: Kafka has deleted some of them already.
        LeaseLostError: a driver runs.
        LostRaceError: another operation holds the stream, or its head moved.
        RequestError: the stream has read some of them meanwhile.
    """
    home, line, _ = _running(settings, pipeline)
    progress(f"{plan.records} records of {plan.topic} are archived ...")
    extend_archive(
        None, settings, plan.topic, upto={p: end for p, (_, end) in plan.ranges.items()}, progress=progress
    )  # step 1
    with at_rest(home, "hand-over", now, running="it reads what would be left to batch"):
        position = next_offsets(home.checkpoint(line.timeline), line, plan.topic)
        if head(home) != line.timeline or any(position.get(p, 0) != start for p, (start, _) in plan.ranges.items()):
            message = f"the stream of {pipeline} continued meanwhile, so the plan is outdated and nothing was skipped; run it again"
            raise RequestError(message)
        archived = intersect(plan.ranges, archived_ranges(settings, plan.topic, line.topic_ids[plan.topic]))
        if archived != plan.ranges:
            message = f"the archive of {plan.topic} lacks part of {plan.ranges}; nothing was skipped; `rivertwice admin archive {plan.topic}`"
            raise RequestError(message)
        gap = _gap(home, line, plan, now)
        gap.record(home)  # step 2
        return continue_after(settings, home, gap, by=by, now=now)  # step 3


def _gap(home: PipelineHome, line: Timeline, plan: HandOver, now: datetime) -> Gap:
    path = path_of(home, line.timeline)
    rows = newest_batches(home, committed_batches(home, path), path, 1)
    return Gap(
        pipeline=home.root.name,
        timeline=line.timeline,
        batch=rows[-1].batch if rows else None,
        topic=plan.topic,
        topic_id=line.topic_ids[plan.topic],
        cause=GapReason.HANDED_OVER,
        ranges=plan.ranges,
        archived=plan.ranges,
        watermark_ms=rows[-1].batch_watermark_ms if rows else 0,
        until_ms=None,
        noted_at=now,
    )


def _running(settings: Settings, pipeline: str) -> tuple[PipelineHome, Timeline, Definition]:
    home = settings.pipeline(pipeline)
    name = head(home)
    if name is None:
        message = f"{pipeline} never ran and has no backlog; `rivertwice start {pipeline}`"
        raise RequestError(message)
    line = Timeline.load(home, name)
    return home, line, load_bundle_definition(home.bundles, line.bundle)


def _backlog(
    settings: Settings, home: PipelineHome, line: Timeline, topic: str, pace: float | None, left: timedelta | None
) -> Backlog:
    ends, begins = kafka.end_offsets(settings, topic), kafka.begin_offsets(settings, topic)
    position = dict.fromkeys(ends, 0) | next_offsets(home.checkpoint(line.timeline), line, topic)
    waiting = drop_empty({p: (max(position[p], begins.get(p, 0)), end) for p, end in ends.items()})
    lasts = first_stamps(settings, topic, {p: end - 1 for p, end in ends.items() if end > begins.get(p, 0)})
    newest_ms = max(lasts.values(), default=None)
    firsts = first_stamps(settings, topic, {p: start for p, (start, _) in waiting.items()})
    arriving = 0.0
    if newest_ms is not None:
        before = kafka.offsets_at(settings, topic, newest_ms - ARRIVING // _MS)
        arriving = sum(end - before.get(p, end) for p, end in ends.items()) / ARRIVING.total_seconds()
    return Backlog(topic, waiting, newest_ms, min(firsts.values(), default=None), pace, arriving, left)


def _read_of(row: LedgerRow, topic: str) -> int:
    counts = row.by_topic.get(topic)
    return row.read if counts is None else counts.read
