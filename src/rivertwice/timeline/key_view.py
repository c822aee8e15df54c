"""A fold's rows as a table: the newest row of every key now or at an instant, or a key's whole history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.config import PipelineHome
from rivertwice.errors import RequestError
from rivertwice.instants import to_iso
from rivertwice.pipeline.bundle import load_bundle_definition
from rivertwice.pipeline.fold_run import PARTITION_SHIFT
from rivertwice.pipeline.model import RECORD, ROW, Definition
from rivertwice.timeline.lineage import load_timeline
from rivertwice.timeline.sequence import read_sequence, select_head
from rivertwice.timeline.served import ServedStamp, read_served, served_stamp


@dataclass(frozen=True)
class KeyView:
    """What is shown, of which build of the served table; rows by key, of a history in the order of the log."""

    stamp: ServedStamp
    columns: tuple[str, ...]
    rows: list[dict[str, Any]]


def read_view(
    home: PipelineHome, *, key: Mapping[str, Any] | None = None, at: datetime | None = None, history: bool = False
) -> KeyView:
    """Return what the served table of a fold says.

    Args:
        home: the pipeline's.
        key: values of key columns, some or all; None: every key.
        at: only rows of events up to this instant, the instant itself included; None: all there are.
        history: every row, not the newest of each key.

    Raises:
        RequestError: it is no fold, never ran, or the key names no key column.
    """
    name = home.root.name
    head = select_head(read_sequence(home))
    if head is None:
        message = f"{name} has no timeline in {home.root}, so there is nothing to view; start it first"
        raise RequestError(message)
    definition = load_bundle_definition(home.bundles, load_timeline(home, head).bundle)
    check_request(definition, key)
    for _ in range(5):  # the stamp of the very build that is read
        stamp = served_stamp(home)
        served = read_served(home)
        if stamp is not None and served is not None and served_stamp(home) == stamp:
            rows = select_rows(served, definition, key=key, at=at, history=history)
            return KeyView(stamp, (*definition.keys, *definition.columns), rows)
    message = f"the served table of {name} was never built, or is built again all the time; look at `rivertwice status`"
    raise RequestError(message)


def check_request(definition: Definition, key: Mapping[str, Any] | None) -> None:
    """Refuse what cannot be viewed.

    Raises:
        RequestError: it is no fold, or the key names no key column.
    """
    if not definition.window.is_fold:
        message = f"{definition.name} has windows ({definition.window.text}), and a view is of a fold's keys; read its `served` table instead"
        raise RequestError(message)
    unknown = sorted(set(key or ()) - set(definition.keys))
    if unknown:
        message = f"--key names {unknown[0]!r}, which is no key of {definition.name}; use {', '.join(definition.keys)}"
        raise RequestError(message)


def select_rows(
    served: pa.Table,
    definition: Definition,
    *,
    key: Mapping[str, Any] | None = None,
    at: datetime | None = None,
    history: bool = False,
) -> list[dict[str, Any]]:
    """Return rows of the served table, each with the address of its event: see `read_view`. Pure."""
    window = definition.window
    assert window.at is not None, "the definition was checked"
    if at is not None:
        served = served.filter(pc.less_equal(served[window.at], pa.scalar(at, served.schema.field(window.at).type)))
    for name, value in (key or {}).items():
        same = [_text(one) == _text(value) for one in served[name].to_pylist()]
        served = served.filter(pa.array(same, pa.bool_()))
    # On a path batches only rise, so this is the order in which the stream folded.
    ordered = served.sort_by([("_batch", "ascending"), (RECORD, "ascending"), (ROW, "ascending")]).to_pylist()
    shown = ordered if history else _newest(ordered, definition)
    names = (*definition.keys, *definition.columns)
    return [{**{name: row[name] for name in names}, **_address(row[RECORD]), ROW: row[ROW]} for row in shown]


def _newest(ordered: Sequence[dict[str, Any]], definition: Definition) -> list[dict[str, Any]]:
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
