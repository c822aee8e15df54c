"""Judge a head by executors: clean rows are counted, the others are judged in groups, and few windows are left to the driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from rivertwice.backfill.load_plan import find_unloaded
from rivertwice.reconcile.kinds.tumbling_hopping import WindowJudge
from rivertwice.reconcile.model import SERVED, STREAM, Finding, RowColumns
from rivertwice.reconcile.rederive import Chain
from rivertwice.reconcile.spread.compare import (
    Moment,
    Numbers,
    Windows,
    compare_sides,
    count_windows,
    rows_to_judge,
    select_apart,
)
from rivertwice.reconcile.spread.judge_rows import FINDING, JUDGED, VERDICT, Rule, judge_group
from rivertwice.reconcile.spread.sides import gather_sides
from rivertwice.reconcile.view import HeadView, counted_publications
from rivertwice.timeline.first_load import FirstLoad
from rivertwice.timeline.served_ranges import is_inside
from rivertwice.timeline.serving import select_winners
from rivertwice.verdicts import AGREES, OPEN

GROUP_ROWS = 5_000
"""So many rows that are not clean are judged in one group, about; a group's entries are in one executor's memory."""
MOST_FINDINGS = 1_000


@dataclass(frozen=True)
class Spread:
    """What executors judged.

    Attributes:
        windows: what is counted of the windows that were judged here.
        apart: starts and ends of the windows that the driver judges, in order (epoch ms).
        judged: verdicts and causes of the rows that are not clean (`judge_rows.JUDGED`), not on the driver.
        summary: of their verdicts, by pair, window, verdict and presence.
        findings: what is wrong with served rows.
        moment: up to when windows were compared.
        published: starts of the windows that a publication serves (epoch ms).
        wanted: the windows to judge by their start (epoch ms, half-open); None: all. What is counted of the others still is.
        load: the first load by batch of the path, whose windows have no verdict of the pair stream; None: there was none.
    """

    windows: Windows
    apart: Sequence[tuple[int, int]]
    judged: DataFrame
    summary: pa.Table
    findings: Sequence[Finding]
    moment: Moment
    published: frozenset[int] = frozenset()
    wanted: tuple[int, int] | None = None
    load: FirstLoad | None = None

    @property
    def has_served(self) -> bool:
        """Whether what is served was judged."""
        return self.moment.served_ms is not None

    def counts(self, until_ms: int | None = None) -> Counter[tuple[str, str]]:
        """Return the rows by pair and verdict; with `until_ms` only those of windows that end at or before it (epoch ms)."""
        counts: Counter[tuple[str, str]] = Counter()
        for row in self.rows:
            if until_ms is None or row["end_ms"] <= until_ms:
                counts[row["pair"], row["verdict"]] += row["rows"]
        return counts

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A row by pair, window, verdict and presence, with how many result rows it stands for; clean ones too."""
        windows = self.windows
        if self.wanted is not None:
            low, high = self.wanted
            windows = windows.where((windows.start_ms >= low) & (windows.start_ms < high))
        rows: list[dict[str, Any]] = []
        for at in range(len(windows.start_ms)):
            clean, opened, unserved = (
                int(each[at]) for each in (windows.clean, windows.open_clean, windows.unserved_clean)
            )
            is_loaded = self.load is not None and self.load.has(int(windows.start_ms[at]))
            parts = [] if is_loaded else [(STREAM, AGREES, clean - opened), (STREAM, OPEN, opened)]
            if self.has_served:
                parts += [(SERVED, AGREES, clean - unserved), (SERVED, OPEN, unserved)]
            rows += [
                {
                    "pair": pair,
                    "start_ms": int(windows.start_ms[at]),
                    "end_ms": int(windows.end_ms[at]),
                    "verdict": verdict,
                    "presence": "both" if verdict == AGREES else "truth only",
                    "rows": count,
                    "late": 0,
                    "dead": 0,
                    "unexplained": 0,
                    "late_share": 0.0,
                }
                for pair, verdict, count in parts
                if count
            ]
        rows.extend(self.summary.to_pylist())
        return rows

    def pairs(self, until_ms: int | None = None) -> int:
        """Return how many records the emitted rows count; with `until_ms` those of windows that end at or before it."""
        return _total(self.windows.pairs, self.windows.end_ms, until_ms)

    def served_after(self, settled_ms: int) -> int:
        """Return how many rows are served of windows that end after an instant (epoch ms)."""
        served = self.windows.served
        return int(served.sum()) - _total(served, self.windows.end_ms, settled_ms)

    @property
    def dirty(self) -> int:
        """How many windows have a row in which stream, expected and truth differ."""
        return int((self.windows.dirty > 0).sum())


def _total(numbers: Numbers, end_ms: Numbers, until_ms: int | None) -> int:
    return int(numbers.sum() if until_ms is None else numbers[end_ms <= until_ms].sum())


@dataclass(frozen=True)
class Special:
    """Windows of which more must be known than their rows.

    Attributes:
        among: returns, of the (start, end) of all windows, the starts of those that are in doubt or blamed.
        starts: of windows that what dead letters should have been belongs to.
    """

    among: Callable[[AbstractSet[tuple[int, int]]], AbstractSet[int]]
    starts: frozenset[int] = frozenset()


def spread(
    spark: SparkSession,
    view: HeadView,
    judge: WindowJudge,
    chain: Chain,
    marks: DataFrame,
    shape: RowColumns,
    special: Special,
    wanted: tuple[int, int] | None = None,
) -> Spread:
    """Judge what a view with handles shows, all but the windows that need more than their rows.

    Args:
        spark: the session.
        view: the head; its tables are read by executors.
        judge: of its only definition.
        chain: re-derived watermarks.
        marks: the path's batches (`sides.batch_numbers`).
        shape: how rows are addressed and compared.
        special: names the windows that are left to the driver in any case.
        wanted: the windows to judge by their start (epoch ms, half-open); None: all.
    """
    assert view.handles is not None, "they are what it reads"
    moment, served_index = _moment(view, chain)
    sides = gather_sides(spark, view, view.handles, judge, marks, shape, with_served=served_index is not None)
    sides = sides.persist(StorageLevel.MEMORY_AND_DISK)
    compared = compare_sides(sides, shape, moment, view.load).persist(StorageLevel.MEMORY_AND_DISK)
    windows = count_windows(compared)
    counted = [] if served_index is None else counted_publications(view)
    winners = select_winners(windows.start_ms, counted, view.semantics)
    older = [entry.seq for entry in counted if entry.semantics != view.newest.semantics]
    unloaded = () if view.load is None else find_unloaded(view.load, counted, view.semantics)
    waits = is_inside(windows.start_ms, list(unloaded))
    apart = select_apart(windows, _is_special(windows, special), np.where(waits, -1, winners), older)
    starts = pa.table({"_start_ms": pa.array(np.unique(windows.start_ms[apart]), pa.int64())})
    groups = max(1, int(windows.others[~apart].sum()) // GROUP_ROWS)
    start_ms = F.unix_millis("window_start")
    judged_rows = compared if wanted is None else compared.where((start_ms >= wanted[0]) & (start_ms < wanted[1]))
    others = rows_to_judge(sides, judged_rows, shape, spark.createDataFrame(starts), groups)
    rule = Rule(view.newest.definition, view.topics[0], shape, moment, served_index, view.load, unloaded)
    schema = from_arrow_schema(JUDGED)
    judged = others.groupBy("_group").applyInArrow(judge_group(rule), schema).persist(StorageLevel.MEMORY_AND_DISK)
    summary = _summary(judged)
    sides.unpersist()
    compared.unpersist()
    chosen = sorted(
        {(int(start), int(end)) for start, end in zip(windows.start_ms[apart], windows.end_ms[apart], strict=True)}
    )
    published = frozenset(windows.start_ms[(winners >= 0) & ~apart].tolist())
    return Spread(
        windows.where(~apart), chosen, judged, summary, _findings(judged), moment, published, wanted, view.load
    )


def _moment(view: HeadView, chain: Chain) -> tuple[Moment, int | None]:
    closed_ms = view.newest.definition.window.closed_ms
    stamp = view.served_stamp
    if view.handles is None or view.handles.served is None or stamp is None:
        return Moment(closed_ms(chain.closed_ms), None), None
    index = view.index.get((stamp.timeline, stamp.batch))
    served_ms = None if index is None else closed_ms(chain.batch[index])
    return Moment(closed_ms(chain.closed_ms), served_ms), index


def _is_special(windows: Windows, special: Special) -> npt.NDArray[np.bool_]:
    pairs = set(zip(windows.start_ms.tolist(), windows.end_ms.tolist(), strict=True))
    named = {*special.among(pairs), *special.starts}
    return np.isin(windows.start_ms, np.array(sorted(named), dtype=np.int64))


def _summary(judged: DataFrame) -> pa.Table:
    start, end = F.unix_millis("window_start").alias("start_ms"), F.unix_millis("window_end").alias("end_ms")
    return (
        judged.where(F.col("kind") == VERDICT)
        .groupBy("pair", start, end, "verdict", "presence")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            *(F.sum(name).alias(name) for name in ("late", "dead", "unexplained")),
            F.max("late_share").alias("late_share"),
        )
        .toArrow()
    )


def _findings(judged: DataFrame) -> list[Finding]:
    found = judged.where(F.col("kind") == FINDING)
    rows = found.orderBy("window_start", "key", "detail").limit(MOST_FINDINGS + 1).toArrow().to_pylist()
    findings = [Finding(row["cause"], row["detail"], row["batch"]) for row in rows[:MOST_FINDINGS]]
    if len(rows) > MOST_FINDINGS:
        more = found.count() - MOST_FINDINGS
        findings.append(Finding("served", f"{more} more served rows are not what changelog and corrections give"))
    return findings
