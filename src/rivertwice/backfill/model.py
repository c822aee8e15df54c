"""The values of a backfill: the request, what was observed, the plan, and windows that must be computed together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from rivertwice.backfill.late_queue import LateArrival
from rivertwice.backfill.ranges import HalfOpenRange, coalesce
from rivertwice.core import TimeRange
from rivertwice.definition import LatePolicy
from rivertwice.timeline import Publication, Verdict

# Sessions that belong together: those of one key, served ones and those of the truth, that overlap. Pure.
#
# What the stream emitted for some records, what an earlier backfill published for them and what all records give may begin and
# end differently:
#
#     truth   0 -------------------- 25
#     served  0 ---- 10
#                5 ----------------- 25
#
# A part of such a component cannot be published without the rest: a record would be counted twice, or no longer. A component is
# **settled** when no record that the stream may still accept can belong to it. A record is accepted only if the session that it
# would make alone ends after the watermark. So its time is less than the gap before the watermark, and no session that ends the
# gap or more before the watermark reaches so far.


class Span(NamedTuple):
    """A session: its key's text, its stretch in epoch microseconds, its records; if served, the backfill that corrected it."""

    key: str
    start_us: int
    end_us: int
    records: int
    backfill: str | None = None


@dataclass(frozen=True)
class Component:
    """Sessions of one key that belong together, each side in order of start."""

    key: str
    served: tuple[Span, ...]
    truth: tuple[Span, ...]

    @property
    def spans(self) -> tuple[Span, ...]:
        """All sessions of both sides."""
        return (*self.served, *self.truth)

    @property
    def start_us(self) -> int:
        """Start of the first session."""
        return min(span.start_us for span in self.spans)

    @property
    def end_us(self) -> int:
        """End of the last session."""
        return max(span.end_us for span in self.spans)

    @property
    def stretch_ms(self) -> HalfOpenRange:
        """All milliseconds that it touches."""
        return self.start_us // 1000, -(-self.end_us // 1000)

    @property
    def is_served_so(self) -> bool:
        """Whether what is served counts the records that the truth counts, in the same sessions."""
        return [span[:4] for span in self.served] == [span[:4] for span in self.truth]

    @property
    def vanishing(self) -> tuple[Span, ...]:
        """Served sessions that no session of the truth replaces."""
        return tuple(
            span
            for span in self.served
            if not any(
                true_span.start_us < span.end_us and span.start_us < true_span.end_us for true_span in self.truth
            )
        )

    def is_settled(self, closed_ms: int, gap_ms: int) -> bool:
        """Say whether no record that a stream may accept after a watermark can belong to it any more."""
        return self.end_us <= (closed_ms - gap_ms) * 1000

    def is_within(self, zone: Sequence[HalfOpenRange], gap_ms: int) -> bool:
        """Say whether all records that could belong to it are in one of the ranges (epoch milliseconds)."""
        low, high = self.start_us - gap_ms * 1000, self.end_us
        return any(start * 1000 <= low and high < end * 1000 for start, end in zone)


def gather_components(served: Iterable[Span], truth: Iterable[Span]) -> list[Component]:
    """Return the components of served sessions and those of the truth, by key and in order of start."""
    by_key: dict[str, list[tuple[int, int, bool, Span]]] = {}
    for is_served, spans in ((True, served), (False, truth)):
        for span in spans:
            by_key.setdefault(span.key, []).append((span.start_us, span.end_us, is_served, span))
    components: list[Component] = []
    for key, members in sorted(by_key.items()):
        members.sort(key=lambda member: member[:3])
        first = 0
        reach = members[0][1]
        for place, (start, end, _, _) in enumerate(members):
            if start >= reach:
                components.append(_component(key, members[first:place]))
                first = place
            reach = max(reach, end)
        components.append(_component(key, members[first:]))
    return components


def _component(key: str, members: Sequence[tuple[int, int, bool, Span]]) -> Component:
    return Component(
        key,
        tuple(span for *_, is_served, span in members if is_served),
        tuple(span for *_, is_served, span in members if not is_served),
    )


TopicOffsets = Mapping[str, Mapping[int, int]]
"""Topic -> partition -> offset."""

OffsetRuns = Mapping[str, Mapping[int, tuple[HalfOpenRange, ...]]]
"""Topic -> partition -> half-open runs of offsets."""


@dataclass(frozen=True)
class BackfillRequest:
    """The request of a person or of a schedule.

    Attributes:
        range: event time to recompute; None means the windows that the newest reconcile found stale.
        late_at: if set, instead of both, the windows of the late queue that are due at this instant.
        reason: why, in the asker's words; kept with the plan.
        verdicts: with neither range nor `late_at`: a window is stale if a served row of it has one of these.
        within: likewise: only stale windows that start in these ranges (epoch milliseconds); None: all.
    """

    pipeline: str
    range: TimeRange | None = None
    reason: str = "manual"
    late_at: datetime | None = None
    verdicts: tuple[str, ...] = (Verdict.LATE,)
    within: tuple[HalfOpenRange, ...] | None = None


@dataclass(frozen=True)
class BatchZone:
    """One committed micro-batch of the head's path, as the zone map from event time to offsets sees it.

    Attributes:
        offsets: topic -> partition -> the range it read.
        min_event_ms: smallest accepted event time; None if it accepted nothing.
        max_event_ms: largest accepted event time, inclusive.
        trusted: False if another decode ran then: the head's bundle may accept other rows, so it is always read.
        versions: the zone is of tables' versions that it read: always read, because a version may be valid for ever.
    """

    timeline: str
    batch: int
    offsets: Mapping[str, Mapping[int, HalfOpenRange]]
    accepted: int
    min_event_ms: int | None
    max_event_ms: int | None
    trusted: bool = True
    versions: bool = False


@dataclass(frozen=True)
class BackfillView:
    """All that a plan depends on, observed once.

    Attributes:
        step_ms: time between the starts of two windows; None if they tumble: the size.
        closed_ms: watermark of the last committed batch on the head's path; None if no batch is committed.
        batches: the zone map, in the path's order.
        as_of: end offsets of the last committed batch.
        topic_ids: topic -> id of the topic that the offsets belong to.
        archive: topic -> partition -> offsets that the archive's newest segment holds; older: what its older ones do.
        kafka: topic -> partition -> offsets that Kafka has; none of a partition that gave used offsets to other records.
        forks: such partitions, and what Kafka has there.
        semantics: its semantics hash.
        path_semantics: those of the head's path, whose publications serve; empty: only its own.
        sequence: newest entry of the sequence; -1 if there is none.
        publications: publications so far, oldest first.
        stale: windows that the newest reconcile found LATE, or otherwise as asked, and that were not published since.
        failed: ids of backfills whose audit failed.
        lost: topic -> partition -> offsets of accepted gaps that the archive lacks too: they cannot be read.
        doubts: windows that lost records may belong to; a plan over one is refused.
        amendments: newest decision about a dead letter; 0: none.
        late_policy, arrivals: policy `correct` and the late rows that it kept; None and empty for any other policy.
        sessions: for sessions, replaces `stale` and `publications`; `window_ms` is their gap. None: other windows.
    """

    pipeline: str
    window_ms: int
    closed_ms: int | None
    batches: tuple[BatchZone, ...]
    as_of: TopicOffsets
    topic_ids: Mapping[str, str]
    archive: Mapping[str, Mapping[int, HalfOpenRange]]
    kafka: Mapping[str, Mapping[int, HalfOpenRange]]
    bundle: str
    semantics: str
    sequence: int
    publications: tuple[Publication, ...] = ()
    stale: tuple[HalfOpenRange, ...] = ()
    failed: frozenset[str] = frozenset()
    older: OffsetRuns = field(default_factory=dict)
    lost: OffsetRuns = field(default_factory=dict)
    doubts: tuple[DoubtfulWindows, ...] = ()
    step_ms: int | None = None
    amendments: int = 0
    late_policy: LatePolicy | None = None
    arrivals: tuple[LateArrival, ...] = ()
    sessions: SessionsView | None = None
    path_semantics: frozenset[str] = frozenset()
    forks: tuple[str, ...] = ()

    @property
    def serving(self) -> frozenset[str]:
        """Semantics hashes whose publications serve."""
        return self.path_semantics or frozenset({self.semantics})

    @property
    def step(self) -> int:
        """Time between the starts of two windows."""
        return self.step_ms or self.window_ms


MOST_RANGES = 100
"""Stretches of time that a plan of sessions names at most; they only bound it. Its sessions define what it publishes."""


class Seed(NamedTuple):
    """A session that is known to be stale: its key's text and its stretch in epoch milliseconds."""

    key: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True)
class SessionsView:
    """What a plan of sessions depends on in addition.

    Attributes:
        stale: sessions that the newest reconcile found LATE and that were not published since.
        components: the sessions of a request, looked up for it (`survey_sessions`); None before that.
    """

    stale: tuple[Seed, ...] = ()
    components: tuple[Component, ...] | None = None

    def stale_within(self, ranges: Sequence[HalfOpenRange] | None) -> tuple[Seed, ...]:
        """Return the stale sessions that start in some ranges; None: all."""
        return tuple(
            seed for seed in self.stale if ranges is None or any(start <= seed.start_ms < end for start, end in ranges)
        )

    def stale_starts(self, gap_ms: int) -> tuple[HalfOpenRange, ...]:
        """Return ranges that the starts of all stale sessions are in."""
        return coalesce(((seed.start_ms, seed.start_ms + 1) for seed in self.stale), gap_ms, MOST_RANGES)


@dataclass(frozen=True)
class DoubtfulWindows:
    """Windows that records lost for ever may belong to: they end after `after_ms`, and start at or before `until_ms`."""

    after_ms: int
    until_ms: int | None
    why: str


@dataclass(frozen=True)
class Exclusion:
    """A part of what was asked that the plan leaves out, and why."""

    start_ms: int
    end_ms: int
    why: str


@dataclass(frozen=True)
class Chunk:
    """One unit of work and one commit.

    Attributes:
        index: position, from 0; chunks finish in this order.
        ranges: where the chunk's windows start, as aligned ranges of epoch milliseconds.
        offsets: records that may belong to them.
        estimate: rows expected, from the zone map.
    """

    index: int
    ranges: tuple[HalfOpenRange, ...]
    offsets: OffsetRuns
    estimate: int


class PlannedSession(NamedTuple):
    """A session of a plan. `key` is the digest of its key's text, so that no file contains the key (`timeline.keys`)."""

    key: str
    start_us: int
    end_us: int
    records: int


class Beyond(NamedTuple):
    """A session that reaches beyond what was asked: its key's text and its stretch in epoch milliseconds."""

    key: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True)
class PlannedSessions:
    """The sessions of a plan.

    Attributes:
        published: sessions of the truth, in order of start.
        vanishing: served ones that no session of the truth replaces.
        asked: the ranges that were asked, in epoch milliseconds; every session that holds a time of them is meant.
        beyond: some of those that reach beyond them, the farthest first; beyond_count: how many do.
        settled_ms: watermark after which no record can belong to any of them.
    """

    published: tuple[PlannedSession, ...]
    vanishing: tuple[PlannedSession, ...]
    asked: tuple[HalfOpenRange, ...]
    beyond: tuple[Beyond, ...]
    beyond_count: int
    settled_ms: int

    @property
    def ordered(self) -> tuple[PlannedSession, ...]:
        """All of them in order of start."""
        return tuple(sorted((*self.published, *self.vanishing), key=lambda session: (session.start_us, session.key)))


@dataclass(frozen=True)
class BackfillPlan:
    """A backfill as a value: the CLI and the DAG explain it, store it and run the same one.

    Attributes:
        id: `bf-` and 12 hex digits of what decides the result, so that the same plan is the same backfill.
        step_ms: time between the starts of two windows; None if they tumble: the size.
        ranges: where the windows to publish start, as aligned half-open ranges of epoch milliseconds. Tumbling windows
            also end in them; hopping ones may reach beyond.
        cut: what was asked and is left out.
        as_of: no record at or beyond these offsets counts.
        topic_ids: topic -> id of the topic that the offsets belong to.
        archive: the part of `offsets` that the archive gives.
        kafka: the part that Kafka gives; together they are `offsets`, each offset once.
        bundle: definition to run.
        semantics: its semantics hash; the publication serves only while the head's is the same.
        sequence: newest entry of the sequence when the plan was made.
        late: windows of the plan that the newest reconcile found LATE.
        replaces: backfills whose publications the plan's windows serve now.
        attempt: how many audits of the same work failed before.
        amendments: decisions about dead letters up to this one are applied.
        sessions: which sessions are published; then `ranges` only bound them, and a chunk's ranges are where its own start.
    """

    id: str
    pipeline: str
    reason: str
    window_ms: int
    ranges: tuple[HalfOpenRange, ...]
    as_of: TopicOffsets
    topic_ids: Mapping[str, str]
    offsets: OffsetRuns
    archive: OffsetRuns
    kafka: OffsetRuns
    chunks: tuple[Chunk, ...]
    bundle: str
    semantics: str
    sequence: int
    cut: tuple[Exclusion, ...] = ()
    late: int = 0
    replaces: tuple[str, ...] = field(default=())
    attempt: int = 0
    step_ms: int | None = None
    amendments: int = 0
    sessions: PlannedSessions | None = None

    @property
    def step(self) -> int:
        """Time between the starts of two windows."""
        return self.step_ms or self.window_ms

    @property
    def windows(self) -> int:
        """Number of windows to publish."""
        if self.sessions is not None:
            return len(self.sessions.published)
        return sum(end - start for start, end in self.ranges) // self.step

    @property
    def last_end_ms(self) -> int:
        """End of the last window to publish; for sessions, the watermark after which no record can belong to the last one."""
        if self.sessions is not None:
            return self.sessions.settled_ms
        return self.ranges[-1][1] - self.step + self.window_ms

    @property
    def records(self) -> int:
        """Number of offsets to read."""
        return count_offsets(self.offsets)


def count_offsets(runs: OffsetRuns) -> int:
    """Return the number of offsets in disjoint runs."""
    return sum(end - start for parts in runs.values() for pairs in parts.values() for start, end in pairs)
