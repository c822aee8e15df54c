"""Small parts that sections of a definition share: file names, columns, durations, times, the late policy."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from rivertwice.core import ConfigError, TopicName, require_topic

if TYPE_CHECKING:
    from rivertwice.definition.source import Source


class DefinitionFiles:
    """Names of the files of a definition."""

    YAML_FILE = "pipeline.yaml"
    TRANSFORM_FILE = "transform.sql"
    ROWS_FILE = "rows.sql"
    FOLD_FILE = "fold.py"
    FAST_FILE = "fast.sql"


# The base of all parts of a definition.


class Strict(BaseModel):
    """A part that cannot be changed and takes no field that it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


# How a result column of the stream is compared with a recompute.


class OutputColumn(Strict):
    """How a result column of the stream is compared with a recompute."""

    compare: Literal["exact", "tolerance"] = "exact"
    tolerance: float | None = Field(default=None, ge=0, description="Largest absolute difference that counts as equal.")

    @model_validator(mode="after")
    def _declared(self) -> Self:
        if (self.compare == "tolerance") != (self.tolerance is not None):
            message = "tolerance is given exactly when compare is 'tolerance'; write both or neither"
            raise ValueError(message)
        return self


def same_value(first: Any, second: Any, tolerance: float | None) -> bool:
    """Say whether two values of a column count as equal; two NaN do."""
    if first is None or second is None:
        return first is second
    if first == second or (first != first and second != second):
        return True
    return tolerance is not None and abs(float(first) - float(second)) <= tolerance


# Names of columns and topics, and how optional fields are published.

_COLUMN = re.compile(r"^[a-z][a-z0-9_]{0,63}\Z")


def _column(value: str) -> str:
    if not _COLUMN.match(value):
        message = (
            f"{value[:80]!r} cannot name a column; names start with a lower-case letter and hold at most 64 "
            "of a-z, 0-9 and _ (a leading _ is reserved)"
        )
        raise ValueError(message)
    return value


def _topic_or_pattern(value: str) -> str:
    try:
        return require_topic(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _topic(value: str) -> str:
    if TopicName(value).is_pattern:
        message = f"{value[:80]!r} is a pattern; only a source reads several topics: name one topic"
        raise ValueError(message)
    return _topic_or_pattern(value)


Column = Annotated[str, AfterValidator(_column)]
Topic = Annotated[str, AfterValidator(_topic)]
TopicOrPattern = Annotated[str, AfterValidator(_topic_or_pattern)]


def without_null(schema: dict[str, Any]) -> None:
    """Publish an optional field without null: YAML leaves it out."""
    kinds = [kind for kind in schema.pop("anyOf") if kind != {"type": "null"}]
    schema.update(kinds[0] if len(kinds) == 1 else {"anyOf": kinds})
    schema.pop("default")


VALID_FROM, VALID_TO = "valid_from", "valid_to"
VERSION = {VALID_FROM, VALID_TO}
"""Columns of a table's view: when a version was valid; `valid_to` is NULL if it still is."""
RECORD = "record"
"""Column of an interval's views: the record's place in its topic; it is unique, so it breaks ties. In a fold's rows: the event's place."""
SOURCE = "source"
"""Column of a fold's rows, if it has several sources: the view of the event's source."""
ROW = "row"
"""Column of a fold's rows: the row's number among the rows of its event, from 0."""


# Durations as people write them in YAML: `1 hour`, `10 minutes`, `30 s`.

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
        ValueError: the value is not a valid duration, with the form to use.
    """
    if isinstance(value, timedelta):
        return value
    match = _DURATION.match(value) if isinstance(value, str) else None
    unit = match.group(2) if match else ""
    scale = _UNITS.get(unit) or (_UNITS.get(unit[:-1]) if len(unit) > 3 else None)
    if match is None or scale is None:
        message = f"{value!r} is not a valid duration; write a whole number and a unit: '1 hour', '10 minutes', '30 s'"
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


_SECOND, _MINUTE, _HOUR, _DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
_GRIDS = (
    (10 * _SECOND, _SECOND),
    (3 * _MINUTE, 5 * _SECOND),
    (_HOUR, _MINUTE),
    (3 * _HOUR, 15 * _MINUTE),
    (3 * _DAY, _HOUR),
    (timedelta.max, _DAY),
)
"""Up to which duration a person writes multiples of which one."""


def round_up(value: timedelta) -> timedelta:
    """Return the smallest duration that is not shorter and that a person would write: 6 minutes 43.2 s is 7 minutes."""
    grid = next(grid for most, grid in _GRIDS if value <= most)
    return -(-value // grid) * grid


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": _PATTERN, "examples": ["1 hour", "10 minutes", "30 s"]}),
]


# What happens to rows that arrive after their window closed.


class LatePolicy(Strict):
    """What happens to rows that arrive after their window closed."""

    policy: Literal["drop", "side_output", "correct"] = Field(
        default="drop",
        description="drop: they stay in the log. side_output: each is also kept in the table late_rows. correct: in addition, the "
        "windows that they missed are queued for a backfill.",
    )
    alert_share: float = Field(default=0.05, gt=0, le=1, description="A larger share of late rows raises an alert.")
    debounce: Duration = Field(
        default=timedelta(minutes=10),
        description="For correct: a window is corrected when no late row has arrived for it for this time, "
        "or after six times this time since the first one.",
    )
    horizon: Duration = Field(
        default=timedelta(days=7),
        description="For correct: windows that ended longer before the watermark are not corrected.",
    )

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        stray = sorted({"debounce", "horizon"} & self.model_fields_set)
        if stray and self.policy != "correct":
            message = (
                f"{stray[0]} is for policy correct, but the policy is {self.policy}; remove it, or say policy: correct"
            )
            raise ValueError(message)
        return self

    @property
    def queues_windows(self) -> bool:
        """Whether windows that late records missed wait for a backfill."""
        return self.policy == "correct"

    @property
    def keeps_rows(self) -> bool:
        """Whether late rows are stored, in a separate table."""
        return self.policy != "drop"


# How a JSON record gives an instant: as text, or as a number since 1970-01-01T00:00Z. Pure; `decode` reads them.

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
    if source.epochs and source.format != "json":
        return "epochs is for JSON: an Avro or Protobuf schema says itself what a time is; remove epochs"
    return None
