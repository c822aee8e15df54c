"""What is left of a pipeline's objectives, and what its driver costs, over 1, 7 and 30 days; made of the ring of samples.

An objective is a share of the time in which a limit of the pipeline holds. The rest of the time is its budget: 0.995 leaves 3.6 hours of
30 days. Time in which nothing is known counts like the time that is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

import numpy as np

from rivertwice.agent.ring import CURVES, LEVELS, MISSED, RingLevel, Slots
from rivertwice.core import PipelineHome
from rivertwice.definition import Definition, format_duration

DAYS = dict(zip((1, 7, 30), LEVELS[2:], strict=True))
"""Days over which a budget is judged, with the level of the ring that has them."""
Levels = Mapping[RingLevel, Slots]
"""Slots of the ring by level, the finest first."""


@dataclass(frozen=True)
class Budget:
    """What is left of an objective.

    Attributes:
        objective: its key below `slo`. target: its share. limit: what is to hold, in words.
        burn: days to the share of their budget that is used; 1.0: all of it.
        left: share of the budget of 30 days that is left, below 0 if it is overdrawn; None: nothing is known yet.
        text: all of it in one line.
    """

    objective: str
    target: float
    limit: str
    burn: Mapping[int, float]
    left: float | None
    text: str


@dataclass(frozen=True)
class DriverCost:
    """What a pipeline's driver used on the agent's host.

    Attributes:
        cpu_s: days to CPU-seconds. memory_bytes: the largest resident memory of the last day.
    """

    cpu_s: Mapping[int, float]
    memory_bytes: int
    text: str


@dataclass(frozen=True)
class ObjectivesView:
    """The budgets of a pipeline, the smallest first, and its cost; None: the agent has not measured it in the last day."""

    budgets: tuple[Budget, ...] = ()
    cost: DriverCost | None = None

    @property
    def worst(self) -> ObjectivesView:
        """The same with the smallest budget alone."""
        return replace(self, budgets=self.budgets[:1])

    @classmethod
    def read(cls, home: PipelineHome, definition: Definition, now: datetime) -> Self:
        """Return those of a pipeline; three levels of its ring are read, and the last hour's if it knows little more."""
        levels = {level: level.read(home, now) for level in DAYS.values()}
        hour, day = LEVELS[0], levels[DAYS[1]]
        if len(day) and day["start"][0] > (now - hour.span).timestamp():
            levels = {hour: hour.read(home, now), **levels}
        waits, takes = definition.alerts.latency, definition.stream.recovery
        limits = {
            "freshness": f"records wait at most {format_duration(waits)}" if waits else "",
            "late_share": f"at most {definition.late.alert_share:.4g} of the rows are late",
            "agreement": "no served row is a DEFECT",
            "recovery": f"a fall-back takes at most {format_duration(takes)}" if takes else "",
        }
        declared = definition.slo.model_dump(exclude_none=True)
        budgets = [budget_of(name, target, limits[name], levels, now) for name, target in declared.items()]
        budgets.sort(key=lambda each: math.inf if each.left is None else each.left)
        return cls(tuple(budgets), cost_of(levels, now))


def shares_of(levels: Levels, curve: str, now: datetime) -> dict[int, tuple[float, float]]:
    """Return days to the mean of a figure where it is known, and to the seconds since it is known. Pure.

    A slot begins before the first sample in it, by up to its step. So a finer level, which knows that better, says when it began.
    """
    place, since, found = CURVES.index(curve), math.nan, dict[int, tuple[float, float]]()
    for level, slots in levels.items():
        known = slots["known"][:, place] if len(slots) else np.empty(0)
        if not known.any():
            continue
        first = float(slots["start"][known > 0][0])
        since = since if first <= since < first + level.step_s else first
        mean = float(np.average(np.nan_to_num(slots["mean"][:, place]), weights=known))
        found |= {days: (mean, max(now.timestamp() - since, 1.0)) for days, each in DAYS.items() if each is level}
    return found


def budget_of(name: str, target: float, limit: str, levels: Levels, now: datetime) -> Budget:
    """Return what is left of an objective. Pure.

    Args:
        limit: what is to hold, in words.
    """
    burn, missed_s = dict[int, float](), 0.0
    for days, (mean, seconds) in shares_of(levels, MISSED + name, now).items():
        missed_s = mean * min(seconds, days * 86_400)
        burn[days] = round(missed_s / (days * 86_400 * (1 - target)), 4)
    longest = max(DAYS)
    left = round(1 - burn[longest], 4) if longest in burn else None
    head = f"{name} ({limit} for {100 * target:.6g} % of the time)"
    if left is None:
        return Budget(name, target, limit, burn, left, f"{head}: nothing is known yet")
    used = ", ".join(f"{share:.0%} of {days} d" for days, share in burn.items())
    allowed = longest * 1440 * (1 - target)
    words = f"{left:.0%} of the budget is left" if left > 0 else "the budget is used up"
    text = (
        f"{head}: {words}, {missed_s / 60:,.0f} of {allowed:,.0f} minutes were missed in {longest} days (used: {used})"
    )
    return Budget(name, target, limit, burn, left, text)


def cost_of(levels: Levels, now: datetime) -> DriverCost | None:
    """Return what a driver used, or None if it was not measured in the shortest range. Pure."""
    used = shares_of(levels, "cpu_cores", now)
    cpu_s = {days: round(mean * min(seconds, days * 86_400), 1) for days, (mean, seconds) in used.items()}
    shortest = min(DAYS)
    if shortest not in cpu_s:
        return None
    most = levels[DAYS[shortest]]["most"][:, CURVES.index("memory_bytes")]
    memory = 0 if np.isnan(most).all() else int(np.nanmax(most))
    text = f"{cpu_s[shortest]:,.0f} CPU-seconds in {shortest * 24} h, {memory / 1e6:,.0f} MB"
    return DriverCost(cpu_s, memory, text)
