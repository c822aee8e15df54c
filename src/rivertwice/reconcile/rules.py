"""Which late rule a definition's windows have."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from rivertwice.pipeline.definition import Definition
from rivertwice.reconcile.fold_rule import FoldRule
from rivertwice.reconcile.late_rule import LateRule
from rivertwice.reconcile.rederive import Chain
from rivertwice.reconcile.session_rule import SessionRule
from rivertwice.reconcile.slice_rule import SliceRule


def late_rule(spark: SparkSession, definition: Definition, rows: DataFrame, chain: Chain) -> LateRule:
    """Return the late rule of the definition's windows over accepted rows with `_index`, `_late_ms` and `_group`."""
    if definition.window.is_fold:
        return FoldRule(spark, definition, rows)
    if definition.window.is_session:
        return SessionRule(spark, definition, rows, chain)
    if definition.window.is_sliced:
        return SliceRule(spark, definition, rows)
    return LateRule(spark, definition, rows)
