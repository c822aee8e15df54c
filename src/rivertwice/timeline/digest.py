"""Order-independent digests of result rows, version d1.

`d1:<rows>:<hex>`: the sum modulo 2**128 of BLAKE2b-128 over each row's canonical bytes. A sum is a multiset hash: it
sees a duplicate (which exclusive-or would cancel) and can be kept by addition.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from rivertwice.instants import EPOCH

VERSION = "d1"
_MODULUS = 1 << 128
_MICROSECOND = timedelta(microseconds=1)


def canonical_value(value: Any) -> bytes:
    """Return bytes that are equal exactly for equal values of one type.

    Raises:
        TypeError: the value's type has no canonical form (it is no result type).
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
    total = count = 0
    for row in rows:
        data = b"|".join(canonical_value(value) for value in row)
        total += int.from_bytes(hashlib.blake2b(data, digest_size=16).digest(), "big")
        count += 1
    return f"{VERSION}:{count}:{total % _MODULUS:032x}"


def digest_rows(table: pa.Table, columns: Sequence[str]) -> str:
    """Return the digest of a table's rows over `columns`, in that column order; the rows' order does not matter."""
    values = [table.column(name).to_pylist() for name in columns]
    if not values:
        return digest_values([])
    return digest_values(zip(*values, strict=True))


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
