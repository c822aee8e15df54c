"""Folds: a function follows every key through the log, event by event; its rows are the key's history.

    accepted rows  ->  groupBy(by), the key's events in the order of the log, fold(state, event)  ->  rows by event time

Nothing waits and nothing is late: an event's rows are emitted by the batch that reads it, so there is no watermark. The
order is that of the log: within a batch by partition and offset. A key whose records lie in one partition is therefore
folded in one order, however batches were cut, and a recompute folds it the same.

Events, state and rows cross between Spark and Python as JSON that loses nothing (`fold_values`), never as pandas'
own types: those round large integers beside a null, and know no time before 1677.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from rivertwice.pipeline.fold_run import Emitted, FoldRun, FoldSpec
from rivertwice.pipeline.model import RECORD, ROW, Definition

if TYPE_CHECKING:
    import pandas as pd

_EMITTED = f"_us bigint, {RECORD} bigint, {ROW} int, _row string"
_NAMES = ["_us", RECORD, ROW, "_row"]
_KEEP_NULLS = {"ignoreNullFields": "false"}


def fold_spec(definition: Definition) -> FoldSpec:
    """Return what a worker needs of a definition."""
    _, source = definition.source
    assert definition.fold_py is not None, "the definition was checked"
    assert definition.window.at is not None, "the definition was checked"
    return FoldSpec(
        name=definition.name,
        topic=source.topic,
        text=definition.fold_py,
        event={**source.schema_, **source.marks},
        event_time=source.event_time,
        by=tuple(definition.by),
        state=definition.state,
        rows=definition.row_types,
        at=definition.window.at,
    )


def stream_fold(definition: Definition, rows: DataFrame) -> DataFrame:
    """Return the rows of a stream of accepted rows; a key's state is one JSON text."""
    spec = fold_spec(definition)

    def follow(_: Any, frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        run = FoldRun(spec)
        read: list[tuple[int, int, str]] = []
        for frame in frames:
            read += zip(frame["_partition"].tolist(), frame["_offset"].tolist(), frame["_event"], strict=True)
        held = state.get[0] if state.exists else None
        kept, out = held, []
        for partition, offset, event in sorted(read):
            kept, emitted = run.step(kept, event, partition, offset)
            out += emitted
        if kept is not None:
            state.update((kept,))
        elif held is not None:
            state.remove()
        yield from _frames(out)

    grouped = packed(definition, rows).groupBy("_key")
    emitted = grouped.applyInPandasWithState(follow, _EMITTED, "state string", "append", GroupStateTimeout.NoTimeout)
    return _typed(definition, emitted)


def batch_fold(definition: Definition, rows: DataFrame, *order: str) -> DataFrame:
    """Return the rows of accepted rows, of each key in the order of these columns and then of partition and offset."""
    spec = fold_spec(definition)

    def follow(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        run = FoldRun(spec)
        current: str | None = None
        kept: str | None = None
        for frame in frames:
            out: list[Emitted] = []
            columns = (frame["_key"], frame["_partition"].tolist(), frame["_offset"].tolist(), frame["_event"])
            for key, partition, offset, event in zip(*columns, strict=True):
                if key != current:
                    current, kept = key, None
                kept, emitted = run.step(kept, event, partition, offset)
                out += emitted
            yield from _frames(out)

    by_key = packed(definition, rows, *order).repartition("_key")
    sorted_rows = by_key.sortWithinPartitions("_key", *order, "_partition", "_offset")
    return _typed(definition, sorted_rows.mapInPandas(follow, _EMITTED))


def packed(definition: Definition, rows: DataFrame, *kept: str) -> DataFrame:
    """Return `_key` and `_event` of accepted rows as JSON, with their addresses and the columns to keep."""
    _, source = definition.source
    types = {**source.schema_, **source.marks}
    return rows.select(
        F.to_json(F.struct(*(_plain(name, types[name]) for name in definition.by)), _KEEP_NULLS).alias("_key"),
        *kept,
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


def _frames(emitted: list[Emitted]) -> Iterator[pd.DataFrame]:
    if emitted:
        import pandas as pd

        yield pd.DataFrame(emitted, columns=_NAMES)


def _typed(definition: Definition, emitted: DataFrame) -> DataFrame:
    window = definition.window
    types = definition.row_types
    us, step = F.col("_us"), F.lit(window.step // timedelta(microseconds=1))
    start = us - F.pmod(us, step)
    row = F.from_json("_row", _carried(types))
    return emitted.withColumn("_row", row).select(
        F.timestamp_micros(start).alias(window.start_column),
        F.timestamp_micros(start + step).alias(window.end_column),
        RECORD,
        ROW,
        *(_value(name, types[name]) for name in (*definition.keys, *definition.columns)),
    )


def _carried(types: Mapping[str, str]) -> str:
    """Return the DDL of a row's JSON."""
    texts = {name: "string" if kind == "double" or kind.startswith("decimal") else kind for name, kind in types.items()}
    return ", ".join(f"`{name}` {'bigint' if kind == 'timestamp' else kind}" for name, kind in texts.items())


def _value(name: str, kind: str) -> Column:
    value = F.col("_row").getField(name)
    if kind == "timestamp":
        return F.timestamp_micros(value).alias(name)
    return value.cast(kind).alias(name)
