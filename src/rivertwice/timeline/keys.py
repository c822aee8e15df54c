"""Key columns as one text, which tells a key from every other of its pipeline."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa


def key_text(names: Sequence[str], values: Iterable[Any]) -> str:
    """Return key columns as JSON with sorted names; values JSON does not know appear as their text."""
    return json.dumps(dict(zip(names, values, strict=True)), sort_keys=True, default=str)


def key_texts(rows: pa.Table, names: Sequence[str]) -> list[str]:
    """Return the text of each row's key, in the table's order."""
    columns = [rows[name].to_pylist() for name in names]
    return [key_text(names, values) for values in zip(*columns, strict=True)] if names else ["{}"] * rows.num_rows


def key_digest(text: str) -> str:
    """Return 16 hex digits for a key's text: what files say of a key that are not rewritten when it is erased."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
