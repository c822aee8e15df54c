"""Checks of a definition that need Spark: its plan, its columns, its window, its count column."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.errors import DefinitionError
from rivertwice.instants import EPOCH
from rivertwice.pipeline.compile import compile_sources, result_schema, rows_schema, run_sql, transform
from rivertwice.pipeline.fast import fast_plan
from rivertwice.pipeline.model import RECORD, Definition
from rivertwice.pipeline.plan_check import (
    HOPPING_NODES,
    RESULT_NODES,
    ROW_NODES,
    computed_keys,
    find_plan_refusals,
    grouping_sizes,
    inexact_columns,
    leaf_columns,
)
from rivertwice.pipeline.rules import InSet, Pattern
from rivertwice.pipeline.slice_check import find_slice_refusals
from rivertwice.pipeline.slices import view_schema
from rivertwice.pipeline.source_model import Source
from rivertwice.pipeline.views import run_views
from rivertwice.pipeline.windows import Window

SAMPLES = 24
_ROWS_FORM = "write SELECT * FROM view WHERE ..."


def check_definition(spark: SparkSession, definition: Definition) -> None:
    """Analyse the definition's SQL with Spark and run it over made-up rows.

    Raises:
        DefinitionError: every finding with its remedy, one a line.
    """
    try:
        rows = {}
        for view, source in definition.sources.items():
            _check_patterns(spark, source)
            rows[view] = spark.createDataFrame(sample_rows(definition, source), rows_schema(source))
        findings = [] if definition.rows_sql is None else _rows_findings(spark, definition, *rows.values())
        findings += _fast_findings(spark, definition) if definition.fast else []
        if not findings:
            result_schema(spark, definition)
            # What a fold makes of made-up events says nothing: it may rightly refuse each of them.
            if not definition.window.is_fold:
                result, findings = _judged(spark, definition, rows)
                # Only a plan that holds nothing refused is run.
                findings = findings or _window_findings(definition, result.toArrow().to_pylist())
    except PySparkException as error:
        message = f"Spark refuses the SQL of {definition.name!r}: {error}; correct it"
        raise DefinitionError(message) from error
    if findings:
        raise DefinitionError("\n".join(f"{definition.name}: {finding}" for finding in findings))


def _judged(spark: SparkSession, definition: Definition, rows: Mapping[str, DataFrame]) -> tuple[DataFrame, list[str]]:
    """Return the result over made-up rows, not run yet, and what its plan holds that may not be there."""
    if not definition.window.is_sliced:
        result = transform(spark, definition, *rows.values())
        return result, _transform_findings(definition, result)
    views = {view: spark.createDataFrame([], view_schema(definition, view)) for view in definition.sources}
    plan = run_views(spark, definition.transform_sql, views)
    findings = [*find_slice_refusals(plan, definition), *_inexact(definition, plan)]
    return compile_sources(spark, definition, rows), findings


def sample_rows(definition: Definition, source: Source) -> list[tuple[Any, ...]]:
    """Return made-up accepted rows: several windows, every rule's values, nulls where they are allowed."""
    base = datetime(2020, 1, 1, tzinfo=UTC)
    rows = []
    window = definition.window
    for index in range(SAMPLES):
        pause = index // 5 * 2 * window.length if window.is_session else timedelta(0)
        event = base + index * window.length * 3 / 8 + pause
        fields = [event if name == source.event_time else _value(source, name, index) for name in source.schema_]
        rows.append((*fields, *(None for _ in source.marks), 0, index, event))
    return rows


def _value(source: Source, name: str, index: int) -> Any:
    kind = source.schema_[name]
    if name not in source.required_fields and index % 4 == 3:
        return None
    for rule in source.rules:
        if isinstance(rule, InSet) and rule.field == name:
            chosen = rule.values[index % len(rule.values)]
            return float(chosen) if kind == "double" else Decimal(chosen) if kind.startswith("dec") else chosen
    makers: dict[str, Callable[[], Any]] = {
        "string": lambda: f"s{index % 3}",
        "boolean": lambda: index % 2 == 0,
        "double": lambda: index / 4,
        "timestamp": lambda: EPOCH + timedelta(hours=index),
    }
    if kind in makers:
        return makers[kind]()
    return Decimal(0) if kind.startswith("decimal") else index


def _check_patterns(spark: SparkSession, source: Source) -> None:
    patterns = [rule for rule in source.rules if isinstance(rule, Pattern)]
    for rule in patterns:
        try:
            spark.range(1).select(F.lit("x").rlike(rf"\A(?:{rule.pattern})\z")).collect()
        except PySparkException as error:
            message = f"rule {rule.name!r}: Java cannot read the pattern {rule.pattern!r}; correct it"
            raise DefinitionError(message) from error


def _rows_findings(spark: SparkSession, definition: Definition, rows: DataFrame) -> list[str]:
    if definition.rows_sql is None:
        return []
    kept = run_sql(spark, definition, definition.rows_sql, rows)
    findings = find_plan_refusals(kept, ROW_NODES, compared=definition.compare)
    if kept.schema != rows.schema:
        findings.append(
            f"rows.sql yields the columns {kept.columns}, not its view's {rows.columns}; it may only leave rows out: "
            f"{_ROWS_FORM}"
        )
    return findings


def _fast_findings(spark: SparkSession, definition: Definition) -> list[str]:
    assert definition.fast is not None
    result = fast_plan(spark, definition)
    findings = [f"fast.sql: {one}" for one in find_plan_refusals(result, ROW_NODES, compared=True)]
    absent = [name for name in (RECORD, definition.fast.key) if name not in result.columns]
    if absent:
        findings.append(
            f"fast.sql yields {result.columns}, but not {absent[0]!r}; select `record`, which tells a row's record, and the key"
        )
    elif computed_keys(result, [RECORD]):
        findings.append("fast.sql computes `record`; select it as it is, for it tells which record a row is of")
    return findings


def _transform_findings(definition: Definition, result: DataFrame) -> list[str]:
    view, source = definition.source
    nodes = RESULT_NODES | HOPPING_NODES if definition.window.passes > 1 else RESULT_NODES
    findings = find_plan_refusals(result, nodes, compared=definition.compare)
    foreign = [names for names in leaf_columns(result) if not set(source.schema_) <= set(names)]
    if foreign:
        findings.append(f"transform.sql reads a relation with the columns {foreign[0]}; it may read only {view!r}")
    grouped = grouping_sizes(result)
    if grouped != [1 + len(definition.keys)]:
        findings.append(
            f"transform.sql groups by {grouped} expressions, but window and keys are {1 + len(definition.keys)}, so "
            "they would not identify a result row; group by the window and exactly the keys"
        )
    computed = computed_keys(result, definition.keys) if definition.window.is_session else []
    findings += [
        f"transform.sql computes the key {name!r}, but a session's key must be the field itself, so that what the stream "
        f"did with each key can be derived: group by {name}, and rename or clean it before the log"
        for name in computed
    ]
    return [*findings, *_inexact(definition, result)]


def _inexact(definition: Definition, result: DataFrame) -> list[str]:
    exact = {name for name, column in definition.columns.items() if column.compare == "exact"} | set(definition.keys)
    wrong = sorted(inexact_columns(result) & exact) if definition.compare else []
    return [
        f"column {name!r} adds floating-point numbers, whose sum depends on their order; cast to DECIMAL before "
        "adding, or declare compare: tolerance"
        for name in wrong
    ]


def _window_findings(definition: Definition, rows: list[dict[str, Any]]) -> list[str]:
    window = definition.window
    for row in rows:
        start, end = row[window.start_column], row[window.end_column]
        if not _is_window(window, start, end):
            return [
                f"transform.sql yields the window [{start}, {end}), but the definition's windows last {window.text} from "
                f"{'the first event on' if window.is_session else 'the epoch on'}; take both columns from {window.function}()"
            ]
    if definition.count_column is None:
        return []
    counted = sum(row[definition.count_column] or 0 for row in rows)
    pairs = SAMPLES * window.passes
    if counted != pairs:
        each = (
            "row exactly once"
            if window.passes == 1
            else f"row once in each of its {window.passes} windows, {pairs} times"
        )
        return [
            f"count_column {definition.count_column!r} adds up to {counted} over {SAMPLES} rows; it must count every "
            f"{each}: use count(*)"
        ]
    return []


def _is_window(window: Window, start: datetime, end: datetime) -> bool:
    if window.is_session:
        return end - start >= window.length
    return end - start == window.length and not (start - EPOCH) % window.step
