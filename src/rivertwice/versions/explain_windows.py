"""Windows that differ between two versions: whether late records are the cause.

They are computed from the log by both definitions, in batch, where a late record counts like any other.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from datetime import timedelta

from pyspark.sql import Column
from pyspark.sql import functions as F

from rivertwice.backfill.model import BackfillRequest, BackfillView
from rivertwice.backfill.ranges import HalfOpenRange, coalesce, intersect, merge, subtract
from rivertwice.errors import RequestError
from rivertwice.instants import TimeRange, from_ms
from rivertwice.trial.compare import differs, judge_rows
from rivertwice.trial.frames import side_frames
from rivertwice.trial.model import LOG, Side
from rivertwice.trial.run import changed_view
from rivertwice.trial.stretch import choose_ranges, plan_windows, without_unknown_losses
from rivertwice.versions.explained import MOST_ROWS, Explained, Unexplained, rest_of
from rivertwice.versions.model import LeftOut

MOST_RANGES = 200
"""Ranges of windows that are computed; with more, the gaps between some are computed too."""
GONE = "they differ, and their records are in neither Kafka nor the archive any more, so no cause can be found"
_MS = timedelta(milliseconds=1)


def explain_windows(case: Unexplained, old_view: BackfillView) -> Explained:
    """Find the rows that late records explain.

    Args:
        case: the rows.
        old_view: what was observed for the version that serves.

    Raises:
        LogGapError: a record that a window needs is in neither Kafka nor the archive.
    """
    starts = _starts(case)
    if len(starts) > MOST_ROWS:
        return rest_of(case.rows, 0, ())
    step = case.definitions[1].window.step // _MS
    wanted = merge((start, start + step) for start in starts)
    request = BackfillRequest(
        case.home.root.name, TimeRange(from_ms(wanted[0][0]), from_ms(wanted[-1][1])), "parity of versions"
    )
    pair = case.pair
    new_view, _ = without_unknown_losses(changed_view(case.home, old_view, pair))
    try:
        retained, _ = choose_ranges(request, old_view)
    except RequestError:  # none of them is retained
        retained = ()
    gone = subtract(wanted, retained)
    held = case.rows.where(~_starts_in(gone))
    left_out = _lost_windows(case, gone)
    lost = sum(rows for rows, _ in left_out)
    ranges = coalesce(intersect(wanted, retained), 0, MOST_RANGES)
    if not ranges:
        return Explained(0, tuple(part for _, part in left_out))
    case.progress(f"{len(starts)} windows with other differences are computed from the log by both definitions ...")
    views = (old_view, new_view)
    sides = [
        Side(definition, plan_windows(request, view, ranges))
        for definition, view in zip(case.definitions, views, strict=True)
    ]
    with side_frames(case.spark, case.settings, case.home, sides, alike=pair.alike, against=LOG) as (frames, _):
        truth = judge_rows(frames[0], frames[1], *case.definitions, case.expected).where(~differs())
        keys = ["_start", "_end", *case.definitions[1].row_keys]
        agreeing = truth.select(*(F.col(key).alias(f"_truth_{key}") for key in keys))
        same = functools.reduce(operator.and_, (F.col(key).eqNullSafe(F.col(f"_truth_{key}")) for key in keys))
        rest = held.join(agreeing, on=same, how="left_anti").localCheckpoint()
    return rest_of(rest, case.differing - lost, tuple(part for _, part in left_out))


def _starts(case: Unexplained) -> list[int]:
    """Return the starts of windows with a difference that is not declared, epoch ms, sorted; one more than the most at most."""
    starts = case.rows.select(F.unix_millis("_start").alias("at")).distinct().limit(MOST_ROWS + 1)
    return sorted(starts.toArrow()["at"].to_pylist())


def _starts_in(ranges: Sequence[HalfOpenRange]) -> Column:
    at = F.unix_millis("_start")
    inside = [(at >= F.lit(start)) & (at < F.lit(end)) for start, end in ranges]
    return functools.reduce(operator.or_, inside, F.lit(False))


def _lost_windows(case: Unexplained, gone: Sequence[HalfOpenRange]) -> list[tuple[int, LeftOut]]:
    """Return the rows that differ in windows whose records are gone, and these windows."""
    if not gone:
        return []
    rows = case.rows.where(_starts_in(gone))
    (row,) = rows.agg(F.count(F.lit(1)), F.count_distinct("_start")).collect()
    return [(row[0], LeftOut(from_ms(gone[0][0]), from_ms(gone[-1][1]), row[1], GONE))] if row[0] else []
