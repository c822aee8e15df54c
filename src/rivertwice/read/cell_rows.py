"""The rows of one cell of the heatmap, and one of them explained for the page."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rivertwice.core import RequestError, Row, Settings, to_iso, to_ms
from rivertwice.definition import Definition
from rivertwice.read.explain import explain_row
from rivertwice.read.explain_model import Address, Explanation, ExplanationJson
from rivertwice.read.find import open_rows
from rivertwice.read.heatmap import axis_key, key_label
from rivertwice.read.newest import newest_rows
from rivertwice.read.serving import open_serving, read_runs
from rivertwice.storage import Where
from rivertwice.timeline import BY_NAME, SERVED, Verdict, json_value, key_text, key_texts, read_verdicts

MOST = 50


@dataclass(frozen=True)
class CellRow:
    """A row of a cell: its window and key, and its verdict; None: it has none of its own. late: records that came too late."""

    start: datetime
    end: datetime
    key: str
    label: str
    verdict: str | None
    reason: str
    late: int


@dataclass(frozen=True)
class CellView:
    """The rows of a cell, the worst first, and whether there are more."""

    rows: tuple[CellRow, ...]
    more: bool


@dataclass(frozen=True)
class StoredTruth:
    """The truth of a row that a verdict gives: column to value, by which pair's verdict of which run; or why there is none."""

    values: Mapping[str, Any] | None
    why: str
    pair: str | None = None
    run: str | None = None
    at: datetime | None = None


@dataclass(frozen=True)
class ExplanationView:
    """A row explained, what is known of its truth, and the command that explains it with its truth."""

    explanation: ExplanationJson
    stored_truth: StoredTruth
    command: str


def read_cell(
    settings: Settings, name: str, pair: str, start: datetime, end: datetime, key: Mapping[str, Any]
) -> CellView:
    """Return the rows of a key whose windows start in a range, the worst first; others are counted.

    Args:
        name: the version that serves, or `NAME@v2`.
        pair: `served` or `stream`.
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
        return CellView((), more=False)
    text = key_text(definition.keys, [key.get(column) for column in definition.keys])
    judged: dict[tuple[datetime, str], CellRow] = {}
    if runs is not None:
        within = [(to_ms(start), to_ms(end))]
        verdicts = read_verdicts(serving.home, runs.chain, within, Where("pair").equals(pair))
        for row in [] if verdicts is None else verdicts.to_pylist():
            if row["key"] is not None and axis_key(row["key"], definition) == text:
                judged[row["window_start"], row["key"]] = _judged_row(row, definition)
    found, more = _served(settings, name, definition, start, end, key)
    rows = [*judged.values(), *(row for row in found if (row.start, row.key) not in judged)]
    rows.sort(key=lambda row: (_rank(row.verdict), -row.late, row.start, row.key))
    return CellView(tuple(rows[:MOST]), more or len(rows) > MOST)


def _rank(verdict: str | None) -> int:
    return len(Verdict.BY_GRAVITY) if verdict is None else Verdict.BY_GRAVITY.index(verdict)


def parse_cell_key(text: str | None) -> Row:
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


def _judged_row(row: Mapping[str, Any], definition: Definition) -> CellRow:
    label = key_label(axis_key(row["key"], definition))
    window = (row["window_start"], row["window_end"])
    return CellRow(*window, row["key"], label, row["verdict"], row["reason"], row["late"] or 0)


def _served(
    settings: Settings, name: str, definition: Definition, start: datetime, end: datetime, key: Mapping[str, Any]
) -> tuple[list[CellRow], bool]:
    """Return rows of the key that are served, without their own verdict, and whether there are more."""
    served = open_rows(settings, name, BY_NAME[SERVED])
    if served is None:
        return [], False
    window = definition.window
    columns = [window.start_column, window.end_column, *definition.row_keys]
    table = newest_rows(served.choose(start, end, key, columns), MOST + 1)
    why = f"it has no separate verdict: {Verdict.AGREES} if its window was judged"
    rows = [
        CellRow(begin, close, text, key_label(axis_key(text, definition)), None, why, 0)
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


def explain_for_page(settings: Settings, name: str, start: datetime, key: str | None, now: datetime) -> ExplanationView:
    """Return the explanation of a row, with what is known of its truth.

    Raises:
        RequestError: there is no such window or key; the nearest ones are given.
    """
    explanation = explain_row(settings, name, start, key, now=now)
    plain = explanation.to_json()
    for verdict in plain["verdicts"]:
        del verdict["age_s"]  # the browser counts it on from `at`
    return ExplanationView(plain, describe_stored_truth(explanation), explain_command(explanation.address))


def describe_stored_truth(explanation: Explanation) -> StoredTruth:
    """Return the truth that the newest reconcile's verdict gives, or why it gives none. Pure."""
    for verdict in explanation.verdicts:
        has_row = explanation.has_served if verdict.pair == "served" else explanation.has_stream
        if verdict.verdict == Verdict.AGREES and verdict.stale is None and has_row:
            values = {column.name: json_value(getattr(column, verdict.pair)) for column in explanation.columns}
            why = f"{verdict.run} found the {verdict.pair} row equal to the truth, and nothing came after it"
            return StoredTruth(values, why, verdict.pair, verdict.run, verdict.at)
    if not explanation.verdicts:
        why = "no reconcile has judged this row"
    elif all(verdict.stale for verdict in explanation.verdicts):
        why = f"the newest verdicts are out of date: {explanation.verdicts[0].stale}"
    else:
        why = "the newest reconcile compared it with the truth and found it different; what the truth is, only the log says"
    return StoredTruth(None, why)


def explain_command(address: Address) -> str:
    """Return the command that explains the same row with its truth. Pure."""
    words = ["rivertwice", "explain", address.pipeline, to_iso(address.start)]
    if address.key:
        words.append(key_text(list(address.key), address.key.values()))
    return shlex.join([*words, "--with-truth"])
