"""Who asked for a run, and the record of it in the agent's events, as the command line writes it."""

from __future__ import annotations

from typing import Any

from rivertwice.config import Settings
from rivertwice.instants import utc_now

BY_AIRFLOW = "Airflow"


def asked_by(context: Any) -> str:
    """Return who asked for a run, for records: the person's name, or Airflow itself. Pure."""
    name = getattr(context["dag_run"], "triggering_user_name", None)
    return f"{name} in Airflow" if name else BY_AIRFLOW


def note(settings: Settings, pipeline: str, command: str, context: Any, reason: str) -> None:
    """Record in the agent's events who asked for what, and why."""
    from rivertwice.supervise.act import record_event

    by = asked_by(context)
    text = f"{command} by {by}{f': {reason}' if reason else ''}"
    record_event(settings, "command", pipeline, text, utc_now(), by=by, reason=reason or None)
