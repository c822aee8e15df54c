"""Which query a driver runs next while its stream loads the log as it was at the first start (`timeline.stream_load`).

1. Kafka has deleted records that come next, and the archive has them: one large batch of the archive's records. Its ends are those
   in `offsets/N` if that exists, because a planned batch keeps its range; else they are chosen here.
2. Otherwise, until the load is read: large batches of Kafka's records.
3. From then on: the definition's own batches.

The rows of a large batch are written by executors. All of it follows from the load's record and the checkpoint, so a driver that is
killed anywhere is followed by one that continues. Where a batch ends is of no matter: it is the stream's plan in each of the three.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rivertwice.core import Settings
from rivertwice.definition import Definition
from rivertwice.engine import is_result
from rivertwice.log import (
    ArchiveBatch,
    OffsetRanges,
    Part,
    StoredOffsets,
    archived_ranges,
    decode_ends,
    kafka,
    plan_archive_batch,
    plan_chunks,
)
from rivertwice.storage import replace_bytes
from rivertwice.stream.checkpoint import read_planned, read_sets
from rivertwice.stream.gaps import read_position
from rivertwice.stream.placing import find_first, stored_ends
from rivertwice.stream.result_rows import DriverContext
from rivertwice.stream.source import steer_source
from rivertwice.timeline import LedgerRow, StreamLoad, Timeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_COLLECTED = 100_000
"""Records of a large batch at most, for kinds of windows whose rows the driver collects."""


@dataclass(frozen=True)
class Stage:
    """One query of a driver.

    Attributes:
        definition: with the largest number of records of a batch.
        is_large: executors write the rows.
        archive: the batch, if it is read from the archive; the query ends after it.
        load: the query ends once its records are read; None: it does not end by itself.
    """

    definition: Definition
    is_large: bool = False
    archive: ArchiveBatch | None = None
    load: StreamLoad | None = None

    @property
    def ends_by_itself(self) -> bool:
        """Whether another query follows."""
        return self.load is not None

    @property
    def ends_driver(self) -> bool:
        """Whether another driver must run what follows.

        The watermark of several sources follows from all batches of one query, and the ledger knows a query by its driver.
        """
        return sum(source.has_watermark for source in self.definition.streams.values()) > 1

    @property
    def has_watermark(self) -> bool:
        """Whether a batch's records raise a watermark that closes windows in the next batch."""
        return any(source.has_watermark for source in self.definition.streams.values())

    def is_over(self, position: StoredOffsets) -> bool:
        """Say whether the query ends after a batch that ends at `position`."""
        return self.archive is not None or (self.load is not None and self.load.has_read(position))


def plan_stage(settings: Settings, context: DriverContext, load: StreamLoad | None) -> Stage:
    """Return the query that comes next.

    Args:
        load: of the pipeline; None: its stream loads nothing.

    Raises:
        LogGapError: neither Kafka nor the archive has the next records.
        ServiceError: Kafka does not answer.
    """
    definition = context.definition
    if load is None:
        return Stage(definition)
    position = read_position(context.checkpoint, context.timeline, definition.topics)
    if load.has_read(position):
        return Stage(definition)
    large = with_limit(definition, large_limit(definition))
    begins = {topic: kafka.begin_offsets(settings, topic) for topic in definition.topics}
    if not lacks_next(position, begins):
        return Stage(large, is_large=True, load=load)
    end = _planned_end(context) or choose_end(
        position, _archived(settings, context.timeline, definition), large.stream.max_offsets_per_trigger
    )
    archive = plan_archive_batch(settings, context.timeline.topic_ids, position, end)
    return Stage(large, is_large=True, archive=archive, load=load)


def hold_for_watermark(spark: SparkSession, settings: Settings, execution: Any, stage: Stage, row: LedgerRow) -> bool:
    """Let a query run one more batch, without records, after the last one of its load; return False if it needs none.

    Spark closes the windows that the last batch's watermark reaches in a batch without records, but only in the same query: after
    a new start it waits for the next record. Only while the query is inside `foreachBatch`.

    Args:
        execution: of the running query.
        row: the batch that was committed.
    """
    if not row.read or not stage.has_watermark or stage.load is None or not stage.load.has_read(row.end_offsets):
        return False
    return stage.archive is not None or steer_source(spark, settings, execution, row.end_offsets)


def large_limit(definition: Definition) -> int:
    """Return how many records a large batch takes at most. Pure."""
    pins = definition.stream
    most = pins.load_batch if is_result(definition) else min(pins.load_batch, MOST_COLLECTED)
    return max(most, pins.max_offsets_per_trigger)


def with_limit(definition: Definition, records: int) -> Definition:
    """Return the definition with another number of records of a batch, which touches no fingerprint. Pure."""
    pins = definition.stream.model_copy(update={"max_offsets_per_trigger": records})
    return definition.model_copy(update={"stream": pins})


def lacks_next(position: StoredOffsets, begins: Mapping[str, Mapping[int, int]]) -> bool:
    """Say whether Kafka has deleted records that come next. Pure.

    Args:
        position: where the next batch begins.
        begins: topic to partition to the oldest offset that Kafka has.
    """
    return any(
        begins[topic].get(partition, offset) > offset
        for topic, places in position.items()
        for partition, offset in decode_ends(places).items()
    )


def choose_end(position: StoredOffsets, archived: Mapping[str, OffsetRanges], most: int) -> dict[str, dict[str, int]]:
    """Return where a batch of the archive ends: the same share of what each partition has, at most `most` records. Pure.

    Args:
        position: topic to partition to the first offset.
        archived: topic to what the archive has.
    """
    parts = {
        Part(topic, partition): (offset, max(offset, archived[topic].get(partition, (0, offset))[1]))
        for topic, places in position.items()
        for partition, offset in decode_ends(places).items()
    }
    keys = dict(enumerate(sorted(parts)))
    chunks = plan_chunks({number: parts[key] for number, key in keys.items()}, most)
    first = chunks[0] if chunks else {}
    return stored_ends({key: first.get(number, parts[key][:1] * 2)[1] for number, key in keys.items()})


def write_initial_offsets(context: DriverContext) -> None:
    """Put where the stream begins into a new checkpoint, as Spark's source of Kafka does before its first batch."""
    path = context.checkpoint / "sources" / "0" / "0"
    if context.timeline.parent is None and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        genesis = read_sets(context.checkpoint).to_kafka(context.timeline.genesis)
        text = json.dumps(genesis, separators=(",", ":"))
        replace_bytes(path, b"\0v1\n" + text.encode())


def _archived(settings: Settings, line: Timeline, definition: Definition) -> dict[str, OffsetRanges]:
    return {topic: archived_ranges(settings, topic, line.topic_ids[topic]) for topic in definition.topics}


def _planned_end(context: DriverContext) -> StoredOffsets | None:
    first = find_first(context)
    planned = read_planned(context.checkpoint, first.number) if first.is_planned else None
    return None if planned is None else planned.end_offsets
