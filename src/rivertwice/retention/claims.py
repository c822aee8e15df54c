"""Which offsets of a pipeline's topics are needed: by stream, truth, a first load, savepoints, backfills, open dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rivertwice.backfill.model import OffsetRuns
from rivertwice.backfill.store import list_backfills, load_plan
from rivertwice.backfill.stream_unread import find_unread
from rivertwice.config import PipelineHome, Settings
from rivertwice.deadletters.model import OPEN
from rivertwice.deadletters.summary import read_brief
from rivertwice.errors import RequestError
from rivertwice.log.addresses import drop_empty
from rivertwice.log.leases import RetentionClaim
from rivertwice.savepoint.catalogue import list_savepoints
from rivertwice.store.remembered import Remembered
from rivertwice.stream.gaps import next_offsets
from rivertwice.timeline.committed import CommittedBatches, committed_batches, newest_batches
from rivertwice.timeline.first_load import FirstLoad, read_load
from rivertwice.timeline.lineage import load_timeline, path_of
from rivertwice.timeline.sequence import read_sequence, select_head
from rivertwice.timeline.served import publications_of

PartitionOffsets = Mapping[int, int]
_MOST_HELD = 16  # pipelines of which the claims of dead letters are held between two looks


def claim_stream(timeline: str, position: PartitionOffsets, *, kafka_only: bool = True) -> RetentionClaim:
    """Return the stream's claim: everything from its next offsets on, in Kafka; only while it loads a log, it reads the archive too."""
    return RetentionClaim(
        f"stream {timeline}", "stream", {p: (start, None) for p, start in position.items()}, kafka_only=kafka_only
    )


def claim_truth(genesis: PartitionOffsets, committed: PartitionOffsets) -> RetentionClaim:
    """Return the claim of reconcile: all records that the head's path has read, for every reconcile computes all of them again."""
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
    line = load_timeline(home, name)
    path = path_of(home, name)
    batches = committed_batches(home, path)
    ledger = newest_batches(home, batches, path, 1)
    root = load_timeline(home, path[0].timeline)
    savepoints = list_savepoints(home)
    published = {publication.backfill for publication in publications_of(entries)}
    plans = [load_plan(home, backfill) for backfill in list_backfills(home) if backfill not in published]
    tables = home.tables
    dead_letters = _DEAD.get(
        (str(home.root), tuple(path)),
        (tables.ledger, tables.changelog, tables.dead_letters, tables.amendments),
        lambda: _claim_open_letters(home, batches),
    )
    load, streamed = read_load(home), find_unread(home)
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
        if letter.state == OPEN:
            places.setdefault(letter.address.topic_id, []).append((letter.address.partition, letter.address.offset))
    claims = {topic_id: claim_dead_letters(addresses) for topic_id, addresses in places.items()}
    return {topic_id: claim for topic_id, claim in claims.items() if claim is not None}


def _place(offsets: Mapping[str, Mapping[str, int]], topic: str) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in offsets.get(topic, {}).items()}


_DEAD: Remembered[dict[str, RetentionClaim]] = Remembered(_MOST_HELD)
