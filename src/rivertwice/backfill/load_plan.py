"""Where a stream begins if the past is loaded by batch. Pure: the log's event times in, a plan out.

The watermark that the stream would have at the log's end closes all windows before `before_ms`. In each partition the stream
begins with the first block of offsets that has an event time at or after `before_ms`. So it reads every record of the windows that
start there or later, whatever the order of records is; older windows have records on both sides, and are loaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from rivertwice.backfill.model import BackfillRequest
from rivertwice.backfill.ranges import HalfOpenRange, subtract
from rivertwice.core import RequestError, TimeRange, from_ms, iso_of_ms
from rivertwice.definition import Definition
from rivertwice.log import LakeHistory, OffsetRanges, count, drop_empty
from rivertwice.timeline import FirstLoad, LogZone, Publication

MOST_ZONES = 20_000
"""The largest number of blocks of a log, each of as many records as that takes: the driver holds them, the log's length does not matter."""
LEAST_BLOCK = 100
"""Offsets of a block at least."""
REASON = "first load"
"""Reason of the backfills that load a pipeline's past; by it and their windows an interrupted one is found again."""


@dataclass(frozen=True)
class LogMap:
    """The event times of a topic's records, block by block.

    Attributes:
        ranges: partition to the offsets that were read, half-open.
        zones: blocks that follow each other and cover `ranges`.
        rejected: (partition, start of the block) to reason to number of records that the definition does not accept.
        history: what lies in a lake; the log begins where it ends, and so does a block.
    """

    topic: str
    ranges: OffsetRanges
    zones: Sequence[LogZone]
    rejected: Mapping[tuple[int, int], Mapping[str, int]] = field(default_factory=dict)
    history: LakeHistory | None = None


@dataclass(frozen=True)
class LoadPlan:
    """What a first load does.

    Attributes:
        since_ms, before_ms: the windows to load by their start (epoch ms, half-open); size_ms, step_ms: their length, and the time
            between two starts.
        closed_ms: the watermark that the stream would have at the log's end.
        ranges: partition to the offsets that the stream does not read; empty where it reads all.
        zones: their event times.
        accepted: records among them that the definition accepts; rejected: reason to number of the others.
        streamed: records that the stream reads of the log as it was.
        history: what of the ranges lies in a lake.
    """

    topic: str
    since_ms: int
    before_ms: int
    size_ms: int
    step_ms: int
    closed_ms: int
    ranges: OffsetRanges
    zones: Sequence[LogZone]
    accepted: int
    rejected: Mapping[str, int]
    streamed: int
    history: LakeHistory | None = None

    @property
    def history_ms(self) -> int | None:
        """The largest event time of an accepted record of the history; None if there is none."""
        ranges = {} if self.history is None else self.history.ranges
        own = (zone.max_event_ms for zone in self.zones if zone.end <= ranges.get(zone.partition, (0, zone.start))[1])
        return max((ms for ms in own if ms is not None), default=None)

    @property
    def windows(self) -> int:
        """How many windows start in the loaded time, with and without records."""
        return (self.before_ms - self.since_ms) // self.step_ms

    @property
    def records(self) -> int:
        """How many records the stream does not read."""
        return count(self.ranges)


def refuse_load(definition: Definition) -> None:
    """Refuse a definition whose past cannot be loaded by batch.

    Raises:
        RequestError: the message says why, and what to do instead.
    """
    why = definition.load_obstacle
    if why is None:
        return
    message = (
        f"{definition.name} cannot be loaded by batch: {why}; `rivertwice start {definition.name} --from-batch` lets the "
        "stream load it in large batches"
    )
    raise RequestError(message)


def block_size(records: int) -> int:
    """Return how many offsets a block of the log's map has."""
    return max(LEAST_BLOCK, -(-records // MOST_ZONES))


def plan_load(definition: Definition, log: LogMap) -> LoadPlan | str:
    """Return what a first load does, or why there is nothing to load by batch.

    Args:
        definition: that `refuse_load` accepts.
        log: all records that exist.

    Raises:
        RequestError: there is a history, and the stream would have to read some of it, or all.
    """
    plan = _plan_load(definition, log)
    history = log.history
    if history is None:
        return plan
    reached = "" if not isinstance(plan, str) else plan
    for partition, (_, end) in history.ranges.items():
        if not isinstance(plan, str) and plan.ranges[partition][1] < end:
            reached = f"windows that are open at the log's end, from {iso_of_ms(plan.before_ms)} on, have records in it"
    if reached:
        message = (
            f"{definition.name} cannot load its history, {history.text}: {reached}, and a stream reads Kafka alone; wait until the log has "
            f"records that close the windows of the history, then `rivertwice start {definition.name} --from-batch`"
        )
        raise RequestError(message)
    return plan


def _plan_load(definition: Definition, log: LogMap) -> LoadPlan | str:
    ms = timedelta(milliseconds=1)
    window, (_, source) = definition.window, definition.source
    size, step = window.length // ms, window.step // ms
    lows = [zone.min_event_ms for zone in log.zones if zone.min_event_ms is not None]
    highs = [zone.max_event_ms for zone in log.zones if zone.max_event_ms is not None]
    if not lows or not highs:
        return f"topic {log.topic} has no record that {definition.name} accepts"
    closed_ms = window.closed_ms(max(0, max(highs) - source.watermark // ms))
    since, before = (min(lows) - size) // step * step + step, (closed_ms - size) // step * step + step
    if since >= before:
        return f"no window of {definition.name} is closed at the end of topic {log.topic}"
    ranges = dict(log.ranges)
    for partition, (start, end) in log.ranges.items():
        begins = (zone.start for zone in log.zones if zone.partition == partition and _reaches(zone, before))
        ranges[partition] = (start, min(begins, default=end))
    if not drop_empty(ranges):
        return f"every partition of topic {log.topic} begins with records of windows that are open at its end"
    zones = [zone for zone in log.zones if zone.start < ranges[zone.partition][1]]
    rejected: Counter[str] = Counter()
    for zone in zones:
        rejected.update(log.rejected.get((zone.partition, zone.start), {}))
    return LoadPlan(
        topic=log.topic,
        since_ms=since,
        before_ms=before,
        size_ms=size,
        step_ms=step,
        closed_ms=closed_ms,
        ranges=ranges,
        zones=zones,
        accepted=sum(zone.accepted for zone in zones),
        rejected=dict(sorted(rejected.items())),
        streamed=count(log.ranges) - count(ranges),
        history=log.history,
    )


def _reaches(zone: LogZone, before_ms: int) -> bool:
    return zone.max_event_ms is not None and zone.max_event_ms >= before_ms


def find_unloaded(
    load: FirstLoad, publications: Sequence[Publication], semantics: frozenset[str]
) -> tuple[HalfOpenRange, ...]:
    """Return the windows of a load that no backfill has published yet, by their start (epoch ms).

    Args:
        semantics: of the head's path, whose publications serve.
    """
    published = [
        pair
        for publication in publications
        if publication.backfill != load.cover and publication.semantics in semantics
        for pair in publication.ranges
    ]
    return subtract([(load.since_ms, load.before_ms)], published)


def cut_pieces(unloaded: Sequence[HalfOpenRange], step_ms: int, most: int) -> list[HalfOpenRange]:
    """Return the pieces that one backfill each publishes, of at most `most` windows, oldest first."""
    return [
        (start, min(end, start + most * step_ms))
        for first, end in unloaded
        for start in range(first, end, most * step_ms)
    ]


def ask_for(pipeline: str, piece: HalfOpenRange, size_ms: int, step_ms: int) -> BackfillRequest:
    """Return the request of a backfill of the windows that start in a piece.

    A request names times, and takes every window that holds one. So the earliest time that is in no earlier window is named, unless
    the piece is shorter than a window: then earlier ones are published too.
    """
    start, end = piece
    first = min(start + size_ms - step_ms, end - 1)
    return BackfillRequest(pipeline, TimeRange(from_ms(first), from_ms(end)), REASON)


def explain_load(pipeline: str, plan: LoadPlan) -> str:
    """Return the plan as text for a person: one fact a line."""
    rejected = sum(plan.rejected.values())
    kept = f"windows    {plan.windows}, which start in [{iso_of_ms(plan.since_ms)}, {iso_of_ms(plan.before_ms)}): all are closed by the watermark"
    lines = [
        f"first load of {pipeline}, topic {plan.topic}",
        f"{kept} {iso_of_ms(plan.closed_ms)} that the stream would have at the log's end",
        f"batch      {plan.records} records that the stream does not read; backfills read those that their windows need",
        *(
            []
            if plan.history is None
            else [
                f"history    {count(plan.history.ranges)} rows of {plan.history.text}: offsets below {plan.history.end} of partition 0"
            ]
        ),
        *(
            f"           partition {p} [{low}, {high})"
            for p, (low, high) in sorted(drop_empty(dict(plan.ranges)).items())
        ),
        f"stream     {plan.streamed} records, and all that come",
    ]
    if rejected:
        reasons = ", ".join(f"{reason} {number}" for reason, number in plan.rejected.items())
        lines.append(
            f"rejected   {rejected} of the records that the stream does not read; they get no dead letter: {reasons}"
        )
    return "\n".join(lines)
