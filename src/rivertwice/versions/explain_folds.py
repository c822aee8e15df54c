"""Rows of two folds that differ: none is late; where the order of a key's records is not the log's, no order is the right one."""

from __future__ import annotations

import functools
import operator

from pyspark.sql import functions as F

from rivertwice.pipeline.fast import partition_of
from rivertwice.pipeline.names import RECORD, SOURCE
from rivertwice.versions.explained import Explained, Unexplained, rest_of

NO_ORDER = "their keys have records in several partitions, which each stream read in an order of its own, so which row is right is not known"


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
