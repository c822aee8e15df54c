"""When a DAG starts by itself.

A DAG with several schedules has one timetable, the most frequent one's; `rivertwice.tasks.turns` says which of them a run is for.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Asset, AssetAny, AssetOrTimeSchedule, CronTriggerTimetable, DeltaTriggerTimetable

from rivertwice.definition import NO_SCHEDULE, is_cron, parse_duration
from rivertwice.tasks import DagFacts


def schedule(facts: DagFacts, *names: str) -> CronTriggerTimetable | DeltaTriggerTimetable | None:
    """Return when a DAG starts by itself, by the first of its schedules that is set; None: when somebody starts it."""
    return timetable(next((text for name in names if (text := schedule_text(facts, name)) != NO_SCHEDULE), NO_SCHEDULE))


def run_schedule(facts: DagFacts) -> Any:
    """Return when a stream by schedule runs: at each tick, or when an asset has an event; None: when somebody asks for it."""
    ticks = timetable(facts.runs_at or NO_SCHEDULE)
    assets = AssetAny(*(Asset.ref(uri=each) if "://" in each else Asset.ref(name=each) for each in facts.assets))
    if ticks is None or not facts.assets:
        return ticks or (assets if facts.assets else None)
    return AssetOrTimeSchedule(timetable=ticks, assets=assets)


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
