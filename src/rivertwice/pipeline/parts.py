"""Smaller parts of a definition: how a column is compared, what happens to late rows, what shapes a checkpoint."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rivertwice.pipeline.durations import Duration

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


class LatePolicy(Strict):
    """What happens to rows that come after their window closed."""

    policy: str = Field(default="drop", description="Only `drop` is built.", json_schema_extra={"enum": ["drop"]})
    alert_share: float = Field(default=0.05, gt=0, le=1, description="A larger share of late rows raises an alert.")

    @field_validator("policy")
    @classmethod
    def _built(cls, value: str) -> str:
        if value in ("side_output", "correct"):
            message = (
                f"late policy {value!r} is not built yet; use 'drop': late rows stay in the log, a reconcile names "
                "each of them and a backfill repairs their windows"
            )
            raise ValueError(message)
        if value != "drop":
            message = f"{value!r} is no late policy; use 'drop'"
            raise ValueError(message)
        return value


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
