"""When a DAG starts by itself.

A DAG with several schedules has one timetable, the most frequent one's; `rivertwice.tasks.turns` says which of them a run is for.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import CronTriggerTimetable, DeltaTriggerTimetable

from rivertwice.definition import NO_SCHEDULE, is_cron, parse_duration
from rivertwice.tasks import DagFacts


def schedule(facts: DagFacts, *names: str) -> CronTriggerTimetable | DeltaTriggerTimetable | None:
    """Return when a DAG starts by itself, by the first of its schedules that is set; None: when somebody starts it."""
    return timetable(next((text for name in names if (text := schedule_text(facts, name)) != NO_SCHEDULE), NO_SCHEDULE))


def timetable(text: str) -> CronTriggerTimetable | DeltaTriggerTimetable | None:
    """Return the timetable of a schedule; None: it has no tick."""
    if text == NO_SCHEDULE:
        return None
    if is_cron(text):
        return CronTriggerTimetable(text, timezone="UTC", run_immediately=timedelta(0))
    return DeltaTriggerTimetable(parse_duration(text))


def schedule_text(facts: DagFacts, name: str) -> str:
    """Return a schedule as the definition writes it."""
    return str(getattr(facts.airflow.schedules, name))
