"""The Spark part of a backfill of sessions: the transform runs over the records of a chunk's sessions and no others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.backfill.model import BackfillPlan, Chunk, PlannedSession
from rivertwice.backfill.session_observe import epoch_micros
from rivertwice.backfill.session_plan import sessions_of
from rivertwice.backfill.session_reader import make_sessions, same_key
from rivertwice.config import PipelineHome
from rivertwice.errors import RequestError
from rivertwice.pipeline.compile import compile_batch
from rivertwice.pipeline.definition import Definition
from rivertwice.pipeline.relations import included, window_micros
from rivertwice.timeline.keys import key_digest, key_texts
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.sequence import read_sequence
from rivertwice.timeline.served import rows_served_by
from rivertwice.timeline.serving import WITHDRAWN


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
