"""Which row somebody means by a window and a key; the nearest ones if there is no such row."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.config import PipelineHome
from rivertwice.errors import RequestError
from rivertwice.explain.kinds import facts_of
from rivertwice.instants import EPOCH, iso_of_ms, to_iso, to_ms
from rivertwice.pipeline.definition import Definition
from rivertwice.results.columns import condition_of_key, require_columns
from rivertwice.store import delta
from rivertwice.store.sql import is_within
from rivertwice.timeline.keys import key_text
from rivertwice.timeline.serving import to_epoch_ms

_NEAREST = 5
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class WindowRows:
    """All rows that were ever stored of the windows that start at an instant.

    Attributes:
        served: what is served. changelog: of all timelines. corrections: of all backfills, published or not. None: no such table.
    """

    served: pa.Table | None
    changelog: pa.Table | None
    corrections: pa.Table | None

    @property
    def tables(self) -> list[pa.Table]:
        """Those that there are."""
        return [rows for rows in (self.served, self.changelog, self.corrections) if rows is not None]

    def of_key(self, key: Mapping[str, Any], definition: Definition) -> WindowRows:
        """Return the rows of a key.

        Raises:
            RequestError: a value does not fit its column.
        """
        chosen = [None if rows is None else of_key(rows, key, definition) for rows in self._each()]
        return WindowRows(*chosen)

    def _each(self) -> tuple[pa.Table | None, ...]:
        return self.served, self.changelog, self.corrections


def read_window(home: PipelineHome, served: Any, definition: Definition, start: datetime) -> WindowRows:
    """Return the stored rows of the windows that start at an instant; of each table only the files that can have such rows are read."""
    column, start_ms = definition.window.start_column, to_ms(start)
    matching = is_within(column, [(start_ms, start_ms + 1)])
    read = [delta.read(place, matching=matching) for place in (served, home.tables.changelog, home.tables.corrections)]
    exact = pa.scalar(start, pa.timestamp("us", "UTC"))
    return WindowRows(*[None if rows is None else rows.filter(pc.equal(rows[column], exact)) for rows in read])


def parse_key(text: str | None, names: Sequence[str]) -> dict[str, Any]:
    """Return the key that a person wrote: a JSON object, or the value alone if there is one key column. Pure.

    Raises:
        RequestError: it has other columns, or none is given where there are some.
    """
    form = json.dumps(dict.fromkeys(names, "..."))
    if text is None:
        if names:
            message = f"the key is missing: a row is found by {', '.join(names)}; write it as '{form}'"
            raise RequestError(message)
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if isinstance(value, dict):
        unknown = sorted(set(value) - set(names))
        if unknown or not value:
            message = f"the key {text[:80]} names {', '.join(unknown) or 'nothing'}, but the key columns are {', '.join(names) or 'none'}"
            raise RequestError(message)
        return value
    if len(names) != 1:
        message = f"{text[:80]!r} is no key: there are {len(names)} key columns ({', '.join(names) or 'none'}); write it as '{form}'"
        raise RequestError(message)
    return {names[0]: text if isinstance(value, list) or value is None else value}


def of_key(rows: pa.Table, key: Mapping[str, Any], definition: Definition) -> pa.Table:
    """Return the rows of a key; a number is also taken as text where the column is one, so that `7` finds the key "7".

    Raises:
        RequestError: a value does not fit its column, or the table has no such column.
    """
    require_columns(rows.schema, list(key), "the table")
    fitting = {
        name: str(value)
        if pa.types.is_string(rows.schema.field(name).type) and isinstance(value, int | float)
        else value
        for name, value in key.items()
    }
    condition = condition_of_key(rows.schema, fitting, definition.row_keys)
    return rows if condition is None else rows.filter(condition)


def keys_in(rows: Sequence[pa.Table], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the keys of rows: their text to key column and value. Pure."""
    found: dict[str, dict[str, Any]] = {}
    for table in rows:
        columns = [table[name].to_pylist() for name in names]
        for values in zip(*columns, strict=True):
            found.setdefault(key_text(names, values), dict(zip(names, values, strict=True)))
    return found


def refuse_key(pipeline: str, start: datetime, key: Mapping[str, Any], known: Sequence[str]) -> RequestError:
    """Return the error about a key that has no row in a window, with the nearest ones. Pure."""
    text = key_text(list(key), key.values())
    close = difflib.get_close_matches(text, known, n=_NEAREST, cutoff=0.5) or sorted(known)[:_NEAREST]
    more = "" if len(known) <= len(close) else f" (of {len(known)})"
    message = (
        f"no row of {pipeline} has the key {text} in the window at {to_iso(start)}; keys there: {', '.join(close)}{more}; if records of "
        "it came too late to be emitted, --with-truth computes it"
    )
    return RequestError(message)


def refuse_window(home: PipelineHome, served: Any, definition: Definition, start: datetime) -> RequestError:
    """Return the error about a window that has no row, with the nearest windows that have one."""
    column = definition.window.start_column
    place = served if delta.open_table(served) is not None else home.tables.changelog
    rows = delta.read(place, columns=[column])
    known = [] if rows is None else sorted(set(to_epoch_ms(rows[column]).tolist()))
    message = f"no row of {home.root.name} is of a window at {to_iso(start)}; {describe_nearest(known, to_ms(start), definition)}"
    return RequestError(message)


def describe_nearest(known_ms: Sequence[int], start_ms: int, definition: Definition) -> str:
    """Return in words which windows are nearest to an instant (epoch ms). Pure.

    Args:
        known_ms: starts of the windows that have rows, in order.
        start_ms: the instant.
        definition: whose windows they are.
    """
    if not known_ms:
        return "no window has a row yet; `rivertwice status` shows how far the stream is"
    before = [ms for ms in known_ms if ms <= start_ms][-2:]
    after = [ms for ms in known_ms if ms > start_ms][:2]
    listed = ", ".join(iso_of_ms(ms) for ms in (*before, *after))
    step_ms = definition.window.step // timedelta(milliseconds=1)
    aligned = facts_of(definition).has_known_starts and start_ms % step_ms
    hint = f"; it lies in the one that starts at {iso_of_ms(start_ms // step_ms * step_ms)}" if aligned else ""
    return f"the nearest start at {listed}{hint} (windows: {definition.window.text})"


def window_end(definition: Definition, start: datetime, rows: WindowRows) -> datetime | None:
    """Return the end of the row's window: of a stored row, or of windows of one length; None: not known."""
    for table in rows.tables:
        if table.num_rows:
            end: datetime = table[definition.window.end_column][0].as_py()
            return end
    is_whole = facts_of(definition).has_known_starts and (start - EPOCH) % definition.window.step < _MICROSECOND
    if not is_whole:
        return None
    return start + definition.window.length
