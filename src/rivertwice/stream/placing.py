"""Place the ends of a stream's batches by event time while it catches up (`event_plan` decides where).

A running query is given the ends of its next batch from inside `foreachBatch`. A query's first batch is planned by Spark before
anything of it can be steered. So where batches must be placed from the start, Spark's plan of the first one is a draft:

1. The marker `unplaced.json` names the batch. No part of it can have run, because the checkpoint has no plan of it yet.
2. A query starts, writes `offsets/N`, and is stopped before it computes anything.
3. The ends in `offsets/N` are replaced. The rest of the file is Spark's own.
4. The marker is removed. Only now may a query run the batch, and from now on its range stays as it is.

A crash after a step leaves the marker or a whole plan: the next start continues with 2, 3, or with the placed batch.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from rivertwice.core import Settings, from_ms, to_iso
from rivertwice.definition import Definition
from rivertwice.engine import decode_view
from rivertwice.log import PLAIN, Part, StoredOffsets, kafka, plain_row, read_pieces
from rivertwice.storage import Table, read_json, replace_bytes, replace_json, sync_path
from rivertwice.stream.checkpoint import checksum_of, last_number, moved_to, read_planned, read_sets
from rivertwice.stream.gaps import next_offsets
from rivertwice.stream.result_rows import DriverContext
from rivertwice.stream.sink import is_applied
from rivertwice.stream.source import release_source, steer_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Where a batch shall end while a stream catches up: at one event time in all partitions. Pure.
#
# Spark splits a batch over the partitions in proportion to what waits in them. A partition with fewer records for a day then runs
# through more days in a batch than the others. Its event times raise the watermark, and the other partitions' records are late.
#
# Here a batch ends in every partition where that partition's *frontier* passes the same event time. The frontier at an offset is
# the largest event time of the records before it. It is known at some offsets only (`PartitionIndex`), so the plan is either a
# batch (`BatchEnds`), or what must be read first to place it (`ProbeRequest`). The ends of a batch differ by at most the tolerance, plus what a
# frontier hides between two known offsets: records that are newer than the next known ones.

RUN = 64
"""The number of records up to which an interval is read whole."""
GLANCE = 8
"""Records that are read at a place within a longer interval: one alone may be late and say nothing of those before it."""
_PIECES = 6
_FULL = 0.95
"""A batch that takes a smaller share of what it may is placed only once nothing more can be known of the records after it."""
_AHEAD = 8
"""A look reads for this number of batches at once, because a look costs about the same whatever it reads."""


NOTHING = -(1 << 62)
"""Frontier of records of which none was accepted, epoch ms."""


@dataclass(frozen=True)
class PartitionIndex:
    """What is known of one partition's event times.

    Attributes:
        start: offset of the next record to read.
        end: end of the log.
        floor_ms: frontier at `start`, epoch ms; NOTHING if it is not known.
        points: offset after `start` to frontier, epoch ms: offsets rise, frontiers never fall.
    """

    start: int
    end: int
    floor_ms: int
    points: Sequence[tuple[int, int]]

    @property
    def known(self) -> int:
        """The offset up to which the frontier is known."""
        return self.points[-1][0] if self.points else self.start

    def place(self, until_ms: int) -> int:
        """Return how many points have a frontier of at most `until_ms`."""
        return bisect_right(self.points, until_ms, key=_frontier)

    def cut(self, until_ms: int) -> int:
        """Return the last known offset whose frontier is at most `until_ms`."""
        return self._offset(self.place(until_ms))

    def gap(self, until_ms: int) -> tuple[int, int]:
        """Return the interval between the points around `until_ms`; empty if there is none after it."""
        place = self.place(until_ms)
        start = self._offset(place)
        return (start, self.points[place][0] if place < len(self.points) else start)

    def hidden_ms(self, until_ms: int) -> int:
        """Return how far before `until_ms` an unread record can be after a cut there."""
        start, end = self.gap(until_ms)
        if end - start <= 1:
            return 0  # the next record is known, and is newer; or no record is left
        place = self.place(until_ms)
        return until_ms - (self.points[place - 1][1] if place else self.floor_ms)

    def _offset(self, place: int) -> int:
        return self.points[place - 1][0] if place else self.start


@dataclass(frozen=True)
class BatchEnds:
    """A batch's ends.

    Attributes:
        ends: for every partition.
        until_ms: no record of the batch is newer, as far as it is known; epoch ms, or NOTHING.
    """

    ends: Mapping[Part, int]
    until_ms: int


@dataclass(frozen=True)
class ProbeRequest:
    """Half-open ranges whose records must be read before a batch can be placed; in each partition they rise."""

    ranges: Mapping[Part, tuple[tuple[int, int], ...]]


def plan_cut(index: Mapping[Part, PartitionIndex], most: int, tolerance_ms: int) -> BatchEnds | ProbeRequest | None:
    """Return the next batch, what must be read first, or None if one batch takes all that waits.

    Args:
        most: records of a batch, at most; at least 1.
        tolerance_ms: by how much event time a partition may end ahead of another.
    """
    if sum(part.end - part.start for part in index.values()) <= most:
        return None
    coarse = {key: _coarse(part, most) for key, part in index.items() if part.known < min(part.end, part.start + most)}
    if coarse:
        return ProbeRequest(coarse)
    steps = sorted({frontier for part in index.values() for _, frontier in part.points})
    looks: dict[Part, set[tuple[int, int]]] = {}
    for number in range(1, _AHEAD + 1):
        cut, times = _cut(index, steps, most * number, tolerance_ms // 2)
        vague = {
            (key, part.gap(until_ms))
            for until_ms in times
            for key, part in index.items()
            if part.hidden_ms(until_ms) > tolerance_ms // 2
        }
        if number == 1 and not vague:
            return cut
        for key, gap in vague:
            looks.setdefault(key, set()).update(_split(*gap))
        if any(cut.ends[key] >= part.known for key, part in index.items() if part.known > part.start):
            break  # what comes after it is not known, or there is nothing
    return ProbeRequest({key: _merge(ranges) for key, ranges in looks.items()})


def _cut(
    index: Mapping[Part, PartitionIndex], steps: Sequence[int], most: int, tolerance_ms: int
) -> tuple[BatchEnds, tuple[int, ...]]:
    """Return the batch by what is known, and the event times around which it must be known well."""
    full = bisect_right(steps, most, key=lambda until_ms: sum(_amounts(index, until_ms).values()))
    below = steps[full - 1] if full else NOTHING - 1
    before = _amounts(index, below)
    total = sum(before.values())
    ends = {key: part.start + before[key] for key, part in index.items()}
    if full == len(steps):
        return BatchEnds(ends, below), (below,)
    above = steps[full]
    if total and above - below > tolerance_ms:
        return BatchEnds(ends, below), (below,) if total > most * _FULL else (below, above - 1)
    there = {key: amount - before[key] for key, amount in _amounts(index, above).items()}
    shares = _share_out(there, most - total)
    return BatchEnds({key: end + shares[key] for key, end in ends.items()}, above), (
        below if total else above - 1,
        above,
    )


def _amounts(index: Mapping[Part, PartitionIndex], until_ms: int) -> dict[Part, int]:
    return {key: part.cut(until_ms) - part.start for key, part in index.items()}


def _share_out(amounts: Mapping[Part, int], budget: int) -> dict[Part, int]:
    """Return a part of each amount, in proportion; together they are the budget, which is at most their sum."""
    whole = sum(amounts.values())
    shares = {key: amount * budget // whole for key, amount in amounts.items()}
    rest = budget - sum(shares.values())
    for key in sorted((key for key in amounts if shares[key] < amounts[key]), key=lambda each: (-amounts[each], each)):
        if rest:
            shares[key] += 1
            rest -= 1
    return shares


def _coarse(part: PartitionIndex, most: int) -> tuple[tuple[int, int], ...]:
    """Return places at even distances, from what is known on; the last one is at the end of the stretch."""
    end = min(part.end, part.known + most * _AHEAD)
    step = max(1, most // 4)
    if step <= GLANCE or end - part.known <= RUN:
        return ((part.known, end),)
    starts = [*range(part.known, end - GLANCE, step), end - GLANCE]
    return _merge((start, start + GLANCE) for start in starts)


def _split(start: int, end: int) -> Iterator[tuple[int, int]]:
    if end - start <= RUN:
        yield (start, end)
        return
    for piece in range(_PIECES):
        place = start + (end - start) * piece // _PIECES
        yield (place, place + GLANCE)


def _merge(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the ranges in order, those joined that overlap or touch."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def _frontier(point: tuple[int, int]) -> int:
    return point[1]


# The event times that are known of the records which a stream has yet to read. Pure; `event_look` reads them.


class EventTimes:
    """Event time by record, for some records of each partition; what the stream has read is forgotten."""

    def __init__(self) -> None:
        """Create it without any record."""
        self._times: dict[Part, dict[int, int | None]] = {}
        self._floors: dict[Part, int] = {}

    def add(self, part: Part, offset: int, event_ms: int | None) -> None:
        """Note the event time of the record at an offset, epoch ms; None: the record is not accepted, or there is none."""
        self._times.setdefault(part, {})[offset] = event_ms

    def index(self, starts: Mapping[Part, int], ends: Mapping[Part, int]) -> dict[Part, PartitionIndex]:
        """Return what is known of each partition between `starts` and `ends`; a partition without a start begins at 0."""
        return {
            part: self._part(part, starts.get(part, 0), max(end, starts.get(part, 0))) for part, end in ends.items()
        }

    def _part(self, part: Part, start: int, end: int) -> PartitionIndex:
        times = self._times.get(part, {})
        frontier = self._floors.get(part, NOTHING)
        points = []
        awaited = NOTHING
        offsets = sorted(times)
        for place, offset in enumerate(offsets):
            if offset != (offsets[place - 1] + 1 if place else min(offset, start)):
                # The records before it are not known. The first ones here may be late and say nothing of them; the newest one does.
                awaited = _newest(times, range(offset, offset + GLANCE))
            frontier = max(frontier, _newest(times, (offset,)))
            if offset < start:
                self._floors[part] = frontier
            elif offset < end and frontier >= awaited:
                points.append((offset + 1, frontier))
        self._times[part] = {offset: event_ms for offset, event_ms in times.items() if offset >= start}
        return PartitionIndex(start, end, self._floors.get(part, NOTHING), points)


def _newest(times: Mapping[int, int | None], offsets: Iterable[int]) -> int:
    return max((event_ms for offset in offsets if (event_ms := times.get(offset)) is not None), default=NOTHING)


# Read the event times by which batches are placed: a few records of what waits, decoded as the stream decodes them.

_log = logging.getLogger(__name__)


def most_placed(definition: Definition) -> int:
    """Return how many records a placed batch takes at most.

    Spark shares its own limit out in proportion, in floating-point numbers that are rounded down. At the limit itself a partition
    would lose a record now and then, and end before the others.
    """
    return max(1, definition.stream.max_offsets_per_trigger - 1)


class EventLook:
    """Plans batches by event time, and reads what it needs to know for that."""

    def __init__(self, spark: SparkSession, settings: Settings, definition: Definition, tolerance_ms: int) -> None:
        """Create it; nothing is read yet.

        Args:
            tolerance_ms: by how much event time a partition may end ahead of another.
        """
        self._spark = spark
        self._settings = settings
        self._definition = definition
        self._tolerance_ms = tolerance_ms
        self._times = EventTimes()

    def plan(self, starts: Mapping[Part, int], ends: Mapping[Part, int]) -> BatchEnds | None:
        """Return where the next batch ends, or None if one batch takes all records between `starts` and `ends`.

        Raises:
            LogGapError: Kafka no longer has a record that the stream needs.
            ServiceError: Kafka does not answer.
        """
        most = most_placed(self._definition)
        looked = 0
        while isinstance(step := plan_cut(self._times.index(starts, ends), most, self._tolerance_ms), ProbeRequest):
            looked += self._read(step)
        if looked:
            _log.info("%s records were looked at to place the next batches by event time", looked)
        return step

    def _read(self, look: ProbeRequest) -> int:
        rows: dict[str, list[dict[str, object]]] = {}
        for part, record in read_pieces(self._settings, look.ranges):
            rows.setdefault(part.topic, []).append(plain_row(part.topic, record))
        accepted = {key: event_ms for topic in rows for key, event_ms in self._decode(topic, rows[topic]).items()}
        looked = 0
        for part, ranges in look.ranges.items():
            for start, end in ranges:
                looked += end - start
                for offset in range(start, end):
                    self._times.add(part, offset, accepted.get((part, offset)))
        return looked

    def _decode(self, topic: str, rows: list[dict[str, object]]) -> dict[tuple[Part, int], int]:
        view, source = self._definition.by_topic[topic]
        raw = self._spark.createDataFrame(pa.Table.from_pylist(rows, schema=PLAIN))
        event_ms = F.unix_millis(source.event_time).alias("event_ms")
        decoded = decode_view(self._definition, view, raw)
        table = decoded.where(F.col("_reason").isNull()).select("_partition", "_offset", event_ms)
        return {
            (Part(topic, row["_partition"]), row["_offset"]): row["event_ms"] for row in table.toArrow().to_pylist()
        }


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
    if is_draft and is_applied(Table(context.home.tables.changelog).applied_version(context.app), number):
        is_draft = False  # it ran, so the removal of the marker was lost
    return FirstBatch(number, planned, is_draft)


class Placing:
    """Places the batches of one driver."""

    def __init__(
        self, spark: SparkSession, settings: Settings, context: DriverContext, say: Callable[[int | None], None]
    ) -> None:
        """Create it; nothing is read yet.

        Args:
            say: is passed the event time, epoch ms, up to which the next batch reads; None: batches are not placed.
        """
        self._spark = spark
        self._settings = settings
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
        if cut is not None and steer_source(self._spark, self._settings, execution, stored_ends(cut.ends)):
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

    def _plan(self, starts: dict[Part, int]) -> BatchEnds | None:
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
        text = read_sets(checkpoint).text_to_kafka(moved_to(planned.text, ends))
        replace_whole(checkpoint / "offsets" / str(number), text)


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


def _shown(cut: BatchEnds) -> str:
    until_ms = _until_ms(cut)
    return "of no accepted record" if until_ms is None else to_iso(from_ms(until_ms))


def _until_ms(cut: BatchEnds | None) -> int | None:
    return None if cut is None or cut.until_ms == NOTHING else cut.until_ms
