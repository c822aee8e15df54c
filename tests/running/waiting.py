"""Waits of tests: each has an end, and says what it waited for when that end comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rivertwice.core.waits import Deadline

T = TypeVar("T")


def wait_for(
    what: str,
    condition: Callable[[], T | None],
    seconds: float,
    *,
    every: float = 0.1,
    seen: Callable[[], object] = str,
) -> T:
    """Wait until a condition gives something true, and return that; fail after so many seconds.

    Args:
        what: is waited for, in the words of the failure.
        condition: is looked at once at least; it may raise AssertionError when waiting on is of no use.
        seconds: after which the wait fails.
        every: seconds between two looks.
        seen: tells in the failure what there was instead.
    """
    given: list[T | None] = []

    def holds() -> bool:
        given[:] = [condition()]
        return bool(given[0])

    assert Deadline.after(seconds).wait_until(holds, every=every), f"{what}: not within {seconds:.0f} s; {seen()}"
    (value,) = given
    assert value is not None
    return value
