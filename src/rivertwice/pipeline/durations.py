"""Durations as people write them in YAML: `1 hour`, `10 minutes`, `30 s`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_UNITS = {
    "ms": 1,
    "s": 1_000,
    "sec": 1_000,
    "second": 1_000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
}
_PATTERN = r"^[0-9]{1,9} *(ms|s|sec|seconds?|m|min|minutes?|h|hours?|d|days?)$"
_DURATION = re.compile(r"^([0-9]{1,9}) *([a-z]+)\Z")


def parse_duration(value: Any) -> timedelta:
    """Return the duration in `value`; whole milliseconds only.

    Raises:
        ValueError: the value is no duration, with the form to use.
    """
    if isinstance(value, timedelta):
        return value
    match = _DURATION.match(value) if isinstance(value, str) else None
    unit = match.group(2) if match else ""
    scale = _UNITS.get(unit) or (_UNITS.get(unit[:-1]) if len(unit) > 3 else None)
    if match is None or scale is None:
        message = f"{value!r} is no duration; write a whole number and a unit: '1 hour', '10 minutes', '30 s'"
        raise ValueError(message)
    return timedelta(milliseconds=int(match.group(1)) * scale)


def format_duration(value: timedelta) -> str:
    """Return the shortest whole-number text that `parse_duration` reads back."""
    milliseconds = value // timedelta(milliseconds=1)
    for unit, scale in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000)):
        count, remainder = divmod(milliseconds, scale)
        if remainder == 0 and count > 0:
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return f"{milliseconds} ms"


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": _PATTERN, "examples": ["1 hour", "10 minutes", "30 s"]}),
]
