"""The rows of one cell of the heatmap, and one of them explained for the page."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rivertwice.core.errors import RequestError
from rivertwice.core.instants import to_iso, to_ms
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import Definition
from rivertwice.read.explain import explain
from rivertwice.read.explain_model import Address, Explanation
from rivertwice.read.explain_text import to_json
from rivertwice.read.find import open_rows
from rivertwice.read.heatmap import axis_key, key_label
from rivertwice.read.newest import newest_rows
from rivertwice.read.serving import open_serving, read_runs
from rivertwice.storage import Where
from rivertwice.timeline.digest import key_text, key_texts
from rivertwice.timeline.judgements import read_verdicts
from rivertwice.timeline.result_kinds import BY_NAME, SERVED
from rivertwice.timeline.served_rows import json_value
from rivertwice.timeline.verdicts import AGREES, BY_GRAVITY

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
        verdicts = read_verdicts(serving.home, runs.chain, within, Where("pair").equals(pair))
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
        message = f'the key {text[:80]} is not a JSON object; write it as \'{{"origin": "JFK"}}\''
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
    """Return rows of the key that are served, without their own verdict, and whether there are more."""
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
            "reason": f"it has no separate verdict: {AGREES} if its window was judged",
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


# One number explained for the page: what `rivertwice explain` prints, and the truth as far as a verdict already gives it.
#
# The truth is computed by Spark, from the log, and no Spark runs where the page is served. But a verdict of the newest reconcile is a
# comparison with the truth: where it says that a row agrees and nothing came after it, that row's values are the truth, within the
# definition's tolerance. So the truth is known without Spark of every row that agrees, in either pair.


def explain_for_page(settings: Settings, name: str, start: datetime, key: str | None, now: datetime) -> dict[str, Any]:
    """Return the explanation of a row as plain values, with what is known of its truth.

    Raises:
        RequestError: there is no such window or key; the nearest ones are given.
    """
    explanation = explain(settings, name, start, key, now=now)
    plain = to_json(explanation)
    for verdict in plain["verdicts"]:
        del verdict["age_s"]  # the browser counts it on from `at`
    return {
        "explanation": plain,
        "stored_truth": describe_stored_truth(explanation),
        "command": explain_command(explanation.address),
    }


def describe_stored_truth(explanation: Explanation) -> dict[str, Any]:
    """Return the truth that the newest reconcile's verdict gives, or why it gives none. Pure."""
    for verdict in explanation.verdicts:
        has_row = explanation.has_served if verdict.pair == "served" else explanation.has_stream
        if verdict.verdict == AGREES and verdict.stale is None and has_row:
            values = {column.name: json_value(getattr(column, verdict.pair)) for column in explanation.columns}
            why = f"{verdict.run} found the {verdict.pair} row equal to the truth, and nothing came after it"
            return {"values": values, "pair": verdict.pair, "run": verdict.run, "at": to_iso(verdict.at), "why": why}
    if not explanation.verdicts:
        why = "no reconcile has judged this row"
    elif all(verdict.stale for verdict in explanation.verdicts):
        why = f"the newest verdicts are out of date: {explanation.verdicts[0].stale}"
    else:
        why = "the newest reconcile compared it with the truth and found it different; what the truth is, only the log says"
    return {"values": None, "why": why}


def explain_command(address: Address) -> str:
    """Return the command that explains the same row with its truth. Pure."""
    words = ["rivertwice", "explain", address.pipeline, to_iso(address.start)]
    if address.key:
        words.append(key_text(list(address.key), address.key.values()))
    return shlex.join([*words, "--with-truth"])
