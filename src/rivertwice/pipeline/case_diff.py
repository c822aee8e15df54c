"""Expected rows against the rows that came: one sentence per difference. Pure."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from rivertwice.errors import DefinitionError
from rivertwice.instants import to_iso
from rivertwice.pipeline.model import RECORD, ROW, Definition

Row = dict[str, Any]


def diff_rows(definition: Definition, mode: str, expected: list[Row], found: list[Row]) -> list[str]:
    """Return what differs, one sentence each; empty when the rows are the expected ones."""
    start = definition.window.start_column
    keys = [start, *definition.keys]
    if definition.window.is_sliced and not all(start in row for row in expected):
        keys = definition.keys  # a slice's window begins before it; who writes a case thinks of the slice
    if definition.window.is_fold:
        keys = [RECORD, ROW]  # the id of the event, and which of its rows
        expected = [{ROW: 0, **row} for row in expected]
    wanted = {_identity(keys, row): row for row in expected}
    came = {_identity(keys, row): row for row in found}
    lines = []
    for identity in sorted({*wanted, *came}):
        label = f"{mode}: {', '.join(f'{key} {part}' for key, part in zip(keys, identity, strict=True))}"
        if identity not in came:
            lines.append(f"{label}: the row is missing; expected {_show(wanted[identity], keys)}")
        elif identity not in wanted:
            lines.append(f"{label}: the row was not expected; it is {_show(came[identity], keys)}")
        else:
            lines += _diff_columns(definition, label, wanted[identity], came[identity])
    if len(wanted) != len(expected):
        lines.append(f"{mode}: two expected rows have the same {', '.join(keys)}; remove one")
    return lines


def diff_names(what: str, expected: dict[str, str], found: dict[str, str]) -> list[str]:
    """Return which events are on one side only, or with another reason."""
    lines = []
    for name in sorted({*expected, *found}):
        wanted, came = expected.get(name), found.get(name)
        if wanted != came:
            lines.append(f"{what}: event {name!r} is {came or f'not {what}'}, expected {wanted or f'not {what}'}")
    return lines


def _diff_columns(definition: Definition, label: str, wanted: Row, came: Row) -> list[str]:
    lines = []
    for name, value in wanted.items():
        if name not in came:
            lines.append(f"{label}: {name!r} is no column of the result; it has {', '.join(came)}")
            continue
        column = definition.columns.get(name)
        tolerance = column.tolerance if column else None
        if not _equal(value, came[name], tolerance):
            same = _text(value) == _text(came[name])
            wanted_text = f"the text {value!r}; write it without quotes" if same else _text(value)
            lines.append(f"{label}: {name} is {_text(came[name])}, expected {wanted_text}")
    return lines


def _equal(wanted: Any, came: Any, tolerance: float | None) -> bool:
    if wanted is None or came is None:
        return wanted is came
    if isinstance(wanted, bool) or isinstance(came, bool):
        return wanted is came
    if isinstance(came, int | float | Decimal):
        if not isinstance(wanted, int | float | Decimal):
            return False
        return abs(Decimal(str(wanted)) - Decimal(str(came))) <= Decimal(str(tolerance or 0))
    return _text(wanted) == _text(came)


def _identity(keys: list[str], row: Row) -> tuple[str, ...]:
    missing = [key for key in keys if key not in row]
    if missing:
        message = f"expected row {row} has no {missing[0]!r}; window start and keys identify a row: add it"
        raise DefinitionError(message)
    return tuple(_text(row[key]) for key in keys)


def _show(row: Row, keys: list[str]) -> str:
    return ", ".join(f"{name}={_text(value)}" for name, value in row.items() if name not in keys)


def _text(value: Any) -> str:
    return to_iso(value) if isinstance(value, datetime) else str(value)
