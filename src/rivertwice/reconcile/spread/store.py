"""Verdicts and causes of executors, written by them to files of their tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from rivertwice.core.homes import PipelineHome
from rivertwice.reconcile.model import SERVED, STREAM
from rivertwice.reconcile.results import CAUSES, FORMAT, VERDICTS, Stamp, StoredVerdict, Written, verdict_stamps
from rivertwice.reconcile.spread.spread import CAUSE, VERDICT, Spread
from rivertwice.reconcile.verdict import NOT_LOADED
from rivertwice.storage.spark_scan import write_files
from rivertwice.timeline.verdicts import AGREES, OPEN


def as_stored_verdicts(rows: Spread) -> list[StoredVerdict]:
    """Return what is stored of the rows that agree or are open: one verdict for each pair and window. Pure."""
    counts: Counter[tuple[str, int, int, str]] = Counter()
    for row in rows.rows:
        if row["verdict"] in (AGREES, OPEN):
            counts[row["pair"], row["start_ms"], row["end_ms"], row["verdict"]] += row["rows"]
    return [
        StoredVerdict(pair, start, end, None, verdict, _reason(rows, pair, start, end, verdict), rows=count)
        for (pair, start, end, verdict), count in counts.items()
    ]


def _reason(rows: Spread, pair: str, start_ms: int, end_ms: int, verdict: str) -> str:
    if verdict == AGREES:
        return "published" if pair == SERVED and start_ms in rows.published else ""
    if pair == STREAM or end_ms > rows.moment.closed_ms:
        return "the window is not closed yet"
    is_served = rows.moment.served_ms is not None and end_ms <= rows.moment.served_ms
    return NOT_LOADED if is_served else "the window is not served yet"


def write_spread(home: PipelineHome, stamp: Stamp, rows: Spread, dead: DataFrame) -> Written:
    """Let executors write the verdicts that do not agree, their causes, and the dead letters as causes.

    Args:
        home: of the pipeline.
        stamp: of the run.
        rows: what they judged.
        dead: `topic`, `partition`, `offset`, `batch`, `reason` of each dead letter.
    """
    stamps = {**verdict_stamps(stamp), "rows": 1}
    verdicts = rows.judged.where((F.col("kind") == VERDICT) & ~F.col("verdict").isin(AGREES, OPEN))
    written = write_files(verdicts, home.tables.verdicts, VERDICTS, lambda found: _stamped(found, VERDICTS, stamps))
    own = {"_format": FORMAT, "run": stamp.run}
    dead_causes = dead.select(
        F.lit(STREAM).alias("pair"),
        F.lit("dead").alias("cause"),
        "topic",
        "partition",
        "offset",
        "batch",
        F.col("reason").alias("detail"),
    )
    causes = rows.judged.where(F.col("kind") == CAUSE).unionByName(dead_causes, allowMissingColumns=True)
    return Written(written, write_files(causes, home.tables.causes, CAUSES, lambda found: _stamped(found, CAUSES, own)))


def _stamped(rows: pa.Table, schema: pa.Schema, stamps: Mapping[str, Any]) -> pa.Table:
    """Return rows with all columns of a schema: the stamps, what the rows have, and null."""
    columns = []
    for field in schema:
        if field.name in stamps:
            columns.append(pa.repeat(pa.scalar(stamps[field.name], field.type), rows.num_rows))
        elif field.name in rows.column_names:
            columns.append(rows[field.name].cast(field.type))
        else:
            columns.append(pa.nulls(rows.num_rows, field.type))
    return pa.table(columns, schema=schema)
