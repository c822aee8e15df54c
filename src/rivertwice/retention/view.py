"""The one view of a pipeline's retention: leases, clocks and gaps, for the command, `status` and the agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rivertwice.config import Settings
from rivertwice.instants import to_iso
from rivertwice.log.archive_table import archived_segments
from rivertwice.log.gaps import gap_to_plain, read_acceptance, read_gaps
from rivertwice.log.leases import Clock, LogState, RangeLease, clock_at, first_at_risk, view_leases, worst_of
from rivertwice.log.retention import observe_log, unarchived_claim
from rivertwice.retention.claims import TopicClaims, observe_claims

Seen = tuple[float, Mapping[int, int]]
"""(monotonic seconds, end offsets) of an observation."""


@dataclass(frozen=True)
class TopicView:
    """Which records of one topic are needed, and how long they exist.

    Attributes:
        log: Kafka and the archive, observed once.
        same_topic: whether it is still the topic of the claims; if not, Kafka has no record for them.
        leases: every claim on every partition, worst first.
        unarchived: clock of the first offset that the archive lacks; the shortest of all partitions.
        waiting: records that Kafka has and the archive does not.
    """

    log: LogState
    same_topic: bool
    leases: Sequence[RangeLease]
    unarchived: Clock
    waiting: int


@dataclass(frozen=True)
class RetentionView:
    """Which records of a pipeline's log are needed, and how long they exist: by topic; and recorded gaps as plain values."""

    pipeline: str
    topics: Sequence[TopicView]
    gaps: Sequence[Mapping[str, Any]]

    @property
    def leases(self) -> list[RangeLease]:
        """Every claim on every partition of every topic, worst first."""
        leases = [lease for topic in self.topics for lease in topic.leases]
        return sorted(leases, key=lambda lease: (-lease.level, lease.clock.share))

    @property
    def worst(self) -> RangeLease | None:
        """The lease that becomes impossible first, or is lost."""
        return worst_of(self.leases)


def view_retention(
    settings: Settings, pipeline: str, now: datetime, *, earlier: Mapping[str, Seen] | None = None
) -> RetentionView:
    """Observe a pipeline's retention now; `earlier` contains an earlier observation of each topic, to measure the pace.

    Raises:
        RequestError: the pipeline never ran.
        ServiceError: Kafka does not answer.
    """
    home = settings.pipeline(pipeline)
    topics = [
        _view_topic(settings, topic_claims, now, (earlier or {}).get(topic_claims.topic))
        for topic_claims in observe_claims(settings, pipeline)
    ]
    gaps = [gap_to_plain(gap, read_acceptance(home, gap.id)) for gap in read_gaps(home)]
    return RetentionView(pipeline, topics, gaps)


def _view_topic(settings: Settings, needed: TopicClaims, now: datetime, earlier: Seen | None) -> TopicView:
    log = observe_log(settings, needed.topic, needed.claims, earlier=earlier)
    same = log.topic_id == needed.topic_id
    usable = log if same else _nothing_left(settings, log, needed.topic_id)
    return TopicView(log, same, view_leases(needed.claims, usable, now), *unarchived_clock(log, now))


def unarchived_clock(log: LogState, now: datetime) -> tuple[Clock, int]:
    """Return (clock, number) of the records that Kafka has and the archive lacks; the clock is the shortest one. Pure."""
    claim = unarchived_claim(log)
    at_risk = {p: first_at_risk(claim, p, log) for p in claim.ranges}
    waiting = {p: log.end[p] - offset for p, offset in at_risk.items() if offset is not None}
    clocks = [clock_at(log, p, offset, now) for p, offset in at_risk.items() if offset is not None]
    shortest = min(clocks, key=lambda clock: clock.share, default=Clock(None, None, 1.0))
    return shortest, sum(waiting.values())


def retention_to_plain(view: RetentionView, now: datetime) -> dict[str, Any]:
    """Return the view as plain JSON values: the values of an only topic are on the top level, those of several in `topics`."""
    plain_topics = [_topic_to_plain(topic) for topic in view.topics]
    several = len(plain_topics) > 1
    per_topic = plain_topics[0] if not several else {"topics": plain_topics, **_together(view)}
    return {
        "pipeline": view.pipeline,
        "at": to_iso(now),
        **per_topic,
        "worst": None if view.worst is None else lease_to_plain(view.worst, several=several),
        "leases": [lease_to_plain(lease, several=several) for lease in view.leases],
        "gaps": list(view.gaps),
    }


def _topic_to_plain(view: TopicView) -> dict[str, Any]:
    log = view.log
    return {
        "topic": log.topic,
        "same_topic": view.same_topic,
        "retention_s": None if log.retention is None else log.retention.total_seconds(),
        "retention_bytes": log.retention_bytes,
        "kafka": {str(p): [begin, log.end.get(p, begin)] for p, begin in sorted(log.begin.items())},
        "archive": {str(p): list(pair) for p, pair in sorted(log.archived.items())},
        "unarchived": {"records": view.waiting, **clock_to_plain(view.unarchived)},
    }


def _together(view: RetentionView) -> dict[str, Any]:
    shortest = min((topic.unarchived for topic in view.topics), key=lambda clock: clock.share)
    waiting = sum(topic.waiting for topic in view.topics)
    return {
        "same_topic": all(topic.same_topic for topic in view.topics),
        "unarchived": {"records": waiting, **clock_to_plain(shortest)},
    }


def lease_to_plain(lease: RangeLease, *, several: bool) -> dict[str, Any]:
    """Return one lease as plain JSON values; if there are several topics, it names its own."""
    return {
        **({"topic": lease.topic} if several else {}),
        "holder": lease.holder,
        "kind": lease.kind,
        "partition": lease.partition,
        "needs": [lease.start, lease.end],
        "archived": lease.archived,
        "only_kafka": lease.kafka,
        "lost": lease.lost,
        "level": lease.level.name.lower(),
        **clock_to_plain(lease.clock),
    }


def clock_to_plain(clock: Clock) -> dict[str, Any]:
    """Return a clock as plain JSON values."""
    return {
        "deadline": None if clock.deadline is None else to_iso(clock.deadline),
        "left_s": None if clock.left is None else round(clock.left.total_seconds(), 1),
        "left_share": round(clock.share, 4),
    }


def _nothing_left(settings: Settings, log: LogState, topic_id: str) -> LogState:
    """Return the state of a topic that was deleted: only its archive exists."""
    *older, archived = archived_segments(settings, log.topic, topic_id) or [{}]
    ends = {partition: end for partition, (_, end) in archived.items()}
    return LogState(log.topic, topic_id, begin=ends, end=ends, archived=archived, older=older)
