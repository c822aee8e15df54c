"""Sessions that differ between two versions: whether late records are the cause.

A late record makes a session longer, joins two or adds one, so what is served may begin and end elsewhere than what the log gives.
A row is explained if the log gives sessions of its key that overlap it, and both definitions agree on each of them, or differ there
as declared. A session that a record may still join is left out: it is compared once it is settled (`backfill.components`).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from rivertwice.backfill.components import Component
from rivertwice.backfill.model import BackfillRequest, BackfillView
from rivertwice.backfill.ranges import HalfOpenRange, merge
from rivertwice.backfill.session_reader import stretches_frame, with_sessions
from rivertwice.backfill.survey import Asked
from rivertwice.instants import TimeRange, from_ms
from rivertwice.timeline.keys import key_texts
from rivertwice.trial.compare import differs, judge_rows
from rivertwice.trial.frames import side_frames
from rivertwice.trial.model import LOG, Side
from rivertwice.trial.run import changed_view
from rivertwice.trial.stretch import plan_settled, without_unknown_losses
from rivertwice.versions.explained import MOST_ROWS, Explained, Unexplained, rest_of

OPEN = "a record may still join their sessions, so what the log gives is not final; compare again later"


def explain_sessions(case: Unexplained, old_view: BackfillView) -> Explained:
    """Find the sessions that differ by late records alone.

    Raises:
        RequestError: more sessions are meant than can be held.
        LogGapError: neither the archive nor Kafka has a record that is needed.
    """
    asked = _asked(case)
    if asked is None or old_view.closed_ms is None:
        return rest_of(case.rows, 0, ())
    case.progress(
        f"sessions of {len(asked.by_key)} keys with other differences are computed from the log by both definitions ..."
    )
    new_view, _ = without_unknown_losses(changed_view(case.home, old_view, case.pair))
    views = [
        with_sessions(case.spark, case.settings, view, definition, asked)
        for view, definition in zip((old_view, new_view), case.definitions, strict=True)
    ]
    unsettled = [component for view in views for component in _unsettled(view)]
    rows = case.rows
    left_out = None
    if unsettled:
        open_sessions = stretches_frame(case.spark, case.definitions[1], unsettled)
        left_out = case.without(_overlapping(rows, open_sessions, case, "left_semi"), OPEN)
        rows = _overlapping(rows, open_sessions, case, "left_anti")
    low, high = asked.zone[0][0], asked.zone[-1][1]
    request = BackfillRequest(case.home.root.name, TimeRange(from_ms(low), from_ms(high)), "parity of versions")
    sides = [
        Side(definition, plan_settled(request, view)) for definition, view in zip(case.definitions, views, strict=True)
    ]
    with side_frames(case.spark, case.settings, case.home, sides, alike=case.pair.alike, against=LOG) as (frames, _):
        truth = judge_rows(frames[0], frames[1], *case.definitions, case.expected).localCheckpoint()
    explained = _overlapping(rows, _stretches(truth.where(~differs()), case), case, "left_semi")
    explained = _overlapping(explained, _stretches(truth.where(differs()), case), case, "left_anti")
    names = ["_start", "_end", *case.definitions[1].row_keys]
    done = explained.select(*(F.col(name).alias(f"_done_{name}") for name in names))
    same = functools.reduce(operator.and_, (F.col(name).eqNullSafe(F.col(f"_done_{name}")) for name in names))
    rest = rows.join(done, on=same, how="left_anti").localCheckpoint()
    held = case.differing if left_out is None else rows.count()
    return rest_of(rest, held, () if left_out is None else (left_out,))


def _asked(case: Unexplained) -> Asked | None:
    """Return the stretches of the rows that differ, by key; None if there are too many."""
    start, end = F.unix_millis("_start").alias("_low"), F.unix_millis("_end").alias("_high")
    keys = case.definitions[1].keys
    table = case.rows.select(*keys, start, end).distinct().limit(MOST_ROWS + 1).toArrow()
    if table.num_rows > MOST_ROWS:
        return None
    by_key: dict[str, list[HalfOpenRange]] = {}
    for key, low, high in zip(
        key_texts(table, keys), table["_low"].to_pylist(), table["_high"].to_pylist(), strict=True
    ):
        by_key.setdefault(key, []).append((low, max(high, low + 1)))
    return Asked(by_key={key: merge(ranges) for key, ranges in by_key.items()})


def _unsettled(view: BackfillView) -> Sequence[Component]:
    assert view.sessions is not None, "they were looked up"
    assert view.closed_ms is not None, "the caller looked"
    components = view.sessions.components or ()
    return [each for each in components if not each.is_settled(view.closed_ms, view.window_ms)]


def _stretches(truth: DataFrame, case: Unexplained) -> DataFrame:
    """Return the sessions of judged rows: keys as `_k0`, `_k1` ..., and `_low_us`, `_high_us`."""
    keys = (F.col(name).alias(f"_k{number}") for number, name in enumerate(case.definitions[1].keys))
    return truth.select(*keys, F.unix_micros("_start").alias("_low_us"), F.unix_micros("_end").alias("_high_us"))


def _overlapping(rows: DataFrame, stretches: DataFrame, case: Unexplained, how: str) -> DataFrame:
    """Return the rows that a stretch of their key overlaps (`left_semi`), or those that none does (`left_anti`)."""
    keys = [F.col(name).eqNullSafe(F.col(f"_k{number}")) for number, name in enumerate(case.definitions[1].keys)]
    overlap: Column = (F.unix_micros("_start") < F.col("_high_us")) & (F.col("_low_us") < F.unix_micros("_end"))
    return rows.join(stretches, on=functools.reduce(operator.and_, keys, overlap), how=how)
