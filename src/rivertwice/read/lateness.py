"""How late the late records were, and how many of them a larger watermark would have let in.

A record is late by the time from the end of its window to the watermark that its batch judged it by. With a watermark that is held
back by more than that, the window would still have been open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.core import Settings, to_ms
from rivertwice.definition import Definition
from rivertwice.read.serving import Runs, Serving, open_serving, read_runs
from rivertwice.storage import Table, Where
from rivertwice.timeline import LATE_RECORD, committed_batches, read_causes, to_epoch_ms

EDGES_S = (1, 10, 60, 300, 900, 3600, 3 * 3600, 12 * 3600, 86_400, 7 * 86_400, 30 * 86_400)
"""Ends of the bars in seconds, about evenly apart by their logarithms; the last bar has no end."""
RANGE = timedelta(days=62)


@dataclass(frozen=True)
class Bar:
    """Records that were late by `[from_s, to_s)` seconds; `to_s` None: without end.

    Attributes:
        count: how many. until: how many were late by less than `to_s`: how many would have been in time.
    """

    from_s: int
    to_s: int | None
    count: int
    until: int


def count_lateness(late_s: np.ndarray[Any, np.dtype[np.float64]], edges: Sequence[int] = EDGES_S) -> list[Bar]:
    """Return the histogram of how late records were, from the first bar to the last one that has any. Pure.

    Args:
        late_s: seconds from the end of a record's window to the watermark that judged it.
        edges: ends of the bars in seconds, rising.
    """
    bins = np.searchsorted(np.array(edges, dtype=float), late_s, side="right")
    counts = np.bincount(bins, minlength=len(edges) + 1)
    until = np.cumsum(counts)
    starts, ends = (0, *edges), (*edges, None)
    last = int(np.flatnonzero(counts)[-1]) if len(late_s) else -1
    bars = [Bar(low, high, int(n), int(total)) for low, high, n, total in zip(starts, ends, counts, until, strict=True)]
    return bars[: last + 1]


@dataclass(frozen=True)
class Lateness:
    """How late the late records of some windows were.

    Attributes:
        source: `late rows`, or `causes` of the reconcile `run`; None: nothing can be late.
        watermark_s: how far the watermark is held back.
    """

    name: str
    source: str | None
    watermark_s: float | None
    bars: tuple[Bar, ...] = ()
    total: int = 0
    run: str | None = None
    from_: datetime | None = None
    to: datetime | None = None


def read_lateness(settings: Settings, name: str, start: datetime | None, end: datetime | None) -> Lateness:
    """Return how late the late records of some windows were.

    Where the late policy keeps late rows, they are counted up to now. Else those are that the newest reconcile named.

    Args:
        name: the version that serves, or `NAME@v2`.
        start: start of the range of window starts; None: the newest two months.
    """
    serving = open_serving(settings, name)
    definition, runs = serving.definition, read_runs(serving.home)
    sources = [] if definition is None else definition.streams.values()
    delays = [source.watermark.total_seconds() for source in sources if source.has_watermark]
    if definition is None or not delays:
        return Lateness(serving.home.root.name, None, None)
    is_kept = definition.late.keeps_rows
    table = serving.home.tables.late_rows if is_kept else serving.home.tables.causes
    bounds = Table(table).bounds("window_start")
    last = None if bounds is None else bounds[1] + timedelta(seconds=1)
    high = end or last
    low = start or (None if high is None else high - RANGE)
    late_s = np.zeros(0)
    if low is not None and high is not None and low < high:
        within = [(to_ms(low), to_ms(high))]
        late_s = _of_late_rows(serving, within) if is_kept else _of_causes(serving, definition, runs, within)
    return Lateness(
        name=serving.home.root.name,
        source="late rows" if is_kept else "causes",
        watermark_s=max(delays),
        bars=tuple(count_lateness(late_s)),
        total=len(late_s),
        run=None if is_kept or runs is None else runs.newest["run"],
        from_=low,
        to=high,
    )


def _of_causes(
    serving: Serving, definition: Definition, runs: Runs | None, within: list[tuple[int, int]]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return how late the records were that the newest reconcile named, each once, in seconds."""
    if runs is None:
        return np.zeros(0)
    is_late = Where.all([Where("cause").equals(LATE_RECORD), Where("pair").equals("stream")])
    rows = read_causes(serving.home, runs.chain, within, is_late)
    if rows is None:
        return np.zeros(0)
    rows = rows.filter(pc.is_valid(rows["late_watermark_ms"]))
    length_ms = definition.window.length // timedelta(milliseconds=1)
    if definition.session_keys is None:
        ends = to_epoch_ms(rows["window_start"]) + length_ms
    else:  # a session of this record alone; it is late if that had closed
        rows = rows.filter(pc.is_valid(rows["event_time"]))
        ends = to_epoch_ms(rows["event_time"]) + length_ms
    return _worst(rows, rows["late_watermark_ms"].to_numpy().astype(np.int64) - ends)


def _of_late_rows(serving: Serving, within: list[tuple[int, int]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return how late the stored late rows of batches on the head's path were, each record once, in seconds."""
    names = ["_timeline", "_batch", "window_end", "late_watermark", "topic", "partition", "offset"]
    rows = Table(serving.home.tables.late_rows).read(columns=names, matching=Where("window_start").is_within(within))
    if rows is None:
        return np.zeros(0)
    committed = committed_batches(serving.home).table.select(["timeline", "batch"])
    known = committed.rename_columns(["_timeline", "_batch"])
    rows = rows.join(known, ["_timeline", "_batch"], join_type="left semi")
    return _worst(rows, to_epoch_ms(rows["late_watermark"]) - to_epoch_ms(rows["window_end"]))


def _worst(rows: pa.Table, late_ms: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return for each record the most by which it missed a window, in seconds; a record of hopping windows may miss several."""
    if not rows.num_rows:
        return np.zeros(0)
    addressed = rows.select(["topic", "partition", "offset"]).append_column("late_ms", pa.array(late_ms))
    worst = addressed.group_by(["topic", "partition", "offset"]).aggregate([("late_ms", "max")])
    seconds: np.ndarray[Any, np.dtype[np.float64]] = worst["late_ms_max"].to_numpy() / 1000.0
    return seconds
