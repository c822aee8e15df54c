"""Waits of tests: each has an end, and says what it waited for when that end comes."""

from __future__ import annotations

from collections.abc import Callable

from rivertwice.savepoint.deadline import Deadline


def wait_for(
    what: str, condition: Callable[[], bool], seconds: float, *, every: float = 0.1, seen: Callable[[], object] = str
) -> None:
    """Wait until a condition is true; fail after so many seconds with what was waited for and what was `seen` last."""
    assert Deadline.after(seconds).wait_until(condition, every=every), f"{what}: not within {seconds:.0f} s; {seen()}"
