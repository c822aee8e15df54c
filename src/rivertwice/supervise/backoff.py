"""When a failed driver may start again, and when the agent stops trying. Pure and deterministic: no jitter, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rivertwice import retry
from rivertwice.supervise.classify import REACTIONS, FailureClass


@dataclass(frozen=True)
class BackoffPolicy:
    """How patient the agent is.

    Attributes:
        base: wait after the first failure; it doubles with each further one.
        cap: longest wait.
        window: how far back failures count for the circuit breaker.
    """

    base: timedelta = timedelta(seconds=1)
    cap: timedelta = timedelta(seconds=60)
    window: timedelta = timedelta(minutes=15)


DEFAULT_POLICY = BackoffPolicy()
CONTENDED_AFTER = 3  # lease losses within the window; one or two are a hand-over, or a store that was slow
FULL_AFTER = 3  # ends on a full disk, in a row and without a new batch, after which it is paged


@dataclass(frozen=True)
class Failure:
    """One end of a driver that was not a clean drain.

    Attributes:
        at: when the agent noticed.
        failure: its class.
        progressed: whether that driver had committed a batch which its predecessor had not.
        epoch: epoch of its lease; None if it never held one.
        message: one line for people.
    """

    at: datetime
    failure: FailureClass
    progressed: bool
    epoch: int | None
    message: str


def delay_after(consecutive_failures: int, policy: BackoffPolicy = DEFAULT_POLICY) -> timedelta:
    """Return how long to wait after so many failures in a row: base, 2 base, 4 base ... at most the cap."""
    return retry.delay_after(consecutive_failures, policy.base, policy.cap)


def consecutive_failures(failures: Sequence[Failure]) -> int:
    """Count the newest failures back to (and with) the last one whose driver had made progress.

    A driver that committed something new and then died begins a new row: its own death is the first of it.
    """
    count = 0
    for failure in reversed(failures):
        count += 1
        if failure.progressed:
            break
    return count


def lease_losses(failures: Sequence[Failure], policy: BackoffPolicy = DEFAULT_POLICY) -> int:
    """Count the lost leases in the window that ends with the newest failure; 0 if that is no lost lease.

    Progress does not matter here: two drivers that take the lease from each other may each commit a batch in between.
    """
    if not failures or failures[-1].failure is not FailureClass.LEASE_LOST:
        return 0
    newest = failures[-1].at
    return sum(
        failure.failure is FailureClass.LEASE_LOST and newest - failure.at <= policy.window for failure in failures
    )


def full_disk_ends(failures: Sequence[Failure], policy: BackoffPolicy = DEFAULT_POLICY) -> int:
    """Count the newest ends in a row by a full disk, without progress, in the window of the newest; 0 if that is none."""
    row = failures[len(failures) - consecutive_failures(failures) :]
    count = 0
    for failure in reversed(row):
        if failure.failure is not FailureClass.DISK or row[-1].at - failure.at > policy.window:
            break
        count += 1
    return count


def next_attempt(failures: Sequence[Failure], policy: BackoffPolicy = DEFAULT_POLICY) -> datetime | None:
    """Return the instant from which the next start is allowed, or None if it is allowed at once."""
    if not failures:
        return None
    count = max(consecutive_failures(failures), lease_losses(failures, policy))
    return failures[-1].at + delay_after(count, policy)


def breaks_circuit(
    failures: Sequence[Failure], now: datetime, policy: BackoffPolicy = DEFAULT_POLICY
) -> Failure | None:
    """Return the failure that ends the agent's patience, or None.

    It counts the newest failures in a row without progress within the window, but not those of a full disk, for which only the
    disk is to blame. The newest one's class decides how many of them are too many.
    """
    if not failures:
        return None
    newest = failures[-1]
    limit = REACTIONS[newest.failure].breaks_after
    if limit is None:
        return None
    row = failures[-consecutive_failures(failures) :]
    recent = [
        failure for failure in row if now - failure.at <= policy.window and failure.failure is not FailureClass.DISK
    ]
    return newest if len(recent) >= limit else None
