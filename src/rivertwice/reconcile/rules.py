"""Which late rule a definition's windows have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from rivertwice.pipeline.definition import Definition
from rivertwice.reconcile.fold_rule import FoldRule
from rivertwice.reconcile.gaps import Jump
from rivertwice.reconcile.late_rule import LateRule, Rule
from rivertwice.reconcile.rederive import Chain
from rivertwice.reconcile.session_rule import SessionRule
from rivertwice.reconcile.slice_rule import SliceRule


def late_rule(
    spark: SparkSession,
    definition: Definition,
    rows: Mapping[str, DataFrame],
    chain: Chain,
    amended: Mapping[str, DataFrame] | None = None,
    jumps: Sequence[Jump] = (),
    own: int | None = None,
) -> Rule:
    """Return the rule of the definition's windows over view to accepted rows with `_index`, `_late_ms` and `_group`.

    `amended` gives view to what dead letters should have been (`deadletters.cure.amended_rows`), where that is applied; `jumps`
    are the accepted gaps of the path, which a fold's order depends on; `own` is the number of an older definition (`LateRule`).
    """
    cures = amended or {}
    if definition.window.is_sliced:
        return SliceRule(spark, definition, rows, chain, cures)
    if definition.window.is_fold:
        return FoldRule(spark, definition, rows, jumps)
    ((view, only),) = rows.items()
    if definition.window.is_session:
        return SessionRule(spark, definition, only, chain, cures.get(view))
    return LateRule(spark, definition, only, amended=cures.get(view), own=own)
