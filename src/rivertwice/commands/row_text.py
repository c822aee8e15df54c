"""Rows as text for people, and as JSON for programs. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from rivertwice.commands.frame import as_table
from rivertwice.instants import to_iso

if TYPE_CHECKING:
    import pyarrow as pa

NULL = "null"


def rows_table(rows: pa.Table) -> str:
    """Return rows as an aligned table: numbers at the right, instants in UTC, and nulls that no text can be taken for."""
    import pyarrow.types as types

    def is_number(kind: pa.DataType) -> bool:
        return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))

    right = {place for place, field in enumerate(rows.schema) if is_number(field.type)}
    columns = [rows.column(place).to_pylist() for place in range(rows.num_columns)]
    cells = [[cell_text(value) for value in row] for row in zip(*columns, strict=True)]
    return as_table(rows.schema.names, cells, right=right)


def cell_text(value: Any) -> str:
    """Return a value as people read it; a text that is empty, or that reads `null`, is quoted."""
    from rivertwice.timeline.served_export import json_value

    if value is None:
        return NULL
    if isinstance(value, str):
        return json.dumps(value) if value in ("", NULL) else value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return to_iso(value) if value.tzinfo else value.isoformat()
    if isinstance(value, Decimal | int | float):
        return str(value)
    plain = json_value(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def plain_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows as JSON can hold them; names of columns that occur twice get a number, whole decimals are numbers."""
    from rivertwice.timeline.served_export import json_value

    def plain(value: Any) -> Any:
        if isinstance(value, Decimal) and value.is_finite() and int(str(value.as_tuple().exponent)) >= 0:
            return int(value)
        return json_value(value)

    names = distinct(rows.schema.names)
    columns = [rows.column(place).to_pylist() for place in range(rows.num_columns)]
    return [{name: plain(value) for name, value in zip(names, row, strict=True)} for row in zip(*columns, strict=True)]


def distinct(names: Sequence[str]) -> list[str]:
    """Return names of which each occurs once: the second `n` becomes `n_2`."""
    seen: dict[str, int] = {}
    made = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        made.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return made
