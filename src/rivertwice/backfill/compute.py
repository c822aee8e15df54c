"""The Spark part of a backfill: one commit for each chunk; finished chunks are skipped."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.backfill.audit import read_audit, starts_inside
from rivertwice.backfill.late_windows import require_publishable
from rivertwice.backfill.model import BackfillPlan, Chunk, OffsetRuns, PlannedSession
from rivertwice.backfill.ranges import HalfOpenRange, coalesce, reach, subtract
from rivertwice.backfill.recompute import Recompute
from rivertwice.backfill.session_observe import epoch_micros
from rivertwice.backfill.session_plan import sessions_of
from rivertwice.backfill.store import (
    ChunkRecord,
    backfill_app,
    backfill_folder,
    declared_rows,
    held_rows,
    missing_chunks,
    write_chunk,
)
from rivertwice.core import (
    FingerprintError,
    LostRaceError,
    Measured,
    PipelineHome,
    Progress,
    RequestError,
    Settings,
    from_ms,
    lock_or_refuse,
    report_nothing,
    to_iso,
    traced,
)
from rivertwice.definition import Definition, load_bundle_definition
from rivertwice.engine import (
    FEW_RECORDS,
    FEW_RECORDS_READ,
    compile_sources,
    included,
    window_micros,
    with_confs,
    with_window_end,
)
from rivertwice.quality import require_judges
from rivertwice.storage import Table, Where
from rivertwice.stream import condition_of, is_thrown, stretches_that_throw
from rivertwice.timeline import (
    WITHDRAWN,
    key_digest,
    key_texts,
    path_ledger,
    read_sequence,
    rows_served_by,
    to_epoch_ms,
)

logger = logging.getLogger(__name__)

_CHANGE = (
    "change the SQL (`rivertwice lint` names what can throw) and run the new definition: `rivertwice upgrade --help`"
)
BLOCK_BITS = 10
"""The offsets of a chunk's records are kept by blocks of 2^10."""
MOST_RUNS = 256
"""The number of runs of offsets that a commit names for each partition at most; the smallest holes are closed."""
READ_ONCE = 1_000_000
"""The number of records up to which a backfill is read and decoded once, and kept; a larger one is read chunk by chunk."""


@dataclass(frozen=True)
class ComputeReport:
    """What a compute did.

    Attributes:
        computed: chunks computed now; skipped: chunks that were done already.
        rows: result rows written now.
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
        SuiteError: its suite needs Great Expectations, which is not installed.
    """
    require_judges(settings, plan.pipeline, "corrections")
    began = time.monotonic()
    home = settings.pipeline(plan.pipeline)
    definition = load_bundle_definition(home.bundles, plan.bundle)
    require_publishable(definition)
    window = definition.window
    size, step = (duration // timedelta(milliseconds=1) for duration in (window.length, window.step))
    if definition.name != plan.pipeline or (size, step) != (plan.window_ms, plan.step):
        message = (
            f"bundle {plan.bundle} is of {definition.name} with windows of {size} ms, one each {step} ms; backfill "
            f"{plan.id} of {plan.pipeline} has {plan.window_ms} ms each {plan.step} ms; plan again"
        )
        raise FingerprintError(message)
    with _alone(home, plan):
        done = Table(home.tables.corrections).applied_version(backfill_app(plan.id))
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
            ended = began
            for finished, (chunk, result, computed_record) in enumerate(computed, start=1):
                record = replace(computed_record, seconds=round(time.monotonic() - ended, 3))
                again, is_declared = chunk.index < first, chunk.index in declared
                write_chunk(home, plan, definition, result, record, again=again, declared=is_declared)
                rows_written += record.rows
                ended = time.monotonic()
                line = f"backfill {plan.id}: chunk {chunk.index + 1} of {len(plan.chunks)} done, {rows_written} rows, {ended - began:.1f} s"
                progress(Measured(line, f"backfill {plan.id}", finished, len(wanted)))
    return ComputeReport(len(wanted), len(plan.chunks) - len(wanted), rows_written, time.monotonic() - began)


def _drop_rows(home: PipelineHome, plan: BackfillPlan, held: int) -> None:
    """Take the rows of a backfill out of the corrections; a publication with fewer rows than it counted is not served."""
    table = Table(home.tables.corrections).open()
    if held and table is not None:
        empty = table.schema.empty_table()
        Table(home.tables.corrections).replace_rows(empty, where=Where("_backfill").equals(plan.id), at=table)


def chunks_computed(
    spark: SparkSession, settings: Settings, plan: BackfillPlan, definition: Definition, chunks: Sequence[Chunk]
) -> Iterator[tuple[Chunk, pa.Table, ChunkRecord]]:
    """Yield chunks of a plan with their rows and the content of their commits; nothing is written."""
    job = Recompute(spark, settings, definition, plan)
    cached: dict[str, DataFrame] | None = None
    if len(chunks) > 1 and plan.records <= READ_ONCE:
        cached = {view: rows.cache() for view, rows in job.records().items()}
    try:
        for chunk in chunks:
            result, counted, offsets = _compute_chunk(job, chunk, cached or job.records(chunk.offsets))
            yield chunk, result, ChunkRecord(chunk.index, result.num_rows, counted, offsets, len(plan.chunks))
    finally:
        for rows in (cached or {}).values():
            rows.unpersist()


_Computed = tuple[pa.Table, Counter[int], OffsetRuns | None]
"""A chunk's rows, the number of records of each window by its start, and the offsets of these records."""


def _compute_chunk(job: Recompute, chunk: Chunk, records: Mapping[str, DataFrame]) -> _Computed:
    """Return one chunk's rows, the number of records of each window by its start, and their offsets.

    Raises:
        RequestError: the SQL throws over some windows; the message names them, and how the others are computed.
    """
    plan = job.plan
    try:
        computed = (_compute_windows if plan.sessions is None else _compute_sessions)(job, chunk, records)
    except PySparkException as error:
        if not is_thrown(str(error)):
            raise
        ranges = reach(chunk.ranges, plan.window_ms, plan.step) if plan.sessions is None else chunk.ranges
        bad = [found for pair in ranges for found in stretches_that_throw(job.spark, job.definition, records, *pair)]
        if not bad:
            raise
        raise RequestError(describe_thrown(plan, job.definition, bad, condition_of(str(error)))) from error
    job.check_topics()
    return computed


def describe_thrown(plan: BackfillPlan, definition: Definition, bad: Sequence[HalfOpenRange], condition: str) -> str:
    """Return over which windows the SQL throws, and how all others are computed. Pure.

    Args:
        bad: ranges of event time whose records are to blame (epoch ms).
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


def _compute_windows(job: Recompute, chunk: Chunk, records: Mapping[str, DataFrame]) -> _Computed:
    own = {view: rows.cache() for view, rows in job.inside(chunk, records).items()}
    try:
        counted: Counter[int] = Counter()
        offsets: dict[str, Mapping[int, tuple[HalfOpenRange, ...]]] = {}
        for view, rows in own.items():
            of_view, runs = _count_records(job, view, rows, chunk)
            counted.update(of_view)
            offsets[job.definition.sources[view].topic] = runs
        result = compile_sources(job.spark, job.definition, {**records, **own}).toArrow()
        return _of_chunk(result, job.definition, chunk), counted, offsets
    finally:
        for rows in own.values():
            rows.unpersist()


def _of_chunk(result: pa.Table, definition: Definition, chunk: Chunk) -> pa.Table:
    """Return the rows of the chunk's windows; its records are also in hopping windows of other chunks."""
    if definition.window.passes == 1:
        return result
    return result.filter(pa.array(starts_inside(to_epoch_ms(result[definition.window.start_column]), chunk)))


def _count_records(
    job: Recompute, view: str, rows: DataFrame, chunk: Chunk
) -> tuple[dict[int, int], dict[int, tuple[HalfOpenRange, ...]]]:
    """Count the rows of each window without the transform, and find their offsets: partition to few runs that have all of them.

    The audit compares the result with the counts; a reconcile after the publication reads these offsets alone.
    """
    size_us, _ = window_micros(job.definition)
    pairs = with_window_end(included(job.spark, job.definition, rows), job.definition, view)
    start = F.unix_millis(F.timestamp_micros(F.unix_micros("_window_end") - size_us))
    block = F.shiftright("_offset", BLOCK_BITS)
    placed = pairs.select(start.alias("start"), "_partition", block.alias("block"), "_offset")
    found = (
        placed.groupingSets([["start"], ["_partition", "block"]], "start", "_partition", "block")
        .agg(F.count(F.lit(1)).alias("count"), F.min("_offset").alias("first"), F.max("_offset").alias("last"))
        .toArrow()
    )
    counted = found.filter(pc.is_valid(found["start"]))
    counted = counted.filter(pa.array(starts_inside(counted["start"].to_numpy().astype(np.int64), chunk)))
    runs: dict[int, list[HalfOpenRange]] = {}
    for row in found.filter(pc.is_valid(found["_partition"])).to_pylist():
        runs.setdefault(row["_partition"], []).append((row["first"], row["last"] + 1))
    offsets = {partition: coalesce(own, 1 << BLOCK_BITS, MOST_RUNS) for partition, own in sorted(runs.items())}
    return dict(zip(counted["start"].to_pylist(), counted["count"].to_pylist(), strict=True)), offsets


def _compute_sessions(job: Recompute, chunk: Chunk, records: Mapping[str, DataFrame]) -> _Computed:
    """Return a chunk's rows, including those that only withdraw others, and the number of records by start of session.

    Raises:
        RequestError: the log gives other sessions than were planned, or a session that should vanish is no longer served.
    """
    assert job.plan.sessions is not None, "only plans of sessions come here"
    _, vanishing = sessions_of(job.plan.sessions, chunk)
    frame, found = job.session_rows(chunk, *records.values())
    result = frame.toArrow()
    counted: Counter[int] = Counter()
    for start_us, count in zip(found["_start_us"].to_pylist(), found["_records"].to_pylist(), strict=True):
        counted[start_us // 1000] += count
    parts = [_flagged(result, withdrawn=False)]
    if vanishing:
        vanishing_rows = _served_rows(job, vanishing)
        parts.append(_flagged(vanishing_rows.select(result.column_names).cast(result.schema), withdrawn=True))
    return pa.concat_tables(parts), counted, None


def _served_rows(job: Recompute, vanishing: Sequence[PlannedSession]) -> pa.Table:
    plan, definition = job.plan, job.definition
    home = job.settings.pipeline(plan.pipeline)
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
