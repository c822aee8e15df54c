"""From a request to a plan: pure, so that what is explained is what runs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np

from rivertwice.backfill.late_queue import describe_queue, due_ranges, queue_windows
from rivertwice.backfill.model import BackfillPlan, BackfillRequest, BackfillView, Exclusion, count_offsets
from rivertwice.backfill.ranges import (
    HalfOpenRange,
    align_outwards,
    clamp,
    covering,
    intersect,
    length,
    subtract,
    windows,
)
from rivertwice.backfill.session_plan import plan_sessions
from rivertwice.backfill.zones import check_doubts, draft_plan, plan_chunks
from rivertwice.core import NothingStaleError, RequestError, iso_of_ms, to_ms
from rivertwice.storage import encode_json
from rivertwice.timeline import select_winners

MAX_WINDOWS = 100_000
"""A plan of more windows is refused: a year was mistyped, or the request should be made in parts."""

CHUNK_RECORDS = 2_000_000
"""Rows that a chunk aims at: some tens of seconds of local Spark, and little to repeat after a kill."""


def plan_backfill(request: BackfillRequest, view: BackfillView, *, chunk_records: int = CHUNK_RECORDS) -> BackfillPlan:
    """Turn a request into a plan, without reading or writing.

    Args:
        view: what was observed; for sessions, also what was looked up for the request (`prepare`).
        chunk_records: rows a chunk aims at; a chunk has at least one window.

    Raises:
        RequestError: unknown pipeline, no closed window in the range, no stale window, or too many windows.
        LogGapError: neither the archive nor Kafka has a record that is needed, or one that may be needed is lost for ever.
    """
    if request.pipeline != view.pipeline:
        message = (
            f"the request is for pipeline {request.pipeline!r}, but {view.pipeline!r} was observed; observe that one"
        )
        raise RequestError(message)
    if view.sessions is not None:
        return _named(plan_sessions(request, view, chunk_records=chunk_records, most=MAX_WINDOWS), view)
    ranges, cut = select_ranges(request, view)
    check_doubts(ranges, view)
    chunks = plan_chunks(ranges, view, chunk_records)
    draft = draft_plan(request, view, ranges, chunks)
    winners = select_winners(
        np.array([start for start, _ in windows(ranges, view.step)], dtype=np.int64),
        view.publications,
        view.serving,
    )
    served = {entry.seq: entry.backfill for entry in view.publications}
    plan = replace(
        draft,
        step_ms=view.step_ms,
        cut=cut,
        late=length(intersect(_known_late(view), ranges)) // view.step,
        replaces=tuple(served[seq] for seq in sorted(set(winners.tolist())) if seq in served),
    )
    return _named(plan, view)


def _named(plan: BackfillPlan, view: BackfillView) -> BackfillPlan:
    """Return the plan with its id, which is never that of a failed audit."""
    plan = replace(plan, id=plan_id(plan))
    while plan.id in view.failed:
        plan = replace(plan, attempt=plan.attempt + 1)
        plan = replace(plan, id=plan_id(plan))
    return plan


def select_ranges(
    request: BackfillRequest, view: BackfillView
) -> tuple[tuple[HalfOpenRange, ...], tuple[Exclusion, ...]]:
    """Return where the windows to recompute start, and what was asked but is left out.

    A request is widened to every window that holds a time of it, then clamped to closed ones and to the event times the
    log holds.

    Raises:
        RequestError: no window remains, or too many.
    """
    if request.late_at is not None:
        asked = _due(view, request.late_at)
    elif request.range is None:
        stale = align_outwards(view.stale, view.step)
        asked = stale if request.within is None else intersect(stale, request.within)
        if not asked:
            message = (
                f"no window of {view.pipeline} is stale: the newest reconcile found none LATE that is not published since; "
                "reconcile again, or name a range"
            )
            raise NothingStaleError(message)
    else:
        asked = covering([(to_ms(request.range.start), to_ms(request.range.end))], view.window_ms, view.step)
    if view.closed_ms is None:
        message = (
            f"{view.pipeline} has no committed batch and no closed windows; start it and wait for its first windows"
        )
        raise RequestError(message)
    closed_end = (view.closed_ms - view.window_ms) // view.step * view.step + view.step
    is_open = clamp(asked, closed_end, max(closed_end, asked[-1][1]))
    remaining = subtract(asked, is_open)
    if not remaining:
        message = (
            f"no window of {_say(asked)} is closed: {view.pipeline} has closed windows until {iso_of_ms(closed_end - view.step + view.window_ms)}; "
            "an open window is still the stream's, ask again when its watermark has passed it"
        )
        raise RequestError(message)
    extent = _extent(view)
    without = subtract(remaining, extent) if extent is not None else ()
    remaining = subtract(remaining, without)
    if not remaining:
        covered = _say(extent) if extent else "no record at all"
        message = f"the log of {view.pipeline} holds no record in {_say(without)}; its event times cover {covered}"
        raise RequestError(message)
    count = length(remaining) // view.step
    if count > MAX_WINDOWS:
        message = f"{count} windows are asked, the most is {MAX_WINDOWS}; ask for a shorter range, then for the rest"
        raise RequestError(message)
    cut = [Exclusion(start, end, "open") for start, end in is_open] + [
        Exclusion(start, end, "no records") for start, end in without
    ]
    return remaining, tuple(sorted(cut, key=lambda part: part.start_ms))


def _due(view: BackfillView, now: datetime) -> tuple[HalfOpenRange, ...]:
    """Return where the windows start that are due in the late queue.

    Raises:
        RequestError: the policy queues no windows, or none is due.
    """
    if view.late_policy is None or view.closed_ms is None:
        message = f"late.policy of {view.pipeline} is not `correct`; name a range, or set policy: correct"
        raise RequestError(message)
    queue = queue_windows(
        view.arrivals,
        view.publications,
        semantics=view.serving,
        policy=view.late_policy,
        closed_ms=view.closed_ms,
        now=now,
    )
    ranges = due_ranges(queue, view.step)
    if not ranges:
        message = f"no window of {view.pipeline} is due for its late rows: {describe_queue(queue)}; ask again later, or name a range"
        raise NothingStaleError(message)
    return ranges


def _known_late(view: BackfillView) -> tuple[HalfOpenRange, ...]:
    """Return the windows that are known to serve less than the log: from the newest reconcile, and from kept late rows."""
    return align_outwards(
        [*view.stale, *((arrival.start_ms, arrival.start_ms + 1) for arrival in view.arrivals)], view.step
    )


def plan_id(plan: BackfillPlan) -> str:
    """Return the id: a hash of what decides the result, not of why or from where it is read."""
    decides = {
        "pipeline": plan.pipeline,
        "window_ms": plan.window_ms,
        "ranges": plan.ranges,
        "as_of": plan.as_of,
        "topic_ids": plan.topic_ids,
        "chunks": [[chunk.index, chunk.ranges, chunk.offsets] for chunk in plan.chunks],
        "bundle": plan.bundle,
        "semantics": plan.semantics,
        "attempt": plan.attempt,
    }
    if plan.step_ms is not None:
        decides["step_ms"] = plan.step_ms
    if plan.amendments:
        decides["amendments"] = plan.amendments
    if plan.sessions is not None:
        decides["sessions"] = [plan.sessions.published, plan.sessions.vanishing]
    return f"bf-{hashlib.sha256(encode_json(decides)).hexdigest()[:12]}"


def _extent(view: BackfillView) -> tuple[HalfOpenRange, ...] | None:
    """Return the windows between the first and the last event time; None if a batch's event times cannot be trusted.

    They cannot be trusted either once a dead letter was amended: what it should have been may have any event time.
    """
    if view.amendments or not all(batch.trusted for batch in view.batches):
        return None
    lows = [batch.min_event_ms for batch in view.batches if batch.min_event_ms is not None]
    highs = [batch.max_event_ms for batch in view.batches if batch.max_event_ms is not None]
    return covering([(min(lows), max(highs) + 1)], view.window_ms, view.step) if lows and highs else ()


def _say(ranges: Sequence[HalfOpenRange]) -> str:
    first = f"[{iso_of_ms(ranges[0][0])}, {iso_of_ms(ranges[-1][1])})"
    return first if len(ranges) == 1 else f"{first} in {len(ranges)} pieces"


# A plan in words: what will be read, recomputed and replaced.

SHOWN = 6


def explain_plan(plan: BackfillPlan) -> str:
    """Return the plan as text for a person: one fact a line."""
    lines = [f"backfill   {plan.id} of {plan.pipeline} ({plan.reason})", *_what(plan)]
    for part in plan.cut:
        lines.append(f"left out   [{iso_of_ms(part.start_ms)}, {iso_of_ms(part.end_ms)}): {part.why}")
    lines.append(f"read       {plan.records} records as of the last committed batch")
    for name, runs in (("archive", plan.archive), ("Kafka", plan.kafka)):
        for topic, parts in runs.items():
            lines.append(f"           {count_offsets({topic: parts})} from {name}, {topic}: {_offsets(parts)}")
    estimates = [chunk.estimate for chunk in plan.chunks]
    lines += [
        f"work       {len(plan.chunks)} chunk{'s' if len(plan.chunks) != 1 else ''}, one commit each, "
        f"about {max(estimates, default=0)} rows in the largest",
        f"changes    {_changes(plan)}; "
        + (f"replaces what {', '.join(plan.replaces)} published" if plan.replaces else "no publication is replaced"),
        f"runs       bundle {plan.bundle}; serves while the head's semantics are {plan.semantics[:12]}",
    ]
    if plan.amendments:
        lines.append(f"amended    decisions about dead letters are applied up to {plan.amendments}")
    if plan.attempt:
        lines.append(f"attempt    {plan.attempt + 1}: the audit of the same work failed before")
    return "\n".join(lines)


def _what(plan: BackfillPlan) -> list[str]:
    """Return which windows are published, or which sessions and which of them reach beyond what was asked."""
    if plan.sessions is None:
        ranges = [f"           {line}" for line in _ranges(plan.ranges)]
        return [f"windows    {plan.windows} of {_windows(plan)}, {_pieces(plan.ranges)}", *ranges]
    sessions = plan.sessions
    (first, *more) = _ranges(sessions.asked)
    lines = [
        f"asked      sessions that hold a time of {first}",
        *(f"           {line}" for line in more),
        f"sessions   {plan.windows} settled, gap {_duration(plan.window_ms)}",
    ]
    if sessions.vanishing:
        lines.append(f"           {len(sessions.vanishing)} that are served vanish: no record is theirs any more")
    if sessions.beyond_count:
        lines.append(
            f"extended   {sessions.beyond_count} of them, with what is served of their records, reach out of what was asked: a session is "
            "published whole"
        )
        lines += [
            f"           [{iso_of_ms(session.start_ms)}, {iso_of_ms(session.end_ms)}) of {session.key}"
            for session in sessions.beyond
        ]
        rest = sessions.beyond_count - len(sessions.beyond)
        lines += [f"           and {rest} more"] if rest else []
    return lines


def _changes(plan: BackfillPlan) -> str:
    if plan.sessions is None:
        return f"{plan.late} of the windows were found LATE"
    return f"{plan.late} are served with fewer records now, or in other sessions"


def _ranges(ranges: Sequence[HalfOpenRange]) -> list[str]:
    shown = [f"[{iso_of_ms(start)}, {iso_of_ms(end)})" for start, end in ranges[:SHOWN]]
    return shown if len(ranges) <= SHOWN else [*shown, f"and {len(ranges) - SHOWN} more"]


def _pieces(ranges: Sequence[HalfOpenRange]) -> str:
    return "in one piece" if len(ranges) == 1 else f"in {len(ranges)} pieces"


def _offsets(parts: Mapping[int, tuple[HalfOpenRange, ...]]) -> str:
    return ", ".join(f"{p} " + " ".join(f"[{start}, {end})" for start, end in runs) for p, runs in parts.items())


def _windows(plan: BackfillPlan) -> str:
    size = _duration(plan.window_ms)
    return (
        f"{size}, closed"
        if plan.step_ms is None
        else f"{size} every {_duration(plan.step_ms)}, closed, by their starts"
    )


def _duration(ms: int) -> str:
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms % size == 0:
            return f"{ms // size} {unit}"
    return f"{ms} ms"
