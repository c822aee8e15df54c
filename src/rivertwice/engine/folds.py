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
import json
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from rivertwice.definition import RECORD, ROW, SOURCE, Definition, Emitted, FoldRun, FoldSource, FoldSpec, same_value
from rivertwice.engine.fold_buckets import PER_KEY, Bucket, require_buckets

if TYPE_CHECKING:
    import pandas as pd


# Follow keys through packed events: a key or a bucket of keys in a micro-batch of the stream, sorted keys in a recompute.
#
# Events come as frames of pandas. A recompute gives the columns `_key` (JSON), `PLACE` and `_event` (JSON). The stream gives one
# column, `LINES`, because each column costs Spark as much time for a group as some ten events: place, key and event, in three lines.

PLACE = ("_source", "_partition", "_offset")
"""The place of an event: number of its source, partition, offset. Within a batch events are folded in this order."""
LINES = "_lines"
"""The stream's column: the place as numbers with a blank between, `_key`, `_event`; JSON has no line break."""


def follow_key(spec: FoldSpec, state: str | None, frames: Iterable[pd.DataFrame]) -> tuple[str | None, list[Emitted]]:
    """Return the state after all packed events of one key in a batch, and their rows; the events may come in any order."""
    step = FoldRun(spec).step
    out: list[Emitted] = []
    for source, partition, offset, _, event in sorted(_events(frames)):
        state, emitted = step(state, event, partition, offset, source)
        out += emitted
    return state, out


def follow_bucket(spec: FoldSpec, text: str | None, frames: Iterable[pd.DataFrame]) -> tuple[str | None, list[Emitted]]:
    """Return a bucket's state after all packed events of its keys in a batch, and their rows; the events may come in any order.

    Args:
        text: the bucket's state; None if it has no key.
        frames: the events; a key of another bucket is followed too, but would not be found again.
    """
    step = FoldRun(spec).step
    states = Bucket(text)
    out: list[Emitted] = []
    for source, partition, offset, key, event in sorted(_events(frames)):
        state, emitted = step(states.get(key), event, partition, offset, source)
        states.put(key, state)
        out += emitted
    return states.text(), out


def follow_keys(spec: FoldSpec, frames: Iterable[pd.DataFrame]) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the numbered rows of packed events, which come key by key in order; a key may continue in the next frame."""
    step = FoldRun(spec).step
    current: str | None = None
    state: str | None = None
    number = 0
    for frame in frames:
        out: list[tuple[Any, ...]] = []
        columns = (frame[name].tolist() for name in ("_key", *PLACE, "_event"))
        for key, source, partition, offset, event in zip(*columns, strict=True):
            if key != current:
                current, state, number = key, None, 0
            state, emitted = step(state, event, partition, offset, source)
            out += [(*row, number + further) for further, row in enumerate(emitted)]
            number += len(emitted)
        yield out


def _events(frames: Iterable[pd.DataFrame]) -> Iterator[tuple[int, int, int, str, str]]:
    """Yield source, partition, offset, key and event of each line of the stream."""
    for frame in frames:
        for lines in frame[LINES].tolist():
            place, key, event = lines.split("\n")
            source, partition, offset = place.split(" ")
            yield int(source), int(partition), int(offset), key, event


# Whether the newest row of a key depends on the order in which sources and partitions were read. Pure.
#
# The same events are folded in several orders (`folds.fold_otherwise`). Each partition keeps its own order in all of them, because
# the log gives that order. The log gives no order between partitions. If the newest row of a key is the same in all the orders that
# were tried, the key counts as independent of the order. Other orders are not checked.

NUMBER = "_number"
"""Column of a fold's rows: how many rows of the same key precede it."""
AS_READ = "as it was read"
_Row = dict[str, Any]


def select_newest(definition: Definition, table: pa.Table) -> dict[str, int]:
    """Return key, as JSON, to the index of its newest row among numbered rows."""
    numbers = table[NUMBER].to_pylist()
    newest: dict[str, int] = {}
    for index, values in enumerate(zip(*(table[name].to_pylist() for name in definition.keys), strict=True)):
        key = json.dumps(dict(zip(definition.keys, values, strict=True)), default=str)
        if key not in newest or numbers[newest[key]] < numbers[index]:
            newest[key] = index
    return newest


@dataclass(frozen=True)
class Hanging:
    """Keys (as JSON) whose newest row is not the same in all orders.

    Attributes:
        shown: key to the difference in the row that a view shows.
        gone: keys that a view shows in no order, but whose last row differs, or is missing, in one of the orders.
    """

    shown: Mapping[str, str]
    gone: Set[str]


def find_hanging(definition: Definition, orders: Mapping[str, pa.Table]) -> Hanging:
    """Return the keys whose newest row depends on the order.

    The event's time is not compared: it only identifies the last event.

    Args:
        orders: name to numbered rows; the others are compared with the first.
    """
    (first, rows), *others = ((name, _newest_rows(definition, table)) for name, table in orders.items())
    shown: dict[str, str] = {}
    gone: set[str] = set()
    for name, other_rows in others:
        for key in sorted((rows.keys() | other_rows.keys()) - shown.keys()):
            row, other_row = rows.get(key), other_rows.get(key)
            if _is_shown(definition, row) or _is_shown(definition, other_row):
                difference = _difference(
                    definition,
                    *(shown_row if _is_shown(definition, shown_row) else None for shown_row in (row, other_row)),
                )
                shown |= {key: f"{difference[0]} {first}, {difference[1]} {name}"} if difference else {}
            elif _difference(definition, row, other_row):
                gone.add(key)
    return Hanging(shown, gone - shown.keys())


def _newest_rows(definition: Definition, table: pa.Table) -> dict[str, _Row]:
    newest = select_newest(definition, table)
    rows = table.take(pa.array(list(newest.values()), pa.int64())).to_pylist()
    return dict(zip(newest, rows, strict=True))


def _is_shown(definition: Definition, row: _Row | None) -> bool:
    return row is not None and not (definition.deleted is not None and row[definition.deleted])


def _difference(definition: Definition, row: _Row | None, other_row: _Row | None) -> tuple[str, str] | None:
    if row is None or other_row is None:
        return None if row is other_row else (_presence(row), _presence(other_row))
    for name, column in definition.columns.items():
        if name != definition.window.at and not same_value(row[name], other_row[name], column.tolerance):
            return f"{name} is {_text(row[name])}", _text(other_row[name])
    return None


def _presence(row: _Row | None) -> str:
    return "it is absent" if row is None else "it is there"


def _text(value: Any) -> str:
    return json.dumps(value, default=str)


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
