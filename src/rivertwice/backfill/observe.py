"""What a plan is made from: the tables, the archive and Kafka, observed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from rivertwice.backfill.late_queue import LateArrival, QueuedWindow, queue_windows
from rivertwice.backfill.late_windows import Repairs, find_late, require_publishable, window_ms
from rivertwice.backfill.model import BackfillView, BatchZone, DoubtfulWindows
from rivertwice.backfill.ranges import HalfOpenRange, intersect, merge, subtract
from rivertwice.core import PipelineHome, RequestError, Settings, TimeRange, from_ms, to_ms
from rivertwice.definition import Definition, load_bundle_definition
from rivertwice.log import accepted_gaps, archived_segments, drop_empty, kafka, marks_from_plain, observe_forks
from rivertwice.storage import read_json
from rivertwice.timeline import (
    FirstLoad,
    LedgerRow,
    Timeline,
    Verdict,
    head_path,
    last_amendment,
    path_ledger,
    path_semantics,
    publications_of,
    read_late_rows,
    read_sequence,
    read_zones,
    select_head,
    total_of,
)


def observe_backfill(settings: Settings, pipeline: str, verdicts: tuple[str, ...] = (Verdict.LATE,)) -> BackfillView:
    """Observe all that a plan depends on.

    Args:
        verdicts: a window is stale if the newest reconcile found a served row of it so, and it was not published since.

    Raises:
        RequestError: the pipeline never ran here, or it is a fold.
        ServiceError: Kafka does not answer.
    """
    home = settings.pipeline(pipeline)
    entries = read_sequence(home)
    head = select_head(entries)
    if head is None:
        known = sorted(path.parent.name for path in settings.home.glob("pipelines/*/timelines"))
        message = (
            f"pipeline {pipeline} has no timeline in {settings.home}, so there is nothing to recompute; start it first "
            f"(pipelines that ran here: {', '.join(known) or 'none'})"
        )
        raise RequestError(message)
    line = Timeline.load(home, head)
    definition = load_bundle_definition(home.bundles, line.bundle)
    require_publishable(definition)
    ledger = path_ledger(home)
    trusted = _same_decode(home, line)
    topics = sorted({topic for row in ledger for topic in row.end_offsets})
    publications = publications_of(entries)
    size, step = window_ms(definition)
    segments = {topic: archived_segments(settings, topic, line.topic_ids[topic]) for topic in topics}
    archive = {topic: topic_segments[-1] if topic_segments else {} for topic, topic_segments in segments.items()}
    jumps, lost, doubts = _gaps(home, ledger, archive)
    jumps += _loaded(home, line)
    serving = path_semantics(home, head_path(home))
    late = find_late(home, definition, Repairs(publications, serving, verdicts))
    in_kafka = {topic: _in_kafka(settings, topic, line.topic_ids[topic]) for topic in topics}
    marks = marks_from_plain(ledger[-1].marks) if ledger else {}
    forks = observe_forks(
        settings, line.topic_ids, {part: mark for part, mark in marks.items() if in_kafka[part.topic]}
    )
    for fork in forks:
        del in_kafka[fork.part.topic][fork.part.partition]
    return BackfillView(
        pipeline=pipeline,
        window_ms=size,
        closed_ms=ledger[-1].batch_watermark_ms if ledger else None,
        batches=(*(zone for row in ledger for zone in _zones(row, definition, trusted=row.bundle in trusted)), *jumps),
        as_of={t: {int(p): int(o) for p, o in parts.items()} for t, parts in ledger[-1].end_offsets.items()}
        if ledger
        else {},
        topic_ids=line.topic_ids,
        archive=archive,
        older={
            topic: _older(topic_segments[:-1]) for topic, topic_segments in segments.items() if len(topic_segments) > 1
        },
        kafka=in_kafka,
        forks=tuple(map(str, forks)),
        bundle=line.bundle,
        semantics=line.fingerprint["semantics"],
        path_semantics=serving,
        sequence=entries[-1].seq if entries else 0,
        publications=tuple(publications),
        stale=late.windows,
        failed=frozenset(_failed(home)),
        lost=lost,
        doubts=doubts,
        step_ms=None if step == size else step,
        amendments=last_amendment(home),
        late_policy=definition.late if definition.late.queues_windows else None,
        arrivals=_arrivals(home, definition, ledger),
        sessions=late.sessions,
    )


def observe_late_queue(home: PipelineHome, now: datetime) -> list[QueuedWindow]:
    """Return the windows of the late queue: due, waiting or beyond the horizon.

    Raises:
        RequestError: the pipeline never ran here, or its late policy is not `correct`.
    """
    entries = read_sequence(home)
    head = select_head(entries)
    if head is None:
        message = f"{home.root.name} has no timeline in {home.root}, so it has no late rows; start it first"
        raise RequestError(message)
    line = Timeline.load(home, head)
    definition = load_bundle_definition(home.bundles, line.bundle)
    if not definition.late.queues_windows:
        message = f"late.policy of {definition.name} is {definition.late.policy}, which queues no windows; set policy: correct"
        raise RequestError(message)
    ledger = path_ledger(home)
    return queue_windows(
        _arrivals(home, definition, ledger),
        publications_of(entries),
        semantics=path_semantics(home, head_path(home)),
        policy=definition.late,
        closed_ms=ledger[-1].batch_watermark_ms if ledger else 0,
        now=now,
    )


def _arrivals(home: PipelineHome, definition: Definition, ledger: Sequence[LedgerRow]) -> tuple[LateArrival, ...]:
    if not definition.late.queues_windows:
        return ()
    columns = ("window_start", "window_end", "topic", "partition", "offset")
    return tuple(
        LateArrival(
            to_ms(row["window_start"]),
            to_ms(row["window_end"]),
            row["topic"],
            row["partition"],
            row["offset"],
            row["batch"].committed_at,
        )
        for row in read_late_rows(home, ledger, columns)
    )


def _older(segments: Sequence[Mapping[int, HalfOpenRange]]) -> dict[int, tuple[HalfOpenRange, ...]]:
    partitions = {partition for segment in segments for partition in segment}
    return {p: merge([segment[p] for segment in segments if p in segment]) for p in sorted(partitions)}


def _gaps(
    home: PipelineHome, ledger: Sequence[LedgerRow], archive: Mapping[str, Mapping[int, HalfOpenRange]]
) -> tuple[list[BatchZone], dict[str, dict[int, tuple[HalfOpenRange, ...]]], tuple[DoubtfulWindows, ...]]:
    """Return what accepted gaps on the path mean for a recompute.

    What the archive has of a gap is read for every window, because its event times are not known. What the archive lacks
    puts the windows that it may belong to in doubt.
    """
    zones: list[BatchZone] = []
    lost: dict[str, dict[int, tuple[HalfOpenRange, ...]]] = {}
    doubts: list[DoubtfulWindows] = []
    path = {segment.timeline for segment in head_path(home)}
    for timeline, gap in accepted_gaps(home).items():
        if timeline not in path or not ledger:
            continue
        archive_ranges = archive.get(gap.topic, {})
        archived = {p: intersect([pair], [archive_ranges.get(p, (0, 0))]) for p, pair in gap.ranges.items()}
        for p, runs in archived.items():
            zones += [BatchZone(timeline, -1, {gap.topic: {p: run}}, 0, None, None, trusted=False) for run in runs]
        unarchived = {p: subtract([pair], archived[p]) for p, pair in gap.ranges.items()}
        for p, runs in unarchived.items():
            if runs:
                lost.setdefault(gap.topic, {})[p] = merge([*lost.get(gap.topic, {}).get(p, ()), *runs])
        if any(unarchived.values()):
            named = ", ".join(
                f"{gap.topic}/{p} [{low}, {high})" for p, runs in unarchived.items() for low, high in runs
            )
            doubts.append(DoubtfulWindows(gap.watermark_ms, gap.until_ms, f"{named} of {gap.id}"))
    return zones, lost, tuple(doubts)


def _loaded(home: PipelineHome, line: Timeline) -> list[BatchZone]:
    """Return the zones of the records that a first load by batch left out; by another decode their event times may differ."""
    load = FirstLoad.load(home)
    if load is None:
        return []
    trusted = load.fingerprint["decode"] == line.fingerprint["decode"]
    return [
        BatchZone(
            load.timeline,
            -1,
            {load.topic: {zone.partition: (zone.start, zone.end)}},
            zone.accepted,
            zone.min_event_ms,
            zone.max_event_ms,
            trusted=trusted,
        )
        for zone in read_zones(home, load)
    ]


def stale_ranges(home: PipelineHome, verdicts: tuple[str, ...] = (Verdict.LATE,)) -> list[TimeRange]:
    """Return the windows that the newest reconcile found LATE in what is served, without those published since.

    Empty if no window is stale, if no reconcile has run yet, or if the windows cannot be repaired, as for a fold.

    Args:
        verdicts: instead of LATE.
    """
    entries = read_sequence(home)
    head = select_head(entries)
    if head is None:
        return []
    line = Timeline.load(home, head)
    definition = load_bundle_definition(home.bundles, line.bundle)
    if not definition.has_lone_windows:
        return []
    publications, semantics = publications_of(entries), path_semantics(home, head_path(home))
    late = find_late(home, definition, Repairs(publications, semantics, verdicts))
    return [TimeRange(from_ms(start), from_ms(end)) for start, end in late.ranges]


def _zones(row: LedgerRow, definition: Definition, *, trusted: bool) -> list[BatchZone]:
    """Return the zone of a batch's rows, and, if it read any versions of tables, the zone of these."""
    tables = {source.topic for source in definition.tables.values()}
    counts = (
        total_of(topic_counts for topic, topic_counts in row.by_topic.items() if topic not in tables) if tables else row
    )
    offsets = {topic: row.ranges(topic) for topic in row.end_offsets}
    stream_offsets = {topic: ranges for topic, ranges in offsets.items() if topic not in tables}
    rows = BatchZone(
        timeline=row.timeline,
        batch=row.batch,
        offsets=stream_offsets,
        accepted=counts.accepted,
        min_event_ms=counts.min_event_ms,
        max_event_ms=counts.max_event_ms,
        trusted=trusted,
    )
    table_offsets = {topic: drop_empty(ranges) for topic, ranges in offsets.items() if topic in tables}
    versions = {topic: ranges for topic, ranges in table_offsets.items() if ranges}
    if not versions:
        return [rows]
    return [rows, BatchZone(row.timeline, row.batch, versions, 0, None, None, versions=True)]


def _same_decode(home: PipelineHome, line: Timeline) -> set[str]:
    """Return the bundles with the head's decode: their zone map is valid for the head's bundle too."""
    lines = [Timeline.load(home, name) for name in Timeline.names(home)]
    return {timeline.bundle for timeline in lines if timeline.fingerprint["decode"] == line.fingerprint["decode"]}


def _in_kafka(settings: Settings, topic: str, topic_id: str) -> dict[int, HalfOpenRange]:
    """Return what Kafka holds; nothing if the topic was deleted, or deleted and created again."""
    if not kafka.topic_exists(settings, topic) or kafka.topic_id(settings, topic) != topic_id:
        return {}
    begins = kafka.begin_offsets(settings, topic)
    return {p: (begins[p], end) for p, end in kafka.end_offsets(settings, topic).items()}


def _failed(home: PipelineHome) -> list[str]:
    audits = ((path.parent.name, read_json(path)) for path in home.backfills.glob("*/audit.json"))
    return [backfill for backfill, audit in audits if audit is not None and not audit["passed"]]
