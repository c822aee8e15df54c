"""Which of a DAG's two schedules a scheduled run is for. Pure.

A DAG that does one thing often and another rarely (a reconcile of what changed, a full one) has one timetable, the frequent one's. A
run does the rare thing if a tick of the rare schedule has passed since the timetable's last tick. Airflow's
`MultipleCronTriggerTimetable` takes no durations, and does not say to a run which of its expressions it is for.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from croniter import croniter

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
