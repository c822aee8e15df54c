"""Rows of two definitions side by side, found by Spark: the driver gets counts, and as many examples as are asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import NumericType

from rivertwice.definition import Definition
from rivertwice.versions.try_model import (
    CHANGED,
    DECLARED,
    EQUAL,
    ONLY_NEW,
    ONLY_OLD,
    REPEATED,
    ColumnChange,
    Comparison,
    Example,
    Expected,
    RowChange,
)

OLD, NEW = "_old", "_new"
_WINDOW = ("_start", "_end")


def count_rows(old: DataFrame, new: DataFrame) -> Comparison:
    """Return the counts of two results whose rows cannot be put beside each other."""
    return Comparison(old.count(), new.count())


def compare_rows(
    old: DataFrame,
    new: DataFrame,
    old_definition: Definition,
    new_definition: Definition,
    limit: int,
    expected: Sequence[Expected] = (),
) -> Comparison:
    """Compare two results by window and key; see `judge_rows`.

    Args:
        old: rows of the running definition, or what is served.
        new: rows of the changed definition.
        new_definition: the changed one, with the same windows and keys.
        limit: examples that are returned at most.
    """
    with kept(judge_rows(old, new, old_definition, new_definition, expected)) as judged:
        counts = count_judged(judged, old, new, old_definition, new_definition, len(expected))
        if not counts.differing:
            return counts
        return replace(counts, examples=find_examples(judged, old_definition, new_definition, limit))


@contextmanager
def kept(rows: DataFrame) -> Iterator[DataFrame]:
    """Let Spark keep rows, in memory or on disk, while they are used several times."""
    rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield rows
    finally:
        rows.unpersist()


def _shared(old: Definition, new: Definition) -> list[str]:
    """Return the columns that both results have, in the new one's order."""
    return [name for name in new.columns if name in old.columns]


def differs() -> Column:
    """Return whether a judged row is neither equal nor differs as declared."""
    return ~F.col("_kind").isin(EQUAL, DECLARED)


def judge_rows(
    old: DataFrame,
    new: DataFrame,
    old_definition: Definition,
    new_definition: Definition,
    expected: Sequence[Expected] = (),
) -> DataFrame:
    """Return a row for each window and key of two results: `_start`, `_end`, the keys, what was found (`_kind`), and both rows.

    Values are compared as a reconcile does (`definition.parts.same_value`), by the tolerances of the new definition. A column that
    changed its type is compared as a number if both types are numbers, else as text.

    Args:
        old: rows of the running definition, or what is served.
        new: rows of the changed definition.
        new_definition: the changed one, with the same windows and keys.
        expected: differences that are meant; a row with one is `declared`, and `_rule` is the place of the first that has it.
    """
    keys = new_definition.row_keys
    columns = _shared(old_definition, new_definition)
    sides = _side(old, old_definition, keys, OLD, new, new_definition).unionByName(
        _side(new, new_definition, keys, NEW, old, old_definition)
    )
    pairs = sides.groupBy(*_WINDOW, *keys).agg(
        *(F.count(side).alias(f"_n{side}") for side in (OLD, NEW)),
        *(F.first(side, ignorenulls=True).alias(side) for side in (OLD, NEW)),
    )
    changed = [~_same(old, new, name, new_definition) for name in columns]
    judged = pairs.withColumn("_differs", F.array(*changed) if changed else F.array().cast("array<boolean>"))
    return _declare(judged.withColumn("_kind", _kind()), columns, expected)


def _declare(judged: DataFrame, columns: Sequence[str], expected: Sequence[Expected]) -> DataFrame:
    """Return the rows with the place of the first declaration that has each (`_rule`; null: none), which makes it `declared`."""
    if not expected:
        return judged.withColumn("_rule", F.lit(None).cast("int"))
    named = judged.select(
        "*",
        F.col(OLD).alias("old"),
        F.col(NEW).alias("new"),
        F.col(_WINDOW[0]).alias("window_start"),
        F.col(_WINDOW[1]).alias("window_end"),
    )
    places = [F.when(_has(rule, columns), F.lit(place)) for place, rule in enumerate(expected)]
    named = named.withColumn("_rule", F.coalesce(*places))
    kind = F.when(F.col("_rule").isNotNull(), F.lit(DECLARED)).otherwise(F.col("_kind"))
    return named.withColumn("_kind", kind).select(*judged.columns, "_rule")


def _has(rule: Expected, columns: Sequence[str]) -> Column:
    """Return whether a declaration has a row: no column differs that it does not name, and its predicate is true."""
    others = [place for place, name in enumerate(columns) if name not in rule.columns]
    is_one = F.col("_kind") == rule.change
    for place in others if rule.change == CHANGED else []:
        is_one = is_one & ~F.col("_differs")[place]
    return is_one if rule.where is None else is_one & F.coalesce(F.expr(rule.where), F.lit(False))


def _side(
    rows: DataFrame,
    definition: Definition,
    keys: Sequence[str],
    side: str,
    other: DataFrame,
    other_definition: Definition,
) -> DataFrame:
    """Return a side's rows: window, keys, its columns as a struct under the side's name, null under the other's."""
    window = definition.window
    own = F.struct(*(F.col(name) for name in definition.columns)).alias(side)
    shape = other.select(F.struct(*(F.col(name) for name in other_definition.columns)).alias("values")).schema["values"]
    absent = F.lit(None).cast(shape.dataType).alias(NEW if side == OLD else OLD)
    return rows.select(
        F.col(window.start_column).alias(_WINDOW[0]),
        F.col(window.end_column).alias(_WINDOW[1]),
        *(F.col(name) for name in keys),
        own,
        absent,
    )


def _same(old: DataFrame, new: DataFrame, name: str, definition: Definition) -> Column:
    """Return whether the two values of a column count as equal; two nulls and two NaN do."""
    before, after = F.col(OLD)[name], F.col(NEW)[name]
    if old.schema[name].dataType != new.schema[name].dataType and not _are_numbers(old, new, name):
        return before.cast("string").eqNullSafe(after.cast("string"))
    tolerance = definition.columns[name].tolerance
    equal = before.eqNullSafe(after)
    if tolerance is None or not _are_numbers(old, new, name):
        return equal
    return equal | F.coalesce(_distance(name) <= F.lit(tolerance), F.lit(False))


def _are_numbers(old: DataFrame, new: DataFrame, name: str) -> bool:
    return all(isinstance(rows.schema[name].dataType, NumericType) for rows in (old, new))


def _distance(name: str) -> Column:
    """Return how far two numbers are from each other; as doubles, which never overflow."""
    return F.abs(F.col(NEW)[name].cast("double") - F.col(OLD)[name].cast("double"))


def _kind() -> Column:
    many = (F.col(f"_n{OLD}") > 1) | (F.col(f"_n{NEW}") > 1)
    return (
        F.when(many, REPEATED)
        .when(F.col(f"_n{NEW}") == 0, ONLY_OLD)
        .when(F.col(f"_n{OLD}") == 0, ONLY_NEW)
        .when(F.array_contains("_differs", True), CHANGED)
        .otherwise(EQUAL)
    )


def count_judged(
    judged: DataFrame,
    old: DataFrame,
    new: DataFrame,
    old_definition: Definition,
    new_definition: Definition,
    declarations: int,
) -> Comparison:
    """Return all counts of judged rows, by one job: by window first, so that windows are counted too.

    Args:
        judged: by `judge_rows`.
        old: the old side's rows, asked for the types of their columns alone.
        new: the new side's, likewise.
    """
    columns = _shared(old_definition, new_definition)
    kinds = {"equal": EQUAL, "changed": CHANGED, "only_new": ONLY_NEW, "only_old": ONLY_OLD, "repeated": REPEATED}
    changed = [(F.col("_kind") == CHANGED) & F.col("_differs")[place] for place in range(len(columns))]
    sums = {
        **{name: F.count_if(F.col("_kind") == kind) for name, kind in kinds.items()},
        "old_rows": F.sum(f"_n{OLD}"),
        "new_rows": F.sum(f"_n{NEW}"),
        **{f"rows_{place}": F.count_if(is_one) for place, is_one in enumerate(changed)},
        **{f"declared_{place}": F.count_if(F.col("_rule") == place) for place in range(declarations)},
    }
    largest = {
        f"largest_{place}": F.max(F.when(changed[place], _distance(name)))
        for place, name in enumerate(columns)
        if _are_numbers(old, new, name)
    }
    by_window = judged.groupBy(*_WINDOW).agg(
        *(value.alias(name) for name, value in {**sums, **largest}.items()),
        F.max(differs()).alias("_differing"),
    )
    (row,) = (
        by_window.agg(
            *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in sums),
            *(F.max(name).alias(name) for name in largest),
            F.count(F.lit(1)).alias("windows"),
            F.count_if("_differing").alias("windows_differing"),
        )
        .toArrow()
        .to_pylist()
    )
    found = [
        ColumnChange(name, row[f"rows_{place}"], _number(row.get(f"largest_{place}")))
        for place, name in enumerate(columns)
        if row[f"rows_{place}"]
    ]
    names = ("old_rows", "new_rows", *kinds, "windows", "windows_differing")
    return Comparison(
        **{name: row[name] for name in names},
        columns=tuple(sorted(found, key=lambda each: -each.rows)),
        declared=tuple(row[f"declared_{place}"] for place in range(declarations)),
    )


def _number(value: float | None) -> float | None:
    """Return a distance; none if one of the values is not a number."""
    return None if value is None or math.isnan(value) else value


def find_examples(judged: DataFrame, old: Definition, new: Definition, limit: int) -> tuple[Example, ...]:
    """Return the first judged rows that differ, by window and key, with the definitions of both sides."""
    keys, columns = new.row_keys, _shared(old, new)
    sides = {OLD: list(old.columns), NEW: list(new.columns)}
    # Arrow refuses an absent struct with fields that cannot be null, so each field comes by itself.
    fields = {(side, name): f"_{place}{side}" for side, own in sides.items() for place, name in enumerate(own)}
    values = [F.col(side)[name].alias(field) for (side, name), field in fields.items()]
    counts = [f"_n{side}" for side in sides]
    first = judged.where(differs()).orderBy(*_WINDOW, *keys).limit(limit)
    rows = first.select(*_WINDOW, *keys, *counts, "_kind", "_differs", *values).toArrow().to_pylist()
    return tuple(
        Example(
            kind=row["_kind"],
            window_start=row["_start"],
            window_end=row["_end"],
            key={key: row[key] for key in keys},
            values=_values(row, columns, sides, fields),
        )
        for row in rows
    )


def _values(
    row: Mapping[str, Any],
    columns: Sequence[str],
    sides: Mapping[str, Sequence[str]],
    fields: Mapping[tuple[str, str], str],
) -> dict[str, RowChange]:
    if row["_kind"] == REPEATED:
        return {"(rows)": RowChange(row[f"_n{OLD}"], row[f"_n{NEW}"])}
    if row["_kind"] == CHANGED:
        names = [name for name, differs in zip(columns, row["_differs"], strict=True) if differs]
    else:
        names = list(sides[NEW] if row["_kind"] == ONLY_NEW else sides[OLD])
    return {
        name: RowChange(*(row[fields[side, name]] if (side, name) in fields else None for side in (OLD, NEW)))
        for name in names
    }
