"""The heatmap: windows and keys with what the newest reconcile says of their rows, read for what is shown and nothing else.

A verdict that agrees is stored once for all such rows of a window. So which keys have a row in a window is read from the served
rows: grouped where the files are read, for the columns and the keys that are shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.cockpit.grid import (
    MOST_COLUMNS,
    MOST_KEYS,
    WORDS,
    Columns,
    Judged,
    Level,
    Present,
    choose_level,
    fill_cells,
    levels_of,
)
from rivertwice.cockpit.serving import Runs, Serving, open_serving, read_runs
from rivertwice.cockpit.verdict_age import describe_age
from rivertwice.config import Settings
from rivertwice.errors import RequestError
from rivertwice.instants import from_ms, to_ms
from rivertwice.pipeline.definition import Definition
from rivertwice.store.delta_counts import bounds_in_log, group_counts, rows_in_range
from rivertwice.store.sql import all_of, any_of, contains, equals, is_text_among, is_within
from rivertwice.timeline.judgements import read_verdicts
from rivertwice.timeline.keys import key_text
from rivertwice.timeline.serving import to_epoch_ms

PAIRS = ("served", "stream")
FIRST_COLUMNS = 90
"""Columns of the view that nobody chose."""
FIRST_DAYS = 62
"""So many of the newest days are shown if nobody chose a range."""
MOST_SCANNED = 20_000_000
"""Served rows among which keys that agree are looked for; of more, keys are found by their text alone."""
_TEXTUAL = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date)


@dataclass(frozen=True)
class Asked:
    """Which part of the heatmap is wanted.

    Attributes:
        pair: `served` or `stream`, each against the truth.
        start, end: range of window starts; None: the newest.
        level: name of a level; None: the finest that fits.
        text: only keys that contain it.
        skip: leave out so many keys, the worst first. limit: show at most so many.
    """

    pair: str = PAIRS[0]
    start: datetime | None = None
    end: datetime | None = None
    level: str | None = None
    text: str = ""
    skip: int = 0
    limit: int = 25


def read_heatmap(settings: Settings, name: str, asked: Asked) -> dict[str, Any]:
    """Return the heatmap of a pipeline as plain values; instants are epoch milliseconds, ages are the browser's.

    Raises:
        RequestError: there is no such pair or level.
    """
    if asked.pair not in PAIRS:
        message = f"there is no pair {asked.pair[:40]!r}; a verdict is on {' or '.join(PAIRS)}, each against the truth"
        raise RequestError(message)
    serving = open_serving(settings, name)
    runs = read_runs(serving.home)
    if serving.definition is None or runs is None:
        return {"run": None, "name": name, "pair": asked.pair}
    extent = _extent(serving, serving.definition)
    levels = levels_of(
        serving.definition.window.step // timedelta(milliseconds=1), is_aligned=_has_known_starts(serving.definition)
    )
    level, columns = _choose_columns(levels, extent, asked)
    judged = _read_judged(serving, serving.definition, runs, asked.pair, columns)
    keys, is_last, note = _choose_keys(serving, serving.definition, judged, columns, asked)
    shown = {judged.names.index(key): place for place, key in enumerate(keys) if key in judged.names}
    present = _read_present(serving, serving.definition, columns, keys)
    cells = fill_cells(judged, shown, len(keys), present, columns)
    ranked = {judged.names[number]: (counts, late) for number, counts, late in judged.rank_keys()}
    by_column = judged.counts_by_column(columns)
    return {
        "name": serving.home.root.name,
        "pair": asked.pair,
        "run": describe_age(serving, serving.definition, runs, columns),
        "counts": runs.newest["counts"].get(asked.pair, {}),
        "level": level.name,
        "levels": [each.name for each in levels],
        "is_window": level is levels[0] and _has_known_starts(serving.definition),
        "window_ms": serving.definition.window.length // timedelta(milliseconds=1),
        "windows": serving.definition.window.text,
        "extent": extent,
        "start_ms": columns.start_ms,
        "step_ms": columns.step_ms,
        "count": columns.count,
        "columns": {word: counts.tolist() for word, counts in zip(WORDS, by_column, strict=True) if counts.any()},
        "keys": [
            {
                "key": key,
                "label": key_label(key),
                "rows": {word: n for word, n in zip(WORDS, ranked.get(key, ((), 0))[0], strict=False) if n},
                "late": ranked.get(key, ((), 0))[1],
            }
            for key in keys
        ],
        "skip": asked.skip,
        "is_last": is_last,
        "note": note,
        "letters": cells.letters,
        "cells": cells.marked,
    }


def key_label(key: str) -> str:
    """Return a key's text for people: its values; "all" where rows have no key. Pure."""
    return ", ".join("null" if value is None else str(value) for value in json.loads(key).values()) or "all"


def _has_known_starts(definition: Definition) -> bool:
    """Say whether a column can be one window: not for sessions, which their records begin."""
    return definition.session_keys is None


def _extent(serving: Serving, definition: Definition) -> tuple[int, int]:
    """Return the range of window starts that have a served row or a verdict; empty if there is none."""
    column = definition.window.start_column
    bounds = [bounds_in_log(serving.served, column), bounds_in_log(serving.home.tables.verdicts, "window_start")]
    known = [pair for pair in bounds if pair is not None]
    if not known:
        return 0, 0
    return min(to_ms(least) for least, _ in known), max(to_ms(most) for _, most in known) + 1


def _choose_columns(levels: Sequence[Level], extent: tuple[int, int], asked: Asked) -> tuple[Level, Columns]:
    """Return the level and the columns that are shown. Pure."""
    named = next((level for level in levels if level.name == asked.level), None)
    if asked.level is not None and named is None:
        message = f"there is no level {asked.level[:40]!r}; there are {', '.join(level.name for level in levels)}"
        raise RequestError(message)
    first = max(extent[0], extent[1] - FIRST_DAYS * 86_400_000)
    start = first if asked.start is None else to_ms(asked.start)
    end = extent[1] if asked.end is None else to_ms(asked.end)
    level = named or choose_level(levels, start, end, FIRST_COLUMNS)
    return level, Columns.of(level, start, max(start, end), MOST_COLUMNS)


def _within(columns: Columns) -> list[tuple[int, int]]:
    return [(columns.start_ms, max(columns.end_ms, columns.start_ms + 1))]


def _read_judged(serving: Serving, definition: Definition, runs: Runs, pair: str, columns: Columns) -> Judged:
    """Return the verdicts of the columns; those of a fold's rows by its keys."""
    rows = read_verdicts(serving.home, runs.chain, _within(columns), equals("pair", pair))
    if rows is None or not rows.num_rows or not columns.count:
        empty = np.zeros(0, dtype=np.int64)
        return Judged(empty, empty, empty, empty, empty, (), ())
    encoded = pc.dictionary_encode(rows["key"].combine_chunks())
    texts = [axis_key(text, definition) for text in encoded.dictionary.to_pylist()]
    names = sorted(set(texts))
    number_of = {name: number for number, name in enumerate(names)}
    numbers = np.array([*(number_of[text] for text in texts), -1], dtype=np.int64)
    codes = pc.index_in(rows["verdict"].combine_chunks(), value_set=pa.array(WORDS))
    counts = pc.fill_null(rows["rows"], 1) if "rows" in rows.column_names else pa.array([1] * rows.num_rows, pa.int64())
    return Judged(
        to_epoch_ms(rows["window_start"]),
        numbers[pc.fill_null(encoded.indices, -1).to_numpy().astype(np.int64)],
        codes.to_numpy().astype(np.int64),
        np.asarray(counts).astype(np.int64),
        np.asarray(pc.fill_null(rows["late"], 0)).astype(np.int64),
        rows["reason"].to_pylist(),
        names,
    )


def axis_key(text: str, definition: Definition) -> str:
    """Return the key of a heatmap's line for the key of a row: of a fold's row, which has its event's place too, the keys alone. Pure."""
    if definition.row_keys == definition.keys:
        return text
    values = json.loads(text)
    return key_text(definition.keys, [values.get(name) for name in definition.keys])


def _choose_keys(
    serving: Serving, definition: Definition, judged: Judged, columns: Columns, asked: Asked
) -> tuple[list[str], bool, str]:
    """Return the keys that are shown, the worst first, whether they are the last ones, and what is not known of others."""
    limit = max(1, min(asked.limit, MOST_KEYS))
    wanted = asked.text.lower()
    ranked = [judged.names[number] for number, *_ in judged.rank_keys()]
    ranked = [name for name in ranked if wanted in key_label(name).lower()]
    chosen = ranked[asked.skip : asked.skip + limit]
    if not definition.keys:
        return ["{}"], True, ""
    if len(chosen) == limit or not columns.count:
        return chosen, False, ""
    bounds = (from_ms(columns.start_ms), from_ms(columns.end_ms))
    scanned = rows_in_range(serving.served, definition.window.start_column, *bounds)
    if scanned > MOST_SCANNED and not wanted:
        note = f"keys whose rows all agree are not listed: there are {scanned:,} rows in this range; find them by their text"
        return chosen, True, note
    condition = is_within(definition.window.start_column, _within(columns))
    if wanted:
        condition = all_of([condition, any_of(contains(name, asked.text) for name in definition.keys)])
    agreeing: list[str] = []
    skip, page = max(0, asked.skip - len(ranked)), limit - len(chosen)
    # Keys with a verdict of their own come first, and are among all keys again: so many more are looked at.
    most = skip + page + len(ranked) + 1
    rows = group_counts(serving.served, definition.keys, condition, order=definition.keys, limit=most)
    if rows is not None:
        known = set(ranked)
        values = zip(*(rows[name].to_pylist() for name in definition.keys), strict=True)
        agreeing = [text for each in values if (text := key_text(definition.keys, each)) not in known]
    return [*chosen, *agreeing[skip : skip + page]], len(agreeing) <= skip + page, ""


def _read_present(serving: Serving, definition: Definition, columns: Columns, keys: Sequence[str]) -> Present:
    """Return how many rows the keys have in each window that is shown."""
    empty = np.zeros(0, dtype=np.int64)
    start, names = definition.window.start_column, definition.keys
    if not columns.count or not keys:
        return Present(empty, empty, empty)
    conditions = [is_within(start, _within(columns)), *_of_keys(serving, definition, keys)]
    rows = group_counts(serving.served, [start, *names], all_of(conditions))
    if rows is None or not rows.num_rows:
        return Present(empty, empty, empty)
    place_of = {key: place for place, key in enumerate(keys)}
    if not names:
        places = np.zeros(rows.num_rows, dtype=np.int64)
    else:
        values = zip(*(rows[name].to_pylist() for name in names), strict=True)
        places = np.array([place_of.get(key_text(names, each), -1) for each in values], dtype=np.int64)
    starts, counts = to_epoch_ms(rows[start]), rows["n"].to_numpy().astype(np.int64)
    return Present(starts[places >= 0], places[places >= 0], counts[places >= 0])


def _of_keys(serving: Serving, definition: Definition, keys: Sequence[str]) -> list[str]:
    """Return conditions that leave out most other keys; none where a type's text is not the one of the key."""
    sample = group_counts(serving.served, definition.keys, "FALSE") if definition.keys else None
    conditions = []
    for name in definition.keys:
        values = [json.loads(key)[name] for key in keys]
        kind = None if sample is None else sample.schema.field(name).type
        if kind is None or None in values or not any(is_kind(kind) for is_kind in _TEXTUAL):
            continue
        conditions.append(is_text_among(name, sorted({_sql_text(value) for value in values})))
    return conditions


def _sql_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_asked(values: Mapping[str, Any]) -> Asked:
    """Return what a request asks for, from its parameters that are given. Pure."""
    return replace(Asked(), **{name: value for name, value in values.items() if value is not None})
