"""How a JSON record gives an instant: as text, or as a number since 1970-01-01T00:00Z. Pure; `decode` reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rivertwice.pipeline.source_model import Source

# One instant, one zone, and no year that an offset could carry out of 0001 to 9999. Java's syntax.
TIMESTAMP = r"\A(?!000[01]|9999)\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?(Z|[+-]\d{2}:\d{2})\z"
EpochUnit = Literal["s", "ms", "us"]
MICROS: dict[str, int] = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""Unit to microseconds."""
FIRST_S, END_S = -62_104_060_800, 253_370_764_800
"""The years 0002 to 9998, half-open, as those of a timestamp that is text (seconds since 1970)."""


def epoch_bounds(unit: str) -> tuple[int, int]:
    """Return the first number that is taken and the first beyond, in the unit."""
    return tuple(seconds * 1_000_000 // MICROS[unit] for seconds in (FIRST_S, END_S))  # type: ignore[return-value]


def find_epochs_conflict(source: Source) -> str | None:
    """Return why the fields that are numbers of time do not fit the source, or None."""
    for name in source.epochs:
        kind = source.schema_.get(name, "absent")
        if kind != "timestamp":
            return f"epochs names {name!r}, which is {kind} in schema; say `{name}: timestamp` there: that is what the SQL sees"
    if source.epochs and (source.format != "json" or source.envelope != "none"):
        return "epochs is for plain JSON: an Avro or Protobuf schema and a change event say themselves what a time is; remove epochs"
    return None
