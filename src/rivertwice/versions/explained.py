"""What explains undeclared differences between two versions, by kind of windows."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from rivertwice.backfill import BackfillScope, HalfOpenRange, RetainedLog, coalesce, intersect, merge, subtract
from rivertwice.core import Progress, RequestError, TimeRange, from_ms
from rivertwice.definition import RECORD, SOURCE, Bundle, Definition
from rivertwice.engine import partition_of
from rivertwice.timeline import key_texts
from rivertwice.versions.model import ExcludedWindows
from rivertwice.versions.try_compare import differs, judge_rows
from rivertwice.versions.try_model import CHANGED, ONLY_NEW, ONLY_OLD, REPEATED, Expected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_ROWS = 100_000
"""Windows, or sessions, with a difference that is not declared; of more, none is computed, and all of their rows have no cause."""


@dataclass(frozen=True)
class Unexplained:
    """Rows that differ, and what is needed to look for their cause.

    Attributes:
        bundles: of both versions, the new one last.
        judged: what both serve, by `judge_rows`.
        differing: rows that differ and are not declared.
    """

    spark: SparkSession
    bundles: tuple[Bundle, Bundle]
    judged: DataFrame
    expected: Sequence[Expected]
    differing: int
    progress: Progress

    @property
    def definitions(self) -> tuple[Definition, Definition]:
        """Both definitions, the new one last."""
        return self.bundles[0].definition, self.bundles[1].definition

    @property
    def rows(self) -> DataFrame:
        """The rows that differ."""
        return self.judged.where(differs())

    def without(self, rows: DataFrame, why: str) -> ExcludedWindows | None:
        """Return rows that cannot be compared as windows that are left out; None if there are none."""
        start = F.unix_millis("_start")
        (row,) = rows.agg(F.count_distinct("_start"), F.min(start), F.max(start)).collect()
        return ExcludedWindows(from_ms(row[1]), from_ms(row[2] + 1), row[0], why) if row[0] else None


@dataclass(frozen=True)
class Explained:
    """The causes of the rows that differ.

    Attributes:
        late: differ by late records alone.
        changed, only_new, only_old, repeated: rows without a cause.
        rest: those rows, as they were judged; None: there is none.
    """

    late: int
    left_out: tuple[ExcludedWindows, ...]
    changed: int = 0
    only_new: int = 0
    only_old: int = 0
    repeated: int = 0
    rest: DataFrame | None = None


def rest_of(rest: DataFrame, differing: int, left_out: Sequence[ExcludedWindows]) -> Explained:
    """Return what remains without a cause.

    Args:
        differing: rows for which one was sought, without those that are left out; those that are not in `rest` differ by late
            records alone.
    """
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


# Rows of two folds that differ: none is late; where the order of a key's records is not the log's, no order is the right one.

NO_ORDER = "their keys have records in several partitions, which each stream read in its own order, so which row is right is not known"


def explain_folds(case: Unexplained) -> Explained:
    """Leave out the rows whose keys have rows of several partitions, or of several sources; no other one has a cause."""
    definition = case.definitions[1]
    keys = [name for name in definition.row_keys if name in definition.keys]
    place = F.struct(*([SOURCE] if SOURCE in definition.row_keys else []), partition_of(F.col(RECORD)))
    places = case.judged.groupBy(*(F.col(key).alias(f"_of_{key}") for key in keys)).agg(
        F.count_distinct(place).alias("_places")
    )
    spread = places.where("_places > 1")
    same = functools.reduce(operator.and_, (F.col(key).eqNullSafe(F.col(f"_of_{key}")) for key in keys), F.lit(True))
    unordered = case.rows.join(spread, on=same, how="left_semi")
    left_out = case.without(unordered, NO_ORDER)
    if left_out is None:
        return rest_of(case.rows, case.differing, ())
    rest = case.rows.join(spread, on=same, how="left_anti").localCheckpoint()
    return rest_of(rest, rest.count(), (left_out,))


# Sessions that differ between two versions: whether late records are the cause.
#
# A late record makes a session longer, joins two or adds one, so what is served may begin and end elsewhere than what the log gives.
# A row is explained if the log gives sessions of its key that overlap it, and both definitions agree on each of them, or differ there
# as declared. A session that a record may still join is left out: it is compared once it is settled (`backfill.components`).

OPEN = "a record may still join their sessions, so what the log gives is not final; compare again later"


def explain_sessions(case: Unexplained, log: RetainedLog) -> Explained:
    """Find the sessions that differ by late records alone; `log` is of the version that serves.

    Raises:
        RequestError: more sessions are meant than can be held.
        LogGapError: neither the archive nor Kafka has a record that is needed.
    """
    asked = _asked(case)
    if asked is None or log.view.closed_ms is None:
        return rest_of(case.rows, 0, ())
    case.progress(
        f"sessions of {len(asked.by_key)} keys with other differences are computed from the log by both definitions ..."
    )
    logs = [each.look_up(case.spark, asked) for each in (log, log.by(case.bundles[1]).without_unknown())]
    unsettled = [frame for each in logs if (frame := each.open_sessions(case.spark)) is not None]
    rows = case.rows
    left_out = None
    if unsettled:
        open_sessions = functools.reduce(DataFrame.unionByName, unsettled)
        left_out = case.without(_overlapping(rows, open_sessions, case, "left_semi"), OPEN)
        rows = _overlapping(rows, open_sessions, case, "left_anti")
    asked_range = TimeRange(from_ms(asked.zone[0][0]), from_ms(asked.zone[-1][1]))
    old, new = (each.run(case.spark, each.plan_sessions(asked_range)) for each in logs)
    with old.rows_beside(new) as (frames, _):
        truth = judge_rows(frames[0], frames[1], *case.definitions, case.expected).localCheckpoint()
    explained = _overlapping(rows, _stretches(truth.where(~differs()), case), case, "left_semi")
    explained = _overlapping(explained, _stretches(truth.where(differs()), case), case, "left_anti")
    names = ["_start", "_end", *case.definitions[1].row_keys]
    done = explained.select(*(F.col(name).alias(f"_done_{name}") for name in names))
    same = functools.reduce(operator.and_, (F.col(name).eqNullSafe(F.col(f"_done_{name}")) for name in names))
    rest = rows.join(done, on=same, how="left_anti").localCheckpoint()
    held = case.differing if left_out is None else rows.count()
    return rest_of(rest, held, () if left_out is None else (left_out,))


def _asked(case: Unexplained) -> BackfillScope | None:
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
    return BackfillScope(by_key={key: merge(ranges) for key, ranges in by_key.items()})


def _stretches(truth: DataFrame, case: Unexplained) -> DataFrame:
    """Return the sessions of judged rows: keys as `_k0`, `_k1` ..., and `_low_us`, `_high_us`."""
    keys = (F.col(name).alias(f"_k{number}") for number, name in enumerate(case.definitions[1].keys))
    return truth.select(*keys, F.unix_micros("_start").alias("_low_us"), F.unix_micros("_end").alias("_high_us"))


def _overlapping(rows: DataFrame, stretches: DataFrame, case: Unexplained, how: str) -> DataFrame:
    """Return the rows that a stretch of their key overlaps (`left_semi`), or those that none does (`left_anti`)."""
    keys = [F.col(name).eqNullSafe(F.col(f"_k{number}")) for number, name in enumerate(case.definitions[1].keys)]
    overlap: Column = (F.unix_micros("_start") < F.col("_high_us")) & (F.col("_low_us") < F.unix_micros("_end"))
    return rows.join(stretches, on=functools.reduce(operator.and_, keys, overlap), how=how)


# Windows that differ between two versions: whether late records are the cause.
#
# They are computed from the log by both definitions, in batch, where a late record counts like any other.

MOST_RANGES = 200
"""Ranges of windows that are computed; with more, the gaps between some are computed too."""
GONE = "they differ, and their records are in neither Kafka nor the archive any more, so no cause can be found"
_MS = timedelta(milliseconds=1)


def explain_windows(case: Unexplained, log: RetainedLog) -> Explained:
    """Find the rows that late records explain.

    Args:
        log: of the version that serves: its batches say where a window's records are.

    Raises:
        LogGapError: a record that a window needs is in neither Kafka nor the archive.
    """
    starts = _starts(case)
    if len(starts) > MOST_ROWS:
        return rest_of(case.rows, 0, ())
    step = case.definitions[1].window.step // _MS
    wanted = merge((start, start + step) for start in starts)
    try:
        retained, _ = log.choose(TimeRange(from_ms(wanted[0][0]), from_ms(wanted[-1][1])))
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
    new_log = log.by(case.bundles[1]).without_unknown()
    old, new = (each.run(case.spark, each.plan_windows(ranges)) for each in (log, new_log))
    with old.rows_beside(new) as (frames, _):
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


def _lost_windows(case: Unexplained, gone: Sequence[HalfOpenRange]) -> list[tuple[int, ExcludedWindows]]:
    """Return the rows that differ in windows whose records are gone, and these windows."""
    if not gone:
        return []
    rows = case.rows.where(_starts_in(gone))
    (row,) = rows.agg(F.count(F.lit(1)), F.count_distinct("_start")).collect()
    return [(row[0], ExcludedWindows(from_ms(gone[0][0]), from_ms(gone[-1][1]), row[1], GONE))] if row[0] else []
