"""The zone map: from event times to the offsets that may have them, cut into chunks, with a source for each."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import numpy as np

from rivertwice.backfill.model import BackfillPlan, BackfillRequest, BackfillView, BatchZone, Chunk, OffsetRuns
from rivertwice.backfill.ranges import HalfOpenRange, coalesce, intersect, merge, reach, subtract, windows
from rivertwice.core import LogGapError, from_ms, to_iso

SCAN_GAP = 10_000
"""Holes up to this many offsets are read: a further scan costs more than such a hole."""

MOST_SCANS = 4
"""Runs per partition that one chunk reads at most."""


def plan_chunks(ranges: Sequence[HalfOpenRange], view: BackfillView, chunk_records: int) -> tuple[Chunk, ...]:
    """Cut windows into chunks of about `chunk_records` rows, in order of event time, at least one window each."""
    groups: list[list[HalfOpenRange]] = []
    estimates: list[float] = []
    weights = _weights(view.batches, ranges, view.window_ms, view.step)
    for (start, end), weight in zip(windows(ranges, view.step), weights, strict=True):
        if not groups or estimates[-1] + weight > chunk_records:
            groups.append([(start, end)])
            estimates.append(weight)
            continue
        last_start, last_end = groups[-1][-1]
        if last_end == start:
            groups[-1][-1] = (last_start, end)
        else:
            groups[-1].append((start, end))
        estimates[-1] += weight
    return tuple(
        Chunk(index, tuple(group), without(_offsets_of(view, group), view.lost), round(estimate))
        for index, (group, estimate) in enumerate(zip(groups, estimates, strict=True))
    )


def _offsets_of(view: BackfillView, starts: Sequence[HalfOpenRange]) -> OffsetRuns:
    return plan_offsets(view.batches, reach(starts, view.window_ms, view.step))


def plan_offsets(batches: Iterable[BatchZone], ranges: Sequence[HalfOpenRange]) -> OffsetRuns:
    """Return the offsets of the batches that may have rows of `ranges`, in few runs per partition."""
    ordered = merge(ranges)
    ends = [end for _, end in ordered]
    by_topic: dict[str, dict[int, list[HalfOpenRange]]] = {}
    for batch in batches:
        if _touches(batch, ordered, ends):
            for topic, parts in batch.offsets.items():
                for partition, pair in parts.items():
                    by_topic.setdefault(topic, {}).setdefault(partition, []).append(pair)
    runs = {
        topic: {p: coalesce(pairs, SCAN_GAP, MOST_SCANS) for p, pairs in sorted(parts.items())}
        for topic, parts in sorted(by_topic.items())
    }
    return {topic: {p: pairs for p, pairs in parts.items() if pairs} for topic, parts in runs.items()}


def without(offsets: OffsetRuns, lost: OffsetRuns) -> OffsetRuns:
    """Return runs without the offsets that are lost; `check_doubts` refuses windows that those may belong to."""
    if not lost:
        return offsets
    return {
        topic: {p: subtract(runs, lost.get(topic, {}).get(p, ())) for p, runs in parts.items()}
        for topic, parts in offsets.items()
    }


def check_doubts(ranges: Sequence[HalfOpenRange], view: BackfillView) -> None:
    """Refuse windows that lost records may belong to: a recompute would publish a guess as the truth.

    Raises:
        LogGapError: a window of `ranges` is in doubt.
    """
    for doubt in view.doubts:
        doubtful = [
            (start, end)
            for start, end in reach(ranges, view.window_ms, view.step)
            if end > doubt.after_ms and (doubt.until_ms is None or start <= doubt.until_ms)
        ]
        if doubtful:
            limit = "and later" if doubt.until_ms is None else f"to {to_iso(from_ms(doubt.until_ms))}"
            message = (
                f"{doubt.why} is lost for ever, and may hold records of the windows from {to_iso(from_ms(doubt.after_ms))} "
                f"{limit}: a recompute of them cannot be right, so it is refused; ask for windows before or after"
            )
            raise LogGapError(message)


def plan_sources(offsets: OffsetRuns, view: BackfillView) -> tuple[OffsetRuns, OffsetRuns]:
    """Return the source of each offset: the archive if it has it, else Kafka; no offset is in both.

    Raises:
        LogGapError: neither has it.
    """
    archive: dict[str, dict[int, tuple[HalfOpenRange, ...]]] = {}
    kafka: dict[str, dict[int, tuple[HalfOpenRange, ...]]] = {}
    gaps: list[str] = []
    for topic, parts in offsets.items():
        for partition, runs in parts.items():
            segments = [
                *view.older.get(topic, {}).get(partition, ()),
                view.archive.get(topic, {}).get(partition, (0, 0)),
            ]
            old = intersect(runs, merge(segments))
            unarchived = subtract(runs, old)
            new = intersect(unarchived, [view.kafka.get(topic, {}).get(partition, (0, 0))])
            gaps += [f"{topic}/{partition} [{start}, {end})" for start, end in subtract(unarchived, new)]
            for target, pairs in ((archive, old), (kafka, new)):
                if pairs:
                    target.setdefault(topic, {})[partition] = pairs
    if gaps:
        way = (
            f"Kafka has other records now than the stream read ({', '.join(view.forks)}); `rivertwice savepoint rewind {view.pipeline}` goes back "
            "to before that and reads the log again"
            if view.forks
            else "restore the archive or ask for windows after the gap"
        )
        message = (
            f"neither the archive nor Kafka has {', '.join(gaps[:5])}{' and more' if len(gaps) > 5 else ''}: a recompute "
            f"would silently lose these records, so it is refused; {way}"
        )
        raise LogGapError(message)
    return archive, kafka


def _touches(batch: BatchZone, ranges: Sequence[HalfOpenRange], ends: Sequence[int]) -> bool:
    """Say whether a batch may hold a row of sorted, disjoint `ranges`, whose ends are `ends`."""
    if not batch.trusted or batch.versions:
        return True
    if batch.min_event_ms is None or batch.max_event_ms is None:
        return False
    first = bisect_right(ends, batch.min_event_ms)
    return first < len(ranges) and ranges[first][0] <= batch.max_event_ms


def _weights(batches: Iterable[BatchZone], ranges: Sequence[HalfOpenRange], size: int, step: int) -> list[float]:
    """Estimate rows per window: each batch's rows spread evenly over the windows its event times span."""
    starts = [start for start, _ in windows(ranges, step)]
    steps = np.zeros(len(starts) + 1)
    for batch in batches:
        if batch.min_event_ms is None or batch.max_event_ms is None:
            continue
        low, high = (batch.min_event_ms - size) // step * step + step, batch.max_event_ms // step * step
        share = batch.accepted * (size // step) / ((high - low) // step + 1)
        steps[bisect_left(starts, low)] += share
        steps[bisect_right(starts, high)] -= share
    weights: list[float] = np.cumsum(steps)[:-1].clip(min=0.0).tolist()
    return weights


def union_offsets(parts: Iterable[OffsetRuns]) -> OffsetRuns:
    """Return all offsets of several chunks, each once."""
    by_topic: dict[str, dict[int, list[HalfOpenRange]]] = {}
    for runs in parts:
        for topic, by_partition in runs.items():
            for partition, pairs in by_partition.items():
                by_topic.setdefault(topic, {}).setdefault(partition, []).extend(pairs)
    return {t: {p: merge(pairs) for p, pairs in sorted(by.items())} for t, by in sorted(by_topic.items())}


# What every plan takes from its request, its view and its chunks, whatever the kind of windows. Pure.


def draft_plan(
    request: BackfillRequest, view: BackfillView, ranges: tuple[HalfOpenRange, ...], chunks: Sequence[Chunk]
) -> BackfillPlan:
    """Return a plan that has no id yet, and nothing that depends on the kind of windows.

    Args:
        ranges: where the windows to publish start, as half-open ranges of epoch milliseconds.

    Raises:
        LogGapError: neither the archive nor Kafka has a record that is needed.
    """
    offsets = union_offsets(chunk.offsets for chunk in chunks)
    archive, kafka = plan_sources(offsets, view)
    return BackfillPlan(
        id="",
        pipeline=view.pipeline,
        reason=request.reason,
        window_ms=view.window_ms,
        ranges=ranges,
        as_of=view.as_of,
        topic_ids=view.topic_ids,
        offsets=offsets,
        archive=archive,
        kafka=kafka,
        chunks=tuple(chunks),
        bundle=view.bundle,
        semantics=view.semantics,
        sequence=view.sequence,
        amendments=view.amendments,
    )
