"""Streams by schedule (`stream.mode: scheduled`): when a run is due, whether one is open, and when one was missed. Pure.

A run is a driver that reads what the log had at its start and ends. Airflow, cron or a person asks for it; the agent starts it, and starts
it again after a crash until one has read to the end. All requests that came before a driver's start are answered by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from rivertwice.core import to_iso
from rivertwice.definition import NO_SCHEDULE, is_cron, parse_duration
from rivertwice.timeline import Intent

LATE_START = timedelta(minutes=10)
"""A run that nobody asked for so long after its tick was missed; where ticks come more often, at the next one."""
SKEW = timedelta(seconds=30)
"""Airflow's clock may be ahead of the agent's: a run that began so shortly before a tick may be the tick's own."""


@dataclass(frozen=True)
class Plan:
    """What the agent has read of a stream by schedule in its definition.

    Attributes:
        schedule: cron in UTC, a duration, or `none`.
        since: when it was first seen; earlier ticks are not missed.
    """

    schedule: str
    group: str | None
    since: datetime


@dataclass(frozen=True)
class Run:
    """The newest run of a stream by schedule.

    Attributes:
        begun_at: when its newest driver was started; it reads at least what the log had then.
        ended_at: when the agent saw that it had read to the end; None: it has not.
        before: when the newest run that had ended before it began; None: none had.
    """

    begun_at: datetime
    ended_at: datetime | None = None
    before: datetime | None = None

    @property
    def read_at(self) -> datetime | None:
        """Until when the log was read: what came before is committed; None: nothing is known to be."""
        return self.before if self.ended_at is None else self.begun_at

    @classmethod
    def begin(cls, newest: Run | None, desired: Intent, now: datetime) -> Run:
        """Return the run that begins now, or begins again, after the newest one.

        Its driver starts after a request that came while the agent's pass was under way.
        """
        begun_at = max(now, min(desired.asked_at, now + SKEW))
        return cls(begun_at, None, None if newest is None else newest.read_at)


def is_open(desired: Intent, run: Run | None) -> bool:
    """Say whether a run is to be made or finished: it was interrupted, or one was asked for since the newest one began."""
    if run is not None and run.ended_at is None:
        return True
    asked = desired.run_asked_at
    return asked is not None and (run is None or asked > run.begun_at)


def is_answered(run: Run | None, asked_at: datetime) -> bool:
    """Say whether a run that began after a request has read to the log's end."""
    return run is not None and run.ended_at is not None and run.begun_at >= asked_at


def next_due(plan: Plan, run: Run | None, now: datetime) -> datetime | None:
    """Return when the next run is due; None: no schedule says it."""
    if plan.schedule == NO_SCHEDULE:
        return None
    if is_cron(plan.schedule):
        return _tick_after(plan.schedule, now.replace(second=0, microsecond=0))  # ticks are at full minutes
    return max(now, _tick_after(plan.schedule, plan.since if run is None else run.begun_at))


def missed_since(plan: Plan, run: Run | None, wanted_at: datetime, now: datetime) -> datetime | None:
    """Return when a run was due that has not begun in time; None: none was missed.

    Args:
        wanted_at: when the desired state became running; what was due before was not missed.
    """
    if plan.schedule == NO_SCHEDULE:
        return None
    begun = plan.since if run is None else run.begun_at + SKEW
    due = _tick_after(plan.schedule, max(begun, plan.since, wanted_at))
    allowed = min(LATE_START, _tick_after(plan.schedule, due) - due)
    return due if now - due > allowed else None


def overdue_since(plan: Plan, run: Run | None, wanted_at: datetime, now: datetime) -> datetime | None:
    """Return by when the log should have been read to its end and was not; None: it was, or no schedule says it.

    A run has until the next one is due. The arguments are those of `missed_since`.
    """
    if plan.schedule == NO_SCHEDULE:
        return None
    since = max(plan.since, wanted_at)
    read_at = None if run is None else run.read_at
    due = _tick_after(plan.schedule, since if read_at is None else max(since, read_at + SKEW))
    end = _tick_after(plan.schedule, due)
    return end if now > end else None


def describe(plan: Plan, run: Run | None, now: datetime) -> str:
    """Return when the next run is due and when the newest one was, for people."""
    due = next_due(plan, run, now)
    coming = "when it is asked for" if due is None else f"at {to_iso(due)}"
    if run is None:
        newest = "none was made yet"
    elif run.ended_at is None:
        newest = f"the newest began at {to_iso(run.begun_at)} and was interrupted"
    else:
        newest = f"the newest ran from {to_iso(run.begun_at)} to {to_iso(run.ended_at)}"
    return f"by schedule: next run {coming}; {newest}"


@lru_cache(maxsize=1024)
def _tick_after(schedule: str, at: datetime) -> datetime:
    """Return the next tick; the agent asks for the same ones in each pass."""
    from croniter import croniter

    return croniter(schedule, at).get_next(datetime) if is_cron(schedule) else at + parse_duration(schedule)
