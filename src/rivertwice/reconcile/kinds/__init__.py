"""The kinds of windows as a reconcile judges them: one module a kind, chosen by what the definition's kind is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rivertwice.definition import Definition, Intervals, Kind, Sessions, Stateful, TumblingHopping
from rivertwice.reconcile.gaps import SkippedRange
from rivertwice.reconcile.kinds.intervals import IntervalJudge
from rivertwice.reconcile.kinds.judge import Judge
from rivertwice.reconcile.kinds.sessions import SessionJudge
from rivertwice.reconcile.kinds.stateful import StatefulJudge
from rivertwice.reconcile.kinds.tumbling_hopping import WindowJudge
from rivertwice.reconcile.rederive import Chain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Judge", "JudgeInput", "judge_of"]


@dataclass(frozen=True)
class JudgeInput:
    """What a judge takes.

    Attributes:
        rows: view to accepted rows with `_index`, `_late_ms` and `_group`.
        amended: view to what dead letters should have been (`timeline.dead_cure.amended_rows`), where that is applied.
        jumps: the accepted gaps of the path, which the order of a fold depends on.
        own: number of an older definition (`WindowJudge`).
        barred: ranges of event time over which the SQL throws (`reconcile.thrown`).
    """

    definition: Definition
    rows: Mapping[str, DataFrame]
    chain: Chain
    amended: Mapping[str, DataFrame] = field(default_factory=dict)
    jumps: Sequence[SkippedRange] = ()
    own: int | None = None
    barred: Sequence[tuple[int, int]] = ()


def _judge_windows(spark: SparkSession, taken: JudgeInput) -> Judge:
    ((view, rows),) = taken.rows.items()
    return WindowJudge(
        spark, taken.definition, rows, amended=taken.amended.get(view), own=taken.own, barred=taken.barred
    )


def _judge_sessions(spark: SparkSession, taken: JudgeInput) -> Judge:
    ((view, rows),) = taken.rows.items()
    return SessionJudge(spark, taken.definition, rows, taken.chain, taken.amended.get(view), taken.barred)


def _judge_intervals(spark: SparkSession, taken: JudgeInput) -> Judge:
    return IntervalJudge(spark, taken.definition, taken.rows, taken.chain, taken.amended, taken.barred)


def _judge_states(spark: SparkSession, taken: JudgeInput) -> Judge:
    return StatefulJudge(spark, taken.definition, taken.rows, taken.jumps)


_JUDGES: Mapping[type[Kind], Callable[[SparkSession, JudgeInput], Judge]] = {
    TumblingHopping: _judge_windows,
    Sessions: _judge_sessions,
    Intervals: _judge_intervals,
    Stateful: _judge_states,
}


def judge_of(spark: SparkSession, taken: JudgeInput) -> Judge:
    """Return what judges the definition's kind of windows."""
    return _JUDGES[type(taken.definition.window.kind)](spark, taken)
