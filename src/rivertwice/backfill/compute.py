"""The Spark part of a backfill: one commit for each chunk; finished chunks are skipped."""

from __future__ import annotations

import functools
import logging
import operator
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.backfill.checks import starts_inside
from rivertwice.backfill.corrections import (
    ChunkRecord,
    app_of,
    declared_rows,
    held_rows,
    missing_chunks,
    write_chunk,
)
from rivertwice.backfill.kinds import planner_of
from rivertwice.backfill.model import BackfillPlan, Chunk, OffsetRuns
from rivertwice.backfill.ranges import HalfOpenRange, reach, subtract, windows
from rivertwice.backfill.reading import cured, read_source
from rivertwice.backfill.session_compute import compute_sessions
from rivertwice.backfill.store import backfill_folder
from rivertwice.config import PipelineHome, Settings
from rivertwice.errors import FingerprintError, LogGapError, LostRaceError, RequestError
from rivertwice.instants import from_ms, to_iso
from rivertwice.locks import lock_or_refuse
from rivertwice.log import kafka
from rivertwice.pipeline.bundle import load_bundle_definition
from rivertwice.pipeline.compile import compile_sources
from rivertwice.pipeline.definition import Definition, Source
from rivertwice.pipeline.engine import FEW_RECORDS, FEW_RECORDS_READ, with_confs
from rivertwice.pipeline.relations import included, window_micros, with_window_end
from rivertwice.progress import Measured, Progress, report_nothing
from rivertwice.store import delta
from rivertwice.stream.failures import condition_of, is_thrown
from rivertwice.stream.throwing import stretches_that_throw
from rivertwice.timeline.serving import to_epoch_ms
from rivertwice.tracing import traced

logger = logging.getLogger(__name__)

_CHANGE = (
    "change the SQL (`rivertwice lint` names what can throw) and run the new definition: `rivertwice upgrade --help`"
)
READ_ONCE = 1_000_000
"""A backfill of at most so many records is read and decoded once, and kept; a larger one is read chunk by chunk."""


@dataclass(frozen=True)
class ComputeReport:
    """What a compute did.

    Attributes:
        computed: chunks computed now; skipped: chunks that were done already.
        rows: result rows written now.
        seconds: how long it took.
    """

    computed: int
    skipped: int
    rows: int
    seconds: float


@traced(
    "backfill.compute",
    lambda _spark, _settings, plan, *_, **__: {"pipeline": plan.pipeline, "backfill": plan.id, "windows": plan.windows},
    lambda report: {"rows": report.rows},
)
def compute_backfill(
    spark: SparkSession, settings: Settings, plan: BackfillPlan, progress: Progress = report_nothing
) -> ComputeReport:
    """Compute the chunks that are not committed yet and append each in one commit.

    Killed anywhere and run again, it continues after the last committed chunk; a finished chunk is never written twice.
    Earlier chunks whose commits are gone are computed again.

    Raises:
        LostRaceError: another process computes the same backfill.
        LogGapError: a record that is needed is gone.
        FingerprintError: the stored bundle is another pipeline's.
    """
    began = time.monotonic()
    home = settings.pipeline(plan.pipeline)
    definition = load_bundle_definition(home.bundles, plan.bundle)
    planner_of(definition)
    window = definition.window
    size, step = (duration // timedelta(milliseconds=1) for duration in (window.length, window.step))
    if definition.name != plan.pipeline or (size, step) != (plan.window_ms, plan.step):
        message = (
            f"bundle {plan.bundle} is of {definition.name} with windows of {size} ms, one each {step} ms; backfill "
            f"{plan.id} of {plan.pipeline} has {plan.window_ms} ms each {plan.step} ms; plan again"
        )
        raise FingerprintError(message)
    with _alone(home, plan):
        done = delta.applied_version(home.tables.corrections, app_of(plan.id))
        first = 0 if done is None else done + 1
        lost = missing_chunks(first, declared_rows(home, plan.id), held_rows(home, plan.id)) if first else []
        wanted = [chunk for chunk in plan.chunks if chunk.index >= first or chunk.index in lost]
        rows_written = 0
        computed = chunks_computed(spark, settings, plan, definition, wanted)
        with with_confs(spark, FEW_RECORDS if plan.records <= FEW_RECORDS_READ else {}):
            for finished, (chunk, result, record) in enumerate(computed, start=1):
                write_chunk(home, plan, definition, result, record, again=chunk.index < first)
                rows_written += record.rows
                seconds = time.monotonic() - began
                line = f"backfill {plan.id}: chunk {chunk.index + 1} of {len(plan.chunks)} done, {rows_written} rows, {seconds:.1f} s"
                progress(Measured(line, f"backfill {plan.id}", finished, len(wanted)))
    return ComputeReport(len(wanted), len(plan.chunks) - len(wanted), rows_written, time.monotonic() - began)


def chunks_computed(
    spark: SparkSession, settings: Settings, plan: BackfillPlan, definition: Definition, chunks: Sequence[Chunk]
) -> Iterator[tuple[Chunk, pa.Table, ChunkRecord]]:
    """Yield chunks of a plan with their rows and the content of their commits; nothing is written."""
    cached: dict[str, DataFrame] | None = None
    if len(chunks) > 1 and plan.records <= READ_ONCE:
        by_view = rows_by_view(spark, settings, plan, definition, plan.offsets)
        cached = {view: rows.cache() for view, rows in by_view.items()}
    try:
        for chunk in chunks:
            result, records = _compute_chunk(spark, settings, plan, definition, chunk, cached)
            yield chunk, result, ChunkRecord(chunk.index, result.num_rows, records)
    finally:
        for rows in (cached or {}).values():
            rows.unpersist()


def _compute_chunk(
    spark: SparkSession,
    settings: Settings,
    plan: BackfillPlan,
    definition: Definition,
    chunk: Chunk,
    cached: Mapping[str, DataFrame] | None,
) -> tuple[pa.Table, Counter[int]]:
    """Return one chunk's rows, and the records of each window by its start.

    Raises:
        RequestError: the SQL throws over some windows; the message names them, and how the others are computed.
    """
    rows = cached or rows_by_view(spark, settings, plan, definition, chunk.offsets)
    try:
        if plan.sessions is None:
            result, records = _compute_windows(spark, definition, plan, chunk, rows)
        else:
            (source_rows,) = rows.values()
            home = settings.pipeline(plan.pipeline)
            result, records = compute_sessions(spark, home, definition, plan, chunk, source_rows)
    except PySparkException as error:
        if not is_thrown(str(error)):
            raise
        ranges = reach(chunk.ranges, plan.window_ms, plan.step) if plan.sessions is None else chunk.ranges
        bad = [found for start, end in ranges for found in stretches_that_throw(spark, definition, rows, start, end)]
        if not bad:
            raise
        raise RequestError(describe_thrown(plan, definition, bad, condition_of(str(error)))) from error
    check_same_topics(settings, plan)
    return result, records


def describe_thrown(plan: BackfillPlan, definition: Definition, bad: Sequence[HalfOpenRange], condition: str) -> str:
    """Return over which windows the SQL throws, and how all others are computed. Pure.

    Args:
        plan: the backfill.
        definition: what it computes.
        bad: ranges of event time whose records are to blame (epoch ms).
        condition: of Spark.
    """
    touched = [(start - plan.window_ms + plan.step, end) for start, end in bad]
    windows = ", ".join(f"{to_iso(from_ms(start))} to {to_iso(from_ms(end))}" for start, end in touched)
    others = [
        f"`rivertwice backfill run {plan.pipeline} --from {to_iso(from_ms(start))} --to {to_iso(from_ms(end))} --yes`"
        for start, end in subtract(plan.ranges, touched)
    ]
    then = f"compute the others: {', then '.join(others)}" if others else "all windows of the backfill are among them"
    return (
        f"{definition.window.kind.code_file} of {plan.pipeline} throws over the windows that begin from {windows}: {condition} "
        f"No row of them was written; {then}. To have these, {_CHANGE}"
    )


def _compute_windows(
    spark: SparkSession, definition: Definition, plan: BackfillPlan, chunk: Chunk, rows: Mapping[str, DataFrame]
) -> tuple[pa.Table, Counter[int]]:
    """Return the rows of a chunk's windows, and the records of each window by its start."""
    chunk_rows = {
        view: _in_windows(spark, source, rows[view], chunk, plan).cache() for view, source in definition.streams.items()
    }
    try:
        records: Counter[int] = Counter()
        for view, view_rows in chunk_rows.items():
            records.update(_count_records(spark, definition, view, view_rows, chunk))
        return _of_chunk(
            compile_sources(spark, definition, {**rows, **chunk_rows}).toArrow(), definition, chunk
        ), records
    finally:
        for view_rows in chunk_rows.values():
            view_rows.unpersist()


def windows_frame(
    spark: SparkSession, definition: Definition, plan: BackfillPlan, rows: Mapping[str, DataFrame]
) -> DataFrame:
    """Return the rows of all windows of a plan as a frame. It is not computed yet, and no row comes to the driver.

    Args:
        spark: the session.
        definition: what to run.
        plan: not of sessions, whose frame is `session_compute.sessions_frame`.
        rows: view to accepted rows of the plan's offsets (`rows_by_view`).
    """
    whole = Chunk(0, plan.ranges, plan.offsets, plan.records)
    inside = {view: _in_windows(spark, source, rows[view], whole, plan) for view, source in definition.streams.items()}
    return starting_in(compile_sources(spark, definition, {**rows, **inside}), definition, plan.ranges)


def starting_in(rows: DataFrame, definition: Definition, ranges: Sequence[HalfOpenRange]) -> DataFrame:
    """Return the result rows whose window starts in one of some ranges (epoch milliseconds)."""
    start_ms = F.unix_millis(definition.window.start_column)
    bounds = [(start_ms >= F.lit(start)) & (start_ms < F.lit(end)) for start, end in ranges]
    return rows.where(functools.reduce(operator.or_, bounds))


def check_same_topics(settings: Settings, plan: BackfillPlan) -> None:
    """Check, after records were read, that Kafka still has the topics of the plan: an id never comes back.

    Raises:
        LogGapError: a topic was deleted, or deleted and created again.
    """
    for topic in plan.kafka:
        now = kafka.topic_id(settings, topic) if kafka.topic_exists(settings, topic) else "none"
        if now != plan.topic_ids[topic]:
            message = (
                f"topic {topic} is no longer the one that {plan.id} was planned on (id {now}, not "
                f"{plan.topic_ids[topic]}): it was deleted, and what was read may be other records; what was computed of them "
                "was not kept; plan again over what the archive holds"
            )
            raise LogGapError(message)


def rows_by_view(
    spark: SparkSession, settings: Settings, plan: BackfillPlan, definition: Definition, offsets: OffsetRuns
) -> dict[str, DataFrame]:
    """Return view to the accepted rows of offset runs; one partition's are read in as few passes as there are runs.

    For a table, all versions in the plan's offsets are read, whatever the runs: a version may be valid for ever. The rows
    contain amended dead letters of all addresses, as of the plan's newest decision.
    """
    rows = {
        view: read_source(
            spark, settings, plan.topic_ids, definition, view, plan.offsets if source.is_table else offsets
        )
        for view, source in definition.sources.items()
    }
    return cured(spark, settings.pipeline(plan.pipeline), definition, rows, plan.as_of, plan.amendments)


def _in_windows(spark: SparkSession, source: Source, rows: DataFrame, chunk: Chunk, plan: BackfillPlan) -> DataFrame:
    """Return the rows whose event time is in one of the chunk's windows."""
    covered = reach(chunk.ranges, plan.window_ms, plan.step)
    blocks = pa.table({"_block_ms": pa.array([start for start, _ in windows(covered, plan.step)], pa.int64())})
    wanted = F.broadcast(spark.createDataFrame(blocks))
    event_ms = F.unix_millis(source.event_time)
    return rows.join(wanted, event_ms - F.pmod(event_ms, F.lit(plan.step)) == wanted["_block_ms"], "left_semi")


def _of_chunk(result: pa.Table, definition: Definition, chunk: Chunk) -> pa.Table:
    """Return the rows of the chunk's windows; its records are also in hopping windows of other chunks."""
    if definition.window.passes == 1:
        return result
    return result.filter(pa.array(starts_inside(to_epoch_ms(result[definition.window.start_column]), chunk)))


def _count_records(
    spark: SparkSession, definition: Definition, view: str, rows: DataFrame, chunk: Chunk
) -> dict[int, int]:
    """Count the rows of each window without the transform; the audit compares the result with it."""
    size_us, _ = window_micros(definition)
    pairs = with_window_end(included(spark, definition, rows), definition, view)
    start = F.unix_millis(F.timestamp_micros(F.unix_micros("_window_end") - size_us)).alias("start")
    counted = pairs.groupBy(start).count().toArrow()
    inside = starts_inside(counted["start"].to_numpy().astype(np.int64), chunk)
    counted = counted.filter(pa.array(inside))
    return dict(zip(counted["start"].to_pylist(), counted["count"].to_pylist(), strict=True))


@contextmanager
def _alone(home: PipelineHome, plan: BackfillPlan) -> Iterator[None]:
    def refuse(holder: str) -> LostRaceError:
        message = (
            f"{holder} computes backfill {plan.id} of {plan.pipeline}; this one did nothing: wait for it, "
            "then run again, finished chunks are skipped"
        )
        return LostRaceError(message)

    with lock_or_refuse(backfill_folder(home, plan.id) / "lock", refuse):
        yield
