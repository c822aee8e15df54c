"""Advise a watermark delay: measure the log in one reading, and apply the late rule for any delay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.core import Progress, RequestError, Settings, TimeRange, from_ms
from rivertwice.definition import Definition, round_up
from rivertwice.engine import BatchMarks, LogDecoder, accepted, compile_batch, included, with_window_end
from rivertwice.log import LogRead, of_topic
from rivertwice.reconcile import read_spans
from rivertwice.timeline import LedgerRow, Timeline, path_ledger
from rivertwice.versions.advise_model import MOST_VALUES, Advice, Outcome, Suggestion, ValueLoss

# The late rule for any delay, from the batches that the stream ran. Pure.
#
# Source: a row is late for a window that ends at E if E <= the watermark of the batch before the one that reads it, and a
# watermark is the largest event time of all batches before, less the delay, and never falls below 0 (Spark's late filter,
# `timeline.watermarks`). So with the largest event time M of all batches up to the last but one, the row of a batch is late
# by a delay d exactly if E <= max(0, M - d): whether it is late by any other delay needs no other run.

NEVER_MS = -(1 << 50)
"""Of a batch before which no record was accepted: by no delay is one of its records late."""
MOST_STEPS = 10_000
_FACTORS = (0.0, 0.25, 0.5, 2.0, 4.0)
_SHARES = (0.01, 0.001, 0.0)
_MS = timedelta(milliseconds=1)
Milliseconds = npt.NDArray[np.int64]


def refusal_of(definition: Definition) -> str | None:
    """Return why no advice can be given for a definition, or None."""
    name = definition.name
    if not any(source.has_watermark for source in definition.streams.values()):
        return f"{name} has {definition.window.text} and no watermark, so no record of it is ever late and no delay can be advised"
    if len(definition.streams) > 1:
        topics = ", ".join(source.topic for source in definition.streams.values())
        return (
            f"{name} reads {len(definition.streams)} streams ({topics}), whose watermarks make one together; advice is given for "
            "pipelines of one stream only; run `rivertwice reconcile` and read the lateness of its causes"
        )
    return None


def largest_before(rows: Sequence[LedgerRow]) -> Milliseconds:
    """Return for each batch the largest event time of all batches before it, epoch ms; NEVER_MS if there is none.

    Less the delay, that is the batch's own watermark, by which windows are closed.
    """
    largest = np.array([NEVER_MS if row.max_event_ms is None else row.max_event_ms for row in rows], np.int64)
    return (
        np.concatenate([np.array([NEVER_MS], np.int64), np.maximum.accumulate(largest)[:-1]]) if len(rows) else largest
    )


def late_marks(largest: Milliseconds) -> Milliseconds:
    """Return for each batch the M of the module's rule: what `largest_before` gives for the batch before it."""
    return np.concatenate([np.array([NEVER_MS], np.int64), largest[:-1]])


def closing_batches(ends_ms: Milliseconds, largest: Milliseconds, delay_ms: int) -> Milliseconds:
    """Return for each window end the index of the first batch that would close it; the number of batches if none does."""
    watermarks = np.maximum(largest - delay_ms, 0)
    watermarks[largest == NEVER_MS] = 0
    return np.searchsorted(watermarks, ends_ms, side="left").astype(np.int64)


def most_open(first: Milliseconds, closing: Milliseconds, rows: Milliseconds, batches: int) -> int:
    """Return the most rows that are open at the end of any batch.

    Args:
        first: of each window, the index of the first batch that has a row of it.
        closing: of each window, the index of the batch that closes it.
    """
    change = np.zeros(batches + 1, np.int64)
    stays = closing > first
    np.add.at(change, first[stays], rows[stays])
    np.add.at(change, np.minimum(closing[stays], batches), -rows[stays])
    return int(np.cumsum(change)[:batches].max(initial=0))


def chosen_delays(present: timedelta, asked: Sequence[timedelta], suggested: Sequence[timedelta]) -> list[timedelta]:
    """Return the delays to judge, the smallest first: those that were asked for, or parts and multiples of the present one.

    The present one is always among them; so are the suggested ones if none was asked for. Parts and multiples are rounded up.
    """
    usual = [round_up(present * factor) for factor in _FACTORS]
    return sorted({present, *(asked or [*usual, *suggested])})


def choose_step(widest_ms: int) -> int:
    """Return the grid of the suggestions in ms: whole seconds, and at most MOST_STEPS of them up to the widest lateness."""
    return max(1_000, -(-max(0, widest_ms) // MOST_STEPS // 1_000) * 1_000)


def suggest(pairs: int, step_ms: int, needed: Mapping[int, int]) -> tuple[Suggestion, ...]:
    """Return the smallest delay on the grid for each share.

    Args:
        needed: n to the number of pairs that a delay of n steps drops and one of n + 1 steps does not.
    """
    suggestions = []
    for share in _SHARES:
        dropped, steps = 0, max(needed, default=-1) + 1
        while steps > 0 and dropped + needed.get(steps - 1, 0) <= share * pairs:
            dropped += needed.get(steps - 1, 0)
            steps -= 1
        delay = steps * step_ms * _MS
        suggestions.append(Suggestion(share, delay, dropped, round_up(delay)))
    return tuple(suggestions)


def select_newest(rows: Sequence[LedgerRow], last: timedelta | None) -> int:
    """Return the index of the first batch to look at: from it on, event time advanced by at least `last`; None: all."""
    if last is None:
        return 0
    largest = [row.max_event_ms for row in rows if row.max_event_ms is not None]
    since_ms = max(largest, default=0) - last // _MS
    return next((index for index, row in enumerate(rows) if (row.max_event_ms or since_ms - 1) >= since_ms), 0)


@dataclass(frozen=True)
class AdviceRequest:
    """What is asked.

    Attributes:
        delays: to judge; none: parts and multiples of the present one, and the suggested ones.
        last: only the newest batches, so that event time advanced by this much in them; None: all.
        column: a field of the source; the values that lose most are named.
    """

    delays: tuple[timedelta, ...] = ()
    last: timedelta | None = None
    column: str | None = None


@dataclass(frozen=True)
class _Windows:
    """The windows of the records, and by delay what happens to each.

    Attributes:
        rows: how many rows of it the state holds at most; None: not known.
        first: by delay, the index of the first batch with a record in time; the number of batches if all were late.
        dropped: by delay, the pairs that are dropped from it.
    """

    ends_ms: Milliseconds
    rows: Milliseconds | None
    first: Sequence[Milliseconds]
    dropped: Sequence[Milliseconds]


def advise_delays(
    spark: SparkSession, settings: Settings, definition: Definition, request: AdviceRequest, progress: Progress
) -> Advice:
    """Return what each delay would have done with the records that the head's path read.

    Raises:
        RequestError: no advice can be given for the definition, nothing is committed, or the column is not a field.
        LogGapError: neither Kafka nor the archive has a record that is needed.
    """
    refusal = refusal_of(definition)
    if refusal is not None:
        raise RequestError(refusal)
    ((view, source),) = definition.streams.items()
    if request.column is not None and request.column not in source.schema_:
        message = (
            f"{request.column!r} is not a field of {view}; its fields are {', '.join(source.schema_)}; name one of them"
        )
        raise RequestError(message)
    home = settings.pipeline(definition.name)
    path = path_ledger(home)
    if not path:
        message = f"no batch of {definition.name} is committed yet, so its log was not read; run `rivertwice start {definition.name} --wait`"
        raise RequestError(message)
    first = select_newest(path, request.last)
    rows, largest = path[first:], largest_before(path)
    marks_ms, largest = late_marks(largest)[first:], largest[first:]
    topic_id = Timeline.load(home, path[-1].timeline).topic_ids[source.topic]
    progress(f"{sum(row.read for row in rows)} records of {len(rows)} batches are read ...")
    tagged = read_batches(spark, settings, definition, rows, topic_id)
    kept_rows = included(spark, definition, _marked(spark, tagged, marks_ms))
    pairs = with_window_end(kept_rows, definition, view).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        return _measure(spark, definition, request, rows, largest, kept_rows, pairs, progress)
    finally:
        pairs.unpersist()


def read_batches(
    spark: SparkSession, settings: Settings, definition: Definition, rows: Sequence[LedgerRow], topic_id: str
) -> DataFrame:
    """Return what a definition of one stream accepts of some batches, each record with the index of its batch among them (`_index`)."""
    ((view, source),) = definition.streams.items()
    ranges = [of_topic(row.parts(), source.topic) for row in rows]
    read = LogRead(spark, settings, source.topic, read_spans(ranges), topic_id)
    decoded = LogDecoder(spark, definition, view).records(read, details=False)
    return BatchMarks.of(spark, enumerate(ranges)).tag(accepted(decoded, source))


def _measure(
    spark: SparkSession,
    definition: Definition,
    request: AdviceRequest,
    rows: Sequence[LedgerRow],
    largest: Milliseconds,
    records: DataFrame,
    pairs: DataFrame,
    progress: Progress,
) -> Advice:
    ((_, source),) = definition.streams.items()
    needed_ms = F.col("_mark_ms") - F.unix_millis("_window_end")
    event_ms = F.unix_millis(source.event_time)
    total = pairs.agg(
        F.count(F.lit(1)).alias("pairs"),
        F.max(needed_ms).alias("widest"),
        F.min(event_ms).alias("low"),
        F.max(event_ms).alias("high"),
    ).first()
    if total is None or not total["pairs"]:
        message = f"none of the records that {definition.name} read was accepted and kept by its row filter, so there is nothing to advise on"
        raise RequestError(message)
    step_ms = choose_step(total["widest"])
    steps = F.floor(needed_ms / F.lit(step_ms)).cast("long")
    needed = _counts(pairs.where(needed_ms >= 0).groupBy(steps.alias("steps")).count().toArrow())
    suggestions = suggest(total["pairs"], step_ms, needed)
    delays = chosen_delays(source.watermark, request.delays, [suggestion.rounded for suggestion in suggestions])
    progress(f"{total['pairs']} pairs of record and window are judged by {len(delays)} delays ...")
    late = [_is_late(delay) for delay in delays]
    windows = _windows(spark, definition, records, pairs, late, len(rows))
    by_partition = _sums(pairs, F.col("_partition"), late)
    outcomes = tuple(
        _outcome(delay, delay == source.watermark, place, windows, by_partition, rows, largest)
        for place, delay in enumerate(delays)
    )
    return Advice(
        pipeline=definition.name,
        source=source.topic,
        batches=len(rows),
        read=TimeRange(from_ms(total["low"]), from_ms(total["high"] + 1)),
        records=total["pairs"] // definition.window.passes,
        pairs=total["pairs"],
        step=step_ms * _MS,
        outcomes=outcomes,
        suggestions=suggestions,
        column=request.column,
        values=() if request.column is None else _losses(pairs, request.column, late, delays.index(source.watermark)),
        kept=_kept(definition, rows, largest),
    )


def _outcome(
    delay: timedelta,
    present: bool,
    place: int,
    windows: _Windows,
    by_partition: Sequence[tuple[int, int, Sequence[int]]],
    rows: Sequence[LedgerRow],
    largest: Milliseconds,
) -> Outcome:
    dropped = {partition: counts[place] for partition, _, counts in by_partition if counts[place]}
    closing = closing_batches(windows.ends_ms, largest, delay // _MS)
    begun = windows.first[place] < len(rows)
    closed = begun & (closing < len(rows))
    ends_ms, closed_by = windows.ends_ms[closed], closing[closed]
    clock_ms = np.array([row.batch_timestamp_ms for row in rows], np.int64)
    waits = largest[closed_by] - ends_ms
    state = windows.rows
    return Outcome(
        delay=delay,
        present=present,
        dropped=sum(dropped.values()),
        windows=int(np.count_nonzero(windows.dropped[place])),
        by_partition=dict(sorted(dropped.items())),
        event_wait_p50=_median(waits),
        event_wait_max=int(waits.max()) * _MS if len(waits) else None,
        clock_wait_p50=_median(clock_ms[closed_by] - ends_ms),
        most_state=None
        if state is None
        else most_open(windows.first[place][begun], closing[begun], state[begun], len(rows)),
    )


def _median(waits_ms: Milliseconds) -> timedelta | None:
    return int(np.median(waits_ms)) * _MS if len(waits_ms) else None


def _marked(spark: SparkSession, rows: DataFrame, marks_ms: Milliseconds) -> DataFrame:
    """Return rows with `_mark_ms`: what decides by which delays they are late (`rule`)."""
    marks = pa.table({"_index": pa.array(range(len(marks_ms)), pa.int32()), "_mark_ms": pa.array(marks_ms, pa.int64())})
    return rows.join(F.broadcast(spark.createDataFrame(marks)), "_index")


def _is_late(delay: timedelta) -> Column:
    """Return whether a pair would be late by a delay."""
    watermark = F.greatest(F.lit(0), F.col("_mark_ms") - F.lit(delay // _MS))
    return F.unix_millis("_window_end") <= watermark


def _late_counts(late: Sequence[Column]) -> list[Column]:
    """Return the columns `late_{place}`: how many pairs of a group are late by each delay."""
    return [F.count_if(is_late).alias(f"late_{place}") for place, is_late in enumerate(late)]


def _sums(pairs: DataFrame, column: Column, late: Sequence[Column]) -> list[tuple[int, int, Sequence[int]]]:
    """Return the values of a column with their pairs, and how many of these are late by each delay."""
    table = pairs.groupBy(column.alias("value")).agg(F.count(F.lit(1)).alias("pairs"), *_late_counts(late)).toArrow()
    return [
        (row["value"], row["pairs"], [row[f"late_{place}"] for place in range(len(late))]) for row in table.to_pylist()
    ]


def _losses(pairs: DataFrame, column: str, late: Sequence[Column], present: int) -> tuple[ValueLoss, ...]:
    """Return the values of a field that lose most by the present delay, the worst first."""
    by_value = pairs.groupBy(F.col(column).cast("string").alias("value")).agg(
        F.count(F.lit(1)).alias("pairs"), *_late_counts(late)
    )
    worst = by_value.orderBy(F.desc(f"late_{present}"), F.desc("pairs"), "value").limit(MOST_VALUES).toArrow()
    return tuple(
        ValueLoss(row["value"], row["pairs"], tuple(row[f"late_{place}"] for place in range(len(late))))
        for row in worst.to_pylist()
    )


def _windows(
    spark: SparkSession,
    definition: Definition,
    records: DataFrame,
    pairs: DataFrame,
    late: Sequence[Column],
    batches: int,
) -> _Windows:
    first = [F.min(F.when(~is_late, F.col("_index"))).alias(f"first_{place}") for place, is_late in enumerate(late)]
    end_ms = F.unix_millis("_window_end").alias("end_ms")
    table = (
        pairs.groupBy(end_ms)
        .agg(F.count(F.lit(1)).alias("pairs"), *first, *_late_counts(late))
        .orderBy("end_ms")
        .toArrow()
    )
    ends_ms = _numbers(table, "end_ms")
    return _Windows(
        ends_ms=ends_ms,
        rows=_state_rows(spark, definition, records, table),
        first=[_numbers(table, f"first_{place}", batches) for place in range(len(late))],
        dropped=[_numbers(table, f"late_{place}") for place in range(len(late))],
    )


def _state_rows(
    spark: SparkSession, definition: Definition, records: DataFrame, windows: pa.Table
) -> Milliseconds | None:
    """Return how many rows the state holds at most of each window: its records, or the rows of its result."""
    kind = definition.window.kind
    if kind.keeps_records:
        return _numbers(windows, "pairs")
    if not kind.is_aligned:
        return None
    result = compile_batch(spark, definition, records)
    end_ms = F.unix_millis(definition.window.end_column).alias("end_ms")
    counted = _counts(result.groupBy(end_ms).count().toArrow(), "end_ms")
    return np.array([counted.get(end, 0) for end in windows["end_ms"].to_pylist()], np.int64)


def _kept(definition: Definition, rows: Sequence[LedgerRow], largest: Milliseconds) -> int | None:
    """Return how many late pairs the stream kept, if its delay was the present one in all batches."""
    (source,) = definition.streams.values()
    watermarks = np.maximum(0, np.where(largest == NEVER_MS, 0, largest - source.watermark // _MS))
    late = [row.late_rows for row in rows]
    if any(count is None for count in late) or watermarks.tolist() != [row.batch_watermark_ms for row in rows]:
        return None
    return sum(count for count in late if count is not None)


def _numbers(table: pa.Table, name: str, null: int = 0) -> Milliseconds:
    return np.array(table[name].fill_null(null).to_pylist(), np.int64)


def _counts(table: pa.Table, name: str = "steps") -> dict[int, int]:
    return dict(zip(table[name].to_pylist(), table["count"].to_pylist(), strict=True))
