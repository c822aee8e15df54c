"""What must be true according to the log: the Spark side of a reconcile. The log is read once and cached."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.backfill import intersect
from rivertwice.core import Row, Settings
from rivertwice.definition import Definition, Source
from rivertwice.engine import HASH, BatchMarks, LogDecoder, accepted
from rivertwice.log import LogRead, OffsetRanges, Part, Parts, kafka, of_topic, parts_of
from rivertwice.reconcile.gaps import GAP_INDEX, LOADED_INDEX, Missing, SkippedRange, gaps_of
from rivertwice.reconcile.kinds import Judge, JudgeInput, judge_of
from rivertwice.reconcile.kinds.read_rows import collect_together, is_read, with_watermarks
from rivertwice.reconcile.model import LateRow
from rivertwice.reconcile.rederive import BatchCounts, Chain, Ranges
from rivertwice.reconcile.seals.scope import Pieces, joined_runs, runs_of, scanned
from rivertwice.timeline import Cure, Range, amended_rows, merged

Rejection = tuple[tuple[int, Part, int, str], dict[str, Any]]
"""A rejected record: path index, part, offset and reason; and further columns of its dead letter."""
TASK_RECORDS = 10_000
"""So many records at least are read by one task of an incremental run, whose tasks cost more than their records."""


class DerivedLog:
    """The decoded log up to a batch, each record tagged with the path index of the batch that read it.

    Use as a context manager: the cached records are released at its end.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        definition: Definition,
        ranges: Sequence[Ranges],
        topic_ids: Mapping[str, str] | None = None,
        jumps: Sequence[SkippedRange] = (),
        older: Mapping[int, Definition] | None = None,
        groups: Sequence[int] = (),
        *,
        pieces: Sequence[Pieces] | None = None,
        barred: Sequence[tuple[int, int]] = (),
        whole_run: int | None = None,
    ) -> None:
        """Plan the reading of `ranges`, one entry per batch of the path, contiguous except for `jumps`.

        `pieces` are those of their offsets that an incremental run reads; no other record is decoded.

        `older` are the definitions that ran before the newest one (`definition`), by their number in `groups`, which has one
        entry per batch too. What a batch read is counted as its own definition decodes it.

        `topic_ids` are those of the topics that the offsets belong to; for a topic without one, its present id is used. What
        neither Kafka nor the archive has is left out and named in `missing`. What the stream skipped, at an accepted gap or because
        it is loaded by batch, is read if it exists, and belongs to the truth.

        `barred` are ranges of event time over which the SQL throws: no result is computed of their records.

        With `whole_run`, the number of such a run, what is kept decoded of the archive is read, after its share was decoded again; without
        it all bytes are decoded. Older definitions decode bytes.
        """
        self._spark = spark
        self._definition = definition
        self._jumps = jumps
        self._older = older or {}
        self._groups = groups
        self._barred = barred
        self._rejections: list[Rejection] | None = None
        self._reads: dict[str, LogRead] = {}
        self.decoded: list[str] = []
        """What was read as it is kept decoded, and what was decoded again, in words."""
        self.altered: dict[Path, str] = {}
        """Files that are kept decoded and do not agree with the archive, with how that was seen."""
        self.tagged: dict[str, DataFrame] = {}
        other_decodes = {
            number: candidate
            for number, candidate in self._older.items()
            if not _decodes_alike(spark, candidate, definition)
        }
        self._tagged_older: dict[int, dict[str, DataFrame]] = {number: {} for number in other_decodes}
        missing: list[Missing] = []
        for topic, (view, _) in definition.by_topic.items():
            topic_ranges = [of_topic(batch, topic) for batch in ranges]
            own_jumps = [jump for jump in jumps if jump.skipped.topic == topic]
            skipped = [jump.skipped.ranges for jump in gaps_of(own_jumps)]
            loaded = [jump.skipped.ranges for jump in own_jumps if jump.is_load]
            topic_id = (topic_ids or {}).get(topic) or kafka.topic_id(settings, topic)
            runs = None if pieces is None else runs_of(pieces, topic)
            near = {} if runs is None else scanned(runs)
            scans = [{partition: run} for partition, own in near.items() for run in own]
            spans = [_span([*topic_ranges, *skipped, *loaded])] if runs is None else read_spans(scans)
            read = LogRead(spark, settings, topic, spans, topic_id, leave_out=True)
            self._reads[topic] = read
            missing += [
                (Part(topic, partition), *gone)
                for partition, start, end in read.missing
                for gone in intersect([(start, end)], [(start, end)] if runs is None else runs.get(partition, ()))
            ]
            few = None if runs is None else _few(spark, read, near, runs)
            gaps = [*((GAP_INDEX, gap) for gap in skipped), *((LOADED_INDEX, load) for load in loaded)]
            marks = BatchMarks.of(spark, [*enumerate(topic_ranges), *gaps])
            decoder = LogDecoder(spark, definition, view)
            self.tagged[view] = _tagged(decoder, read, few, marks, whole_run)
            if decoder.again is not None and (described := decoder.again.describe()):
                self.decoded.append(described)
                self.altered |= decoder.again.altered
            for number, older_definition in other_decodes.items():
                older_view, _ = older_definition.by_topic[topic]
                older_decoder = LogDecoder(spark, older_definition, older_view)
                self._tagged_older[number][older_view] = _tagged(older_decoder, read, few, marks)
        self.missing = tuple(missing)
        self.from_kafka = [parts_of(topic, ranges) for topic, read in self._reads.items() for ranges in read.from_kafka]
        """Ranges that are read from Kafka; all others come from the archive, whose files have their own sums."""
        self._cached = [frame for views in (self.tagged, *self._tagged_older.values()) for frame in views.values()]

    def __enter__(self) -> DerivedLog:
        """Return the log."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release the cached records."""
        for tagged in self._cached:
            tagged.unpersist()

    def leave_out(self, exchanged: Mapping[int, Parts]) -> None:
        """Leave out the records of some batches (path index to ranges of whole topics): they are not what these batches read."""
        for views in (self.tagged, *self._tagged_older.values()):
            for topic, (view, _) in self._definition.by_topic.items():
                own = sorted(index for index, parts in exchanged.items() if any(part.topic == topic for part in parts))
                if own:
                    is_of_them = (F.col("_index").between(low, high - 1) for low, high in joined_runs(own, len(own)))
                    out = functools.reduce(operator.or_, is_of_them)
                    views[view] = views[view].where(~F.coalesce(out, F.lit(False)))
        if self._rejections is not None:
            self._rejections = [
                entry for entry in self._rejections if entry[0][1] not in exchanged.get(entry[0][0], {})
            ]

    def counts(self, *, with_rejected: bool = False) -> dict[tuple[int, Part], BatchCounts]:
        """Return (path index, part) to the counts of its records in the log.

        With `with_rejected` the same jobs also collect what `rejected` returns.

        Raises:
            LogGapError: a topic was created again while it was read.
        """
        counted: dict[tuple[int, Part], BatchCounts] = {}
        rejections: list[Rejection] = []
        for number, definition, views in self._by_definition():
            for topic, (view, source) in definition.by_topic.items():
                frames = {"counts": _counts_frame(views[view], source)}
                if with_rejected:
                    frames["rejected"] = _rejected_frame(views[view])
                tables = collect_together(frames) if with_rejected else {"counts": frames["counts"].toArrow()}
                counted |= self._counts_of(number, topic, tables["counts"])
                if with_rejected:
                    rejections += self._rejections_of(number, topic, tables["rejected"])
        if with_rejected:
            self._rejections = rejections
        for read in self._reads.values():
            read.check_same_topic()
        return counted

    def _by_definition(self) -> list[tuple[int | None, Definition, Mapping[str, DataFrame]]]:
        """Return each definition that decodes differently, with its number (None: the newest) and its view of the log."""
        older = [(number, self._older[number], views) for number, views in self._tagged_older.items()]
        return [(None, self._definition, self.tagged), *older]

    def _is_of(self, index: int, number: int | None) -> bool:
        """Say whether a batch was decoded as by the definition of a number."""
        own = self._groups[index] if self._groups else None
        return (own if own in self._tagged_older else None) == number

    def dead(self) -> list[tuple[int, Part, int, str]]:
        """Return (path index, part, offset, reason) of every record that the decode of its own batch rejects."""
        return [dead_letter for dead_letter, _ in self.rejected()]

    def rejected(self) -> list[Rejection]:
        """Return what `dead` returns, each record with further columns of its dead letter."""
        if self._rejections is None:
            self._rejections = [
                rejection
                for number, definition, views in self._by_definition()
                for topic, (view, _) in definition.by_topic.items()
                for rejection in self._rejections_of(number, topic, _rejected_frame(views[view]).toArrow())
            ]
        return self._rejections

    def _counts_of(self, number: int | None, topic: str, table: pa.Table) -> dict[tuple[int, Part], BatchCounts]:
        return {
            (row["_index"], Part(topic, row["_partition"])): BatchCounts(
                row["read"], row["bad"], row["read"] - row["bad"], row["low"], row["high"], row["digest"]
            )
            for row in table.to_pylist()
            if self._is_of(row["_index"], number)
        }

    def _rejections_of(self, number: int | None, topic: str, table: pa.Table) -> list[Rejection]:
        return [
            (
                (row["_index"], Part(topic, row["_partition"]), row["_offset"], row["_reason"]),
                {"record_time": row["_record_time"]},
            )
            for row in table.to_pylist()
            if self._is_of(row["_index"], number)
        ]

    def late_contents(self, late: Sequence[LateRow]) -> dict[tuple[Part, int], Row]:
        """Return what the newest definition stores of late records, by address: the timestamp, and the fields as JSON."""
        contents: dict[tuple[Part, int], dict[str, Any]] = {}
        for topic, (view, source) in self._definition.by_topic.items():
            places = sorted({(late_row.partition, late_row.offset) for late_row in late if late_row.topic == topic})
            if not places:
                continue
            wanted = self._spark.createDataFrame(places, "_partition int, _offset bigint")
            rows = self.tagged[view].join(F.broadcast(wanted), ["_partition", "_offset"], "left_semi")
            fields = F.to_json(F.struct(*source.schema_), {"ignoreNullFields": "false"})
            table = rows.select("_partition", "_offset", "_record_time", fields.alias("fields")).toArrow()
            contents |= {
                (Part(topic, row["_partition"]), row["_offset"]): {
                    "record_time": row["_record_time"],
                    "fields": row["fields"],
                }
                for row in table.to_pylist()
            }
        return contents

    def judged_by(self, chain: Chain, groups: Sequence[int], cures: Sequence[Cure] = ()) -> Judge:
        """Return the judge of the accepted rows.

        Args:
            groups: number of the definition that ran, by path index.
            cures: what dead letters should have been; only the truth counts it.
        """
        return self._judged_by(self._definition, self.tagged, chain, groups, cures)

    def judged_by_older(self, chain: Chain, groups: Sequence[int], cures: Sequence[Cure] = ()) -> dict[int, Judge]:
        """Return the judges of the older definitions, each over the whole log as it decodes it, by their numbers."""
        return {
            number: self._judged_by(
                definition, self._tagged_older.get(number, self.tagged), chain, groups, cures, number
            )
            for number, definition in self._older.items()
        }

    def _judged_by(
        self,
        definition: Definition,
        views: Mapping[str, DataFrame],
        chain: Chain,
        groups: Sequence[int],
        cures: Sequence[Cure],
        own: int | None = None,
    ) -> Judge:
        rows = self._accepted_by_view(definition, views, chain, groups)
        amended = amended_rows(self._spark, definition, cures)
        return judge_of(self._spark, JudgeInput(definition, rows, chain, amended or {}, self._jumps, own, self._barred))

    def accepted_by_view(self, chain: Chain, groups: Sequence[int]) -> dict[str, DataFrame]:
        """Return view to accepted rows with `_index`, `_late_ms` and `_group` (`with_watermarks`)."""
        return self._accepted_by_view(self._definition, self.tagged, chain, groups)

    def _accepted_by_view(
        self, definition: Definition, views: Mapping[str, DataFrame], chain: Chain, groups: Sequence[int]
    ) -> dict[str, DataFrame]:
        return {
            view: with_watermarks(self._spark, accepted(views[view], source), chain, groups)
            for view, source in definition.sources.items()
        }


def _decodes_alike(spark: SparkSession, first: Definition, second: Definition) -> bool:
    """Say whether two definitions give the same rows of the same views, with the same event times."""
    if _topics(first) != _topics(second):
        return False
    return all(LogDecoder(spark, first, view).id == LogDecoder(spark, second, view).id for view in first.sources)


def _topics(definition: Definition) -> dict[str, str]:
    return {view: source.topic for view, source in definition.sources.items()}


def _few(
    spark: SparkSession, read: LogRead, near: Mapping[int, Sequence[Range]], runs: Mapping[int, Sequence[Range]]
) -> DataFrame:
    """Return the records of some runs of offsets, of which the stretches `near` are scanned, in as few tasks as these need."""
    raw = read.records().coalesce(1 + sum(end - start for own in near.values() for start, end in own) // TASK_RECORDS)
    return raw if near == runs else BatchMarks.of_runs(spark, runs).select(raw)


def _tagged(
    decoder: LogDecoder, read: LogRead, few: DataFrame | None, marks: BatchMarks, whole_run: int | None = None
) -> DataFrame:
    """Return the decoded records of what is read, or of `few` of it, each with its batch."""
    if few is None:
        decoded = decoder.records(read, hashed=True, from_bytes=whole_run is None, run=whole_run)
    else:
        decoded = decoder.decoded(few)
    return marks.tag(decoded).persist(StorageLevel.MEMORY_AND_DISK)


def _counts_frame(tagged: DataFrame, source: Source) -> DataFrame:
    """Return the counts of each batch and partition, not computed yet."""
    is_good = F.col("_reason").isNull()
    event_ms = F.when(
        is_good & F.lit(not source.is_table), F.unix_millis(source.event_time)
    )  # versions move no watermark
    return (
        tagged.where(is_read())
        .groupBy("_index", "_partition")
        .agg(
            F.count(F.lit(1)).alias("read"),
            F.count("_reason").alias("bad"),
            F.min(event_ms).alias("low"),
            F.max(event_ms).alias("high"),
            F.bit_xor(HASH).alias("digest"),
        )
    )


def _rejected_frame(tagged: DataFrame) -> DataFrame:
    """Return the records that batches read and the decode rejects, not computed yet."""
    bad = tagged.where(F.col("_reason").isNotNull() & is_read())
    return bad.select("_index", "_partition", "_offset", "_reason", "_record_time")


def _span(ranges: Sequence[OffsetRanges]) -> OffsetRanges:
    span: OffsetRanges = {}
    for batch in ranges:
        for partition, (start, end) in batch.items():
            low, high = span.get(partition, (start, end))
            span[partition] = (min(low, start), max(high, end))
    return span


def read_spans(ranges: Sequence[OffsetRanges]) -> list[OffsetRanges]:
    """Return what is read in one piece each: offsets by partition, without a hole. Pure.

    Args:
        ranges: of some batches.
    """
    runs: dict[int, list[Range]] = {}
    for batch in ranges:
        for partition, pair in batch.items():
            runs.setdefault(partition, []).append(pair)
    whole = {partition: merged(own) for partition, own in runs.items()}
    count = max(map(len, whole.values()), default=0)
    return [{partition: own[at] for partition, own in whole.items() if at < len(own)} for at in range(count)] or [{}]
