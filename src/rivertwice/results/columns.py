"""Columns and values that people name, checked against a table's schema. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from rivertwice.errors import RequestError
from rivertwice.instants import parse_instant
from rivertwice.timeline.keys import key_text


def require_columns(schema: pa.Schema, names: Sequence[str], table: str) -> None:
    """Check that a table has some columns.

    Raises:
        RequestError: it lacks one; the closest name, or all, are given.
    """
    for name in names:
        if name not in schema.names:
            close = difflib.get_close_matches(name, schema.names, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(schema.names)}"
            message = f"{table} has no column {name!r}; {hint}"
            raise RequestError(message)


def condition_of_key(schema: pa.Schema, key: Mapping[str, Any], keys: Sequence[str] = ()) -> pc.Expression | None:
    """Return the condition that a row has some values; None if none are given.

    Args:
        schema: of the table.
        key: column to value. A table that stores keys as one text, as verdicts do, is asked for that text.
        keys: the definition's key columns.

    Raises:
        RequestError: there is no such column, or a value does not fit its column.
    """
    if not key:
        return None
    if "key" in schema.names and types.is_string(schema.field("key").type) and not set(key) <= set(schema.names):
        missing = sorted(set(keys) - set(key))
        if missing or set(key) - set(keys):
            message = f"a row is found here by its whole key, which is {', '.join(keys)}; the key that is given has {', '.join(key)}"
            raise RequestError(message)
        return pc.field("key") == key_text(list(key), key.values())
    require_columns(schema, list(key), "the table")
    parts = [_equals(schema.field(name), value) for name, value in key.items()]
    return reduce(and_, parts)


def _equals(field: pa.Field, value: Any) -> pc.Expression:
    if value is None:
        return pc.field(field.name).is_null()
    try:
        if types.is_timestamp(field.type) and isinstance(value, str):
            value = parse_instant(value)
        scalar = (
            pa.scalar(value, pa.string()).cast(field.type) if isinstance(value, str) else pa.scalar(value, field.type)
        )
    except (pa.ArrowException, TypeError, ValueError, RequestError) as error:
        message = f"{value!r} is no value of the column {field.name}, which is {field.type} ({error})"
        raise RequestError(message) from None
    return pc.field(field.name) == scalar
