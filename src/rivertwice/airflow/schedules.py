"""When a DAG starts by itself, and which of its two schedules a scheduled run is for.

A DAG with two schedules has one timetable, the frequent one's; `rivertwice.tasks.turns` says which of them a run is for.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import CronTriggerTimetable, DeltaTriggerTimetable

from rivertwice.definition import NO_SCHEDULE, is_cron, parse_duration
from rivertwice.tasks import DagFacts


def schedule(facts: DagFacts, *names: str) -> CronTriggerTimetable | DeltaTriggerTimetable | None:
    """Return when a DAG starts by itself, by the first of its schedules that is set; None: when somebody starts it."""
    text = next((text for name in names if (text := schedule_text(facts, name)) != NO_SCHEDULE), NO_SCHEDULE)
    if text == NO_SCHEDULE:
        return None
    if is_cron(text):
        return CronTriggerTimetable(text, timezone="UTC", run_immediately=timedelta(0))
    return DeltaTriggerTimetable(parse_duration(text))


def schedule_text(facts: DagFacts, name: str) -> str:
    """Return a schedule as the definition writes it."""
    return str(getattr(facts.airflow.schedules, name))
