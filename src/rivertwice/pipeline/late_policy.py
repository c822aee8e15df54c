"""What happens to rows that arrive after their window closed."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, Self

from pydantic import Field, model_validator

from rivertwice.pipeline.durations import Duration
from rivertwice.pipeline.strict import Strict


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
        description="For correct: a window is corrected once no late row has arrived for it for so long, or six times as long "
        "after the first.",
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
    def keeps_rows(self) -> bool:
        """Whether late rows are stored in a table of their own."""
        return self.policy != "drop"
