"""Values as JSON can hold them. Pure."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any

from rivertwice.core.instants import to_iso

Row = dict[str, Any]
"""A row by column. Which columns it has is known when it is read: some are the user's, some came with a later release."""
_AS_IT_IS = frozenset((str, int, bool, type(None)))


def to_plain(value: Any) -> Any:
    """Return a value as JSON can hold it: dataclasses as objects, instants as ISO 8601, paths as text.

    A field whose name is a word of Python ends with an underscore, which its name in JSON has not (`from_`, `class_`). A float that
    JSON lacks is `"NaN"`, `"Infinity"` or `"-Infinity"`, as in an export.
    """
    if type(value) in _AS_IT_IS:
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name.removesuffix("_"): to_plain(getattr(value, name)) for name in names}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return to_iso(value) if value.tzinfo else value.isoformat()
    if isinstance(value, date | Path):
        return str(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(to_plain(item) for item in value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [to_plain(item) for item in value]
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return str(value)
