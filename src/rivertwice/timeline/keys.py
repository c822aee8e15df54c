"""Key columns as one text, which identifies a key in its pipeline."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa


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
