"""The truth of one row, computed when somebody asks: a batch over the records of its window alone, from archive and Kafka."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from rivertwice.backfill import Recompute, RetainedLog
from rivertwice.core import Settings, from_ms, to_ms
from rivertwice.definition import Definition, GroupedKind, Source
from rivertwice.engine import included, key_columns
from rivertwice.log import Part
from rivertwice.read.explain import Question
from rivertwice.read.explain_model import MOST_LISTED, Address, Truth
from rivertwice.read.explain_records import Late, describe_late

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compute_truth(spark: SparkSession, settings: Settings, question: Question) -> Truth:
    """Compute what the records that the stream has read so far make of one row.

    Only batches that may have records of the window are read, by their event times in the ledger (`backfill.zones`).

    Args:
        question: of windows of which the truth of one row is computed (`kinds.facts_of`).

    Raises:
        LogGapError: neither the archive nor Kafka has a record that is needed.
        ServiceError: Kafka does not answer.
    """
    address, definition = question.address, question.definition
    log = RetainedLog.observe(settings, address.pipeline)
    start_ms = to_ms(address.start)
    job = Recompute(spark, settings, definition, log.plan_windows([(start_ms, start_ms + log.view.step)]))
    rows = job.records()
    result = _of_key(job.rows(rows), address.key)
    values = result.select(*definition.columns).limit(1).toArrow().to_pylist()
    keys = _keys_of_records(spark, definition, address)
    # An amended dead letter is a record of the truth; it was refused, not late.
    uncured = job.records(with_amended=False)
    count = late_total = 0
    late: list[Late] = []
    for name, source in definition.streams.items():
        count += _own(spark, question, source, rows[name], keys=keys).count()
        total, listed = _late(_own(spark, question, source, uncured[name], keys=keys), source, question)
        late_total, late = late_total + total, late + listed
    job.check_topics()
    described = describe_late(late, question.committed, address.end, question.published)
    amended = _amended(job, question, keys=keys)
    return Truth(
        values[0] if values else None, count, keys is not None, tuple(described[:MOST_LISTED]), late_total, amended
    )


def _keys_of_records(spark: SparkSession, definition: Definition, address: Address) -> Mapping[str, Column] | None:
    """Return key column to its value on a record of the window; None if records cannot be chosen before the transform."""
    if isinstance(definition.window.kind, GroupedKind):
        known = key_columns(
            spark, definition, *(f"timestamp_millis({to_ms(each)})" for each in (address.start, address.end))
        )
        return known if set(address.key) <= known.keys() else None
    if all(set(address.key) <= set(source.schema_) for source in definition.streams.values()):
        return {name: F.col(name) for name in address.key}
    return None


def _of_key(rows: DataFrame, key: Any, columns: Mapping[str, Column] | None = None) -> DataFrame:
    for name, value in key.items():
        rows = rows.where((F.col(name) if columns is None else columns[name]).eqNullSafe(F.lit(value)))
    return rows


def _own(
    spark: SparkSession, question: Question, source: Source, rows: DataFrame, *, keys: Mapping[str, Column] | None
) -> DataFrame:
    """Return the records of a source that belong to the window, and to the key if records are chosen by it."""
    address, event_ms = question.address, F.unix_millis(source.event_time)
    inside = (event_ms >= F.lit(to_ms(address.start))) & (event_ms < F.lit(to_ms(address.end)))
    own = included(spark, question.definition, rows).where(inside)
    return own if keys is None else _of_key(own, address.key, keys)


def _late(rows: DataFrame, source: Source, question: Question) -> tuple[int, list[Late]]:
    """Return how many records a batch read after the watermark before it had passed the window's end, and the first of them."""
    end_ms, closed_ms = to_ms(question.address.end), question.definition.window.closed_ms
    table = question.committed.table
    marks = dict(zip(table["batch"].to_pylist()[1:], table["batch_watermark_ms"].to_pylist()[:-1], strict=True))
    after = [row for row in question.batches if closed_ms(marks.get(row.batch, 0)) >= end_ms]
    runs = [(row, partition, *pair) for row in after for partition, pair in row.ranges(source.topic).items()]
    if not runs:
        return 0, []
    bounds = [_is_in(partition, low, high) for _, partition, low, high in runs]
    event_us = F.unix_micros(source.event_time).alias("_event_us")
    chosen = rows.where(functools.reduce(operator.or_, bounds)).select("_partition", "_offset", event_us)
    found = []
    first = chosen.orderBy("_partition", "_offset").limit(MOST_LISTED)
    for record in first.toArrow().to_pylist():
        place, offset = record["_partition"], record["_offset"]
        row = next(row for row, partition, low, high in runs if partition == place and low <= offset < high)
        event_time = from_ms(0) + timedelta(microseconds=record["_event_us"])
        watermark = from_ms(closed_ms(marks.get(row.batch, 0)))
        found.append(Late(Part(source.topic, place), offset, event_time, watermark, (row.timeline, row.batch)))
    return chosen.count(), found


def _is_in(partition: int, low: int, high: int) -> Column:
    offset = F.col("_offset")
    return (F.col("_partition") == F.lit(partition)) & (offset >= F.lit(low)) & (offset < F.lit(high))


def _amended(job: Recompute, question: Question, *, keys: Mapping[str, Column] | None) -> tuple[str, ...]:
    """Return the places of the dead letters whose amended records belong to the row."""
    places = []
    for name, rows in job.amended().items():
        source = job.definition.sources[name]
        own = _own(job.spark, question, source, rows, keys=keys)
        table = own.select("_partition", "_offset").toArrow()  # at most as many as decisions
        places += [f"{source.topic}/{row['_partition']}@{row['_offset']}" for row in table.to_pylist()]
    return tuple(sorted(places))
