"""Try again what failed for a moment: in one call, where tenacity waits and counts, or later, after a wait that doubles."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_exponential,
    wait_fixed,
    wait_random_exponential,
)
from tenacity.stop import stop_base
from tenacity.wait import wait_base

When = type[Exception] | Callable[[BaseException], bool]


def retry(
    when: When,
    *,
    tries: int,
    first_wait_s: float = 0.0,
    longest_wait_s: float = 60.0,
    spread: bool = False,
    sleep: Callable[[float], Any] = time.sleep,
) -> Retrying:
    """Return what calls a function up to `tries` times, waiting twice as long before each; the last failure is raised as it is.

    Only for what only reads, or what may be done twice.

    Args:
        when: which failures are tried again; any other is raised at once.
        tries: of the function, the first included.
        first_wait_s: seconds before the second one.
        longest_wait_s: of all waits.
        spread: wait for a random part of that time, so that writers who met do not meet again.
        sleep: how to wait.
    """
    waiting = wait_random_exponential if spread else wait_exponential
    return _retrying(when, stop_after_attempt(tries), waiting(multiplier=first_wait_s, max=longest_wait_s), sleep)


def retry_for(
    when: When, *, seconds: float, every_s: float, say: Callable[[BaseException], object] | None = None
) -> Retrying:
    """Return what calls a function until it answers or `seconds` have passed; the last failure is raised as it is.

    Args:
        when: which failures are tried again; any other is raised at once.
        seconds: no call begins after them.
        every_s: seconds between two calls.
        say: told each failure that is tried again.
    """
    return _retrying(when, stop_after_delay(seconds), wait_fixed(every_s), time.sleep, say)


def _retrying(
    when: When,
    stop: stop_base,
    wait: wait_base,
    sleep: Callable[[float], Any],
    say: Callable[[BaseException], object] | None = None,
) -> Retrying:
    def tell(state: RetryCallState) -> None:
        error = None if state.outcome is None else state.outcome.exception()
        if say is not None and error is not None:
            say(error)

    chosen = retry_if_exception_type(when) if isinstance(when, type) else retry_if_exception(when)
    return Retrying(stop=stop, wait=wait, retry=chosen, sleep=sleep, before_sleep=tell, reraise=True)


def delay_after(failures: int, first: timedelta, longest: timedelta) -> timedelta:
    """Return how long to wait after so many failures in a row: first, twice that, four times that, at most `longest`. Pure.

    There is no jitter: one agent supervises a handful of streams, so there is no herd to spread.
    """
    if failures <= 0:
        return timedelta(0)
    return min(longest, first * (1 << min(failures - 1, 30)))
