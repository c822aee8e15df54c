"""Checks of a definition that need Spark: its plan, its columns, its window, its count column."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.core import EPOCH, DefinitionError, did_you_mean, meant
from rivertwice.definition import RECORD, Definition, DefinitionFiles, InSet, Pattern, Range, Refusals, Source
from rivertwice.engine.compile import result_schema, row_checks
from rivertwice.engine.compilers import compiler_of
from rivertwice.engine.plan_check import (
    ROW_NODES,
    column_sources,
    computed_keys,
    find_plan_refusals,
    inexact_columns,
    unfit_keys,
)
from rivertwice.engine.relations import rows_schema, run_sql
from rivertwice.engine.remote import planning
from rivertwice.engine.row_errors import find_group_risks
from rivertwice.engine.views import fast_plan

SAMPLES = 24
_ROWS_FORM = "write SELECT * FROM view WHERE ..."
_PLACE = re.compile(r"\(?\bline (\d+),? pos(ition)? (\d+)\)?")
_UNKNOWN = re.compile(
    r"\[(UNRESOLVED_COLUMN|TABLE_OR_VIEW_NOT_FOUND|UNRESOLVED_ROUTINE)[^\]]*\][^`]*`((?:[^`]|`\.`)+)`"
)
_CLASSED = re.compile(r"\[([A-Z][A-Z0-9_]+)(?:\.[A-Z0-9_]+)?\][^\n]*")
_WRAPPERS = ("STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR")
_STATE = re.compile(r"\s*SQLSTATE: \w+")


@dataclass
class Examined:
    """The findings of Spark about a definition.

    Attributes:
        findings: why it is refused, one sentence each, with file, line and column if Spark knows them.
        unchecked: what could not be checked, and why; it does not refuse the definition.
        keys: key to the reason why it does not divide the work between tasks; such a definition is exact, but slow.
        risks: expressions that can throw on several records together, which stops the stream.
        columns: result column to the fields that it comes from (`column_sources`).
    """

    findings: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)
    risks: list[str] = field(default_factory=list)
    columns: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)


def examine_definition(spark: SparkSession, definition: Definition, where: str | None = None) -> Examined:
    """Return what Spark finds in a definition.

    Args:
        where: the folder of its files, as messages name it; None: its name.
    """
    with planning(spark) as local:
        return _examine(local, definition, where or definition.name)


def _examine(spark: SparkSession, definition: Definition, where: str) -> Examined:
    examined = Examined()
    rows = {}
    for view, source in definition.sources.items():
        with _named(examined, f"{where}/{DefinitionFiles.YAML_FILE}", spark, definition):
            _check_patterns(spark, source)
        rows[view] = spark.createDataFrame(sample_rows(definition, source), rows_schema(source))
    if definition.rows_sql is not None:
        with _named(examined, f"{where}/{DefinitionFiles.ROWS_FILE}", spark, definition) as report:
            report(_rows_findings(spark, definition, *rows.values()))
    if definition.fast is not None:
        with _named(examined, f"{where}/{DefinitionFiles.FAST_FILE}", spark, definition) as report:
            report(_fast_findings(spark, definition))
    with _named(examined, f"{where}/{definition.window.kind.code_file}", spark, definition) as report:
        _examine_result(spark, definition, rows, examined, report)
    return examined


_Report = Callable[[list[str]], None]


@contextmanager
def _named(examined: Examined, file: str, spark: SparkSession, definition: Definition) -> Iterator[_Report]:
    """Give a function that records findings of a file; an error of Spark about the file's text becomes a finding too."""
    try:
        yield lambda texts: examined.findings.extend(f"{file}: {text}" for text in texts)
    except DefinitionError as error:
        examined.findings.append(f"{file}: {error}")
    except PySparkException as error:
        examined.findings.append(f"{file}: {describe_refusal(error)}{_meant(str(error), spark, definition)}")


def _meant(text: str, spark: SparkSession, definition: Definition) -> str:
    """Return the remedy for Spark's refusal: the nearest name, if it does not know one."""
    match = _UNKNOWN.search(text)
    if match is None:
        return "; correct it"
    known: list[str] = list(definition.sources)
    if match.group(1) == "UNRESOLVED_COLUMN":
        known = [name for source in definition.sources.values() for name in source.schema_]
    if match.group(1) == "UNRESOLVED_ROUTINE":
        known = [row[0] for row in spark.sql("SHOW ALL FUNCTIONS").collect()]
    name = match.group(2).rpartition("`.`")[2]
    return f"; {did_you_mean(name, known)}"


def describe_refusal(error: Exception, verb: str = "Spark refuses the SQL") -> str:
    """Return Spark's refusal of an SQL text in one line that begins with line and column in the text; the plan is left out.

    For an error within a stream, the innermost error gives the reason: the others only report that the stream ended.
    """
    text = str(error)
    place = _PLACE.search(text)
    classed = (match.group() for match in _CLASSED.finditer(text) if match.group(1) not in _WRAPPERS)
    sentence = next(classed, None) or next(
        (line.strip() for line in text.splitlines() if line.strip()), type(error).__name__
    )
    sentence = _PLACE.sub("", _STATE.split(sentence)[0])
    # `position` counts from 1, and `pos` from 0.
    column = 0 if place is None else int(place.group(3)) + (0 if place.group(2) else 1)
    return f"{f'line {place.group(1)}, column {column}: ' if place else ''}{verb}: {sentence.rstrip(' .;')}"


def _examine_result(
    spark: SparkSession, definition: Definition, samples: Mapping[str, DataFrame], examined: Examined, report: _Report
) -> None:
    """Judge the columns, the plan and, over made-up rows, the windows of a definition's result."""
    check = compiler_of(definition).plan_check
    if check is None:
        result_schema(spark, definition)
        return
    plan = check.plan(spark, definition, samples)
    _check_columns(definition, plan)
    result_schema(spark, definition)
    examined.keys |= unfit_keys(plan, definition.keys, definition.source[1].event_time)
    findings = [*check.find_refusals(definition, plan), *_inexact(definition, plan)]
    report(findings)
    if findings:
        return  # a plan runs only if nothing in it is refused
    examined.risks += find_group_risks(plan, _limits(definition))
    examined.columns |= column_sources(plan)
    samples = {view: _without_throwing(spark, definition, view, rows) for view, rows in samples.items()}
    plan = check.plan(spark, definition, samples)
    try:
        result_rows = check.run(spark, definition, samples, plan).toArrow().to_pylist()
        fresh = check.plan(spark, definition, samples)  # Spark may keep what it computed of a plan over so few rows
        again = check.run(spark, definition, samples, fresh).toArrow().to_pylist()
    except (PySparkException, Py4JJavaError) as error:
        examined.unchecked.append(
            "window and count column were not checked over made-up rows, because these stop the SQL "
            f"({describe_refusal(error, 'it throws')}); show by a case that real ones do not"
        )
        return
    report(_changing_columns(definition, result_rows, again))
    report(check.find_window_conflicts(definition, result_rows, min(rows.count() for rows in samples.values())))


def _limits(definition: Definition) -> dict[str, float]:
    """Return field to the largest absolute value that a rule lets pass, for fields of that name in every source that has it."""
    limits: dict[str, list[float]] = {}
    for source in definition.sources.values():
        for name in source.schema_:
            ranges = [rule for rule in source.rules if isinstance(rule, Range) and rule.field == name]
            ends = [
                max(abs(rule.min), abs(rule.max)) for rule in ranges if rule.min is not None and rule.max is not None
            ]
            limits.setdefault(name, []).append(float(min(ends, default=math.inf)))
    return {name: max(each) for name, each in limits.items()}


def _without_throwing(spark: SparkSession, definition: Definition, view: str, rows: DataFrame) -> DataFrame:
    """Return made-up rows without those that the stream would reject because the SQL throws on them."""
    checks = row_checks(spark, definition, view)
    if not checks.ways:
        return rows
    marked = rows.select(
        "*", F.when(F.col(definition.sources[view].event_time).isNotNull(), checks.throws()).alias("_throws")
    ).collect()
    kept = [tuple(row)[:-1] for row in marked if not row["_throws"]]
    return spark.createDataFrame(kept, rows.schema)


def _changing_columns(
    definition: Definition, first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return a sentence for each compared column that differs between two runs over the same rows.

    No list of functions is complete: `aes_encrypt` draws an initialisation vector, and says that it is deterministic.
    """
    exact = (name for name, column in definition.columns.items() if column.compare == "exact")
    compared = [*definition.keys, *exact] if definition.compare else []
    different = [
        name
        for name in compared
        if Counter(repr(row.get(name)) for row in first) != Counter(repr(row.get(name)) for row in second)
    ]
    return [
        f"result column {name!r} {Refusals.RANDOM.cause}, over the same rows; {Refusals.RANDOM.remedy}"
        for name in different
    ]


def _check_columns(definition: Definition, plan: DataFrame) -> None:
    """Refuse a result that lacks a column of the definition: Spark's own words would not name the definition."""
    absent = [name for name in definition.result_columns if name not in plan.columns]
    if absent:
        kind = "key" if absent[0] in definition.keys else "column"
        message = (
            f"the definition's {kind} {absent[0]!r} is not a column of the result, which has {plan.columns}; give both the same "
            f"names in the same order{meant(absent[0], sorted({*plan.columns} - {*definition.result_columns}))}"
        )
        raise DefinitionError(message)


def sample_rows(definition: Definition, source: Source) -> list[tuple[Any, ...]]:
    """Return made-up accepted rows: several windows, every rule's values, nulls where they are allowed."""
    base = datetime(2020, 1, 1, tzinfo=UTC)
    rows = []
    window = definition.window
    for index in range(SAMPLES):
        event = base + window.kind.sample_time(window, index)
        fields = [event if name == source.event_time else _value(source, name, index) for name in source.schema_]
        rows.append((*fields, *(None for _ in source.marks), 0, index, event))
    return rows


def _value(source: Source, name: str, index: int) -> Any:
    kind = source.schema_[name]
    if name not in source.required_fields and index % 4 == 3:
        return None
    for rule in source.rules:
        if isinstance(rule, InSet) and rule.field == name:
            return _number(kind, rule.values[index % len(rule.values)])
        if isinstance(rule, Range) and rule.field == name:
            above = index if rule.min is None else max(index, rule.min)
            return _number(kind, above if rule.max is None else min(above, rule.max))
    makers: dict[str, Callable[[], Any]] = {
        "string": lambda: f"s{index % 3}",
        "boolean": lambda: index % 2 == 0,
        "double": lambda: index / 4,
        "timestamp": lambda: EPOCH + timedelta(hours=index),
    }
    if kind in makers:
        return makers[kind]()
    return Decimal(0) if kind.startswith("decimal") else index


def _number(kind: str, value: Any) -> Any:
    """Return a value that a rule names as a value of the field's type."""
    return float(value) if kind == "double" else Decimal(value) if kind.startswith("decimal") else value


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
    result = run_sql(spark, definition, definition.rows_sql, rows)
    findings = find_plan_refusals(result, ROW_NODES, compared=definition.compare)
    if result.schema != rows.schema:
        findings.append(
            f"it yields the columns {result.columns}, not its view's {rows.columns}; it may only leave rows out: "
            f"{_ROWS_FORM}"
        )
    return findings


def _fast_findings(spark: SparkSession, definition: Definition) -> list[str]:
    assert definition.fast is not None
    result = fast_plan(spark, definition)
    findings = find_plan_refusals(result, ROW_NODES, compared=True)
    absent = [name for name in (RECORD, definition.fast.key) if name not in result.columns]
    if absent:
        findings.append(
            f"it yields {result.columns}, but not {absent[0]!r}; select `record`, which identifies a row's record, and the key"
        )
    elif computed_keys(result, [RECORD]):
        findings.append("it computes `record`; select it unchanged, because it identifies the record of a row")
    return findings


def _inexact(definition: Definition, result: DataFrame) -> list[str]:
    exact = {name for name, column in definition.columns.items() if column.compare == "exact"} | set(definition.keys)
    wrong = inexact_columns(result) if definition.compare else {}
    return [
        f"{wrong[name]}column {name!r} adds floating-point numbers, whose sum depends on their order; cast to DECIMAL before "
        "adding, or declare compare: tolerance"
        for name in sorted(wrong.keys() & exact)
    ]
