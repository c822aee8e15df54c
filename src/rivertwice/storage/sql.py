"""Conditions of SQL for reading and replacing rows of Delta tables. Each is true or false for a row, never null, if its column is not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def quoted(column: str) -> str:
    """Return a column's name as SQL."""
    name = column.replace('"', '""')
    return f'"{name}"'


def text_of(value: str) -> str:
    """Return a text as an SQL literal."""
    inner = value.replace("'", "''")
    return f"'{inner}'"


def equals(column: str, value: str) -> str:
    """Return SQL that is true if a column equals this text."""
    return f"{quoted(column)} = {text_of(value)}"


def is_among(column: str, values: Iterable[str]) -> str:
    """Return SQL that is true if a column equals one of these texts; there must be at least one."""
    return f"{quoted(column)} IN ({', '.join(text_of(value) for value in values)})"


def text_in(column: str) -> str:
    """Return SQL that is a column's value as text."""
    return f"CAST({quoted(column)} AS VARCHAR)"


def is_text_among(column: str, values: Iterable[str]) -> str:
    """Return SQL that is true if a column's value, as text, is one of these; there must be at least one."""
    return f"{text_in(column)} IN ({', '.join(text_of(value) for value in values)})"


def contains(column: str, part: str) -> str:
    """Return SQL that is true if a column's value, as text, contains a text, whatever the case of letters."""
    return f"coalesce(strpos(lower({text_in(column)}), {text_of(part.lower())}) > 0, FALSE)"


def is_between(column: str, first: int, last: int) -> str:
    """Return SQL that is true if a whole number is between two, both included."""
    return f"{quoted(column)} BETWEEN {int(first)} AND {int(last)}"


def is_after(column: str, instant_ms: int) -> str:
    """Return SQL that is true if a timestamp, in whole milliseconds, is after an instant (epoch ms)."""
    return f"{quoted(column)} >= {_instant(instant_ms + 1)}"


def is_before(column: str, instant_ms: int) -> str:
    """Return SQL that is true if a timestamp is before an instant (epoch ms)."""
    return f"{quoted(column)} < {_instant(instant_ms)}"


def is_within(column: str, ranges: Sequence[tuple[int, int]]) -> str:
    """Return SQL that is true if a timestamp lies in one of some half-open ranges of epoch ms; there must be at least one.

    The time that delta-rs needs for it grows with the square of their number: 0.1 CPU-seconds for 100, 22 for 2,000 (ran).
    """
    name = quoted(column)
    return any_of(f"{name} >= {_instant(start)} AND {name} < {_instant(end)}" for start, end in ranges)


def any_of(conditions: Iterable[str]) -> str:
    """Return SQL that is true if one of some conditions is; there must be at least one."""
    return " OR ".join(f"({condition})" for condition in conditions)


def all_of(conditions: Iterable[str]) -> str:
    """Return SQL that is true if all of some conditions are; there must be at least one."""
    return " AND ".join(f"({condition})" for condition in conditions)


def _instant(instant_ms: int) -> str:
    # As text it would be read in nanoseconds, which end in the year 2262 (ran).
    return f"arrow_cast({int(instant_ms) * 1000}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
