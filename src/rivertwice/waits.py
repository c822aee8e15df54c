"""Waits with an end: one time budget for several waits, and work that somebody waits for later."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


def beside(work: Callable[[], T], name: str) -> Future[T]:
    """Begin work in a thread of its own, which no end of the process waits for; return what will have its result or error."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome


@dataclass(frozen=True)
class Deadline:
    """A point on the monotonic clock; several waits can share it."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the deadline `seconds` from now."""
        return cls(time.monotonic() + seconds)

    def left(self) -> float:
        """Return the remaining seconds, 0 if it has passed."""
        return max(0.0, self.at - time.monotonic())

    def is_over(self) -> bool:
        """Say whether it has passed."""
        return self.left() == 0

    def wait_until(self, condition: Callable[[], bool], *, every: float = 0.25) -> bool:
        """Wait for a condition; return whether it became true in time. It is checked at least once."""
        return any(condition() for _ in self.polls(every))

    def polls(self, every: float = 0.25) -> Iterator[None]:
        """Yield now, every so many seconds, and a last time when the deadline passes."""
        yield
        while (remaining := self.left()) > 0:
            time.sleep(min(every, remaining))
            yield
