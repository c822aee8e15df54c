"""The late rule of slices: a record is late in a window as in a hopping one, and the transform runs once over all pairs in time.

A slice's rows are made of all records of its window and of nothing else, so what the stream must have emitted is the same SELECT over the
(record, window) pairs that were not late. Which of a window's late records changed which of its rows is not asked: a row
that differs is LATE by all of them, one that is the same agrees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import functions as F

from rivertwice.pipeline.compile import compile_pairs
from rivertwice.pipeline.definition import Definition
from rivertwice.reconcile.gaps import GAP_INDEX
from rivertwice.reconcile.late_rule import LateRule
from rivertwice.reconcile.model import LateRow, Shape


class SliceRule(LateRule):
    """The accepted rows of a path, each pair with a slice's window late or in time."""

    def truth(self, definition: Definition) -> pa.Table:
        """Return the batch result over all accepted rows."""
        text = (definition.transform_sql, None)
        if text not in self._truths:
            self._truths[text] = compile_pairs(self._spark, definition, self._pairs).toArrow()
        return self._truths[text]

    def expected(self, definition: Definition) -> pa.Table:
        """Return what the stream must emit in the end: the result over the pairs it read and did not drop."""
        kept = self._pairs.where(~F.col("_late") & (F.col("_index") != GAP_INDEX))
        return compile_pairs(self._spark, definition, kept).toArrow()

    def truth_as_of(self, ends: Mapping[int, int], windows_end_ms: Iterable[int]) -> pa.Table:
        """Return the batch result over the rows below `ends` (partition to offset), for the given windows only."""
        rows = self._pairs_below(ends, windows_end_ms)
        return compile_pairs(self._spark, self._definition, rows).toArrow()

    def late_rows(self, shape: Shape, batches: Sequence[int]) -> list[LateRow]:
        """Return every late pair by the record's address; it belongs to no single row of its window."""
        return super().late_rows(Shape((), shape.columns), batches)
