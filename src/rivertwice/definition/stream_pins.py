"""Settings that shape the checkpoint of a stream, and how soon it must be back."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from rivertwice.definition.airflow_section import NO_SCHEDULE, Schedule
from rivertwice.definition.parts import Duration, Strict

NO_TIME = timedelta(0)
LEAST_HIBERNATE = timedelta(minutes=1)
LEAST_RECOVERY = timedelta(minutes=1)
"""A fall-back that replays nothing starts two Spark sessions, the replay's and the stream's."""


class StreamPins(Strict):
    """Settings that shape the checkpoint, most of which cannot change during a timeline's life, when the driver runs, and the recovery objective."""

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
    recovery: Duration | None = Field(
        default=None,
        description="A fall-back to the newest proved savepoint should take no longer: the agent takes and proves savepoints "
        "for it. At least 1 minute; without it the schedule alone takes them. It touches no result and no fingerprint.",
    )

    hibernate: Duration | None = Field(
        default=None,
        description="After this time without a record the driver ends; the agent starts it again when one comes. At least 1 minute; "
        "without it the driver runs all the time. It touches no result and no fingerprint.",
    )

    group: str | None = Field(
        default=None,
        pattern=r"^[a-z][a-z0-9_]{0,31}$",
        description="Drivers of one group share a JVM on their host, which saves memory and start-up for many small pipelines; without "
        "it the driver has its own. It touches no result and no fingerprint.",
    )

    mode: Literal["continuous", "scheduled"] = Field(
        default="continuous",
        description="continuous: a driver runs all the time; scheduled: one starts at each tick of the schedule, reads to the log's end and "
        "ends. It touches no result and no fingerprint.",
    )

    schedule: Schedule | None = Field(
        default=None, description="With mode scheduled: when stream__P starts a run; cron in UTC, a duration, or none."
    )

    assets: list[Annotated[str, Field(min_length=1, max_length=1500)]] = Field(
        default=[],
        max_length=20,
        description="With mode scheduled: names or URIs of Airflow's assets; an event of any of them starts a run of stream__P, too.",
    )

    @field_validator("catch_up_share")
    @classmethod
    def _require_share(cls, value: float) -> float:
        if not 0 <= value <= 1:
            message = (
                f"{value:g} must be between 0 and 1: beyond 1 a catch-up would make records late that "
                "were in time; write a number from 0 (batches are split by what waits) to 1, such as 0.25"
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

    @field_validator("hibernate")
    @classmethod
    def _require_longer_than_a_start(cls, value: timedelta | None) -> timedelta | None:
        if value is not None and value < LEAST_HIBERNATE:
            message = "a driver takes a quarter of a minute to start, so it would mostly start and end; write '1 minute' or more"
            raise ValueError(message)
        return value

    @model_validator(mode="after")
    def _require_one_mode(self) -> Self:
        if self.mode == "scheduled":
            if self.schedule is None and not self.assets:
                message = "mode scheduled has no schedule; write one ('*/15 * * * *', '1 hour'), assets that start a run, or schedule: none"
                raise ValueError(message)
            if self.hibernate is not None:
                message = (
                    "a driver that runs by schedule ends at the log's end, so it does not hibernate; remove hibernate"
                )
                raise ValueError(message)
        elif self.schedule is not None or self.assets:
            message = "schedule and assets are for mode scheduled; add mode: scheduled, or remove them"
            raise ValueError(message)
        return self

    @property
    def runs_at(self) -> str | None:
        """The schedule of its runs, `none` if only assets or people start them; None: its driver runs all the time."""
        return (self.schedule or NO_SCHEDULE) if self.mode == "scheduled" else None

    @property
    def trigger_seconds(self) -> float:
        """The trigger interval in seconds."""
        return self.trigger.total_seconds()
