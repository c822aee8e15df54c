"""Rows as lines of JSON: what `rivertwice export` writes, and what two tables with the same rows have in common."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from rivertwice.instants import to_iso

OWN_COLUMNS = frozenset({"_format", "_day"})
"""Columns that serve the storage alone; they are left out of an export unless they are named."""


def json_lines(rows: pa.Table) -> list[bytes]:
    """Return each row as a line with a JSON object, in the order of rows and columns, without the line's end."""
    names = rows.schema.names
    columns = [rows[name].to_pylist() for name in names]
    return [
        json.dumps(
            {name: json_value(value) for name, value in zip(names, row, strict=True)},
            ensure_ascii=False,
            separators=(",", ":"),
        ).encode()
        for row in zip(*columns, strict=True)
    ]


def export_lines(rows: pa.Table) -> list[bytes]:
    """Return the lines of rows in memory, sorted, with the columns by name: equal for two tables exactly when they hold the same rows."""
    return sorted(json_lines(rows.select(sorted(rows.schema.names))))


def json_value(value: Any) -> Any:
    """Return a value as JSON can hold it, without losing a digit.

    Instants are ISO 8601 in UTC, decimals text, bytes Base64; a float that JSON lacks is `"NaN"`, `"Infinity"` or `"-Infinity"`.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else json.dumps(value)
    if isinstance(value, datetime):
        return to_iso(value if value.tzinfo else value.replace(tzinfo=UTC))
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(name): json_value(item) for name, item in value.items()}
    if isinstance(value, Sequence):
        return [json_value(item) for item in value]
    return str(value)
