"""What a definition says about rows that are served and wrong: who decides on the backfill that cures them. Pure.

It changes no row of the results, so it is in no fingerprint.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rivertwice.pipeline.strict import Strict

ASK, AUTOMATIC, OFF = "ask", "automatic", "off"


class RepairBudget(Strict):
    """The largest repair that needs no person."""

    windows: int = Field(default=48, ge=1, le=100_000, description="Windows that are recomputed.")
    records: int = Field(default=1_000_000, ge=1, description="Records that are read for it.")


class RepairPolicy(Strict):
    """What happens when a reconcile finds a DEFECT in what is served, or a late share above late.alert_share."""

    policy: Literal["ask", "automatic", "off"] = Field(
        default="ask",
        description="ask: a person approves the smallest backfill that cures it. automatic: LATE rows within the budget are repaired "
        "without one; a DEFECT is asked for. off: the alert alone.",
    )
    budget: RepairBudget = RepairBudget()
