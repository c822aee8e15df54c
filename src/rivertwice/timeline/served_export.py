"""The canonical export of the served table: equal for two tables exactly when they hold the same rows."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from rivertwice.instants import to_iso


def export_lines(rows: pa.Table) -> list[bytes]:
    """Return the canonical export: a header line, then one JSON line per row, sorted by bytes.

    Two tables have equal lines exactly when they hold the same rows, whatever the order and the files.
    """
    names = sorted(rows.schema.names)
    columns = [rows[name].to_pylist() for name in names]
    body = [
        json.dumps([_canonical(value) for value in row], ensure_ascii=False, separators=(",", ":")).encode()
        for row in zip(*columns, strict=True)
    ]
    return [json.dumps(names).encode(), *sorted(body)]


def _canonical(value: Any) -> Any:
    """Return a value as JSON can hold it, without losing a digit."""
    if isinstance(value, datetime):
        return to_iso(value if value.tzinfo else value.replace(tzinfo=UTC))
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return repr(value) if isinstance(value, float) else str(value)
