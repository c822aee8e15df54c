"""Waiting: one time budget for several waits, retries, and progress lines of long work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from tenacity import RetryCallState, Retrying
    from tenacity.stop import stop_base
    from tenacity.wait import wait_base

T = TypeVar("T")


def beside(work: Callable[[], T], name: str) -> Future[T]:
    """Begin work in a daemon thread; return what will have its result or error."""
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
        """Yield now, at each interval, and a last time when the deadline passes."""
        yield
        while (remaining := self.left()) > 0:
            time.sleep(min(every, remaining))
            yield


# Retry temporary failures: within one call, where tenacity waits and counts, or later, after a wait that doubles.

When = type[Exception] | Callable[[BaseException], bool]
P = ParamSpec("P")


class Caller(Protocol):
    """Calls a function until it succeeds, or must not be called again."""

    def __call__(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what the function returns."""
        ...


def retry(
    when: When,
    *,
    tries: int,
    first_wait_s: float = 0.0,
    longest_wait_s: float = 60.0,
    spread: bool = False,
    sleep: Callable[[float], Any] = time.sleep,
    say: Callable[[BaseException], object] | None = None,
) -> Caller:
    """Return an object that calls a function up to `tries` times, with doubling waits; the last failure is raised unchanged.

    Only for functions that only read, or that may run twice.

    Args:
        when: which failures are retried; any other is raised at once. It is not asked about the failure of the last call.
        tries: number of calls, the first included.
        first_wait_s: seconds before the second call.
        spread: wait for a random part of that time, so that writers that collided do not collide again.
        say: is passed each failure that is retried.
    """

    def call(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if isinstance(when, type) and not isinstance(error, when):
                raise
            failed = [error]
        from tenacity import stop_after_attempt, wait_exponential, wait_random_exponential

        def again() -> T:
            if failed:  # the call above is the first one that tenacity counts and waits for
                raise failed.pop()
            return function(*args, **kwargs)

        waiting = (wait_random_exponential if spread else wait_exponential)(multiplier=first_wait_s, max=longest_wait_s)
        return _retrying(when, stop_after_attempt(tries), waiting, sleep, say)(again)

    return call


def retry_for(
    when: When, *, seconds: float, every_s: float, say: Callable[[BaseException], object] | None = None
) -> Retrying:
    """Return an object that calls a function until it succeeds or `seconds` have passed; the last failure is raised unchanged.

    Args:
        when: which failures are retried; any other is raised at once. It is not asked about the failure of the last call.
        seconds: no call begins after this time.
        say: is passed each failure that is retried.
    """
    from tenacity import stop_after_delay, wait_fixed

    return _retrying(when, stop_after_delay(seconds), wait_fixed(every_s), time.sleep, say)


def _retrying(
    when: When,
    stop: stop_base,
    wait: wait_base,
    sleep: Callable[[float], Any],
    say: Callable[[BaseException], object] | None = None,
) -> Retrying:
    from tenacity import Retrying, retry_if_exception, retry_if_exception_type

    def tell(state: RetryCallState) -> None:
        error = None if state.outcome is None else state.outcome.exception()
        if say is not None and error is not None:
            say(error)

    chosen = retry_if_exception_type(when) if isinstance(when, type) else retry_if_exception(when)

    def is_retried(state: RetryCallState) -> bool:
        return not stop(state) and chosen(state)  # after the last call `when` is not asked: it may cost a request

    return Retrying(stop=stop, wait=wait, retry=is_retried, sleep=sleep, before_sleep=tell, reraise=True)


@dataclass(frozen=True)
class Attempts:
    """How the earlier runs of a job ended.

    Attributes:
        failures: runs in a row that failed.
    """

    failures: int = 0
    last_end: datetime | None = None
    busy: bool = False

    def pause(self, first: timedelta, longest: timedelta) -> timedelta:
        """Return how long to wait after the failures: first, twice that, four times that, at most `longest`.

        There is no jitter: one agent supervises only a few streams, so retries need not be spread.
        """
        return timedelta(0) if self.failures <= 0 else min(longest, first * (1 << min(self.failures - 1, 30)))


# Where long work reports its progress: a function that is called with one line for people.

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
