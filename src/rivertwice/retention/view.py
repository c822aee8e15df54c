"""The one view of a pipeline's retention (claims, clocks, gaps), for the command, `status` and the agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from rivertwice.backfill import OffsetRuns, find_unread, list_backfills, load_backfill_plan
from rivertwice.core import PipelineHome, RequestError, Settings, to_iso
from rivertwice.log import (
    Acceptance,
    Clock,
    Gap,
    LogState,
    RangeLease,
    RetentionClaim,
    archived_segments,
    drop_empty,
    observe_log,
    unarchived_claim,
    view_leases,
)
from rivertwice.savepoint import list_savepoints
from rivertwice.storage import Remembered
from rivertwice.stream import next_offsets
from rivertwice.timeline import (
    CommittedBatches,
    FirstLoad,
    LetterState,
    Timeline,
    committed_batches,
    newest_batches,
    path_of,
    publications_of,
    read_brief,
    read_sequence,
    select_head,
)

# Which offsets of a pipeline's topics are needed: by stream, truth, a first load, savepoints, backfills, open dead letters.

PartitionOffsets = Mapping[int, int]


def claim_stream(timeline: str, position: PartitionOffsets, *, kafka_only: bool = True) -> RetentionClaim:
    """Return the stream's claim: everything from its next offsets on, in Kafka; only while it loads a log, it reads the archive too."""
    return RetentionClaim(
        f"stream {timeline}", "stream", {p: (start, None) for p, start in position.items()}, kafka_only=kafka_only
    )


def claim_truth(genesis: PartitionOffsets, committed: PartitionOffsets) -> RetentionClaim:
    """Return the claim of reconcile: all records that the head's path has read, because every reconcile computes all of them again."""
    return RetentionClaim("reconcile", "truth", {p: (genesis.get(p, 0), end) for p, end in committed.items()})


def claim_load(load: FirstLoad) -> RetentionClaim:
    """Return the claim of a first load by batch: what the stream left out, for backfills and every reconcile read it."""
    return RetentionClaim("first load", "load", drop_empty(dict(load.ranges)))


def claim_savepoint(savepoint: str, offsets: PartitionOffsets, committed: PartitionOffsets) -> RetentionClaim:
    """Return a savepoint's claim: the recorded batches after it, up to the last committed one."""
    ranges = {p: (start, max(start, committed.get(p, start))) for p, start in offsets.items()}
    return RetentionClaim(f"savepoint {savepoint}", "savepoint", ranges)


def claim_backfill(backfill: str, runs: OffsetRuns, topic: str) -> RetentionClaim:
    """Return the claim of a plan that is not published: from the first offset that it reads to the last."""
    parts = runs.get(topic, {})
    return RetentionClaim(
        f"backfill {backfill}", "backfill", {p: (pairs[0][0], pairs[-1][1]) for p, pairs in parts.items() if pairs}
    )


def claim_dead_letters(addresses: Iterable[tuple[int, int]]) -> RetentionClaim | None:
    """Return the claim of dead letters without a decision: their addresses, from the first to the last."""
    bounds: dict[int, tuple[int, int | None]] = {}
    for partition, offset in addresses:
        low, high = bounds.get(partition, (offset, offset + 1))
        bounds[partition] = (min(low, offset), max(high or 0, offset + 1))
    return RetentionClaim("dead letters", "dead_letters", bounds) if bounds else None


class TopicClaims(NamedTuple):
    """The claims on the offsets of one topic, with the id of the topic when they were read."""

    topic: str
    topic_id: str
    claims: list[RetentionClaim]


def observe_claims(settings: Settings, pipeline: str) -> list[TopicClaims]:
    """Return the claims on each topic of a pipeline, from its files and tables; Kafka is not asked.

    Raises:
        RequestError: the pipeline never ran, so there are no claims yet.
    """
    home = settings.pipeline(pipeline)
    entries = read_sequence(home)
    name = select_head(entries)
    if name is None:
        message = f"{pipeline} never ran in {settings.home}, so no record of its log is needed yet; `rivertwice start {pipeline}`"
        raise RequestError(message)
    line = Timeline.load(home, name)
    path = path_of(home, name)
    batches = committed_batches(home, path)
    ledger = newest_batches(home, batches, path, 1)
    root = Timeline.load(home, path[0].timeline)
    savepoints = list_savepoints(home)
    published = {publication.backfill for publication in publications_of(entries)}
    plans = [load_backfill_plan(home, backfill) for backfill in list_backfills(home) if backfill not in published]
    tables = home.tables
    dead_letters = _DEAD.get(
        (str(home.root), tuple(path)),
        (tables.ledger, tables.changelog, tables.dead_letters, tables.amendments),
        lambda: _claim_open_letters(home, batches),
    )
    load, streamed = FirstLoad.load(home), find_unread(home)
    topic_claims = []
    for topic, topic_id in line.topic_ids.items():
        committed = _place(ledger[-1].end_offsets, topic) if ledger else {}
        claims = [claim_stream(name, next_offsets(home.checkpoint(name), line, topic), kafka_only=streamed is None)]
        if ledger:
            claims.append(claim_truth(_place(root.genesis, topic), committed))
        if load is not None and load.topic_id == topic_id:
            claims.append(claim_load(load))
        claims += [
            claim_savepoint(savepoint.id, _place(savepoint.manifest.offsets, topic), committed)
            for savepoint in savepoints
            if savepoint.manifest.topic_ids.get(topic) == topic_id
        ]
        claims += [
            claim_backfill(plan.id, plan.offsets, topic) for plan in plans if plan.topic_ids.get(topic) == topic_id
        ]
        dead = dead_letters.get(topic_id)
        topic_claims.append(TopicClaims(topic, topic_id, claims if dead is None else [*claims, dead]))
    return topic_claims


def _claim_open_letters(home: PipelineHome, batches: CommittedBatches) -> dict[str, RetentionClaim]:
    """Return the claim of the open dead letters by the id of their topic."""
    places: dict[str, list[tuple[int, int]]] = {}
    for letter in read_brief(home, batches):
        if letter.state == LetterState.OPEN:
            places.setdefault(letter.address.topic_id, []).append((letter.address.partition, letter.address.offset))
    claims = {topic_id: claim_dead_letters(addresses) for topic_id, addresses in places.items()}
    return {topic_id: claim for topic_id, claim in claims.items() if claim is not None}


def _place(offsets: Mapping[str, Mapping[str, int]], topic: str) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in offsets.get(topic, {}).items()}


_DEAD: Remembered[dict[str, RetentionClaim]] = Remembered()

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

    def to_plain(self, now: datetime) -> dict[str, Any]:
        """Return the view as plain JSON values: the values of an only topic are on the top level, those of several in `topics`.

        A lease names its topic if there are several.
        """
        several = len(self.topics) > 1
        topics = [
            {
                "topic": topic.log.topic,
                "same_topic": topic.same_topic,
                "retention_s": None if topic.log.retention is None else topic.log.retention.total_seconds(),
                "retention_bytes": topic.log.retention_bytes,
                "kafka": {str(p): [begin, topic.log.end.get(p, begin)] for p, begin in sorted(topic.log.begin.items())},
                "archive": {str(p): list(pair) for p, pair in sorted(topic.log.archived.items())},
                "unarchived": {"records": topic.waiting, **clock_to_plain(topic.unarchived)},
            }
            for topic in self.topics
        ]
        shortest = min((topic.unarchived for topic in self.topics), key=lambda clock: clock.share)
        together = {
            "same_topic": all(topic.same_topic for topic in self.topics),
            "unarchived": {"records": sum(topic.waiting for topic in self.topics), **clock_to_plain(shortest)},
        }
        leases = [
            {
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
            for lease in self.leases
        ]
        return {
            "pipeline": self.pipeline,
            "at": to_iso(now),
            **({"topics": topics, **together} if several else topics[0]),
            "worst": leases[0] if leases else None,
            "leases": leases,
            "gaps": list(self.gaps),
        }


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
    gaps = [gap.plain(Acceptance.load(home, gap.id)) for gap in Gap.recorded(home)]
    return RetentionView(pipeline, topics, gaps)


def _view_topic(settings: Settings, needed: TopicClaims, now: datetime, earlier: Seen | None) -> TopicView:
    log = observe_log(settings, needed.topic, needed.claims, earlier=earlier)
    same = log.topic_id == needed.topic_id
    usable = log if same else _nothing_left(settings, log, needed.topic_id)
    return TopicView(log, same, view_leases(needed.claims, usable, now), *unarchived_clock(log, now))


def unarchived_clock(log: LogState, now: datetime) -> tuple[Clock, int]:
    """Return (clock, number) of the records that Kafka has and the archive lacks; the clock is the shortest one. Pure."""
    claim = unarchived_claim(log)
    at_risk = {p: claim.first_at_risk(p, log) for p in claim.ranges}
    waiting = {p: log.end[p] - offset for p, offset in at_risk.items() if offset is not None}
    clocks = [log.clock_at(p, offset, now) for p, offset in at_risk.items() if offset is not None]
    shortest = min(clocks, key=lambda clock: clock.share, default=Clock(None, None, 1.0))
    return shortest, sum(waiting.values())


def clock_to_plain(clock: Clock) -> dict[str, str | float | None]:
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
