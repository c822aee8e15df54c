"""Place the ends of a stream's batches by event time while it catches up (`event_plan` decides where).

A running query is given the ends of its next batch from inside `foreachBatch`. A query's first batch is planned by Spark before
anything of it can be steered. So where batches must be placed from the start, Spark's plan of the first one is a draft:

1. The marker `unplaced.json` names the batch. Nothing of it can have run, for the checkpoint has no plan of it yet.
2. A query starts, writes `offsets/N`, and is stopped before it computes anything.
3. The ends in `offsets/N` are replaced. The rest of the file is Spark's own.
4. The marker is removed. Only now may a query run the batch, and from now on its range stays as it is.

A crash after a step leaves the marker or a whole plan: the next start continues with 2, 3, or with the placed batch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.query import StreamingQuery

from rivertwice.config import Settings
from rivertwice.instants import from_ms, to_iso
from rivertwice.log import kafka
from rivertwice.log.addresses import Part, StoredOffsets
from rivertwice.pipeline.definition import Definition
from rivertwice.store import delta
from rivertwice.store.durable import sync_path
from rivertwice.store.files import read_json, replace_bytes, replace_json
from rivertwice.stream.checkpoint import checksum_of, last_number, moved_to, read_planned
from rivertwice.stream.context import DriverContext
from rivertwice.stream.event_look import EventLook
from rivertwice.stream.event_plan import NOTHING, Cut
from rivertwice.stream.gaps import next_offsets
from rivertwice.stream.sink import is_applied
from rivertwice.stream.steer import release_source, steer_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_POLL_SECONDS: Any = 0.2  # as in the driver
Begin = Callable[[Callable[[Any, int], None]], StreamingQuery]
"""Starts the stream's query with a function for its batches."""


class _DraftStoppedError(Exception):
    """Ends a query before it computes its first batch."""


def tolerance_ms(definition: Definition) -> int | None:
    """Return by how much event time a partition may be read ahead of another, or None if batches are not placed."""
    share = definition.stream.catch_up_share
    if not share or not definition.window.kind.has_watermark:
        return None
    shortest = min(source.watermark for source in definition.streams.values())
    return int(shortest * share / timedelta(milliseconds=1))


def stored_ends(ends: Mapping[Part, int]) -> dict[str, dict[str, int]]:
    """Return a batch's ends as Spark's checkpoint holds them."""
    stored: dict[str, dict[str, int]] = {}
    for part in sorted(ends):
        stored.setdefault(part.topic, {})[str(part.partition)] = ends[part]
    return stored


@dataclass(frozen=True)
class FirstBatch:
    """The next batch of a checkpoint that no query reads.

    Attributes:
        number: of the batch.
        is_planned: `offsets/N` exists.
        is_draft: it is Spark's own plan, and no part of it ever ran.
    """

    number: int
    is_planned: bool
    is_draft: bool


def find_first(context: DriverContext) -> FirstBatch:
    """Return the batch with which a query over this checkpoint begins."""
    finished = last_number(context.checkpoint / "commits")
    number = context.timeline.first_batch if finished is None else finished + 1
    planned = (context.checkpoint / "offsets" / str(number)).exists()
    marker = read_json(context.home.unplaced(context.timeline.timeline))
    is_draft = planned and marker is not None and marker["batch"] == number
    if is_draft and is_applied(delta.applied_version(context.home.tables.changelog, context.app), number):
        is_draft = False  # it ran, so the removal of the marker was lost
    return FirstBatch(number, planned, is_draft)


class Placing:
    """Places the batches of one driver."""

    def __init__(
        self, spark: SparkSession, settings: Settings, context: DriverContext, say: Callable[[int | None], None]
    ) -> None:
        """Create it; nothing is read yet.

        Args:
            spark: the driver's session.
            settings: the cluster.
            context: the timeline that runs.
            say: is passed the event time, epoch ms, up to which the next batch reads; None: batches are not placed.
        """
        self._spark = spark
        self._context = context
        self._say = say
        self._steered = False
        tolerance = tolerance_ms(context.definition)
        self._look: EventLook | None = None
        if tolerance is not None:
            self._look = EventLook(spark, settings, context.definition, tolerance)
            self._log_ends = kafka.stable_ends_asker(settings, context.definition.topics)

    def place_first(self, begin: Begin) -> None:
        """Place the batch with which the next query begins, if it must be placed; `begin` starts a query for the draft."""
        first = find_first(self._context)
        marker = self._context.home.unplaced(self._context.timeline.timeline)
        cut = None if first.is_planned and not first.is_draft else self._plan(self._starts())
        if cut is not None:
            if not first.is_planned:
                replace_json(marker, {"format": 1, "batch": first.number})
                self._draft(begin, first.number)
            self._put(first.number, stored_ends(cut.ends))
            _log.info("batch %s is placed: it reads up to event time %s", first.number, _shown(cut))
            self._say(_until_ms(cut))
        if marker.exists():
            marker.unlink()
            sync_path(marker.parent)

    def place_next(self, execution: Any, end_offsets: StoredOffsets) -> None:
        """Place the batch after the one that the query is in, which ended at `end_offsets`; else leave it to Spark.

        Raises:
            LogGapError: Kafka no longer has a record that the stream needs.
            ServiceError: Kafka does not answer.
        """
        ends = ((topic, places) for topic, places in end_offsets.items())
        cut = self._plan({Part(topic, int(p)): int(offset) for topic, places in ends for p, offset in places.items()})
        if cut is not None and steer_source(self._spark, execution, stored_ends(cut.ends)):
            self._steered = True
        else:
            if self._steered:
                release_source(execution)  # otherwise it would read no further than the last batch
                self._steered = False
                _log.info("batches are not placed by event time any more")
            if cut is not None:
                _log.warning("this Spark does not let batches be placed by event time: they are split by what waits")
                self._look = cut = None
        self._say(_until_ms(cut))

    def _plan(self, starts: dict[Part, int]) -> Cut | None:
        if self._look is None:
            return None
        log_ends = self._log_ends()
        return self._look.plan(
            starts, {Part(topic, p): end for topic, ends in log_ends.items() for p, end in ends.items()}
        )

    def _starts(self) -> dict[Part, int]:
        context = self._context
        return {
            Part(topic, partition): offset
            for topic in context.definition.topics
            for partition, offset in next_offsets(context.checkpoint, context.timeline, topic).items()
        }

    def _draft(self, begin: Begin, number: int) -> None:
        """Let Spark write its plan of the first batch, and nothing else."""
        drafted: list[int] = []

        def stop(_frame: Any, batch: int) -> None:
            drafted.append(batch)
            message = f"batch {batch} is only planned here; the driver continues with its placed ends"
            raise _DraftStoppedError(message)

        query = begin(stop)
        try:
            while not query.awaitTermination(_POLL_SECONDS):
                self._context.lease.check()
        except Exception:
            if drafted != [number]:
                raise

    def _put(self, number: int, ends: StoredOffsets) -> None:
        """Replace the ends in `offsets/N`, whole or not at all."""
        checkpoint = self._context.checkpoint
        planned = read_planned(checkpoint, number)
        assert planned is not None, "the draft wrote it"
        replace_whole(checkpoint / "offsets" / str(number), moved_to(planned.text, ends))


def replace_whole(path: Path, text: str) -> None:
    """Replace a small file of a checkpoint. Its checksum file is removed before and made again after: a crash leaves none."""
    aside = path.parents[1].parent / f"{path.name}.placed"
    checksum = path.parent / f".{path.name}.crc"
    replace_bytes(aside, text.encode())
    checksum.unlink(missing_ok=True)
    os.replace(aside, path)
    sync_path(path.parent)
    replace_bytes(aside, checksum_of(text.encode()))
    os.replace(aside, checksum)


def _shown(cut: Cut) -> str:
    until_ms = _until_ms(cut)
    return "of no accepted record" if until_ms is None else to_iso(from_ms(until_ms))


def _until_ms(cut: Cut | None) -> int | None:
    return None if cut is None or cut.until_ms == NOTHING else cut.until_ms
