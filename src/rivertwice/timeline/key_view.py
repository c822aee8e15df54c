"""Rows that may still change: a fold's rows by key, now or at an instant, and the rows of open windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.core import PipelineHome, RequestError, Row, to_iso
from rivertwice.definition import PARTITION_SHIFT, RECORD, ROW, SOURCE, Definition, load_bundle_definition
from rivertwice.timeline.committed import newest_batch
from rivertwice.timeline.lineage import Timeline, head_path
from rivertwice.timeline.sequence import read_sequence, select_head
from rivertwice.timeline.served import read_served
from rivertwice.timeline.served_rows import read_provisional
from rivertwice.timeline.served_stamp import ServedStamp, read_served_stamp


@dataclass(frozen=True)
class KeyView:
    """Rows, with the build of the served table that has them; by key, or for a history in the order of the log."""

    stamp: ServedStamp
    columns: tuple[str, ...]
    rows: list[dict[str, Any]]


def read_view(
    home: PipelineHome, *, key: Mapping[str, Any] | None = None, at: datetime | None = None, history: bool = False
) -> KeyView:
    """Return the rows of a fold's served table.

    Args:
        key: values of key columns, some or all; None: every key.
        at: only rows of events up to this instant, the instant itself included; None: all rows.
        history: return every row, not only the newest of each key.

    Raises:
        RequestError: it is not a fold, never ran, or the key names no key column.
    """
    name = home.root.name
    head = select_head(read_sequence(home))
    if head is None:
        message = f"{name} has no timeline in {home.root}, so there is nothing to view; start it first"
        raise RequestError(message)
    definition = load_bundle_definition(home.bundles, Timeline.load(home, head).bundle)
    check_request(definition, key)
    if definition.has_updates:
        if at is not None or history:
            message = f"--at and --history are of folds; of {name} there is only the newest row of each open window"
            raise RequestError(message)
        return _view_open(home, definition, key, read_sequence(home)[-1].seq)
    for _ in range(5):  # until the stamp is that of the build that is read
        stamp = read_served_stamp(home)
        served = read_served(home)
        if stamp is not None and served is not None and read_served_stamp(home) == stamp:
            rows = select_rows(served, definition, key=key, at=at, history=history)
            return KeyView(stamp, (*definition.keys, *definition.columns), rows)
    message = f"the served table of {name} was never built, or is built again all the time; look at `rivertwice status`"
    raise RequestError(message)


def _view_open(home: PipelineHome, definition: Definition, key: Mapping[str, Any] | None, sequence: int) -> KeyView:
    """Return the newest rows of the windows that are not closed yet."""
    last = newest_batch(home, head_path(home))
    rows = read_provisional(home, definition)
    if rows is None or last is None:
        message = f"{definition.name} has no committed batch yet, so there is nothing to view; wait for its first"
        raise RequestError(message)
    window = definition.window
    columns = (window.start_column, window.end_column, *definition.keys, *definition.columns)
    ordered = rows.sort_by([(name, "ascending") for name in columns[: 2 + len(definition.keys)]]).to_pylist()
    wanted = {name: _text(value) for name, value in (key or {}).items()}
    shown = [row for row in ordered if all(_text(row[name]) == value for name, value in wanted.items())]
    stamp = ServedStamp(sequence, last.timeline, last.batch)
    return KeyView(stamp, columns, [{name: row[name] for name in columns} for row in shown])


def check_request(definition: Definition, key: Mapping[str, Any] | None) -> None:
    """Refuse a request that cannot be viewed.

    Raises:
        RequestError: it is not a fold, or the key names no key column.
    """
    if not definition.window.kind.has_newest_rows and not definition.has_updates:
        message = (
            f"{definition.name} has windows ({definition.window.text}) that are emitted when they close; --by-key, --at and "
            f"--history are of a fold's keys, or of open windows (emit: updates): `rivertwice show {definition.name}` has its rows"
        )
        raise RequestError(message)
    unknown = sorted(set(key or ()) - set(definition.keys))
    if unknown:
        message = (
            f"--key names {unknown[0]!r}, which is not a key of {definition.name}; use {', '.join(definition.keys)}"
        )
        raise RequestError(message)


def select_rows(
    served: pa.Table,
    definition: Definition,
    *,
    key: Mapping[str, Any] | None = None,
    at: datetime | None = None,
    history: bool = False,
) -> list[Row]:
    """Return rows of the served table, each with the address of its event: see `read_view`. Pure."""
    window = definition.window
    assert window.at is not None, "the definition was checked"
    if at is not None:
        served = served.filter(pc.less_equal(served[window.at], pa.scalar(at, served.schema.field(window.at).type)))
    for name, value in (key or {}).items():
        is_same = [_text(row_value) == _text(value) for row_value in served[name].to_pylist()]
        served = served.filter(pa.array(is_same, pa.bool_()))
    ordered = as_folded(served, folded_views(definition)).to_pylist()
    shown = ordered if history else _newest(ordered, definition)
    names = (*definition.keys, *definition.columns, *([SOURCE] if definition.has_several_sources else []))
    return [{**{name: row[name] for name in names}, **_address(row[RECORD]), ROW: row[ROW]} for row in shown]


def folded_views(definition: Definition) -> tuple[str, ...]:
    """Return a fold's sources in the order in which a batch folds them; empty if there is only one."""
    return tuple(definition.sources) if definition.has_several_sources else ()


def as_folded(rows: pa.Table, views: Sequence[str]) -> pa.Table:
    """Return a fold's rows of one path, with `_batch`, in the order of the fold: batch numbers only rise on a path."""
    order = [("_batch", "ascending")]
    names = rows.schema.names
    if views:
        place = pc.index_in(rows[SOURCE], value_set=pa.array(list(views)))
        rows = rows.append_column("_place", place)
        order.append(("_place", "ascending"))
    return rows.sort_by([*order, (RECORD, "ascending"), (ROW, "ascending")]).select(names)


def _newest(ordered: Sequence[dict[str, Any]], definition: Definition) -> list[Row]:
    newest = {tuple(_text(row[name]) for name in definition.keys): row for row in ordered}
    gone = definition.deleted
    return [newest[key] for key in sorted(newest) if gone is None or not newest[key][gone]]


def _address(record: int) -> dict[str, int]:
    return {"partition": record >> PARTITION_SHIFT, "offset": record & ((1 << PARTITION_SHIFT) - 1)}


def _text(value: Any) -> str:
    """Return a key's value as the command line can write it; numbers sort by size, as far as texts can."""
    if isinstance(value, datetime):
        return to_iso(value)
    return f"{value:>20}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
