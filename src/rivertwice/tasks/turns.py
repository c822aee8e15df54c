"""Which of a DAG's schedules a scheduled run is for. Pure.

A DAG that does one thing often and another rarely (a reconcile of what changed, a full one) has one timetable, the most frequent one's.
A run does the rare thing if a tick of the rare schedule has passed since the timetable's last tick. Airflow's
`MultipleCronTriggerTimetable` takes no durations, and does not say to a run which of its expressions it is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache

from croniter import croniter, croniter_range

from rivertwice.core import EPOCH
from rivertwice.definition import NO_SCHEDULE, is_cron, parse_duration


def is_turn_of(rare: str, often: str, at: datetime) -> bool:
    """Say whether a scheduled run at an instant is for the rare one of its DAG's schedules. Pure.

    Args:
        rare: a schedule; `none`: its turn never comes.
        often: the schedule of the DAG's timetable; `none`: the timetable is the rare one's.
        at: when the run is due.
    """
    if NO_SCHEDULE in (rare, often):
        return rare != NO_SCHEDULE
    last = croniter(often, at).get_prev(datetime) if is_cron(often) else at - parse_duration(often)
    if is_cron(rare):
        return bool(croniter(rare, at + timedelta(seconds=1)).get_prev(datetime) > last)
    every = parse_duration(rare)
    return (at - EPOCH) // every > (last - EPOCH) // every


def find_period(schedule: str, at: datetime) -> tuple[datetime, datetime]:
    """Return the period that a run of Airflow's own Backfill is for, half-open: from its tick to the next one. Pure.

    Of a schedule with a tick a day or fewer these are days in UTC, whatever their hour: a person who asks for the third of May means
    this day, and not the one from 02:45.

    Args:
        schedule: that of the DAG's timetable.
        at: the tick of the run, UTC.
    """
    end = croniter(schedule, at).get_next(datetime) if is_cron(schedule) else at + parse_duration(schedule)
    if end - at < timedelta(days=1):
        return at, end
    day = timedelta(days=1)
    return at - (at - EPOCH) % day, end - (end - EPOCH) % day


def find_most_frequent(schedules: Sequence[str]) -> str:
    """Return the schedule with the most ticks a day; of equal ones the first. `none` has no tick. Pure."""
    return max(schedules, key=_ticks_a_day)


@cache
def _ticks_a_day(schedule: str) -> float:
    if schedule == NO_SCHEDULE:
        return 0.0
    if not is_cron(schedule):
        return timedelta(days=1) / parse_duration(schedule)
    days = 7  # a cron expression may be about some days alone
    ticks = croniter_range(EPOCH, EPOCH + timedelta(days=days), schedule)
    return sum(1 for _ in ticks) / days
