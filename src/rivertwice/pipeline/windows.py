"""The windows of a definition: tumbling, hopping or sessions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rivertwice.pipeline.durations import Duration, format_duration
from rivertwice.pipeline.names import Column

MOST_PASSES = 60
"""A record belongs to at most so many hopping windows: each of them costs a recompute a run of the transform."""


def _not_null(schema: dict[str, Any]) -> None:
    """Publish an optional duration as a duration: YAML leaves it out, and never says null."""
    schema.update(schema.pop("anyOf")[0])
    schema.pop("default")


class Window(BaseModel):
    """Tumbling (`size`), hopping (`size` and `slide`) or session (`session`) windows, as Spark's functions make them.

    Tumbling and hopping windows are aligned to the epoch. A session of a key begins with an event and ends `session`
    after its last one; an event exactly at that end still belongs to it.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        json_schema_extra={"oneOf": [{"required": ["size"]}, {"required": ["session"]}]},
    )

    size: Duration | None = Field(default=None, description="Length of a window.", json_schema_extra=_not_null)
    slide: Duration | None = Field(
        default=None,
        description="A window starts each so often: hopping windows, which overlap; divides the size.",
        json_schema_extra=_not_null,
    )
    session: Duration | None = Field(
        default=None,
        description="The gap that ends a session: instead of a size, one window per key and run of events.",
        json_schema_extra=_not_null,
    )
    start_column: Column = "window_start"
    end_column: Column = "window_end"

    @field_validator("size", "slide", "session")
    @classmethod
    def _positive(cls, value: timedelta | None) -> timedelta | None:
        if value is not None and value <= timedelta(0):
            message = "a window of no length holds no event; give a positive size, for instance '1 hour'"
            raise ValueError(message)
        return value

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.size is None) == (self.session is None):
            message = "a window has either a size ('1 hour', perhaps with a slide) or a session gap; give exactly one"
            raise ValueError(message)
        if self.slide is None:
            return self
        if self.size is None:
            message = "sessions do not slide; remove slide, or give a size instead of session"
            raise ValueError(message)
        if self.slide >= self.size:
            message = (
                f"slide {format_duration(self.slide)} is not shorter than size {format_duration(self.size)}; windows "
                "that do not overlap are tumbling: remove slide"
            )
            raise ValueError(message)
        if self.size % self.slide or self.size // self.slide > MOST_PASSES:
            message = (
                f"slide {format_duration(self.slide)} must go into size {format_duration(self.size)} without rest and at "
                f"most {MOST_PASSES} times: every record belongs to that many windows"
            )
            raise ValueError(message)
        return self

    @property
    def is_session(self) -> bool:
        """Whether windows are sessions, whose ends depend on the events."""
        return self.session is not None

    @property
    def length(self) -> timedelta:
        """Length of a window; of a session the gap, which is the shortest it can be."""
        length = self.session or self.size
        assert length is not None, "the definition was checked"
        return length

    @property
    def step(self) -> timedelta:
        """Time between the starts of two windows; of sessions the gap."""
        return self.slide or self.length

    @property
    def passes(self) -> int:
        """How many windows each record belongs to."""
        return self.length // self.step

    @property
    def function(self) -> str:
        """Spark's function that makes the windows."""
        return "session_window" if self.is_session else "window"

    @property
    def text(self) -> str:
        """The windows in words."""
        if self.session is not None:
            return f"session, gap {format_duration(self.session)}"
        every = "" if self.slide is None else f" every {format_duration(self.slide)}"
        return f"{format_duration(self.length)}{every}"
