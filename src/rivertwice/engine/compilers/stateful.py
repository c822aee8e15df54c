"""Stateful processing: `fold.py` follows each key through the events, in the order in which they were read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rivertwice.core import Row
from rivertwice.definition import Definition
from rivertwice.engine.compilers.compiler import Compiler
from rivertwice.engine.folds import (
    AS_READ,
    NUMBER,
    batch_fold,
    find_hanging,
    fold_otherwise,
    numbered_fold,
    packed,
    stream_fold,
)
from rivertwice.engine.relations import with_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class StatefulCompiler(Compiler):
    """A Python function with a state of each key, in stream and batch."""

    plan_check = None  # made-up events prove nothing: the function may rightly refuse each of them

    def stream(self, spark: SparkSession, definition: Definition, branches: Mapping[str, DataFrame]) -> DataFrame:
        """Return the rows of the function, event by event."""
        del spark
        return stream_fold(definition, branches)

    def batch(self, spark: SparkSession, definition: Definition, rows: Mapping[str, DataFrame]) -> DataFrame:
        """Return the fold over the rows of each view, source by source."""
        del spark
        return batch_fold(definition, rows)

    def recompute_case(
        self, spark: SparkSession, definition: Definition, rows: Mapping[str, DataFrame], batch_of: Sequence[int]
    ) -> tuple[list[Row], list[str]]:
        """Return the rows of a fold in the order in which the micro-batches read the events, as a reconcile folds them.

        The second value has one sentence for each key that violates `order: any`.
        """
        numbered = {view: with_batch(spark, frame, batch_of) for view, frame in rows.items()}
        events = packed(definition, numbered, "_index").persist()
        try:
            as_read = numbered_fold(definition, events, "_index").toArrow()
            others = fold_otherwise(definition, events) if definition.order == "any" else {}
        finally:
            events.unpersist()
        dependent = find_hanging(definition, {AS_READ: as_read, **others}).shown
        conflicts = [
            f"order: the newest row of {key} depends on the order, against order: any: {how}"
            for key, how in dependent.items()
        ]
        return as_read.drop_columns([NUMBER]).to_pylist(), conflicts
