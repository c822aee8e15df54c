"""From a definition to DataFrames: one transform text, called by the stream and by every recompute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from rivertwice.core import DefinitionError, SparkVersion
from rivertwice.definition import Definition
from rivertwice.engine.compilers import compiler_of
from rivertwice.engine.decode import ADDRESS, decode
from rivertwice.engine.interval_rows import RowsOf, VersionsAt, no_versions
from rivertwice.engine.plan_check import find_functions
from rivertwice.engine.relations import accepted_branches, rows_schema, transform
from rivertwice.engine.remote import planning
from rivertwice.engine.row_errors import NO_CHECKS, RowChecks, find_key_columns, find_row_checks, write_column
from rivertwice.engine.views import fast_plan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


def compile_stream(
    spark: SparkSession,
    definition: Definition,
    raw: DataFrame,
    *,
    observe: bool = True,
    only: Callable[[DataFrame], DataFrame] | None = None,
) -> DataFrame:
    """Return the streaming result of `raw` (Kafka's columns), to be written in append mode.

    Each micro-batch has two observations: `rt_read` (read, bad, digest) and `rt_accepted` (accepted, min_event_ms, max_event_ms).
    The second is directly above the watermark, so it sees the records that move the watermark. It also prevents Spark from
    pushing the transform's WHERE below the watermark, which would then differ from the definition's. (A fold has no
    watermark; the observation sees the records that are folded.)

    Args:
        spark: the session that `raw` belongs to.
        only: gives those of the accepted rows, which have moved the watermark, that are computed; None: all.
    """
    checks = {view: row_checks(spark, definition, view) for view in definition.streams}
    branches = accepted_branches(definition, raw, checks, observe=observe)
    if only is not None:
        branches = {view: only(rows) for view, rows in branches.items()}
    return compiler_of(definition).stream(spark, definition, branches)


def decode_view(
    definition: Definition, view: str, raw: DataFrame, *, details: bool = True, hashed: bool = False
) -> DataFrame:
    """Return the decoded records of a view's topic (`decode`); those on which the definition's SQL throws are rejected too.

    Whatever reads records of a pipeline decodes them by this function, so all of it accepts the same ones.
    """
    checks = row_checks(raw.sparkSession, definition, view)
    return decode(raw, definition.sources[view], checks, details=details, hashed=hashed)


def row_checks(spark: SparkSession, definition: Definition, view: str) -> RowChecks:
    """Return what may throw on a record of a view; nothing if the definition stops at such a record, or has no SQL."""
    if definition.on_error == "stop" or not definition.transform_sql:
        return NO_CHECKS
    engine = spark.session_id if SparkVersion.is_connect(spark) else spark.sparkContext.applicationId  # type: ignore[attr-defined]
    key = (engine, definition.model_dump_json(include=_SHAPES_CHECKS))
    if key not in _KNOWN:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        fields = {name: (*source.schema_, *source.marks, *ADDRESS) for name, source in definition.sources.items()}
        with planning(spark) as local:
            found = find_row_checks(_over_no_rows(local, definition), fields)
            if local is not spark:
                found = {each: found[each].written(_no_rows(local, definition, each)) for each in found}
        _KNOWN[key] = found
    return _KNOWN[key][view]


def decode_fast(definition: Definition, raw: DataFrame) -> DataFrame:
    """Return the records as `decode_view` decodes them; those on which `fast.sql` throws are rejected too, for the fast path alone."""
    view, source = definition.source
    checks = [row_checks(raw.sparkSession, definition, view), fast_checks(raw.sparkSession, definition)]
    return decode(raw, source, RowChecks(tuple(way for each in checks for way in each.ways)))


def fast_checks(spark: SparkSession, definition: Definition) -> RowChecks:
    """Return what in `fast.sql` may throw on a record; whatever the stream does at an error, the fast path leaves the record out."""
    view, source = definition.source
    return find_row_checks(fast_plan(spark, definition), {view: source.schema_})[view]


def key_columns(spark: SparkSession, definition: Definition, start: str, end: str) -> dict[str, Column]:
    """Return result column to the value that the transform gives it on an accepted row, for those that are the same in a whole group.

    A result column may have the name of a field and be something else, so a row's key is never read by its name. For kinds whose
    transform groups one source; the columns are those of a frame with the source's fields.

    Args:
        start: of the row's window, as SQL over the frame's columns.
        end: of the row's window, likewise.
    """
    view, source = definition.source
    with planning(spark) as local:
        rows = _no_rows(local, definition, view)
        columns = find_key_columns(
            transform(local, definition, rows), {view: source.schema_}, F.expr(start), F.expr(end)
        )
        if local is spark:
            return columns
        ends = rows.withColumn("_window_end", F.lit(None).cast("timestamp"))
        texts = {name: write_column(column, ends) for name, column in columns.items()}
    return {name: F.expr(text) for name, text in texts.items()}


_SHAPES_CHECKS = {"sources", "window", "keys", "columns", "transform_sql", "rows_sql"}
_KNOWN: dict[tuple[str, str], dict[str, RowChecks]] = {}
"""Checks by the application and what they depend on: a batch asks again for its dead letters and its late rows."""
_MOST_KNOWN = 64


def _no_rows(spark: SparkSession, definition: Definition, view: str) -> DataFrame:
    return spark.createDataFrame([], rows_schema(definition.sources[view]))


def _over_no_rows(spark: SparkSession, definition: Definition) -> DataFrame:
    empty = {view: _no_rows(spark, definition, view) for view in definition.sources}
    return compile_sources(spark, definition, empty)


def batch_rows(definition: Definition, versions: VersionsAt = no_versions) -> RowsOf:
    """Return the function that turns a micro-batch of `compile_stream`'s frame, and its number, into result rows.

    All of the batch's state is materialised. `versions` gives the versions of the tables that are known when a batch runs.
    """
    return compiler_of(definition).batch_rows(definition, versions)


def is_result(definition: Definition) -> bool:
    """Say whether the frame of a micro-batch of `compile_stream` is its result, not what `batch_rows` makes it of."""
    return compiler_of(definition).frame_is_result


def compile_sources(spark: SparkSession, definition: Definition, rows: Mapping[str, DataFrame]) -> DataFrame:
    """Return the result of the same transform, or fold, over the accepted rows of each view: all of them or any subset.

    The rows have no read order here: a fold takes them source by source (`folds.batch_fold`).
    """
    return compiler_of(definition).batch(spark, definition, rows)


def compile_batch(spark: SparkSession, definition: Definition, accepted_rows: DataFrame) -> DataFrame:
    """Return the result of the same transform over `accepted_rows` of the one source (no intervals): all or any subset."""
    return compiler_of(definition).batch(spark, definition, {definition.source[0]: accepted_rows})


def aggregate_functions(spark: SparkSession, definition: Definition) -> set[tuple[str, str]]:
    """Return which aggregate functions the transform uses, by Spark's class names, each with the type of its first argument."""
    return find_functions(_over_no_rows(spark, definition))


def result_schema(spark: SparkSession, definition: Definition) -> StructType:
    """Return the result's schema, by analysing the transform over no rows.

    Raises:
        DefinitionError: the result's columns are not the definition's, in its order.
    """
    schema = _over_no_rows(spark, definition).schema
    if schema.names != definition.result_columns:
        message = (
            f"transform.sql of {definition.name!r} yields the columns {schema.names}, but the definition says "
            f"{definition.result_columns} (window, keys, columns); give both the same names in the same order"
        )
        raise DefinitionError(message)
    for name in (definition.window.start_column, definition.window.end_column):
        if schema[name].dataType.typeName() != "timestamp":
            message = f"result column {name!r} is {schema[name].dataType.simpleString()}; take it from window()"
            raise DefinitionError(message)
    at = definition.window.at
    if at is not None and schema[at].dataType.typeName() != "timestamp":
        message = f"result column {at!r} (window.at) is {schema[at].dataType.simpleString()}; it must be a timestamp"
        raise DefinitionError(message)
    return schema
