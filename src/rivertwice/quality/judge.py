"""Rows of a table judged by a suite: by pandas up to a number of cells, by Spark's executors above it (with Great Expectations).

pandas is the cheaper one as long as the rows fit: it takes a tenth of Spark's CPU for a million rows. What the driver holds does not
grow with the rows: above the bound only counts and a few examples come to it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.core import Row, absence_of, to_iso, to_ms
from rivertwice.definition import Definition
from rivertwice.engine import Spark
from rivertwice.quality.model import (
    CRITICAL,
    ERRORED,
    FAILED,
    MOST_EXAMPLES,
    MOST_RANGES,
    PASSED,
    Judgement,
    expectation_id,
)
from rivertwice.quality.suites import ROWS_IN_WINDOW, Suite, columns_in
from rivertwice.timeline import Rows, joined, merged

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

MOST_CELLS = 1_000_000
"""The number of values up to which a frame is judged by pandas; a larger one by Spark."""
MOST_PLACED = 10_000
"""The number of unexpected rows whose windows are looked up; with more, all windows of the run count as failing."""
PANDAS, SPARK = "pandas", "spark"
_LONGEST = 200  # characters of a value that is shown


@dataclass(frozen=True)
class _Named:
    """Unexpected rows of an expectation by window, key and value; whether they are all."""

    rows: Sequence[Any]
    is_all: bool


@dataclass(frozen=True)
class JudgedRows:
    """What a suite said of the rows of one run.

    Attributes:
        engine: `pandas` or `spark`.
        first, last_end: start of the first window and end of the last one.
        windows: starts of the first and the last window (epoch ms), half-open.
        judgements: one for each expectation, in the suite's order.
    """

    engine: str
    rows: int
    first: datetime
    last_end: datetime
    windows: tuple[int, int]
    judgements: tuple[Judgement, ...]


def judge_rows(
    suite: Suite, definition: Definition, rows: Rows, spark: Spark, *, most_cells: int = MOST_CELLS
) -> JudgedRows | None:
    """Judge rows of a table; None if there are none.

    Args:
        suite: that was checked.
        rows: with the definition's columns.
        spark: gives a session; called only if there are too many rows for pandas.
    """
    count = rows.dataset().count_rows()
    if not count:
        return None
    if count * (len(definition.result_columns) + 1) <= most_cells or absence_of("great_expectations"):
        return judge_table(suite, definition, rows.to_arrow())
    return _judge_in_spark(suite, definition, rows.to_spark(spark()), count)


def judge_table(suite: Suite, definition: Definition, rows: pa.Table) -> JudgedRows | None:
    """Judge rows in memory with pandas; None if there are none."""
    from rivertwice.quality.engine import judge_pandas, load_expectations, place_of

    if rows.num_rows == 0:
        return None
    window = definition.window
    first, last = pc.min_max(rows[window.start_column]).as_py().values()
    last_end = pc.max(rows[window.end_column]).as_py()
    loaded = load_expectations(suite.name, suite.expectations, suite.path)
    frame = frame_of(rows, definition)
    found = {place_of(each): each for each in judge_pandas(loaded, frame, most=MOST_EXAMPLES)}
    named = _name_rows(suite, definition, frame, {at: _unexpected(result) for at, result in found.items()})
    judgements = _judgements(suite, definition, found, named, (first, last), _with_nan(rows, definition))
    return JudgedRows(PANDAS, rows.num_rows, first, last_end, _starts(first, last, definition), judgements)


def _name_rows(
    suite: Suite, definition: Definition, frame: pd.DataFrame, unexpected: Mapping[int, int]
) -> dict[int, _Named]:
    """Return the unexpected rows of expectations that fail. pandas takes long to name many: of more, some of the first rows are named.

    Args:
        unexpected: place of an expectation to how many rows are not as expected.
    """
    few = [at for at, count in sorted(unexpected.items()) if 0 < count <= MOST_PLACED]
    many = [at for at, count in sorted(unexpected.items()) if count > MOST_PLACED]
    named: dict[int, _Named] = {}
    for places, part, is_all in ((few, frame, True), (many, frame.head(MOST_PLACED), False)):
        if places:
            for at, result in zip(places, _judged_again(suite, definition, part, places), strict=True):
                rows = (result.result or {}).get("unexpected_index_list") or ()
                named[at] = _Named(rows, is_all=is_all and bool(rows))
    return named


def _judged_again(suite: Suite, definition: Definition, frame: pd.DataFrame, places: Sequence[int]) -> list[Any]:
    """Return the results of some expectations that name all unexpected rows of a frame, in the order of their places."""
    from rivertwice.quality.engine import judge_pandas, load_expectations, place_of

    some = load_expectations(suite.name, [suite.expectations[at] for at in places], suite.path)
    results = judge_pandas(some, frame, index=_index(definition), most=MOST_EXAMPLES, whole=True)
    return sorted(results, key=place_of)


def frame_of(rows: pa.Table, definition: Definition) -> pd.DataFrame:
    """Return result rows as suites see them: the definition's columns, decimals as doubles, and the rows of each window."""
    window = [definition.window.start_column, definition.window.end_column]
    columns = {}
    for name in definition.result_columns:
        kind = rows.schema.field(name).type
        columns[name] = rows[name].cast(pa.float64()) if pa.types.is_decimal(kind) else rows[name]
    frame: pd.DataFrame = pa.table(columns).to_pandas()
    frame[ROWS_IN_WINDOW] = frame.groupby(window)[window[0]].transform("size")
    return frame


def _judge_in_spark(suite: Suite, definition: Definition, rows: DataFrame, count: int) -> JudgedRows:
    from pyspark.sql import Window
    from pyspark.sql import functions as F
    from pyspark.sql.types import DecimalType, DoubleType, FloatType

    from rivertwice.quality.engine import judge_spark, load_expectations, place_of

    window = definition.window
    doubles = {field.name for field in rows.schema if isinstance(field.dataType, DecimalType)}
    by_window = Window.partitionBy(window.start_column, window.end_column)
    frame = rows.select(
        *(F.col(name).cast("double").alias(name) if name in doubles else name for name in definition.result_columns)
    ).withColumn(ROWS_IN_WINDOW, F.count(F.lit(1)).over(by_window))
    frame = frame.cache()
    try:
        floats = [field.name for field in rows.schema if isinstance(field.dataType, DoubleType | FloatType)]
        bounds = frame.agg(
            F.min(window.start_column).alias("first"),
            F.max(window.start_column).alias("last"),
            F.max(window.end_column).alias("end"),
            *(F.bool_or(F.isnan(name)).alias(f"nan {name}") for name in floats if name in definition.result_columns),
        )
        looked = bounds.toArrow().to_pylist()[0]
        first, last, last_end = (looked[name] for name in ("first", "last", "end"))
        nan = frozenset(name for name in floats if looked.get(f"nan {name}"))
        loaded = load_expectations(suite.name, suite.expectations, suite.path)
        results = judge_spark(loaded, frame, index=_index(definition), most=MOST_EXAMPLES)
    finally:
        frame.unpersist()
    found = {place_of(each): each for each in results}
    named = {at: _named_by_spark(each) for at, each in found.items()}
    judgements = _judgements(suite, definition, found, named, (first, last), nan)
    return JudgedRows(SPARK, count, first, last_end, _starts(first, last, definition), judgements)


def _named_by_spark(result: Any) -> _Named:
    rows = (result.result or {}).get("partial_unexpected_index_list") or ()
    return _Named(rows, is_all=len(rows) == _unexpected(result))


def _index(definition: Definition) -> list[str]:
    return [definition.window.start_column, *definition.row_keys]


def _starts(first: datetime, last: datetime, definition: Definition) -> tuple[int, int]:
    """Return the half-open range of the starts of windows from one to another; windows side by side are one range."""
    return to_ms(first), to_ms(last) + definition.window.step // timedelta(milliseconds=1)


def _judgements(
    suite: Suite,
    definition: Definition,
    found: Mapping[int, Any],
    named: Mapping[int, _Named],
    span: tuple[datetime, datetime],
    nan: Collection[str],
) -> tuple[Judgement, ...]:
    """Return a judgement for each declared expectation. One that gave no result is errored: it would check nothing.

    Args:
        found: place of an expectation in the suite to Great Expectations' result.
        named: the same to its unexpected rows.
        span: starts of the first and the last window.
        nan: columns with rows that are NaN.
    """
    nothing = _Named((), is_all=False)
    return tuple(
        _judgement(entry, found.get(at), named.get(at, nothing), definition, span, nan)
        for at, entry in enumerate(suite.expectations)
    )


def _with_nan(rows: pa.Table, definition: Definition) -> frozenset[str]:
    """Return the result columns that have rows that are NaN; pandas would not tell them from those without a value."""
    floats = [name for name in definition.result_columns if pa.types.is_floating(rows.schema.field(name).type)]
    return frozenset(name for name in floats if pc.any(pc.is_nan(rows[name])).as_py())


def _unexpected(result: Any) -> int:
    return 0 if result.success else int((result.result or {}).get("unexpected_count") or 0)


def _judgement(
    entry: Mapping[str, Any],
    result: Any,
    named: _Named,
    definition: Definition,
    span: tuple[datetime, datetime],
    nan: Collection[str],
) -> Judgement:
    from rivertwice.quality.engine import exception_of, severity_of

    kind, kwargs = str(entry["type"]), entry.get("kwargs") or {}
    severity = str(entry.get("severity", CRITICAL)) if result is None else severity_of(result)
    values: dict[str, Any] = {
        "id": expectation_id(entry),
        "type": kind,
        "column": str(kwargs.get("column") or ""),
        "severity": severity,
        "because": str((entry.get("meta") or {}).get("because") or entry.get("description") or kind),
    }
    error = "it gave no result" if result is None else exception_of(result.exception_info)
    unseen = [name for name in dict.fromkeys(columns_in(kwargs)) if name in nan]
    if unseen and not error:
        error = (
            f"the column {unseen[0]} has rows that are NaN, which Great Expectations takes for missing or compares wrongly; "
            "write nullif or nanvl in the SQL"
        )
    if error:
        return Judgement(**values, state=ERRORED, failing=(_starts(*span, definition),), error=_without_values(error))
    if result.success:
        return Judgement(**values, state=PASSED, observed=_observed(result.result, values["column"]))
    details = result.result or {}
    unexpected = details.get("unexpected_count")
    column = definition.window.start_column
    starts = {_instant(row[column]) for row in named.rows if column in row} if named.is_all else set()
    places = [_starts(start, start, definition) for start in starts] or [_starts(*span, definition)]
    return Judgement(
        **values,
        state=FAILED,
        observed=_observed(details, values["column"]),
        unexpected=None if unexpected is None else int(unexpected),
        examples=tuple(_plain_row(row) for row in named.rows[:MOST_EXAMPLES]),
        failing=tuple(joined(merged(places), MOST_RANGES)),
    )


def _observed(details: Mapping[str, Any], column: str) -> str | None:
    """Return the observed value as JSON. Values of a column are under its name: an erasure finds them there."""
    observed = details.get("observed_value")
    if observed is None:
        return None
    name = column or "value"
    if isinstance(observed, list | tuple | set):
        return json.dumps([{name: _plain(each)} for each in list(observed)[:MOST_EXAMPLES]])
    plain = _plain(observed)
    return json.dumps({name: plain} if isinstance(plain, str) else plain)


def _plain_row(row: Any) -> Row:
    return {str(name): _plain(value) for name, value in dict(row).items()}


def _plain(value: Any) -> Any:
    """Return a value of a frame as JSON can hold it, not too long."""
    if isinstance(value, datetime):
        return None if value != value else to_iso(_instant(value))
    if hasattr(value, "item"):
        value = value.item()
    if value is None or value != value:
        return None
    if isinstance(value, float) and math.isinf(value):
        return json.dumps(value)  # as text: JSON has no such number
    if isinstance(value, bool | int | float):
        return value
    return str(value)[:_LONGEST]


def _instant(value: datetime) -> datetime:
    """Return an instant in UTC: Spark gives its own without a zone, in that of this host."""
    plain: datetime = value.to_pydatetime() if hasattr(value, "to_pydatetime") else value
    return plain.astimezone(UTC)


def _without_values(error: str) -> str:
    """Return an error of the engine without what it quotes: that may be values of rows. Pure."""
    return re.sub(r"(['\"]).*?\1", "...", error)[:_LONGEST]
