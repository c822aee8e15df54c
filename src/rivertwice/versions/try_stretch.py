"""Which windows a trial runs over, and the records of each side: whole closed windows that are retained. Pure.

The windows, their offsets and the source of each offset are those of a backfill's plan. A trial differs in one respect: what is no
longer retained is left out and named, where a backfill is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta

from rivertwice.backfill.model import BackfillPlan, BackfillRequest, BackfillView, BatchZone, SessionsView
from rivertwice.backfill.plan import MAX_WINDOWS, select_ranges
from rivertwice.backfill.ranges import HalfOpenRange, covering, merge, reach, subtract
from rivertwice.backfill.session_plan import has_settled, plan_sessions
from rivertwice.backfill.zones import check_doubts, draft_plan, plan_chunks
from rivertwice.core.errors import RequestError
from rivertwice.core.instants import TimeRange, from_ms, iso_of_ms
from rivertwice.definition.bundle import Bundle

ALL = sys.maxsize
"""Records of a chunk: a trial has one."""
Batch = tuple[str, int]
"""Timeline and number of a batch."""


def newest_stretch(view: BackfillView, last: timedelta) -> TimeRange:
    """Return so much event time before the end of the newest closed window, or before what is settled of sessions.

    Raises:
        RequestError: no window is closed yet.
    """
    if not view.closed_ms:
        message = (
            f"no window of {view.pipeline} is closed yet, so there is nothing to compare; wait for its first windows"
        )
        raise RequestError(message)
    end_ms = (view.closed_ms - view.window_ms) // view.step * view.step + view.window_ms
    if view.sessions is not None:
        end_ms = view.closed_ms - view.window_ms
    return TimeRange(from_ms(end_ms) - last, from_ms(end_ms))


def view_of(
    view: BackfillView,
    new: Bundle,
    window_ms: tuple[int, int],
    *,
    clean: Collection[Batch],
    alike: bool,
    keeps_zones: bool,
    has_sessions: bool,
) -> BackfillView:
    """Return a view of the running definition as one of a changed definition.

    Args:
        view: observed for the definition that runs.
        new: the changed definition.
        window_ms: length of its windows and time between two starts.
        clean: batches without a dead letter.
        alike: whether both definitions accept the same records with the same event times.
        keeps_zones: whether records that both accept have the same event time. Then the zone of a batch without a dead letter holds
            for the changed definition too: it can accept no further record of it.
        has_sessions: whether its windows are sessions.
    """

    def is_known(zone: BatchZone) -> bool:
        return zone.trusted and (alike or (keeps_zones and (zone.timeline, zone.batch) in clean))

    size, step = window_ms
    return replace(
        view,
        window_ms=size,
        step_ms=None if step == size else step,
        batches=tuple(replace(zone, trusted=is_known(zone)) for zone in view.batches),
        bundle=new.id,
        semantics=new.fingerprint.semantics,
        late_policy=None,
        arrivals=(),
        stale=(),
        sessions=SessionsView() if has_sessions else None,
    )


def without_unknown_losses(view: BackfillView) -> tuple[BackfillView, int]:
    """Return the view without batches of unknown event times that are not retained, and how many records these had.

    Such batches are always read, because a definition may accept a record of them for any window.
    """
    lost = {place for place, zone in enumerate(view.batches) if not zone.trusted and not _is_retained(zone, view)}
    kept = tuple(zone for place, zone in enumerate(view.batches) if place not in lost)
    return replace(view, batches=kept), sum(_records(view.batches[place]) for place in lost)


def choose_ranges(
    request: BackfillRequest, view: BackfillView
) -> tuple[tuple[HalfOpenRange, ...], list[tuple[int, int, str]]]:
    """Return where the windows start that are asked for, closed and retained, and what of the request is left out, with the reason.

    Raises:
        RequestError: no window remains.
    """
    asked, cut = select_ranges(request, view)
    times = reach(asked, view.window_ms, view.step)
    lost = [
        (zone.min_event_ms, zone.max_event_ms + 1)
        for zone in view.batches
        if zone.trusted
        and zone.min_event_ms is not None
        and zone.max_event_ms is not None
        and _touches(zone.min_event_ms, zone.max_event_ms, times)
        and not _is_retained(zone, view)
    ]
    remaining = subtract(asked, covering(lost, view.window_ms, view.step))
    if not remaining:
        message = (
            f"no window of {view.pipeline} in [{iso_of_ms(asked[0][0])}, {iso_of_ms(asked[-1][1])}) is retained whole: neither Kafka nor the archive "
            f"has some of its records; {describe_retained(view)}"
        )
        raise RequestError(message)
    gone = [(start, end, "not retained") for start, end in subtract(asked, remaining)]
    return remaining, sorted([*((part.start_ms, part.end_ms, part.why) for part in cut), *gone])


def describe_retained(view: BackfillView) -> str:
    """Return in words which event times the batches have that Kafka or the archive still holds."""
    kept = [zone for zone in view.batches if zone.min_event_ms is not None and _is_retained(zone, view)]
    if not kept:
        return "no batch that the stream read is retained"
    low = min(zone.min_event_ms for zone in kept if zone.min_event_ms is not None)
    high = max(zone.max_event_ms for zone in kept if zone.max_event_ms is not None)
    return f"what is retained has event times from {iso_of_ms(low)} to {iso_of_ms(high)}"


def plan_windows(request: BackfillRequest, view: BackfillView, ranges: Sequence[HalfOpenRange]) -> BackfillPlan:
    """Return the plan of windows, as one chunk.

    Raises:
        LogGapError: a record that is needed is in neither Kafka nor the archive, or lost for ever.
    """
    ranges = tuple(ranges)
    check_doubts(ranges, view)
    return replace(
        draft_plan(request, view, ranges, plan_chunks(ranges, view, ALL)), id="the trial", step_ms=view.step_ms
    )


def plan_settled(request: BackfillRequest, view: BackfillView) -> BackfillPlan | None:
    """Return the plan of the sessions that were looked up, as one chunk; None if none of them is settled.

    Raises:
        RequestError: there are too many.
        LogGapError: as for `plan_windows`.
    """
    if not has_settled(view):
        return None
    return replace(plan_sessions(request, view, chunk_records=ALL, most=MAX_WINDOWS), id="the trial")


def _is_retained(zone: BatchZone, view: BackfillView) -> bool:
    return not any(
        subtract([pair], _held(view, topic, partition))
        for topic, parts in zone.offsets.items()
        for partition, pair in parts.items()
    )


def _held(view: BackfillView, topic: str, partition: int) -> tuple[HalfOpenRange, ...]:
    """Return the offsets that can be read, with those that an accepted gap lost: these are known, and doubts name their windows."""
    places = (view.archive, view.kafka)
    held = [place.get(topic, {}).get(partition, (0, 0)) for place in places]
    return merge([*held, *view.older.get(topic, {}).get(partition, ()), *view.lost.get(topic, {}).get(partition, ())])


def _records(zone: BatchZone) -> int:
    return sum(end - start for parts in zone.offsets.values() for start, end in parts.values())


def _touches(low: int, high: int, times: Sequence[HalfOpenRange]) -> bool:
    return any(start <= high and low < end for start, end in times)
