"""Rows that differ between two versions and that nobody declared: whether late records are the cause.

Their windows are computed from the log by both definitions, in batch, where a late record counts like any other.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from rivertwice.backfill.kinds import find_planner
from rivertwice.backfill.model import BackfillRequest
from rivertwice.backfill.observe import observe_backfill
from rivertwice.backfill.ranges import HalfOpenRange, coalesce, intersect, merge, subtract
from rivertwice.config import PipelineHome, Settings
from rivertwice.errors import RequestError
from rivertwice.instants import TimeRange, from_ms
from rivertwice.pipeline.bundle import Bundle
from rivertwice.pipeline.fingerprint import compare_fingerprints
from rivertwice.progress import Progress
from rivertwice.trial.compare import differs, judge_rows
from rivertwice.trial.frames import side_frames
from rivertwice.trial.model import CHANGED, LOG, ONLY_NEW, ONLY_OLD, REPEATED, Expected, Side
from rivertwice.trial.run import Pair, changed_view
from rivertwice.trial.stretch import choose_ranges, plan_windows, without_unknown_losses
from rivertwice.versions.model import LeftOut

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_WINDOWS = 100_000
"""Windows with a difference that is not declared; of more, none is computed, and all of their rows have no cause."""
MOST_RANGES = 200
"""Ranges of windows that are computed; with more, the gaps between some are computed too."""
GONE = "they differ, and their records are in neither Kafka nor the archive any more, so no cause can be found"
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Explained:
    """What became of the rows that differ.

    Attributes:
        late: differ by late records alone.
        left_out: windows whose records are gone.
        changed, only_new, only_old, repeated: rows without a cause.
        rest: those rows, as they were judged; None: there is none.
    """

    late: int
    left_out: tuple[LeftOut, ...]
    changed: int = 0
    only_new: int = 0
    only_old: int = 0
    repeated: int = 0
    rest: DataFrame | None = None


def explain_rows(
    spark: SparkSession,
    settings: Settings,
    home: PipelineHome,
    bundles: tuple[Bundle, Bundle],
    judged: DataFrame,
    expected: Sequence[Expected],
    differing: int,
    progress: Progress,
) -> Explained:
    """Find the rows that late records explain.

    Args:
        spark: the session.
        settings: where everything is stored.
        home: of the version that serves: its batches say where a window's records are.
        bundles: of both versions, the new one last.
        judged: what both serve, by `judge_rows`.
        expected: differences that are meant.
        differing: rows that differ and are not declared.
        progress: is passed one line per fact.

    Raises:
        LogGapError: a record that a window needs is in neither Kafka nor the archive.
    """
    starts = _starts(judged)
    if len(starts) > MOST_WINDOWS or any(find_planner(each.definition) is None for each in bundles):
        return _rest(judged.where(differs()), 0, ())
    old_view, _ = without_unknown_losses(observe_backfill(settings, home.root.name))
    if old_view.sessions is not None:  # which of them are settled is not known without their records
        return _rest(judged.where(differs()), 0, ())
    step = bundles[1].definition.window.step // _MS
    wanted = merge((start, start + step) for start in starts)
    request = BackfillRequest(
        home.root.name, TimeRange(from_ms(wanted[0][0]), from_ms(wanted[-1][1])), "parity of versions"
    )
    pair = Pair(*bundles, tuple(compare_fingerprints(bundles[0].fingerprint, bundles[1].fingerprint)))
    new_view, _ = without_unknown_losses(changed_view(home, old_view, pair))
    try:
        retained, _ = choose_ranges(request, old_view)
    except RequestError:  # none of them is retained
        retained = ()
    gone = subtract(wanted, retained)
    held = judged.where(differs() & ~_starts_in(gone))
    left_out = _lost_windows(judged, gone)
    lost = sum(rows for rows, _ in left_out)
    ranges = coalesce(intersect(wanted, retained), 0, MOST_RANGES)
    if not ranges:
        return Explained(0, tuple(part for _, part in left_out))
    progress(f"{len(starts)} windows with other differences are computed from the log by both definitions ...")
    views = (old_view, new_view)
    sides = [
        Side(bundle.definition, plan_windows(request, view, ranges))
        for bundle, view in zip(bundles, views, strict=True)
    ]
    with side_frames(spark, settings, home, sides, alike=pair.alike, against=LOG) as (frames, _):
        definitions = bundles[0].definition, bundles[1].definition
        truth = judge_rows(frames[0], frames[1], *definitions, expected).where(~differs())
        keys = ["_start", "_end", *definitions[1].row_keys]
        agreeing = truth.select(*(F.col(key).alias(f"_truth_{key}") for key in keys))
        same = functools.reduce(operator.and_, (F.col(key).eqNullSafe(F.col(f"_truth_{key}")) for key in keys))
        rest = held.join(agreeing, on=same, how="left_anti").localCheckpoint()
    return _rest(rest, differing - lost, tuple(part for _, part in left_out))


def _rest(rest: DataFrame, differing: int, left_out: Sequence[LeftOut]) -> Explained:
    """Return what remains without a cause; `differing` are the rows that it was sought for."""
    kinds = {row["_kind"]: row["count"] for row in rest.groupBy("_kind").count().collect()}
    return Explained(
        late=max(0, differing - sum(kinds.values())),
        left_out=tuple(left_out),
        changed=kinds.get(CHANGED, 0),
        only_new=kinds.get(ONLY_NEW, 0),
        only_old=kinds.get(ONLY_OLD, 0),
        repeated=kinds.get(REPEATED, 0),
        rest=rest if kinds else None,
    )


def _starts(judged: DataFrame) -> list[int]:
    """Return the starts of windows with a difference that is not declared, epoch ms, sorted; one more than the most at most."""
    starts = judged.where(differs()).select(F.unix_millis("_start").alias("at")).distinct().limit(MOST_WINDOWS + 1)
    return sorted(starts.toArrow()["at"].to_pylist())


def _starts_in(ranges: Sequence[HalfOpenRange]) -> Column:
    at = F.unix_millis("_start")
    inside = [(at >= F.lit(start)) & (at < F.lit(end)) for start, end in ranges]
    return functools.reduce(operator.or_, inside, F.lit(False))


def _lost_windows(judged: DataFrame, gone: Sequence[HalfOpenRange]) -> list[tuple[int, LeftOut]]:
    """Return the rows that differ in windows whose records are gone, and these windows."""
    if not gone:
        return []
    rows = judged.where(differs() & _starts_in(gone))
    (row,) = rows.agg(F.count(F.lit(1)), F.count_distinct("_start")).collect()
    return [(row[0], LeftOut(from_ms(gone[0][0]), from_ms(gone[-1][1]), row[1], GONE))] if row[0] else []
