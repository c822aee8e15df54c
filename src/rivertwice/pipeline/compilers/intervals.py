"""Intervals: the stream keeps raw records, and one SQL statement computes each window's rows from them when it closes."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.pipeline.compilers.compiler import Compiler
from rivertwice.pipeline.compilers.tumbling_hopping import GroupedPlanCheck
from rivertwice.pipeline.interval_check import find_interval_refusals
from rivertwice.pipeline.interval_rows import (
    IntervalSink,
    RowsOf,
    VersionsAt,
    compute_interval_rows,
    interval_views,
    stream_intervals,
    view_schema,
)
from rivertwice.pipeline.model import Definition
from rivertwice.pipeline.relations import with_window_end
from rivertwice.pipeline.views import run_views


def interval_result(spark: SparkSession, definition: Definition, rows: Mapping[str, DataFrame]) -> DataFrame:
    """Return the result over accepted rows of each view, window by window."""
    pairs = {view: with_window_end(rows[view], definition, view) for view in definition.streams}
    versions = {view: rows[view].withColumn("_index", F.lit(0)) for view in definition.tables}
    return compute_interval_rows(spark, definition, interval_views(definition, pairs, versions))


class IntervalPlanCheck(GroupedPlanCheck):
    """Judges a statement over the records of one window, which must not depend on those of another."""

    def plan(self, spark: SparkSession, definition: Definition, samples: Mapping[str, DataFrame]) -> DataFrame:
        """Return the statement's result over no rows of all the views that it sees."""
        del samples
        views = {view: spark.createDataFrame([], view_schema(definition, view)) for view in definition.sources}
        return run_views(spark, definition.transform_sql, views)

    def find_refusals(self, definition: Definition, plan: DataFrame) -> list[str]:
        """Return what could join records of two windows, or what depends on an order that is not total."""
        return find_interval_refusals(plan, definition)

    def run(
        self, spark: SparkSession, definition: Definition, samples: Mapping[str, DataFrame], plan: DataFrame
    ) -> DataFrame:
        """Return the result window by window."""
        del plan
        return interval_result(spark, definition, samples)


class IntervalCompiler(Compiler):
    """Raw records of a window in the state; Spark's SQL over them when it closes, as in batch."""

    plan_check = IntervalPlanCheck()

    def stream(self, spark: SparkSession, definition: Definition, branches: Mapping[str, DataFrame]) -> DataFrame:
        """Return the records of closed windows: `batch_rows` computes the result from them."""
        del spark
        return stream_intervals(definition, branches)

    def batch(self, spark: SparkSession, definition: Definition, rows: Mapping[str, DataFrame]) -> DataFrame:
        """Return the same result over the records of each window."""
        return interval_result(spark, definition, rows)

    frame_is_result = False

    def batch_rows(self, definition: Definition, versions: VersionsAt) -> RowsOf:
        """Return the function that computes the result from the records of closed windows."""
        return IntervalSink(definition, versions).rows
