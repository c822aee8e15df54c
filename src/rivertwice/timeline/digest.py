"""Order-independent digests of result rows, version d1.

`d1:<rows>:<hex>`: the sum modulo 2**128 of BLAKE2b-128 over each row's canonical bytes. A sum is a multiset hash: it
sees a duplicate (which exclusive-or would cancel) and can be kept by addition.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.core import EPOCH

VERSION = "d1"
_MODULUS = 1 << 128
_MICROSECOND = timedelta(microseconds=1)
_AT_ONCE = 65_536
"""Rows whose canonical bytes are held at once: an array of bytes takes at most 2 GB."""


def canonical_value(value: Any) -> bytes:
    """Return bytes that are equal exactly for equal values of one type.

    Raises:
        TypeError: the value's type has no canonical form (it is not a result type).
    """
    if value is None:
        return b"n"
    if isinstance(value, bool):
        return b"b1" if value else b"b0"
    if isinstance(value, int):
        return b"i%d" % value
    if isinstance(value, float):
        return b"f" + (0.0 if value == 0 else value).hex().encode()
    if isinstance(value, Decimal):
        return b"d" + format(value.normalize(), "f").encode()
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return b"t%d" % ((aware - EPOCH) // _MICROSECOND)
    if isinstance(value, date):
        return b"D" + value.isoformat().encode()
    if isinstance(value, str):
        text = value.encode()
        return b"s%d:" % len(text) + text
    if isinstance(value, bytes):
        return b"x%d:" % len(value) + value
    message = f"a {type(value).__name__} has no canonical form; use a scalar result column"
    raise TypeError(message)


def digest_values(rows: Iterable[Sequence[Any]]) -> str:
    """Return the digest of rows given as value sequences of one column order."""
    return _digest(b"|".join(canonical_value(value) for value in row) for row in rows)


def digest_rows(table: pa.Table, columns: Sequence[str]) -> str:
    """Return the digest of a table's rows over `columns`, in that column order; the rows' order does not matter."""
    return _digest(_rows_bytes(table.select(list(columns)))) if columns else digest_values([])


def _digest(rows: Iterable[bytes]) -> str:
    total = count = 0
    for data in rows:
        total += int.from_bytes(hashlib.blake2b(data, digest_size=16).digest(), "big")
        count += 1
    return f"{VERSION}:{count}:{total % _MODULUS:032x}"


def _rows_bytes(table: pa.Table) -> Iterator[bytes]:
    """Yield each row's canonical bytes: those of `canonical_value`, made a column at a time."""
    for start in range(0, table.num_rows, _AT_ONCE):
        part = table.slice(start, _AT_ONCE).combine_chunks()
        columns = [_column_bytes(column) for column in part.columns]
        yield from pc.binary_join_element_wise(*columns, pa.scalar(b"|")).to_pylist()


def _column_bytes(column: pa.ChunkedArray) -> pa.ChunkedArray:
    text = _column_text(column)
    if text is None:
        return pa.chunked_array([pa.array(map(canonical_value, column.to_pylist()), pa.binary())])
    return text.cast(pa.binary()).fill_null(b"n")


def _column_text(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return the canonical form of a column's values, null where a value is, or None for a type whose form only Python writes."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return pc.if_else(column, "b1", "b0")
    if pa.types.is_integer(kind):
        return _joined(b"i", column.cast(pa.string()))
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        micros = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
        return _joined(b"t", micros.cast(pa.string()))
    if pa.types.is_string(kind):
        return _joined(b"s", pc.binary_length(column).cast(pa.string()), b":", column)
    return None


def _joined(*parts: bytes | pa.ChunkedArray) -> pa.ChunkedArray:
    texts = [pa.scalar(part) if isinstance(part, bytes) else part.cast(pa.binary()) for part in parts]
    return pc.binary_join_element_wise(*texts, pa.scalar(b""))


NO_ROWS = digest_values([])
"""The digest of no rows."""


def add_digests(digests: Iterable[str]) -> str:
    """Return the digest of all rows whose digests these are."""
    total = count = 0
    for digest in digests:
        _, rows, text = digest.split(":")
        count += int(rows)
        total += int(text, 16)
    return f"{VERSION}:{count}:{total % _MODULUS:032x}"


# Key columns as one text, which identifies a key in its pipeline.


def key_text(names: Sequence[str], values: Iterable[Any]) -> str:
    """Return key columns as JSON with sorted names; values of types that JSON lacks appear as text."""
    return json.dumps(dict(zip(names, values, strict=True)), sort_keys=True, default=str)


def key_texts(rows: pa.Table, names: Sequence[str]) -> list[str]:
    """Return the text of each row's key, in the table's order."""
    columns = [rows[name].to_pylist() for name in names]
    return [key_text(names, values) for values in zip(*columns, strict=True)] if names else ["{}"] * rows.num_rows


def key_digest(text: str) -> str:
    """Return 16 hex digits for a key's text, for files that are not rewritten when the key is erased."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
