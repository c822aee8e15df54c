"""Folds: a function follows every key through the log, event by event; its rows are the key's history.

    accepted rows  ->  groupBy(by), the key's events in the order of the log, fold(state, event)  ->  rows by event time

No event waits and no event is late: the batch that reads an event emits its rows, so there is no watermark. The order is
that in which the log was read: batch by batch, and within a batch by source (as the definition lists them), partition and
offset. A key whose records are in one partition is therefore folded in one order, however the batches were cut. A key
with records in several partitions, of one topic or of several, is folded in an order that only the ledger knows.

Events, state and rows are passed between Spark and Python as JSON without loss (`fold_values`), never as types of pandas:
those round large integers in a column that has a null, and have no time before 1677.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from rivertwice.pipeline.fold_buckets import PER_KEY, require_buckets
from rivertwice.pipeline.fold_follow import LINES, PLACE, follow_bucket, follow_key, follow_keys
from rivertwice.pipeline.fold_order import NUMBER
from rivertwice.pipeline.fold_run import Emitted, FoldSource, FoldSpec
from rivertwice.pipeline.model import Definition
from rivertwice.pipeline.names import RECORD, ROW, SOURCE

if TYPE_CHECKING:
    import pandas as pd

_NAMES = ["_source", "_us", RECORD, ROW, "_row"]
_EMITTED = f"_source int, _us bigint, {RECORD} bigint, {ROW} int, _row string"
_KEEP_NULLS = {"ignoreNullFields": "false"}


def fold_spec(definition: Definition) -> FoldSpec:
    """Return what a worker needs to know about a definition."""
    assert definition.fold_py is not None, "the definition was checked"
    assert definition.window.at is not None, "the definition was checked"
    sources = (
        FoldSource(
            view, source.topic, {**source.schema_, **source.marks}, source.event_time, definition.by_fields(view)
        )
        for view, source in definition.sources.items()
    )
    return FoldSpec(
        name=definition.name,
        text=definition.fold_py,
        sources=tuple(sources),
        state=definition.state,
        rows=definition.row_types,
        at=definition.window.at,
    )


def stream_fold(definition: Definition, rows: Mapping[str, DataFrame]) -> DataFrame:
    """Return the fold's rows over the streaming accepted rows of each view.

    The state is one text for each bucket of keys, or for each key, as `stream.fold_buckets` says (`fold_buckets`). A stream that
    exists already must be given the number that its timeline began with.
    """
    spec, buckets = fold_spec(definition), definition.stream.fold_buckets
    place = F.concat_ws(" ", *(F.col(name).cast("string") for name in PLACE))
    lines = F.concat_ws("\n", place, "_key", "_event").alias(LINES)
    events = packed(definition, rows)

    def follow(_: Any, frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        old_state = state.get[0] if state.exists else None
        new_state, emitted = follow_key(spec, old_state, frames)
        if new_state is not None:
            state.update((new_state,))
        elif old_state is not None:
            state.remove()
        yield from _frames(emitted, _NAMES)

    def follow_all(_: Any, frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        stored, old_text = state.get if state.exists else (buckets, None)
        require_buckets(spec.name, stored, buckets)
        text, emitted = follow_bucket(spec, old_text, frames)
        if text is not None and text != old_text:
            state.update((buckets, text))
        elif text is None and old_text is not None:
            state.remove()
        yield from _frames(emitted, _NAMES)

    if buckets == PER_KEY:
        grouped, function, kept = events.select("_key", lines).groupBy("_key"), follow, "state string"
    else:
        grouped = events.select(bucket_column(buckets).alias("_bucket"), lines).groupBy("_bucket")
        function, kept = follow_all, "buckets int, states string"
    emitted = grouped.applyInPandasWithState(function, _EMITTED, kept, "append", GroupStateTimeout.NoTimeout)
    return _typed(definition, emitted)


def bucket_column(buckets: int) -> Column:
    """Return the bucket of `_key`, as `fold_buckets.bucket_of` computes it."""
    return (F.crc32(F.col("_key").cast("binary")) % F.lit(buckets)).cast("int")


def batch_fold(definition: Definition, rows: Mapping[str, DataFrame], *order: str) -> DataFrame:
    """Return the fold's rows over each view's accepted rows; the events of a key are ordered by `order`, then by `PLACE`."""
    return numbered_fold(definition, packed(definition, rows, *order), *order).drop(NUMBER)


def numbered_fold(definition: Definition, events: DataFrame, *order: str | Column) -> DataFrame:
    """Return the fold's rows over packed events in the same order, with `NUMBER`."""
    spec = fold_spec(definition)

    def follow(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for emitted in follow_keys(spec, frames):
            yield from _frames(emitted, [*_NAMES, NUMBER])

    sorted_rows = events.repartition("_key").sortWithinPartitions("_key", *order, *PLACE)
    return _typed(definition, sorted_rows.mapInPandas(follow, f"{_EMITTED}, {NUMBER} bigint"), NUMBER)


def fold_otherwise(definition: Definition, events: DataFrame) -> dict[str, pa.Table]:
    """Return name to the numbered rows of packed events, folded by partition from the first, and from the last."""
    views = list(definition.sources)
    first, last = "the first partition first", "the last partition first"
    if definition.has_several_sources:
        first, last = ", then ".join(views), ", then ".join(reversed(views))
    turned = (F.col("_source").desc(), F.col("_partition").desc())
    return {
        f"folded {first}": numbered_fold(definition, events).toArrow(),
        f"folded {last}": numbered_fold(definition, events, *turned).toArrow(),
    }


def spread_keys(events: DataFrame) -> DataFrame:
    """Return each `_key` with packed events in several partitions, and `_parts`: number of source and partition of each."""
    parts = F.sort_array(F.collect_set(F.struct("_source", "_partition")))
    return events.groupBy("_key").agg(parts.alias("_parts")).where(F.size("_parts") > 1)


def packed(definition: Definition, rows: Mapping[str, DataFrame], *kept_columns: str) -> DataFrame:
    """Return `_key` and `_event` of each view's accepted rows as JSON, with their `PLACE` and the columns to keep."""
    each = (
        _packed(definition, number, view, rows[view], kept_columns) for number, view in enumerate(definition.sources)
    )
    return functools.reduce(DataFrame.unionByName, each)


def _packed(definition: Definition, number: int, view: str, rows: DataFrame, kept_columns: Iterable[str]) -> DataFrame:
    source = definition.sources[view]
    types = {**source.schema_, **source.marks}
    by = (_plain(field, types[field]).alias(name) for name, field in definition.by_fields(view).items())
    return rows.select(
        F.to_json(F.struct(*by), _KEEP_NULLS).alias("_key"),
        *kept_columns,
        F.lit(number).alias("_source"),
        "_partition",
        "_offset",
        F.to_json(F.struct(*(_plain(name, kind) for name, kind in types.items())), _KEEP_NULLS).alias("_event"),
    )


def _plain(name: str, kind: str) -> Column:
    value = F.col(name)
    if kind == "timestamp":
        value = F.unix_micros(value)
    elif kind == "double" or kind.startswith("decimal"):
        value = value.cast("string")
    return value.alias(name)


def _frames(emitted: list[Emitted] | list[tuple[Any, ...]], names: list[str]) -> Iterator[pd.DataFrame]:
    if emitted:
        import pandas as pd

        yield pd.DataFrame(emitted, columns=names)


def _typed(definition: Definition, emitted: DataFrame, *kept_columns: str) -> DataFrame:
    window = definition.window
    types = definition.row_types
    us, step = F.col("_us"), F.lit(window.step // timedelta(microseconds=1))
    start = us - F.pmod(us, step)
    row = F.from_json("_row", _carried(types))
    return emitted.withColumn("_row", row).select(
        F.timestamp_micros(start).alias(window.start_column),
        F.timestamp_micros(start + step).alias(window.end_column),
        *_source_column(definition),
        RECORD,
        ROW,
        *(_value(name, types[name]) for name in (*definition.keys, *definition.columns)),
        *kept_columns,
    )


def _source_column(definition: Definition) -> list[Column]:
    """Return the column that names an event's source, if there are several sources."""
    if not definition.has_several_sources:
        return []
    return [F.get(F.array(*map(F.lit, definition.sources)), F.col("_source")).alias(SOURCE)]


def _carried(types: Mapping[str, str]) -> str:
    """Return the DDL of a row's JSON."""
    texts = {name: "string" if kind == "double" or kind.startswith("decimal") else kind for name, kind in types.items()}
    return ", ".join(f"`{name}` {'bigint' if kind == 'timestamp' else kind}" for name, kind in texts.items())


def _value(name: str, kind: str) -> Column:
    value = F.col("_row").getField(name)
    if kind == "timestamp":
        return F.timestamp_micros(value).alias(name)
    return value.cast(kind).alias(name)
