"""One time budget shared by several waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Deadline:
    """A point on the monotonic clock; waits that share it end together."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the deadline `seconds` from now."""
        return cls(time.monotonic() + seconds)

    def left(self) -> float:
        """Return the seconds left, 0 when it has passed."""
        return max(0.0, self.at - time.monotonic())

    def wait_until(self, condition: Callable[[], bool], *, every: float = 0.25) -> bool:
        """Wait for a condition; return whether it came true in time. It is looked at once at least."""
        while not condition():
            if self.left() == 0:
                return False
            time.sleep(min(every, self.left()))
        return True
