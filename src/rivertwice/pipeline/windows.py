"""The windows of a definition: tumbling, hopping, sessions, intervals, or the days of a fold."""

from __future__ import annotations

from datetime import timedelta
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rivertwice.pipeline.durations import Duration
from rivertwice.pipeline.kinds import KINDS, Kind, kind_of
from rivertwice.pipeline.names import Column, without_null

_NONE = timedelta(0)


class Window(BaseModel):
    """Tumbling (`size`), hopping (`size` and `slide`) or session (`session`) windows, as Spark's functions make them, intervals or a fold.

    Tumbling and hopping windows are aligned to the epoch. A session of a key begins with an event and ends `session`
    after its last one; an event exactly at that end still belongs to it. An interval is a stretch of `every` of event time,
    whose rows are computed from all records of a window around it: `lookback` before it, `lookahead` behind it. A fold has no
    windows: its rows lie under the stretch of `fold` that holds their event, which is an address and nothing else.
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
        description="A window starts each so often: hopping windows, which overlap; divides the size.",
        json_schema_extra=without_null,
    )
    session: Duration | None = Field(
        default=None,
        description="The gap that ends a session: instead of a size, one window per key and run of events.",
        json_schema_extra=without_null,
    )
    every: Duration | None = Field(
        default=None,
        description="Intervals instead of a size: rows of so much event time are computed together, from raw records.",
        json_schema_extra=without_null,
    )
    fold: Duration | None = Field(
        default=None,
        description="A fold instead of a size: fold.py follows each key, event by event; rows lie by so much event time.",
        json_schema_extra=without_null,
    )
    lookback: Duration = Field(
        default=_NONE, description="Of intervals: records so long before an interval are seen too."
    )
    lookahead: Duration = Field(
        default=_NONE,
        description="Of intervals: records so long behind an interval are seen too; it is emitted as much later.",
    )
    at: Column | None = Field(
        default=None,
        description="Of intervals: the result column, a timestamp, that says which interval a row belongs to. Of a fold: the "
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

    def closed_ms(self, watermark_ms: int) -> int:
        """Return up to which window end rows are final at a watermark (epoch ms); a fold's are when they are emitted."""
        return self.kind.closed_ms(watermark_ms)

    def first_end_ms(self, event_ms: int) -> int:
        """Return the end of the earliest window that an event belongs to (epoch ms); of a session, that of it alone."""
        return self.kind.first_end_ms(self, event_ms)

    @property
    def kind(self) -> Kind:
        """What differs between the kinds of windows, answered for this one."""
        return kind_of(self)

    @property
    def length(self) -> timedelta:
        """Length of a window; of a session the gap, which is the shortest it can be; of an interval with what it sees; of a fold its address."""
        return self.kind.length(self)

    @property
    def step(self) -> timedelta:
        """Time between the starts of two windows; of sessions the gap."""
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
