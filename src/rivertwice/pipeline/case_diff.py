"""Compare expected rows with actual rows: one sentence per difference. Pure."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from rivertwice.errors import DefinitionError
from rivertwice.instants import to_iso
from rivertwice.pipeline.columns import same_value
from rivertwice.pipeline.model import Definition

Row = dict[str, Any]


def diff_rows(definition: Definition, mode: str, expected: list[Row], actual: list[Row]) -> list[str]:
    """Return one sentence per difference; empty if each expected row occurs as often as expected, and no other row does."""
    kind = definition.window.kind
    keys = kind.case_keys(definition, expected)
    expected = kind.case_rows(expected)
    expected_groups, actual_groups = _by_identity(keys, expected), _by_identity(keys, actual)
    lines = []
    for identity in sorted({*expected_groups, *actual_groups}):
        label = f"{mode}: {', '.join(f'{key} {part}' for key, part in zip(keys, identity, strict=True))}"
        lines += _diff_group(
            definition, label, keys, expected_groups.get(identity, []), actual_groups.get(identity, [])
        )
    return lines


def newest_rows(definition: Definition, batches: list[list[Row]]) -> list[Row]:
    """Return the rows that count among those that a stream emitted, micro-batch by micro-batch.

    For a stream with updates, these are the rows of the last batch that emitted their window and keys. For others, all rows.
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


def _diff_group(
    definition: Definition, label: str, keys: list[str], expected: list[Row], actual: list[Row]
) -> list[str]:
    """Return the differences among the rows of one window and keys. Rows that agree are paired first."""
    actual, counts, unmatched = list(actual), (len(expected), len(actual)), []
    for row in expected:
        same = next(
            (at for at, candidate in enumerate(actual) if not _diff_columns(definition, label, row, candidate)), None
        )
        if same is None:
            unmatched.append(row)
        else:
            del actual[same]
    pairs = min(len(unmatched), len(actual))
    lines = [line for pair in zip(unmatched, actual, strict=False) for line in _diff_columns(definition, label, *pair)]
    again = "" if 0 in counts else f"; such a row came {_times(counts[1])}, expected {_times(counts[0])}"
    lines += [f"{label}: the row is missing; expected {_show(row, keys)}{again}" for row in unmatched[pairs:]]
    lines += [f"{label}: the row was not expected; it is {_show(row, keys)}{again}" for row in actual[pairs:]]
    return lines


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def diff_names(what: str, expected: dict[str, str], actual: dict[str, str]) -> list[str]:
    """Return the events that are on one side only, or whose reason differs."""
    lines = []
    for name in sorted({*expected, *actual}):
        expected_reason, actual_reason = expected.get(name), actual.get(name)
        if expected_reason != actual_reason:
            lines.append(
                f"{what}: event {name!r} is {actual_reason or f'not {what}'}, expected {expected_reason or f'not {what}'}"
            )
    return lines


def _diff_columns(definition: Definition, label: str, expected: Row, actual: Row) -> list[str]:
    lines = []
    for name, value in expected.items():
        if name not in actual:
            lines.append(f"{label}: {name!r} is no column of the result; it has {', '.join(actual)}")
            continue
        column = definition.columns.get(name)
        tolerance = column.tolerance if column else None
        if not same_value(_as_column_value(value, actual[name]), actual[name], tolerance):
            same = _text(value) == _text(actual[name])
            expected_text = f"the text {value!r}; write it without quotes" if same else _text(value)
            lines.append(f"{label}: {name} is {_text(actual[name])}, expected {expected_text}")
    return lines


def _as_column_value(expected: Any, actual: Any) -> Any:
    """Return what a case expects in the type of the column's value, so that the two can be compared; None if it is no such value."""
    if expected is None or actual is None:
        return expected
    if isinstance(expected, bool) or isinstance(actual, bool):
        return expected if type(expected) is type(actual) else None
    if isinstance(actual, int | float | Decimal):
        if not isinstance(expected, int | float):
            return None
        return Decimal(str(expected)) if isinstance(actual, Decimal) else expected
    return actual if _text(expected) == _text(actual) else None


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
