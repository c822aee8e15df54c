"""Where long work reports its progress: a function that is called with one line for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

Progress = Callable[[str], None]


class Measured(str):
    """A line of progress of work that knows how much there is.

    Attributes:
        what: names the work, the same in all its lines.
        done, total: how much is done, and how much there is, in any unit.
    """

    __slots__ = ("done", "total", "what")
    what: str
    done: float
    total: float

    def __new__(cls, line: str, what: str, done: float, total: float) -> Self:
        """Return the line."""
        made = super().__new__(cls, line)
        made.what, made.done, made.total = what, min(done, total), total
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Let it be sent to another process."""
        return Measured, (str(self), self.what, self.done, self.total)


def report_nothing(_line: str) -> None:
    """Report no progress."""
