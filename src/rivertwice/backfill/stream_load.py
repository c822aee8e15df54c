"""Load a pipeline's past by its own stream, in few, large batches: for definitions that `Definition.load_obstacle` names.

A backfill publishes windows that depend on their own records. A session, a fold, or a join of several sources depends on records of
any time before. So the past is computed by the stream's own plan; but a batch of a million records costs far less than fifty of
20,000, and the state at its end is the stream's own, with nothing to convert. What Kafka has deleted is read from the archive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from rivertwice.backfill.load import all_records
from rivertwice.core import LogGapError, LostRaceError, PipelineHome, RequestError, Settings
from rivertwice.definition import RECORD, Bundle, Definition
from rivertwice.log import (
    Part,
    Parts,
    StoredOffsets,
    archived_ranges,
    between,
    count,
    decode_ends,
    describe_parts,
    drop_empty,
    encode_ends,
    kafka,
)
from rivertwice.stream import at_rest, large_limit
from rivertwice.timeline import StreamLoad, Timeline, head


@dataclass(frozen=True)
class StreamLoadPlan:
    """What a load by the stream does.

    Attributes:
        why: why no backfill can load this past.
        topic_ids: topic to id.
        genesis, until: topic to partition to offset: the first one, and the log's end now.
        batch: records of a large batch, at most.
        archived: what Kafka has deleted and the archive has.
        nowhere: what neither has: the stream begins after it.
    """

    why: str
    topic_ids: Mapping[str, str]
    genesis: StoredOffsets
    until: StoredOffsets
    batch: int
    archived: Parts
    nowhere: Parts

    @property
    def records(self) -> int:
        """How many records are loaded."""
        return sum(
            int(end) - int(self.genesis[topic][partition])
            for topic, ends in self.until.items()
            for partition, end in ends.items()
        )

    def require_same_past(self, root: Timeline, definition: Definition) -> None:
        """Check that a new version of a fold can read all that the version beside it has read. Pure.

        Args:
            root: the first timeline of the version that serves.
            definition: of the new version.

        Raises:
            LogGapError: some of it exists no longer. A row of a fold depends on it, so no row would be comparable.
        """
        if RECORD not in definition.row_keys:
            return
        lost = find_lost(self.genesis, root.genesis)
        if lost:
            message = (
                f"{describe_parts(lost)} was read by {root.pipeline} and is in neither Kafka nor the archive: each row of a fold depends on all "
                "records of its key before it, so a new version over the rest would differ in every such row; put the "
                f"archive back from a backup, or give the changed definition another name, under which it begins with what exists"
            )
            raise LogGapError(message)


def plan_stream_load(settings: Settings, definition: Definition) -> StreamLoadPlan:
    """Return what a load by the stream would do; nothing is written.

    Args:
        definition: one that no backfill can load.

    Raises:
        ServiceError: Kafka does not answer.
    """
    why = definition.load_obstacle
    assert why is not None, "backfills load the others"
    ids: dict[str, str] = {}
    genesis: dict[str, dict[str, int]] = {}
    until: dict[str, dict[str, int]] = {}
    archived: Parts = {}
    nowhere: Parts = {}
    for topic in definition.topics:
        ids[topic] = kafka.topic_id(settings, topic)
        begins, ends = kafka.begin_offsets(settings, topic), kafka.end_offsets(settings, topic)
        records = all_records(between(begins, ends), archived_ranges(settings, topic, ids[topic]))
        oldest = {partition: start for partition, (start, _) in records.items()}
        archived |= {Part(topic, p): (oldest[p], begin) for p, begin in begins.items()}
        nowhere |= {Part(topic, p): (0, first) for p, first in oldest.items()}
        genesis[topic], until[topic] = encode_ends(oldest), encode_ends(ends)
    return StreamLoadPlan(why, ids, genesis, until, large_limit(definition), drop_empty(archived), drop_empty(nowhere))


def find_lost(genesis: StoredOffsets, before: StoredOffsets) -> Parts:
    """Return the offsets from where one timeline began to where another begins. Pure."""
    return drop_empty(
        {
            Part(topic, partition): (decode_ends(before[topic]).get(partition, 0), first)
            for topic, places in genesis.items()
            if topic in before
            for partition, first in decode_ends(places).items()
        }
    )


def begin_stream_load(
    settings: Settings, bundle: Bundle, plan: StreamLoadPlan, *, by: str, now: datetime
) -> StreamLoad:
    """Record a load; from then on every start of the pipeline does it, and continues it.

    Raises:
        RequestError: the pipeline began already.
        LeaseLostError: a driver runs.
        LostRaceError: another operation holds the stream, or recorded a load.
    """
    name = bundle.definition.name
    home = settings.pipeline(name)
    load = StreamLoad(
        pipeline=name,
        bundle=bundle.id,
        cluster_id=kafka.cluster_id(settings),
        topic_ids=plan.topic_ids,
        genesis=plan.genesis,
        until=plan.until,
        by=by,
        noted_at=now,
    )
    with at_rest(home, "first load", now, running="its stream began, or is about to, without a load") as check:
        require_never_started(home)
        check()
        if not load.record(home):
            message = f"another process recorded a first load of {name} meanwhile; run it again, it continues that one"
            raise LostRaceError(message)
    return load


def require_never_started(home: PipelineHome) -> None:
    """Check that no timeline of a pipeline exists that began without a load.

    Raises:
        RequestError: one does.
    """
    name, pipeline = head(home), home.root.name
    if name is not None:
        message = (
            f"{pipeline} began already: timeline {name} streams the log from its beginning, and only a first start can load it; nothing "
            f"was done; `rivertwice start {pipeline}` continues it, and `rivertwice upgrade {pipeline} --new-version --recompute` computes "
            "its past again, beside it"
        )
        raise RequestError(message)


def explain_stream_load(pipeline: str, plan: StreamLoadPlan) -> str:
    """Return the plan as text for a person: one fact a line. Pure."""
    batches = -(-plan.records // plan.batch)
    lines = [
        f"first load of {pipeline}, topics {', '.join(plan.topic_ids)}",
        f"stream     {plan.records} records in about {batches} batches of at most {plan.batch} records, then all that come in ordinary batches",
        f"why        no backfill can load this past: {plan.why}",
    ]
    if plan.archived:
        lines.append(
            f"archive    {count(plan.archived)} records that Kafka has deleted: {describe_parts(plan.archived)}"
        )
    if plan.nowhere:
        lines.append(
            f"nowhere    offsets in neither Kafka nor the archive; it begins after them: {describe_parts(plan.nowhere)}"
        )
    return "\n".join(lines)
