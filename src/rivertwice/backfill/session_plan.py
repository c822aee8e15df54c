"""From a request to a plan of sessions: which ones are meant, looked up around it, and how they are cut into chunks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rivertwice.backfill.model import (
    MOST_RANGES,
    BackfillPlan,
    BackfillRequest,
    BackfillView,
    Beyond,
    Chunk,
    Component,
    Exclusion,
    PlannedSession,
    PlannedSessions,
    SessionsView,
    Span,
    gather_components,
)
from rivertwice.backfill.ranges import HalfOpenRange, coalesce, merge
from rivertwice.backfill.zones import draft_plan, plan_offsets, without
from rivertwice.core import LogGapError, NothingStaleError, RequestError, from_ms, to_iso, to_ms
from rivertwice.timeline import key_digest

SHOWN = 5


def asked_sessions(request: BackfillRequest, view: BackfillView) -> BackfillScope:
    """Return which sessions a request asks for.

    Raises:
        RequestError: the late queue is asked for, no session is stale, or no batch is committed.
    """
    sessions_view = _sessions_view(view)
    if view.closed_ms is None:
        message = f"{view.pipeline} has no committed batch and no settled sessions; start it and wait for its first"
        raise RequestError(message)
    if request.late_at is not None:
        message = (
            f"{view.pipeline} has session windows, which no late queue holds: to which session a late record belongs is known only "
            "once all are looked up; reconcile, then backfill without --late repairs every one it found LATE"
        )
        raise RequestError(message)
    if request.range is not None:
        return BackfillScope(times=((to_ms(request.range.start), to_ms(request.range.end)),))
    if not sessions_view.stale_within(request.within):
        message = (
            f"no session of {view.pipeline} is stale: the newest reconcile found none LATE that is not published since; "
            "reconcile again, or name a range"
        )
        raise NothingStaleError(message)
    by_key: dict[str, list[HalfOpenRange]] = {}
    for seed in sessions_view.stale_within(request.within):
        by_key.setdefault(seed.key, []).append((seed.start_ms, max(seed.end_ms, seed.start_ms + 1)))
    return BackfillScope(by_key={key: merge(ranges) for key, ranges in by_key.items()})


def plan_sessions(request: BackfillRequest, view: BackfillView, *, chunk_records: int, most: int) -> BackfillPlan:
    """Turn a request into a plan that has no id yet.

    Args:
        view: what was observed, and looked up for this request.
        chunk_records: records a chunk aims at; a chunk has at least one session.
        most: sessions at most.

    Raises:
        RequestError: no session holds a time that was asked, none is settled, or there are too many.
        LogGapError: neither the archive nor Kafka has a record that is needed, or one that may be needed is lost for ever.
    """
    asked = asked_sessions(request, view)
    chosen, cut = select_components(asked, view)
    _check_doubts(chosen, view)
    planned = _planned(asked, chosen, view)
    if len(planned.published) > most:
        message = f"{len(planned.published)} sessions are asked, the most is {most}; ask for a shorter range, then for the rest"
        raise RequestError(message)
    chunks = plan_session_chunks(planned, view, chunk_records)
    ranges = coalesce((component.stretch_ms for component in chosen), view.window_ms, MOST_RANGES)
    return replace(
        draft_plan(request, view, ranges, chunks),
        cut=cut,
        late=sum(not component.is_served_so for component in chosen),
        replaces=tuple(
            sorted({span.backfill for component in chosen for span in component.served if span.backfill is not None})
        ),
        sessions=planned,
    )


def has_settled(view: BackfillView) -> bool:
    """Say whether any of the sessions that were looked up can be published; True for other windows, which the plan checks."""
    if view.sessions is None:
        return True
    components, closed_ms = view.sessions.components or (), view.closed_ms
    return closed_ms is not None and any(component.is_settled(closed_ms, view.window_ms) for component in components)


def select_components(asked: BackfillScope, view: BackfillView) -> tuple[tuple[Component, ...], tuple[Exclusion, ...]]:
    """Return the settled components that are meant, and what is left out.

    Raises:
        RequestError: no component remains.
    """
    components = _sessions_view(view).components
    if components is None or view.closed_ms is None:
        message = f"the sessions of {view.pipeline} were not looked up; look them up first (`backfill.prepare`)"
        raise RequestError(message)
    if not components:
        message = f"the log of {view.pipeline} holds no session in {_say(asked.zone)}; name another range"
        raise RequestError(message)
    settled = tuple(component for component in components if component.is_settled(view.closed_ms, view.window_ms))
    open_components = [
        component for component in components if not component.is_settled(view.closed_ms, view.window_ms)
    ]
    until = to_iso(from_ms(view.closed_ms - view.window_ms))
    if not settled:
        message = (
            f"no session of {view.pipeline} in {_say(asked.zone)} is settled: only one that ended by {until}, the gap before the "
            f"watermark, can no record join any more; the {len(open_components)} that are meant are still the stream's: ask again later"
        )
        raise RequestError(message)
    if not open_components:
        return settled, ()
    why = f"open: {len(open_components)} sessions that did not end by {until}, the gap before the watermark; a record may join them"
    bounds = [component.stretch_ms for component in open_components]
    return settled, (Exclusion(min(low for low, _ in bounds), max(high for _, high in bounds), why),)


def plan_session_chunks(planned: PlannedSessions, view: BackfillView, chunk_records: int) -> tuple[Chunk, ...]:
    """Cut sessions into chunks of about equal numbers of records, by their start; those that start in one millisecond stay together."""
    groups: list[list[PlannedSession]] = []
    estimate = 0
    for planned_session in planned.ordered:
        same_start = bool(groups) and groups[-1][-1].start_us // 1000 == planned_session.start_us // 1000
        if not groups or (not same_start and estimate + planned_session.records > chunk_records):
            groups.append([])
            estimate = 0
        groups[-1].append(planned_session)
        estimate += planned_session.records
    return tuple(
        Chunk(
            index,
            ((group[0].start_us // 1000, group[-1].start_us // 1000 + 1),),
            without(plan_offsets(view.batches, [_stretch(session) for session in group]), view.lost),
            sum(session.records for session in group),
        )
        for index, group in enumerate(groups)
    )


def sessions_of(planned: PlannedSessions, chunk: Chunk) -> tuple[list[PlannedSession], list[PlannedSession]]:
    """Return the sessions that a chunk publishes, and those that vanish with it."""
    ((low, high),) = chunk.ranges
    chosen = [
        [session for session in side if low <= session.start_us // 1000 < high]
        for side in (planned.published, planned.vanishing)
    ]
    return chosen[0], chosen[1]


def _planned(asked: BackfillScope, chosen: Sequence[Component], view: BackfillView) -> PlannedSessions:
    reaching = [component for component in chosen if not asked.covers(component)]
    first, last = asked.zone[0][0], asked.zone[-1][1]
    reaching.sort(key=lambda component: -max(first - component.stretch_ms[0], component.stretch_ms[1] - last))
    return PlannedSessions(
        published=_plain(span for component in chosen for span in component.truth),
        vanishing=_plain(span for component in chosen for span in component.vanishing),
        asked=coalesce(asked.zone, view.window_ms, MOST_RANGES),
        beyond=tuple(Beyond(component.key, *component.stretch_ms) for component in reaching[:SHOWN]),
        beyond_count=len(reaching),
        settled_ms=max(component.stretch_ms[1] for component in chosen) + view.window_ms,
    )


def _plain(spans: Iterable[Span]) -> tuple[PlannedSession, ...]:
    sessions = (PlannedSession(key_digest(span.key), span.start_us, span.end_us, span.records) for span in spans)
    return tuple(sorted(sessions, key=lambda session: (session.start_us, session.key)))


def _check_doubts(chosen: Sequence[Component], view: BackfillView) -> None:
    """Refuse sessions that lost records may belong to, or join.

    Raises:
        LogGapError: one of them is in doubt.
    """
    gap = view.window_ms
    for doubt in view.doubts:
        doubtful = [
            component
            for component in chosen
            if component.stretch_ms[1] > doubt.after_ms - gap
            and (doubt.until_ms is None or component.stretch_ms[0] <= doubt.until_ms + gap)
        ]
        if doubtful:
            limit = "and later" if doubt.until_ms is None else f"to {to_iso(from_ms(doubt.until_ms + gap))}"
            message = (
                f"{doubt.why} is lost for ever, and may hold records of {len(doubtful)} of the sessions, from "
                f"{to_iso(from_ms(doubt.after_ms - gap))} {limit}: a recompute of them cannot be right, so it is refused; ask for "
                "sessions before or after"
            )
            raise LogGapError(message)


def _sessions_view(view: BackfillView) -> SessionsView:
    assert view.sessions is not None, "only plans of sessions come here"
    return view.sessions


def _stretch(session: PlannedSession) -> HalfOpenRange:
    return session.start_us // 1000, -(-session.end_us // 1000)


def _say(ranges: Sequence[HalfOpenRange]) -> str:
    first = f"[{to_iso(from_ms(ranges[0][0]))}, {to_iso(from_ms(ranges[-1][1]))})"
    return first if len(ranges) == 1 else f"{first} in {len(ranges)} pieces"


# Look up the sessions of a request: read around it, and further if a session was not read whole. Pure except for what is read.
#
# The start of a session is known once the gap before it was read, and its end once the gap after its last record was read. So a
# range is read with a margin. It is read again with a wider margin around the sessions that reach beyond what was read, until
# there are none. A chain of records may be long, but it ends, or its session is open and not part of this request.

MOST_READ = 50
"""Ranges of event time that are read at once; if there are more, what is between some of them is read too."""
WIDER = 4
"""By what factor each margin is wider than the one before."""

Zone = tuple[HalfOpenRange, ...]
"""Ranges of event time, in epoch milliseconds."""
ReadServed = Callable[[Zone], Sequence[Span]]
"""Gives the served sessions that overlap a zone."""
ReadTruth = Callable[[Zone, Collection[str] | None], Sequence[Span]]
"""Gives the sessions that the records of a zone make, of some keys (their texts) or of all."""


@dataclass(frozen=True)
class BackfillScope:
    """Which sessions a request asks for.

    Attributes:
        times: sessions of any key that hold a time of these ranges (epoch milliseconds).
        by_key: key's text to ranges: sessions of that key that hold a time of them.
    """

    times: Zone = ()
    by_key: Mapping[str, Zone] = field(default_factory=dict)

    @property
    def zone(self) -> Zone:
        """All ranges together."""
        return merge([*self.times, *(pair for ranges in self.by_key.values() for pair in ranges)])

    @property
    def keys(self) -> frozenset[str] | None:
        """The keys that are meant; None: all."""
        return None if self.times else frozenset(self.by_key)

    def means(self, component: Component) -> bool:
        """Say whether a component holds a time that was asked."""
        return _holds(component, self.times) or _holds(component, self.by_key.get(component.key, ()))

    def covers(self, component: Component) -> bool:
        """Say whether a component is within what was asked."""
        low, high = component.stretch_ms
        ranges = (*self.times, *self.by_key.get(component.key, ()))
        return any(start <= low and high <= end for start, end in ranges)


def _holds(component: Component, ranges: Sequence[HalfOpenRange]) -> bool:
    return any(component.start_us < end * 1000 and start * 1000 < component.end_us for start, end in ranges)


def survey_sessions(
    asked: BackfillScope, read_served: ReadServed, read_truth: ReadTruth, *, closed_ms: int, gap_ms: int
) -> tuple[Component, ...]:
    """Return the components that are meant. Each is whole, unless it is not settled.

    Args:
        read_truth: reads the sessions that all records make.
        closed_ms: watermark of the last committed batch.
    """
    margin = 2 * gap_ms
    known = [(span.start_us // 1000, -(-span.end_us // 1000)) for span in read_served(asked.zone)]
    zone = _widened([*asked.zone, *known], margin)
    while True:
        truth = read_truth(zone, asked.keys)
        wanted = [component for component in gather_components(read_served(zone), truth) if asked.means(component)]
        cut_off = [
            component
            for component in wanted
            if component.is_settled(closed_ms, gap_ms) and not component.is_within(zone, gap_ms)
        ]
        if not cut_off:
            return tuple(wanted)
        margin *= WIDER
        zone = _few([*zone, *_widened([component.stretch_ms for component in cut_off], margin)], gap_ms)


def _widened(ranges: Sequence[HalfOpenRange], margin: int) -> Zone:
    return _few([(start - margin, end + margin) for start, end in ranges], margin)


def _few(ranges: Sequence[HalfOpenRange], gap: int) -> Zone:
    return coalesce(ranges, gap, MOST_READ)
