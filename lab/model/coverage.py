"""What a schedule reached, and how it went."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lab.model.process import POINTS
from lab.model.stories import Decision
from lab.model.violations import ViolationError


@dataclass
class Coverage:
    """How often each point was reached, crashed at and slept at, and a sketch of the states seen."""

    reached: list[int] = field(default_factory=lambda: [0] * len(POINTS))
    crashed: list[int] = field(default_factory=lambda: [0] * len(POINTS))
    paused: list[int] = field(default_factory=lambda: [0] * len(POINTS))
    errors: dict[str, int] = field(default_factory=dict)
    endings: dict[str, int] = field(default_factory=dict)
    states: bytearray | None = None
    steps: int = 0
    schedules: int = 0

    def remember(self, state: tuple[Any, ...]) -> None:
        """Set the bit of a state in the sketch."""
        if self.states is not None:
            place = hash(state) % (len(self.states) * 8)
            self.states[place >> 3] |= 1 << (place & 7)


@dataclass(frozen=True)
class Outcome:
    """How a schedule went.

    Attributes:
        violation: what does not hold, or None.
        decisions: all that was decided, so that it can be repeated and made smaller.
        ending: `end of the log`, or the named reason why the stream stopped.
        trace: what happened, if it was asked for.
    """

    seed: int
    violation: ViolationError | None
    decisions: tuple[Decision, ...]
    ending: str
    trace: tuple[str, ...] = ()
