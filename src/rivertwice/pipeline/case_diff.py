"""Expected rows against the rows that came: one sentence per difference. Pure."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from rivertwice.errors import DefinitionError
from rivertwice.instants import to_iso
from rivertwice.pipeline.model import Definition

Row = dict[str, Any]


def diff_rows(definition: Definition, mode: str, expected: list[Row], found: list[Row]) -> list[str]:
    """Return what differs, one sentence each; empty when the rows are the expected ones, each as often as expected."""
    kind = definition.window.kind
    keys = kind.case_keys(definition, expected)
    expected = kind.case_rows(expected)
    wanted, came = _by_identity(keys, expected), _by_identity(keys, found)
    lines = []
    for identity in sorted({*wanted, *came}):
        label = f"{mode}: {', '.join(f'{key} {part}' for key, part in zip(keys, identity, strict=True))}"
        lines += _diff_group(definition, label, keys, wanted.get(identity, []), came.get(identity, []))
    return lines


def newest_rows(definition: Definition, batches: list[list[Row]]) -> list[Row]:
    """Return what counts of the rows that a stream emitted, micro-batch by micro-batch.

    Of a stream with updates that is every row of the last batch that emitted its window and keys; of all others every row.
    """
    if not definition.has_updates:
        return [row for batch in batches for row in batch]
    newest: dict[tuple[str, ...], list[Row]] = {}
    for batch in batches:
        newest |= _by_identity([definition.window.start_column, *definition.keys], batch)
    return [row for rows in newest.values() for row in rows]


def _by_identity(keys: list[str], rows: list[Row]) -> dict[tuple[str, ...], list[Row]]:
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(_identity(keys, row), []).append(row)
    return groups


def _diff_group(definition: Definition, label: str, keys: list[str], wanted: list[Row], came: list[Row]) -> list[str]:
    """Return what differs among the rows of one window and keys: rows that agree are paired first, each with one other."""
    came, counts, left = list(came), (len(wanted), len(came)), []
    for row in wanted:
        same = next((at for at, one in enumerate(came) if not _diff_columns(definition, label, row, one)), None)
        if same is None:
            left.append(row)
        else:
            del came[same]
    pairs = min(len(left), len(came))
    lines = [line for both in zip(left, came, strict=False) for line in _diff_columns(definition, label, *both)]
    again = "" if 0 in counts else f"; such a row came {_times(counts[1])}, expected {_times(counts[0])}"
    lines += [f"{label}: the row is missing; expected {_show(row, keys)}{again}" for row in left[pairs:]]
    lines += [f"{label}: the row was not expected; it is {_show(row, keys)}{again}" for row in came[pairs:]]
    return lines


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


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
