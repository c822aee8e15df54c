"""Whether the newest row of a key depends on the order in which sources and partitions were read. Pure.

The same events are folded in several orders (`folds.fold_otherwise`). Each partition keeps its own order in all of them, for that is the
log's; what the log does not say is how partitions lie between each other. A key whose newest row is the same in all of them did
not depend on it: so much is checked, and no more.
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
"""Column of a fold's rows: how many rows of its key's came before."""
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
        shown: key to how what a view shows of it differs.
        gone: keys that a view shows in no order, but of which the last row tells something else in one, or is not there.
    """

    shown: Mapping[str, str]
    gone: Set[str]


def find_hanging(definition: Definition, orders: Mapping[str, pa.Table]) -> Hanging:
    """Return what depends on the order.

    The event's time is not compared: it says which event was the last.

    Args:
        definition: of the fold.
        orders: name to numbered rows; what the first holds is what the others are compared with.
    """
    (first, rows), *others = ((name, _newest_rows(definition, table)) for name, table in orders.items())
    shown: dict[str, str] = {}
    gone: set[str] = set()
    for name, other in others:
        for key in sorted((rows.keys() | other.keys()) - shown.keys()):
            one, two = rows.get(key), other.get(key)
            if _is_shown(definition, one) or _is_shown(definition, two):
                told = _difference(definition, *(each if _is_shown(definition, each) else None for each in (one, two)))
                shown |= {key: f"{told[0]} {first}, {told[1]} {name}"} if told else {}
            elif _difference(definition, one, two):
                gone.add(key)
    return Hanging(shown, gone - shown.keys())


def _newest_rows(definition: Definition, table: pa.Table) -> dict[str, _Row]:
    newest = select_newest(definition, table)
    rows = table.take(pa.array(list(newest.values()), pa.int64())).to_pylist()
    return dict(zip(newest, rows, strict=True))


def _is_shown(definition: Definition, row: _Row | None) -> bool:
    return row is not None and not (definition.deleted is not None and row[definition.deleted])


def _difference(definition: Definition, one: _Row | None, other: _Row | None) -> tuple[str, str] | None:
    if one is None or other is None:
        return None if one is other else (_there(one), _there(other))
    for name, column in definition.columns.items():
        if name != definition.window.at and not same_value(one[name], other[name], column.tolerance):
            return f"{name} is {_text(one[name])}", _text(other[name])
    return None


def _there(row: _Row | None) -> str:
    return "it is absent" if row is None else "it is there"


def _text(value: Any) -> str:
    return json.dumps(value, default=str)
