"""The interface of the computation of a kind of windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rivertwice.core import Row
from rivertwice.definition import Definition
from rivertwice.engine.interval_rows import RowsOf, VersionsAt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class PlanCheck(Protocol):
    """Judges the SQL of a definition by Spark's plan of it, and by its result over made-up rows."""

    def plan(self, spark: SparkSession, definition: Definition, samples: Mapping[str, DataFrame]) -> DataFrame:
        """Return the result over made-up accepted rows of each view, analysed but not run."""

    def find_refusals(self, definition: Definition, plan: DataFrame) -> list[str]:
        """Return a sentence for each part of the plan for which stream and recompute could differ."""

    def run(
        self, spark: SparkSession, definition: Definition, samples: Mapping[str, DataFrame], plan: DataFrame
    ) -> DataFrame:
        """Return the result over the made-up rows, to be run."""

    def find_window_conflicts(
        self, definition: Definition, rows: Sequence[Mapping[str, Any]], samples: int
    ) -> list[str]:
        """Return the conflicts in windows or counts of the result rows, which come from this number of made-up rows."""


class Compiler(ABC):
    """Computes one kind of windows. It has no state: each method takes a definition.

    Attributes:
        plan_check: judges the definition's SQL; None for a kind that is not written in SQL.
        frame_is_result: whether a micro-batch's frame is its result; else `batch_rows` makes that of it.
    """

    plan_check: PlanCheck | None
    frame_is_result: ClassVar[bool] = True

    @abstractmethod
    def stream(self, spark: SparkSession, definition: Definition, branches: Mapping[str, DataFrame]) -> DataFrame:
        """Return the streaming frame over the accepted rows of each stream, with its own watermark."""

    @abstractmethod
    def batch(self, spark: SparkSession, definition: Definition, rows: Mapping[str, DataFrame]) -> DataFrame:
        """Return the result over the accepted rows of each view, all of them or any subset."""

    def batch_rows(self, definition: Definition, versions: VersionsAt) -> RowsOf:
        """Return the function that turns a micro-batch of the stream's frame, and its number, into result rows."""
        del definition, versions
        return lambda frame, _: frame.toArrow()

    def recompute_case(
        self, spark: SparkSession, definition: Definition, rows: Mapping[str, DataFrame], batch_of: Sequence[int]
    ) -> tuple[list[Row], list[str]]:
        """Return the result rows of a case, and what contradicts the definition, one sentence each.

        Args:
            rows: the accepted rows of each view; offsets increase over all views.
            batch_of: the micro-batch that read the record, by offset.
        """
        del batch_of
        return self.batch(spark, definition, rows).toArrow().to_pylist(), []
