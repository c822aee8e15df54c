"""The rows of one cell of the heatmap: those that do not agree first, each with the address by which it is explained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rivertwice.cockpit.heatmap import axis_key, key_label
from rivertwice.cockpit.serving import open_serving, read_runs
from rivertwice.config import Settings
from rivertwice.errors import RequestError
from rivertwice.instants import to_iso, to_ms
from rivertwice.pipeline.definition import Definition
from rivertwice.results.find import open_rows
from rivertwice.results.kinds import BY_NAME, SERVED
from rivertwice.results.newest import newest_rows
from rivertwice.store.sql import equals
from rivertwice.timeline.judgements import read_verdicts
from rivertwice.timeline.keys import key_text, key_texts
from rivertwice.verdicts import AGREES, BY_GRAVITY

MOST = 50


def read_cell(
    settings: Settings, name: str, pair: str, start: datetime, end: datetime, key: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the rows of a key whose windows start in a range, the worst first; others are counted.

    Args:
        settings: where everything is stored.
        name: the version that serves, or `NAME@v2`.
        pair: `served` or `stream`.
        start: start of the range.
        end: its end, exclusive.
        key: key column to value.

    Raises:
        RequestError: a value does not fit its column, or the range is empty.
    """
    if start >= end:
        message = f"the range [{to_iso(start)}, {to_iso(end)}) is empty or reversed, so it holds no window; give its ends in order"
        raise RequestError(message)
    serving = open_serving(settings, name)
    definition, runs = serving.definition, read_runs(serving.home)
    if definition is None:
        return {"rows": [], "more": 0}
    text = key_text(definition.keys, [key.get(column) for column in definition.keys])
    judged: dict[tuple[datetime, str], dict[str, Any]] = {}
    if runs is not None:
        within = [(to_ms(start), to_ms(end))]
        verdicts = read_verdicts(serving.home, runs.chain, within, equals("pair", pair))
        for row in [] if verdicts is None else verdicts.to_pylist():
            if row["key"] is not None and axis_key(row["key"], definition) == text:
                judged[row["window_start"], row["key"]] = row
    rows = [_judged_row(row, definition) for row in judged.values()]
    found, more = _served(settings, name, definition, start, end, key)
    rows += [row for row in found if (row["instant"], row["key"]) not in judged]
    rows.sort(key=lambda row: (row["rank"], -row["late"], row["instant"], row["key"]))
    plain = [{field: value for field, value in row.items() if field not in ("rank", "instant")} for row in rows[:MOST]]
    return {"rows": plain, "more": more or len(rows) > MOST}


def parse_cell_key(text: str | None) -> dict[str, Any]:
    """Return a key that the page sends: a JSON object; nothing for rows without keys. Pure.

    Raises:
        RequestError: it is something else.
    """
    if text is None:
        return {}
    try:
        key = json.loads(text)
    except ValueError:
        key = None
    if not isinstance(key, dict):
        message = f'the key {text[:80]} is no JSON object; write it as \'{{"origin": "JFK"}}\''
        raise RequestError(message)
    return key


def _judged_row(row: Mapping[str, Any], definition: Definition) -> dict[str, Any]:
    return {
        "instant": row["window_start"],
        "rank": BY_GRAVITY.index(row["verdict"]),
        "start": to_iso(row["window_start"]),
        "end": to_iso(row["window_end"]),
        "key": row["key"],
        "label": key_label(axis_key(row["key"], definition)),
        "verdict": row["verdict"],
        "reason": row["reason"],
        "late": row["late"] or 0,
    }


def _served(
    settings: Settings, name: str, definition: Definition, start: datetime, end: datetime, key: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], bool]:
    """Return rows of the key that are served, without a verdict of their own, and whether there are more."""
    served = open_rows(settings, name, BY_NAME[SERVED])
    if served is None:
        return [], False
    window = definition.window
    columns = [window.start_column, window.end_column, *definition.row_keys]
    table = newest_rows(served.choose(start, end, key, columns), MOST + 1)
    rows = [
        {
            "instant": begin,
            "rank": len(BY_GRAVITY),
            "start": to_iso(begin),
            "end": to_iso(close),
            "key": text,
            "label": key_label(axis_key(text, definition)),
            "verdict": None,
            "reason": f"it has no verdict of its own: {AGREES} if its window was judged",
            "late": 0,
        }
        for begin, close, text in zip(
            table[window.start_column].to_pylist(),
            table[window.end_column].to_pylist(),
            key_texts(table, definition.row_keys),
            strict=True,
        )
    ]
    return rows[:MOST], len(rows) > MOST
