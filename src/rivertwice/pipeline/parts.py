"""Smaller parts of a definition: how a column is compared, what happens to late rows, what shapes a checkpoint."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rivertwice.pipeline.durations import Duration

if TYPE_CHECKING:
    from rivertwice.pipeline.windows import Window

NO_TIME = timedelta(0)


class Strict(BaseModel):
    """A part that cannot be changed and takes no field that it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


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


def same_value(one: Any, other: Any, tolerance: float | None) -> bool:
    """Say whether two values of a column count as equal; two NaN do."""
    if one is None or other is None:
        return one is other
    if one == other or (one != one and other != other):
        return True
    return tolerance is not None and abs(float(one) - float(other)) <= tolerance


class LatePolicy(Strict):
    """What happens to rows that come after their window closed."""

    policy: Literal["drop", "side_output", "correct"] = Field(
        default="drop",
        description="drop: they stay in the log. side_output: each is kept in the table late_rows too. correct: and the "
        "windows that they came too late for are queued for a backfill.",
    )
    alert_share: float = Field(default=0.05, gt=0, le=1, description="A larger share of late rows raises an alert.")
    debounce: Duration = Field(
        default=timedelta(minutes=10),
        description="Of correct: a window is corrected once no late row has come for it for so long, or six times as long "
        "after the first.",
    )
    horizon: Duration = Field(
        default=timedelta(days=7),
        description="Of correct: windows that ended longer before the watermark are left as they are.",
    )

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        stray = sorted({"debounce", "horizon"} & self.model_fields_set)
        if stray and self.policy != "correct":
            message = (
                f"{stray[0]} is of policy correct, but the policy is {self.policy}; remove it, or say policy: correct"
            )
            raise ValueError(message)
        return self

    @property
    def keeps_rows(self) -> bool:
        """Whether late rows are kept in a table of their own."""
        return self.policy != "drop"


def find_emit_conflict(window: Window, *, has_updates: bool) -> str | None:
    """Return why rows cannot be emitted with every batch that changes them, or None."""
    if not has_updates:
        return None
    if window.size is None:
        return (
            f"emit is updates, but the window is {window.text}: only tumbling and hopping windows have rows before they close "
            "(a fold's are final at once); say emit: final"
        )
    return None


class StreamPins(Strict):
    """Settings that shape the checkpoint; most cannot change during a timeline's life."""

    max_offsets_per_trigger: int = Field(default=10_000, ge=1, description="Records per micro-batch, at most.")
    trigger: Duration = Field(default=NO_TIME, description="Interval between micro-batches; 0 s: as soon as possible.")
    shuffle_partitions: int = Field(default=2, ge=1, le=200, description="State partitions; frozen in the checkpoint.")
    min_batches_to_retain: int = Field(default=200, ge=100, description="Batches the checkpoint can go back.")

    @property
    def trigger_seconds(self) -> float:
        """The trigger interval in seconds."""
        return self.trigger.total_seconds()
