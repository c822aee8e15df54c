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
from rivertwice.log.leases import Clock, Level, LogState, RangeLease, clock_at, first_at_risk, view_leases, worst_of
from rivertwice.log.retention import observe_log, unarchived_claim
from rivertwice.retention.claims import observe_claims


@dataclass(frozen=True)
class RetentionView:
    """What is needed of a pipeline's log, and how long it is there.

    Attributes:
        log: Kafka and the archive, observed once.
        same_topic: whether the topic is the one the claims are about; if not, Kafka has nothing for them.
        leases: every claim on every partition, worst first.
        unarchived: clock of the first offset that the archive lacks, the shortest of all partitions.
        waiting: records that Kafka has and the archive does not.
        gaps: recorded gaps, as plain values.
    """

    pipeline: str
    log: LogState
    same_topic: bool
    leases: Sequence[RangeLease]
    unarchived: Clock
    waiting: int
    gaps: Sequence[Mapping[str, Any]]

    @property
    def worst(self) -> RangeLease | None:
        """The lease that becomes impossible first, or is lost."""
        return worst_of(self.leases)


def view_retention(
    settings: Settings, pipeline: str, now: datetime, *, earlier: tuple[float, Mapping[int, int]] | None = None
) -> RetentionView:
    """Observe a pipeline's retention now; `earlier` is an older (monotonic seconds, ends) to measure the pace from.

    Raises:
        RequestError: the pipeline never ran.
        ServiceError: Kafka does not answer.
    """
    topic, topic_id, claims = observe_claims(settings, pipeline)
    log = observe_log(settings, topic, claims, earlier=earlier)
    same = log.topic_id == topic_id
    seen = log if same else _nothing_left(settings, log, topic_id)
    home = settings.pipeline(pipeline)
    unarchived, waiting = unarchived_clock(log, now)
    return RetentionView(
        pipeline=pipeline,
        log=log,
        same_topic=same,
        leases=view_leases(claims, seen, now),
        unarchived=unarchived,
        waiting=waiting,
        gaps=[gap_to_plain(gap, read_acceptance(home, gap.id)) for gap in read_gaps(home)],
    )


def unarchived_clock(log: LogState, now: datetime) -> tuple[Clock, int]:
    """Return (clock, records) of what Kafka has and the archive lacks; the shortest clock of all partitions. Pure."""
    claim = unarchived_claim(log)
    at_risk = {p: first_at_risk(claim, p, log) for p in claim.ranges}
    waiting = {p: log.end[p] - offset for p, offset in at_risk.items() if offset is not None}
    clocks = [clock_at(log, p, offset, now) for p, offset in at_risk.items() if offset is not None]
    shortest = min(clocks, key=lambda clock: clock.share, default=Clock(None, None, 1.0))
    return shortest, sum(waiting.values())


def retention_to_plain(view: RetentionView, now: datetime) -> dict[str, Any]:
    """Return the view as JSON holds it."""
    log = view.log
    return {
        "pipeline": view.pipeline,
        "at": to_iso(now),
        "topic": log.topic,
        "same_topic": view.same_topic,
        "retention_s": None if log.retention is None else log.retention.total_seconds(),
        "retention_bytes": log.retention_bytes,
        "kafka": {str(p): [begin, log.end.get(p, begin)] for p, begin in sorted(log.begin.items())},
        "archive": {str(p): list(pair) for p, pair in sorted(log.archived.items())},
        "unarchived": {"records": view.waiting, **clock_to_plain(view.unarchived)},
        "worst": None if view.worst is None else lease_to_plain(view.worst),
        "leases": [lease_to_plain(lease) for lease in view.leases],
        "gaps": list(view.gaps),
    }


def lease_to_plain(lease: RangeLease) -> dict[str, Any]:
    """Return one lease as JSON holds it."""
    return {
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
    """Return a clock as JSON holds it."""
    return {
        "deadline": None if clock.deadline is None else to_iso(clock.deadline),
        "left_s": None if clock.left is None else round(clock.left.total_seconds(), 1),
        "left_share": round(clock.share, 4),
    }


def summary_of(plain: Mapping[str, Any]) -> str | None:
    """Return the worst of a plain view in one line, or None if nothing is in danger."""
    open_gaps = [gap for gap in plain["gaps"] if gap["accepted"] is None]
    if open_gaps:
        return f"gap {open_gaps[-1]['id']}: {open_gaps[-1]['topic']} {open_gaps[-1]['ranges']} is gone from Kafka"
    worst = plain["worst"]
    if not plain["same_topic"]:
        return f"topic {plain['topic']} was deleted and created again: only the archive has the old one's records"
    if worst is None or worst["level"] == Level.OK.name.lower():
        return None
    what = f"{worst['holder']} needs {plain['topic']}/{worst['partition']} {worst['needs']}"
    if worst["level"] == Level.LOST.name.lower():
        return f"{what}: {worst['lost']} records are lost"
    left = "no pace is known" if worst["left_s"] is None else f"{worst['left_s']} s"
    return f"{what}, which only Kafka has: {left}, {worst['left_share']:.0%} of its time or bytes left"


def _nothing_left(settings: Settings, log: LogState, topic_id: str) -> LogState:
    """Return the state of a topic that was deleted: only its archive is there."""
    *older, archived = archived_segments(settings, log.topic, topic_id) or [{}]
    ends = {partition: end for partition, (_, end) in archived.items()}
    return LogState(log.topic, topic_id, begin=ends, end=ends, archived=archived, older=older)
