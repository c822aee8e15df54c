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

from rivertwice.backfill.audit import read_audit, starts_inside
from rivertwice.backfill.kinds import planner_of
from rivertwice.backfill.model import BackfillPlan, Chunk, OffsetRuns, PlannedSession
from rivertwice.backfill.ranges import HalfOpenRange, reach, subtract, windows
from rivertwice.backfill.reading import cured, make_sessions, read_source, same_key
from rivertwice.backfill.session_observe import epoch_micros
from rivertwice.backfill.session_plan import sessions_of
from rivertwice.backfill.store import (
    ChunkRecord,
    app_of,
    backfill_folder,
    declared_rows,
    held_rows,
    missing_chunks,
    write_chunk,
)
from rivertwice.core.errors import FingerprintError, LogGapError, LostRaceError, RequestError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import from_ms, to_iso
from rivertwice.core.locks import lock_or_refuse
from rivertwice.core.settings import Settings
from rivertwice.core.tracing import traced
from rivertwice.core.waits import Measured, Progress, report_nothing
from rivertwice.definition.bundle import load_bundle_definition
from rivertwice.definition.definition import Definition, Source
from rivertwice.engine.compile import compile_batch, compile_sources
from rivertwice.engine.relations import included, window_micros, with_window_end
from rivertwice.engine.session import FEW_RECORDS, FEW_RECORDS_READ, with_confs
from rivertwice.log import kafka
from rivertwice.storage import delta
from rivertwice.storage.sql import equals
from rivertwice.stream.failures import condition_of, is_thrown
from rivertwice.stream.throwing import stretches_that_throw
from rivertwice.timeline.digest import key_digest, key_texts
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.sequence import read_sequence
from rivertwice.timeline.served_rows import rows_served_by
from rivertwice.timeline.serving import WITHDRAWN, to_epoch_ms

# The Spark part of a backfill of sessions: the transform runs over the records of a chunk's sessions and no others.


def compute_sessions(
    spark: SparkSession, home: PipelineHome, definition: Definition, plan: BackfillPlan, chunk: Chunk, rows: DataFrame
) -> tuple[pa.Table, Counter[int]]:
    """Return a chunk's rows, including those that only withdraw others, and the number of records by start of session.

    A planned session is found again among the records that were read: all of its records are read, and no other one could join
    it, because the plan covers the whole session. Sessions that are cut off at the edge of what was read are not in the plan.

    Raises:
        RequestError: the log gives other sessions than were planned, or a session that should vanish is no longer served.
    """
    assert plan.sessions is not None, "only plans of sessions come here"
    _, vanishing = sessions_of(plan.sessions, chunk)
    frame, session_table = sessions_frame(spark, definition, plan, chunk, rows)
    result = frame.toArrow()
    records: Counter[int] = Counter()
    for start_us, count in zip(
        session_table["_start_us"].to_pylist(), session_table["_records"].to_pylist(), strict=True
    ):
        records[start_us // 1000] += count
    parts = [_flagged(result, withdrawn=False)]
    if vanishing:
        vanishing_rows = _served_rows(home, definition, plan, vanishing)
        parts.append(_flagged(vanishing_rows.select(result.column_names).cast(result.schema), withdrawn=True))
    return pa.concat_tables(parts), records


def sessions_frame(
    spark: SparkSession, definition: Definition, plan: BackfillPlan, chunk: Chunk, rows: DataFrame
) -> tuple[DataFrame, pa.Table]:
    """Return the rows of the sessions that a chunk publishes, as a frame, and these sessions: keys, stretch, records.

    Raises:
        RequestError: the log gives other sessions than were planned.
    """
    assert plan.sessions is not None, "only plans of sessions come here"
    published, _ = sessions_of(plan.sessions, chunk)
    session_table = _find(spark, definition, rows, published)
    _check_found(plan, published, session_table)
    return compile_batch(spark, definition, _records_of(spark, definition, rows, session_table)), session_table


def _find(
    spark: SparkSession, definition: Definition, rows: DataFrame, published: Sequence[PlannedSession]
) -> pa.Table:
    """Return keys, stretch and number of records of the planned sessions, computed from the rows."""
    stretches = sorted({(session.start_us, session.end_us) for session in published})
    bounds = pa.table(
        {
            "_start_us": pa.array([start for start, _ in stretches], pa.int64()),
            "_end_us": pa.array([end for _, end in stretches], pa.int64()),
        }
    )
    sessions = make_sessions(included(spark, definition, rows), definition)
    candidates = sessions.join(
        F.broadcast(spark.createDataFrame(bounds)), ["_start_us", "_end_us"], "left_semi"
    ).toArrow()
    wanted = set(published)
    columns = (candidates[name].to_pylist() for name in ("_start_us", "_end_us", "_records"))
    digests = map(key_digest, key_texts(candidates, definition.keys))
    is_wanted = [PlannedSession(*fields) in wanted for fields in zip(digests, *columns, strict=True)]
    return candidates.filter(pa.array(is_wanted, pa.bool_()))


def _check_found(plan: BackfillPlan, published: Sequence[PlannedSession], session_table: pa.Table) -> None:
    if session_table.num_rows != len(published):
        message = (
            f"the log gives {session_table.num_rows} of the {len(published)} sessions that a chunk of backfill {plan.id} was planned with: what "
            "the archive holds was changed since (an erased key?); nothing of the chunk was written; plan again"
        )
        raise RequestError(message)


def _records_of(spark: SparkSession, definition: Definition, rows: DataFrame, session_table: pa.Table) -> DataFrame:
    """Return the rows that belong to the sessions found."""
    if not session_table.num_rows:
        return rows.limit(0)
    names = [f"_k{number}" for number in range(len(definition.keys))]
    columns = [*definition.keys, "_start_us", "_end_us"]
    sessions = spark.createDataFrame(session_table.select(columns).rename_columns([*names, "_start_us", "_end_us"]))
    _, source = definition.source
    gap_us, _ = window_micros(definition)
    event_us = F.unix_micros(rows[source.event_time])
    inside = event_us.between(F.col("_start_us"), F.col("_end_us") - gap_us)
    return rows.join(F.broadcast(sessions), same_key(rows, definition) & inside, "left_semi")


def _served_rows(
    home: PipelineHome, definition: Definition, plan: BackfillPlan, vanishing: Sequence[PlannedSession]
) -> pa.Table:
    """Return the served rows that are to vanish.

    Raises:
        RequestError: one of them is not served any more.
    """
    served = rows_served_by(home, definition, read_sequence(home), path_ledger(home))
    window = definition.window
    wanted = {session[:3] for session in vanishing}
    is_vanishing: list[bool] = []
    if served is not None:
        starts, ends = (epoch_micros(served[name]).tolist() for name in (window.start_column, window.end_column))
        digests = map(key_digest, key_texts(served, definition.keys))
        is_vanishing = [address in wanted for address in zip(digests, starts, ends, strict=True)]
    if served is None or sum(is_vanishing) != len(wanted):
        message = (
            f"backfill {plan.id} takes {len(wanted)} sessions away, of which {sum(is_vanishing)} are served now: another publication was made meanwhile, or "
            "the head moved; nothing of the chunk was written; plan again"
        )
        raise RequestError(message)
    return served.filter(pa.array(is_vanishing, pa.bool_()))


def _flagged(rows: pa.Table, *, withdrawn: bool) -> pa.Table:
    return rows.append_column(WITHDRAWN, pa.array([withdrawn] * rows.num_rows, pa.bool_()))


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
    Earlier chunks whose commits are gone are computed again; all chunks, if rows are gone that an audit counted.

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
        declared, held = (declared_rows(home, plan.id), held_rows(home, plan.id)) if first else ({}, {})
        lost = missing_chunks(first, declared, held)
        audit = read_audit(home, plan.id)
        if audit is not None and audit["passed"] and sum(held.values()) < audit["rows"]:
            # Which chunks lost rows is known as long as their commits are kept, some hours. So all are computed again.
            lost = list(range(first))
            _drop_rows(home, plan, sum(held.values()))
        wanted = [chunk for chunk in plan.chunks if chunk.index >= first or chunk.index in lost]
        rows_written = 0
        computed = chunks_computed(spark, settings, plan, definition, wanted)
        with with_confs(spark, FEW_RECORDS if plan.records <= FEW_RECORDS_READ else {}):
            for finished, (chunk, result, record) in enumerate(computed, start=1):
                again, is_declared = chunk.index < first, chunk.index in declared
                write_chunk(home, plan, definition, result, record, again=again, declared=is_declared)
                rows_written += record.rows
                seconds = time.monotonic() - began
                line = f"backfill {plan.id}: chunk {chunk.index + 1} of {len(plan.chunks)} done, {rows_written} rows, {seconds:.1f} s"
                progress(Measured(line, f"backfill {plan.id}", finished, len(wanted)))
    return ComputeReport(len(wanted), len(plan.chunks) - len(wanted), rows_written, time.monotonic() - began)


def _drop_rows(home: PipelineHome, plan: BackfillPlan, held: int) -> None:
    """Take the rows of a backfill out of the corrections; a publication with fewer rows than it counted is not served."""
    table = delta.open_table(home.tables.corrections)
    if held and table is not None:
        empty = pa.schema(table.schema().to_arrow()).empty_table()
        delta.replace_rows(home.tables.corrections, empty, where=equals("_backfill", plan.id), at=table)


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
