"""Settings that shape the checkpoint of a stream, and how soon it must be back."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from rivertwice.definition.parts import Duration, Strict

if TYPE_CHECKING:
    from rivertwice.definition.model import DefinitionFile

NO_TIME = timedelta(0)
LEAST_LIMIT = timedelta(seconds=1)
LEAST_RECOVERY = timedelta(minutes=1)
"""A fall-back that replays nothing starts two Spark sessions, the replay's and the stream's."""


def find_catch_up_conflict(definition: DefinitionFile) -> str | None:
    """Return why a definition cannot have `stream.catch_up`, or None. Pure."""
    if definition.stream.catch_up is not None and len(definition.topics) > 1:
        return "stream.catch_up leaves records of one topic to backfills, but several are read; remove it"
    return None


class CatchUpPolicy(Strict):
    """When the agent leaves the oldest part of a backlog to batch by itself."""

    by_batch_when: Duration = Field(
        description="When catching up would take longer than this, or Kafka would delete records first, the oldest part of what "
        "waits is left to backfills, as `rivertwice catch-up NAME --by-batch --yes` does. At least 1 second.",
    )
    keep: Duration | None = Field(
        default=None,
        description="What the stream reads itself: so much of the newest. Without it twice the time that a window stays open.",
    )

    @field_validator("by_batch_when")
    @classmethod
    def _require_worthwhile(cls, value: timedelta) -> timedelta:
        if value < LEAST_LIMIT:
            message = (
                "each backlog would be left to batch, also what waits between two batches, so the stream would read nothing; write "
                "'1 second' or more, such as '6 hours'"
            )
            raise ValueError(message)
        return value


class StreamPins(Strict):
    """Settings that shape the checkpoint, most of which cannot change during a timeline's life, and the recovery objective."""

    max_offsets_per_trigger: int = Field(default=10_000, ge=1, description="Records per micro-batch, at most.")
    load_batch: int = Field(
        default=1_000_000,
        ge=1,
        description="Records per micro-batch, at most, while the stream itself loads a long log (`start --from-batch`, a new version).",
    )
    trigger: Duration = Field(default=NO_TIME, description="Interval between micro-batches; 0 s: as soon as possible.")
    shuffle_partitions: int = Field(
        default=2,
        ge=1,
        le=200,
        description="State partitions; frozen in the checkpoint, changed by `rivertwice upgrade`.",
    )
    fold_buckets: int = Field(
        default=64,
        ge=0,
        le=65_536,
        description="For folds: buckets that the keys' states are kept in; 0: each key's state by itself. Frozen in the checkpoint.",
    )
    min_batches_to_retain: int = Field(
        default=200, ge=100, description="Number of batches that the checkpoint can go back."
    )

    catch_up_share: float = Field(
        default=0.25,
        json_schema_extra={"minimum": 0, "maximum": 1},
        description="While more records wait than a batch takes, no partition is read further ahead of another in event time than "
        "this share of the shortest watermark; 0: batches are split by what waits. It touches no fingerprint.",
    )
    catch_up: CatchUpPolicy | None = Field(
        default=None,
        description="When the agent leaves the oldest part of a backlog to batch; without it only a person does. It touches no "
        "fingerprint. Not for folds, and not for several topics.",
    )
    recovery: Duration | None = Field(
        default=None,
        description="A fall-back to the newest proved savepoint should take no longer: the agent takes and proves savepoints "
        "for it. At least 1 minute; without it the schedule alone takes them. It touches no result and no fingerprint.",
    )

    @field_validator("catch_up_share")
    @classmethod
    def _require_share(cls, value: float) -> float:
        if not 0 <= value <= 1:
            message = (
                f"{value:g} is no share of the watermark: beyond 1 a catch-up would make records late that were in time, below 0 it "
                "has no meaning; write a number from 0 (batches are split by what waits) to 1, such as 0.25"
            )
            raise ValueError(message)
        return value

    @field_validator("recovery")
    @classmethod
    def _require_reachable(cls, value: timedelta | None) -> timedelta | None:
        if value is not None and value < LEAST_RECOVERY:
            message = (
                "a fall-back starts Spark twice, so no objective below 1 minute can be kept; write '1 minute' or more"
            )
            raise ValueError(message)
        return value

    @property
    def trigger_seconds(self) -> float:
        """The trigger interval in seconds."""
        return self.trigger.total_seconds()
