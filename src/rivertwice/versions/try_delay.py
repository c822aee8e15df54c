"""Which rows a stream would emit otherwise by another watermark delay: the late rule over the batches that it ran. Read only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np
from pyspark.sql import functions as F

from rivertwice.core import Progress, RequestError, Settings, TimeRange, from_ms, to_iso, to_ms
from rivertwice.definition import Definition, format_duration
from rivertwice.engine import Spark
from rivertwice.reconcile import emitted_by
from rivertwice.timeline import LedgerRow, Timeline, path_ledger
from rivertwice.versions.advise import largest_before, late_marks, read_batches, refusal_of
from rivertwice.versions.try_compare import compare_rows, kept
from rivertwice.versions.try_model import COMPARED, SAME, SchemaChange, Trial, TrialRange, TrialRequest

_MS = timedelta(milliseconds=1)


@dataclass(frozen=True)
class ComparedWindows:
    """The windows that both delays close, and the batches whose records may belong to them; all times are epoch ms.

    Attributes:
        start_ms, end_ms: start of the first one, and end of the last one.
        windows: how many there are.
        batches: path indexes.
        open_from_ms: where windows start that were asked for and that the longer delay has not closed; None: there are none.
    """

    start_ms: int
    end_ms: int
    windows: int
    batches: tuple[int, ...]
    open_from_ms: int | None


def choose_windows(
    definition: Definition, path: Sequence[LedgerRow], asked: TimeRange | None, last: timedelta, delay: timedelta
) -> ComparedWindows | None:
    """Return the windows to compare; None: both delays close none of those that are asked for, or these have no record. Pure.

    Args:
        definition: of tumbling or hopping windows.
        path: the batches that the stream ran, from the first on.
        asked: where the windows start; None: the newest `last`.
        last: how much event time.
        delay: the longer one.
    """
    size, step = definition.window.length // _MS, definition.window.step // _MS
    lowest = min((row.min_event_ms for row in path if row.min_event_ms is not None), default=0)
    closed = int(largest_before(path)[-1]) - delay // _MS
    stop = (closed - size) // step * step + step  # windows that start before it are closed
    first = stop + size - step - last // _MS if asked is None else to_ms(asked.start)
    until = stop if asked is None else to_ms(asked.end)
    start = max(-(-first // step) * step, (lowest - size) // step * step + step, 0)
    end = min(stop, -(-until // step) * step)
    if start >= end:
        return None
    reach = end - step + size
    batches = tuple(
        index
        for index, row in enumerate(path)
        if row.min_event_ms is not None
        and row.max_event_ms is not None
        and row.min_event_ms < reach
        and row.max_event_ms >= start
    )
    if not batches:
        return None
    return ComparedWindows(start, reach, (end - start) // step, batches, stop if until > stop else None)


def require_delay(definition: Definition, delay: timedelta) -> None:
    """Check that the rows of a definition can be computed by another watermark delay.

    Raises:
        RequestError: they cannot.
    """
    refusal = refusal_of(definition)
    is_grouped = definition.count_column is not None and definition.session_keys is None
    if refusal is None and not is_grouped:
        refusal = (
            f"{definition.name} has {definition.window.text}, and only rows of tumbling and hopping windows are computed by another delay; "
            f"`rivertwice advise {definition.name} --delay '{format_duration(delay)}'` counts what it drops"
        )
    if refusal is not None:
        raise RequestError(refusal)


def try_delay(
    settings: Settings,
    request: TrialRequest,
    pair: tuple[Definition, Definition],
    trial: Trial,
    spark: Spark,
    progress: Progress,
) -> Trial:
    """Compare what a stream emits with what it would emit by another watermark delay, over the batches that it ran.

    Args:
        settings: where everything is stored.
        request: what is asked.
        pair: the running definition, by which a delay can be judged (`require_delay`), and the same with the other delay.
        trial: what is known before.
        spark: gives a session; not called if the delay is the present one.
        progress: is passed one line per fact.

    Raises:
        RequestError: both delays close no window that is asked for, or these have no record.
        LogGapError: neither Kafka nor the archive has a record that is needed.
    """
    old, new = pair
    name = request.pipeline
    ((view, source),) = old.streams.items()
    before, after = source.watermark, new.streams[view].watermark
    if before == after:
        return replace(
            trial, outcome=SAME, reason=f"the stream of {name} has this watermark delay, so no row can differ"
        )
    home = settings.pipeline(name)
    path = path_ledger(home)
    found = choose_windows(old, path, request.range, request.last, max(before, after)) if path else None
    if found is None:
        message = (
            f"no window with records that is asked for is closed by both delays, so there is nothing to compare; `rivertwice advise {name} --delay "
            f"'{format_duration(after)}'` counts what the delay drops of all windows"
        )
        raise RequestError(message)
    rows = [path[index] for index in found.batches]
    marks = late_marks(largest_before(path))[list(found.batches)]
    records = sum(row.read for row in rows)
    progress(
        f"{records} records of [{to_iso(from_ms(found.start_ms))}, {to_iso(from_ms(found.end_ms))}) are read, for {found.windows} windows ..."
    )
    session = spark()
    topic_id = Timeline.load(home, path[-1].timeline).topic_ids[source.topic]
    start, end = F.unix_millis(old.window.start_column), F.unix_millis(old.window.end_column)
    with kept(read_batches(session, settings, old, rows, topic_id)) as accepted:
        emitted, otherwise = (
            emitted_by(session, old, accepted, np.maximum(marks - delay // _MS, 0).tolist()).where(
                (start >= found.start_ms) & (end <= found.end_ms)
            )
            for delay in (before, after)
        )
        compared = compare_rows(emitted, otherwise, old, new, request.limit)
    open_from = found.open_from_ms
    left_out = (
        ()
        if open_from is None
        else (f"windows that start from {to_iso(from_ms(open_from))} on: the longer delay has not closed them",)
    )
    return replace(
        trial,
        outcome=COMPARED,
        reason="",
        stretch=TrialRange(from_ms(found.start_ms), from_ms(found.end_ms), found.windows, records, left_out),
        schema=SchemaChange(),
        rows=compared,
    )
