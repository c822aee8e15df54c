"""When a DAG starts by itself, and which of its two schedules a scheduled run is for.

A DAG that does one thing often and another rarely (a reconcile of what changed, a full one) has one timetable, the frequent one's. A
run does the rare thing if a tick of the rare schedule has passed since the timetable's last tick. Airflow's
`MultipleCronTriggerTimetable` takes no durations, and does not say to a run which of its expressions it is for.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import CronTriggerTimetable, DeltaTriggerTimetable
from croniter import croniter

from rivertwice.core import EPOCH
from rivertwice.definition import NO_SCHEDULE, PRESETS, Definition, parse_duration


def schedule(definition: Definition, *names: str) -> CronTriggerTimetable | DeltaTriggerTimetable | None:
    """Return when a DAG starts by itself, by the first of its schedules that is set; None: when somebody starts it."""
    text = next((text for name in names if (text := schedule_text(definition, name)) != NO_SCHEDULE), NO_SCHEDULE)
    if text == NO_SCHEDULE:
        return None
    if _is_cron(text):
        return CronTriggerTimetable(text, timezone="UTC", run_immediately=timedelta(0))
    return DeltaTriggerTimetable(parse_duration(text))


def schedule_text(definition: Definition, name: str) -> str:
    """Return a schedule as the definition writes it."""
    return str(getattr(definition.airflow.schedules, name))


def is_turn_of(rare: str, often: str, at: datetime) -> bool:
    """Say whether a scheduled run at an instant is for the rare one of its DAG's schedules. Pure.

    Args:
        rare: a schedule; `none`: its turn never comes.
        often: the schedule of the DAG's timetable; `none`: the timetable is the rare one's.
        at: when the run is due.
    """
    if NO_SCHEDULE in (rare, often):
        return rare != NO_SCHEDULE
    last = croniter(often, at).get_prev(datetime) if _is_cron(often) else at - parse_duration(often)
    if _is_cron(rare):
        return bool(croniter(rare, at + timedelta(seconds=1)).get_prev(datetime) > last)
    every = parse_duration(rare)
    return (at - EPOCH) // every > (last - EPOCH) // every


def _is_cron(text: str) -> bool:
    return text in PRESETS or len(text.split()) > 2  # a duration is a number and a unit
