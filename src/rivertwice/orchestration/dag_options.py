"""What all DAGs of a pipeline share: schedule, retries, owner, tags, notifiers; and the fields of their forms."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import CronTriggerTimetable, DeltaTriggerTimetable, Param

from rivertwice.config.versions import base_of
from rivertwice.orchestration.notifiers import AlertNotifier, RecoveryNotifier
from rivertwice.orchestration.requests import (
    INSTANT_LENGTH,
    INSTANT_PATTERN,
    REASON_LENGTH,
    REASON_OF_MANUAL,
    REASON_OF_SCHEDULE,
    REASON_PATTERN,
)
from rivertwice.pipeline.airflow_model import NO_SCHEDULE, PRESETS
from rivertwice.pipeline.definition import Definition
from rivertwice.pipeline.durations import parse_duration

RUN_TYPES = ("scheduled", "manual", "operator_triggered")
"""No run of ours belongs to a date: it works on what is true now, or on what its form contains. So Airflow's own backfill,
which starts a run for each date of a range, is refused, and its forms do not offer it."""


def schedule(definition: Definition, verb: str) -> CronTriggerTimetable | DeltaTriggerTimetable | None:
    """Return when the DAG of a verb starts by itself; None: when somebody starts it."""
    text: str = getattr(definition.airflow.schedules, verb)
    if text == NO_SCHEDULE:
        return None
    if text in PRESETS or len(text.split()) > 2:  # a duration is a number and a unit
        return CronTriggerTimetable(text, timezone="UTC", run_immediately=timedelta(0))
    return DeltaTriggerTimetable(parse_duration(text))


def common(definition: Definition, verb: str, description: str) -> dict[str, Any]:
    """Return the options of a DAG of the pipeline."""
    name, own = definition.name, definition.airflow
    queue = {} if own.queue is None else {"queue": own.queue}
    return {
        "description": description,
        "catchup": False,
        "max_active_runs": 1,
        "allowed_run_types": list(RUN_TYPES),
        "tags": list(dict.fromkeys(["rivertwice", verb, base_of(name), *own.tags])),
        "doc_md": f"**{verb}** of pipeline `{name}`. {description} See docs/howto-airflow.md.",
        "default_args": {
            "owner": own.owner,
            # An API server that is restarted, a lost race, a killed worker: worth another try. A failure that no retry can cure fails
            # at once (AirflowFailException).
            "retries": own.retries,
            "retry_delay": own.retry_delay,
            **queue,
            "on_failure_callback": AlertNotifier(pipeline=name),
            "on_success_callback": RecoveryNotifier(pipeline=name),
        },
    }


def instant_param(title: str, description: str) -> Param:
    """Return the field of a form that takes an instant, or nothing."""
    return Param(
        None,
        type=["null", "string"],
        format="date-time",
        pattern=INSTANT_PATTERN,
        maxLength=INSTANT_LENGTH,
        title=title,
        description=f"{description} ISO 8601 with a zone, for instance 2013-06-30T04:00:00Z.",
    )


def reason_param() -> Param:
    """Return the field of a form that takes a reason, or nothing."""
    # None, not an empty text: a field that only takes texts is required, and the form would open with an error.
    return Param(
        None,
        type=["null", "string"],
        pattern=REASON_PATTERN,
        maxLength=REASON_LENGTH,
        title="Reason",
        description=f"Kept with what comes out. Without one: {REASON_OF_MANUAL!r}, of a scheduled run {REASON_OF_SCHEDULE!r}.",
    )
