"""Try again what a store did not answer; tenacity waits and counts."""

from __future__ import annotations

from collections.abc import Callable

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential


def again(tries: int, first_wait_s: float, when: Callable[[BaseException], bool]) -> Retrying:
    """Return what calls a function up to `tries` times, waiting twice as long before each; the last failure is raised as it is.

    Only for what only reads, or what may be done twice.

    Args:
        tries: of the function, the first included.
        first_wait_s: seconds before the second one.
        when: which failures are tried again; any other is raised at once.
    """
    return Retrying(
        stop=stop_after_attempt(tries),
        wait=wait_exponential(multiplier=first_wait_s),
        retry=retry_if_exception(when),
        reraise=True,
    )
