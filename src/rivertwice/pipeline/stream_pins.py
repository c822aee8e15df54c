"""Settings that shape the checkpoint of a stream."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from rivertwice.pipeline.durations import Duration
from rivertwice.pipeline.strict import Strict

NO_TIME = timedelta(0)


class StreamPins(Strict):
    """Settings that shape the checkpoint; most cannot change during a timeline's life."""

    max_offsets_per_trigger: int = Field(default=10_000, ge=1, description="Records per micro-batch, at most.")
    trigger: Duration = Field(default=NO_TIME, description="Interval between micro-batches; 0 s: as soon as possible.")
    shuffle_partitions: int = Field(default=2, ge=1, le=200, description="State partitions; frozen in the checkpoint.")
    fold_buckets: int = Field(
        default=256,
        ge=0,
        le=65_536,
        description="For folds: buckets that the keys' states are kept in; 0: each key's state by itself. Frozen in the checkpoint.",
    )
    min_batches_to_retain: int = Field(
        default=200, ge=100, description="Number of batches that the checkpoint can go back."
    )

    @property
    def trigger_seconds(self) -> float:
        """The trigger interval in seconds."""
        return self.trigger.total_seconds()
