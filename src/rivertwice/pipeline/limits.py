"""The limits that a pipeline promises to keep: above them its alerts fire."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel, ConfigDict, Field

from rivertwice.pipeline.durations import Duration


class AlertLimits(BaseModel):
    """Limits of a pipeline's alerts. They change no result and no fingerprint."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backpressure: Duration = Field(
        default=timedelta(minutes=5), description="Every batch has been full to max_offsets_per_trigger for longer."
    )
    savepoint_age: Duration = Field(default=timedelta(hours=2), description="The newest proved savepoint is older.")
    lag: int | None = Field(default=None, ge=1, description="More records wait; without it no alert.")
    latency: Duration | None = Field(default=None, description="A record waits longer; without it no alert.")
    dead_share: float = Field(default=0.01, ge=0, le=1, description="Share of dead letters among the newest records.")

    dead_age: Duration = Field(
        default=timedelta(days=1), description="A dead letter waits longer to be amended or discarded."
    )
    delivery: Duration = Field(
        default=timedelta(minutes=15), description="Rows wait for a sink that has taken none for longer."
    )

    def number(self, name: str) -> float | None:
        """Return a limit in records, as a share or in seconds; None if it is not set."""
        value = getattr(self, name)
        return value.total_seconds() if isinstance(value, timedelta) else None if value is None else float(value)
