"""The windows of a definition: tumbling, hopping, sessions, intervals, or the days of a fold."""

from __future__ import annotations

from datetime import timedelta
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rivertwice.definition.kinds import KINDS, Kind, kind_of
from rivertwice.definition.parts import Column, Duration, without_null

_NONE = timedelta(0)


class Window(BaseModel):
    """Tumbling (`size`), hopping (`size` and `slide`) or session (`session`) windows, as Spark's functions make them, intervals or a fold.

    Tumbling and hopping windows are aligned to the epoch. A session of a key begins with an event and ends `session`
    after its last one; an event exactly at that end still belongs to it. An interval is a range of `every` of event time.
    Its rows are computed from all records of a window around it: `lookback` before it, `lookahead` after it. A fold has no
    windows: its rows are stored under the range of `fold` that contains their event, which is only an address.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        json_schema_extra={
            "oneOf": [
                {"required": ["size"]},
                {"required": ["session"]},
                {"required": ["every", "at"]},
                {"required": ["fold", "at"]},
            ]
        },
    )

    size: Duration | None = Field(default=None, description="Length of a window.", json_schema_extra=without_null)
    slide: Duration | None = Field(
        default=None,
        description="Time between the starts of two windows: hopping windows, which overlap; divides the size.",
        json_schema_extra=without_null,
    )
    session: Duration | None = Field(
        default=None,
        description="The gap that ends a session: instead of a size, one window per key and run of events.",
        json_schema_extra=without_null,
    )
    every: Duration | None = Field(
        default=None,
        description="Intervals instead of a size: length of event time whose rows are computed together, from raw records.",
        json_schema_extra=without_null,
    )
    fold: Duration | None = Field(
        default=None,
        description="A fold instead of a size: fold.py follows each key, event by event; rows are stored by intervals of this length.",
        json_schema_extra=without_null,
    )
    lookback: Duration = Field(
        default=_NONE, description="For intervals: how long before an interval records are seen too."
    )
    lookahead: Duration = Field(
        default=_NONE,
        description="For intervals: how long after an interval records are seen too; it is emitted later by as much.",
    )
    at: Column | None = Field(
        default=None,
        description="For intervals: the result column, a timestamp, that gives the interval of a row. For a fold: the "
        "result column that holds the event's time.",
        json_schema_extra=without_null,
    )
    start_column: Column = "window_start"
    end_column: Column = "window_end"

    @field_validator("size", "slide", "session", "every", "fold")
    @classmethod
    def _positive(cls, value: timedelta | None) -> timedelta | None:
        if value is not None and value <= timedelta(0):
            message = "a window of no length holds no event; give a positive size, for instance '1 hour'"
            raise ValueError(message)
        return value

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if sum(getattr(self, kind.setting) is not None for kind in KINDS) != 1:
            message = (
                "a window has a size ('1 hour', perhaps with a slide), a session gap, is cut into intervals (every), or is the "
                "address of a fold's rows; give exactly one"
            )
            raise ValueError(message)
        conflict = self.kind.find_window_conflict(self)
        if conflict:
            raise ValueError(conflict)
        return self

    def is_same(self, other: Window) -> bool:
        """Say whether both are the same windows; the names of their columns do not matter."""
        names = {"start_column", "end_column", "at"}
        return self.model_dump(exclude=names) == other.model_dump(exclude=names)

    def closed_ms(self, watermark_ms: int) -> int:
        """Return the window end up to which rows are final at a watermark (epoch ms); a fold's rows are final at once."""
        return self.kind.closed_ms(watermark_ms)

    def first_end_ms(self, event_ms: int) -> int:
        """Return the end of the earliest window of an event (epoch ms); for a session, the end of a session of this event alone."""
        return self.kind.first_end_ms(self, event_ms)

    def last_end_ms(self, before_ms: int) -> int | None:
        """Return the end of the last window that may start before an instant, both in epoch ms; None: no watermark closes it."""
        return self.kind.last_end_ms(self, before_ms)

    @property
    def kind(self) -> Kind:
        """The kind of this window."""
        return kind_of(self)

    @property
    def length(self) -> timedelta:
        """Length of a window: for a session its gap (the minimum), for an interval with lookback and lookahead, for a fold its address."""
        return self.kind.length(self)

    @property
    def step(self) -> timedelta:
        """Time between the starts of two windows; for sessions the gap."""
        return self.kind.step(self)

    @property
    def passes(self) -> int:
        """How many windows each record belongs to."""
        return self.length // self.step

    @property
    def function(self) -> str:
        """Spark's function that makes the windows."""
        return self.kind.function

    @property
    def text(self) -> str:
        """The windows in words."""
        return self.kind.text(self)
