"""Tumbling and hopping windows: one SQL statement over the one source, which groups by window() and the keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rivertwice.core import EPOCH
from rivertwice.definition import Definition, Window
from rivertwice.engine.compilers.compiler import Compiler
from rivertwice.engine.plan_check import HOPPING_NODES, RESULT_NODES, find_plan_refusals, grouping_sizes, leaf_columns
from rivertwice.engine.relations import included, transform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class GroupedPlanCheck:
    """Judges a statement that groups by a window and exactly the keys.

    Attributes:
        origin: the start from which windows are cut, in words.
    """

    origin = "the epoch on"

    def plan(self, spark: SparkSession, definition: Definition, samples: Mapping[str, DataFrame]) -> DataFrame:
        """Return the transform over the made-up rows; `rows.sql` is left out, so that each of them counts."""
        return transform(spark, definition, *samples.values())

    def find_refusals(self, definition: Definition, plan: DataFrame) -> list[str]:
        """Return which parts read another relation, do not group by window and keys, or cannot be repeated."""
        view, source = definition.source
        nodes = RESULT_NODES | HOPPING_NODES if definition.window.passes > 1 else RESULT_NODES
        findings = find_plan_refusals(plan, nodes, compared=definition.compare)
        foreign = [names for names in leaf_columns(plan) if not set(source.schema_) <= set(names)]
        if foreign:
            findings.append(f"it reads a relation with the columns {foreign[0]}; it may read only {view!r}")
        grouped = grouping_sizes(plan)
        if grouped != [1 + len(definition.keys)]:
            findings.append(
                f"it groups by {grouped} expressions, but window and keys are {1 + len(definition.keys)}, so "
                "they would not identify a result row; group by the window and exactly the keys"
            )
        return findings

    def run(
        self, spark: SparkSession, definition: Definition, samples: Mapping[str, DataFrame], plan: DataFrame
    ) -> DataFrame:
        """Return the plan itself."""
        del spark, definition, samples
        return plan

    def find_window_conflicts(
        self, definition: Definition, rows: Sequence[Mapping[str, Any]], samples: int
    ) -> list[str]:
        """Return the first row whose window is not the definition's, or counts that do not add up."""
        window = definition.window
        for row in rows:
            start, end = row[window.start_column], row[window.end_column]
            if not self.is_window(window, start, end):
                return [
                    f"it yields the window [{start}, {end}), but the definition's windows last {window.text} from "
                    f"{self.origin}; take both columns from {window.function}()"
                ]
        return _count_conflicts(definition, rows, samples)

    def is_window(self, window: Window, start: datetime, end: datetime) -> bool:
        """Say whether a window of the result is one of the definition's."""
        return end - start == window.length and not (start - EPOCH) % window.step


def _count_conflicts(definition: Definition, rows: Sequence[Mapping[str, Any]], samples: int) -> list[str]:
    if definition.count_column is None:
        return []
    passes = definition.window.passes
    counted = sum(row[definition.count_column] or 0 for row in rows)
    pairs = samples * passes
    if counted == pairs:
        return []
    each = "row exactly once" if passes == 1 else f"row once in each of its {passes} windows, {pairs} times"
    return [
        f"count_column {definition.count_column!r} adds up to {counted} over {samples} rows; it must count every "
        f"{each}: use count(*)"
    ]


class WindowCompiler(Compiler):
    """Spark's own windowed aggregation, in stream and batch."""

    plan_check = GroupedPlanCheck()

    def stream(self, spark: SparkSession, definition: Definition, branches: Mapping[str, DataFrame]) -> DataFrame:
        """Return the result of `rows.sql` and the transform over the one stream."""
        return self.batch(spark, definition, branches)

    def batch(self, spark: SparkSession, definition: Definition, rows: Mapping[str, DataFrame]) -> DataFrame:
        """Return the result of `rows.sql` and the transform over the accepted rows of the one source."""
        (accepted_rows,) = rows.values()
        return transform(spark, definition, included(spark, definition, accepted_rows))
