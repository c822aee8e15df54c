"""What two paths emitted after the last batch that they share, compared row by row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.config import PipelineHome
from rivertwice.instants import to_iso
from rivertwice.pipeline.model import Definition
from rivertwice.store import delta
from rivertwice.timeline.digest import canonical_value
from rivertwice.timeline.key_view import as_folded, folded_views
from rivertwice.timeline.ledger import LedgerRow

SAME, DIFFERS, ONLY_OLD, ONLY_NEW = "same", "differs", "only_old", "only_new"


@dataclass(frozen=True)
class Example:
    """One row that is not the same: its window and keys, and the other columns in each path; empty if a path has no such row."""

    kind: str
    row: dict[str, Any]
    old: dict[str, Any]
    new: dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """Rows of closed windows: how many are the same, differ, or exist on one path only.

    Attributes:
        old_windows: windows that the old path emitted after the fork.
        new_windows: windows that the new path emitted after it.
        examples: the first few rows that are not the same, in window order.
    """

    same: int
    differs: int
    only_old: int
    only_new: int
    old_windows: int
    new_windows: int
    examples: tuple[Example, ...]


def read_emitted(home: PipelineHome, rows: Sequence[LedgerRow], definition: Definition) -> pa.Table | None:
    """Return the result rows that these batches emitted, in order of batches; None if there is no batch or no table."""
    columns = definition.result_columns
    wanted: dict[str, list[int]] = {}
    for row in rows:
        wanted.setdefault(row.timeline, []).append(row.batch)
    where = None
    for timeline, batches in wanted.items():
        run = (pc.field("_timeline") == timeline) & (pc.field("_batch") >= min(batches))
        run = run & (pc.field("_batch") <= max(batches))
        where = run if where is None else where | run
    if where is None:
        return None
    table = delta.read(home.tables.changelog, columns=["_timeline", "_batch", *columns], where=where)
    if table is None:
        return None
    ordered = as_folded(table, folded_views(definition)) if definition.order == "any" else table.sort_by("_batch")
    return ordered.select(list(columns))


def count_windows(table: pa.Table | None, definition: Definition) -> int:
    """Return to how many windows the rows belong."""
    if table is None:
        return 0
    return len(set(table.column(definition.window.start_column).to_pylist()))


def compare_emitted(
    old: pa.Table | None, new: pa.Table | None, definition: Definition, *, examples: int = 5
) -> Comparison:
    """Compare what two paths emitted, by window and keys; for a fold with `order: any`, by the newest row of each key.

    Args:
        old: rows of the old path.
        new: rows of the new path.
        definition: names the columns.
        examples: how many rows that are not the same to give in full.
    """
    names = [definition.window.start_column, definition.window.end_column, *definition.row_keys]
    columns = list(definition.columns)
    if (
        definition.order == "any"
    ):  # the order of events differs between the paths; which event was the last, and its time, depends on it
        names, columns = list(definition.keys), [name for name in columns if name != definition.window.at]
    before, after = _by_key(old, names), _by_key(new, names)
    counts = dict.fromkeys((SAME, DIFFERS, ONLY_OLD, ONLY_NEW), 0)
    shown: list[Example] = []
    for key in sorted(before.keys() | after.keys()):
        left, right = before.get(key), after.get(key)
        kind = _kind_of(left, right, columns)
        counts[kind] += 1
        if kind != SAME and len(shown) < examples:
            either = left or right or {}
            shown.append(Example(kind, _plain(either, names), _plain(left, columns), _plain(right, columns)))
    return Comparison(
        same=counts[SAME],
        differs=counts[DIFFERS],
        only_old=counts[ONLY_OLD],
        only_new=counts[ONLY_NEW],
        old_windows=count_windows(old, definition),
        new_windows=count_windows(new, definition),
        examples=tuple(shown),
    )


def _by_key(table: pa.Table | None, names: Sequence[str]) -> dict[tuple[bytes, ...], dict[str, Any]]:
    if table is None:
        return {}
    # A row may be emitted more than once (emit: updates, or a key's rows with order: any); the newest, which comes last, counts.
    return {tuple(canonical_value(row[name]) for name in names): row for row in table.to_pylist()}


def _kind_of(old: dict[str, Any] | None, new: dict[str, Any] | None, columns: Iterable[str]) -> str:
    if new is None:
        return ONLY_OLD
    if old is None:
        return ONLY_NEW
    equal = all(canonical_value(old[name]) == canonical_value(new[name]) for name in columns)
    return SAME if equal else DIFFERS


def _plain(row: dict[str, Any] | None, names: Iterable[str]) -> dict[str, Any]:
    """Return some of a row's values as JSON can hold them."""
    if row is None:
        return {}
    return {name: _as_json(row[name]) for name in names}


def _as_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return to_iso(value if value.tzinfo else value.replace(tzinfo=UTC))
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
