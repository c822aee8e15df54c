"""Whether the newest row of a key depends on the order in which sources and partitions were read. Pure.

The same events are folded in several orders (`folds.fold_otherwise`). Each partition keeps its own order in all of them, because
the log gives that order. The log gives no order between partitions. If the newest row of a key is the same in all the orders that
were tried, the key counts as independent of the order. Other orders are not checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rivertwice.pipeline.columns import same_value
from rivertwice.pipeline.model import Definition

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
        definition: the fold's definition.
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
