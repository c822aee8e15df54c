"""The notifiers that Airflow calls when a task has finally failed, and when one has ended well."""

from __future__ import annotations

import logging
from typing import Any

from airflow.sdk import BaseNotifier

from rivertwice.config import Settings
from rivertwice.errors import RequestError
from rivertwice.orchestration.alerts import (
    Place,
    ReportedError,
    StreamFaultError,
    report_failure,
    report_stream_fault,
    report_success,
)
from rivertwice.orchestration.outcomes import REQUEST

log = logging.getLogger(__name__)


class AlertNotifier(BaseNotifier):
    """Reports a task's failure as an alert (docs/howto-alerts.md).

    A refused form is no failure: nothing is broken, nothing has started, and the person who filled it in sees the reason.

    Args:
        pipeline: name of the pipeline.
    """

    def __init__(self, *, pipeline: str) -> None:
        super().__init__()
        self.pipeline = pipeline

    def notify(self, context: Any) -> None:
        """Report the failure of the task in `context`."""
        error = context.get("exception")
        cause = getattr(error, "__cause__", None)
        if isinstance(cause, ReportedError):
            return
        if _is_refused(error) and not _is_scheduled(context):
            log.info("the form was refused, which is no alert: %s", error)
            return
        settings, place = Settings.from_env(), _place(context)
        if isinstance(cause, StreamFaultError):
            report_stream_fault(settings, self.pipeline, place, cause)
        else:
            reason = error or context.get("reason") or "no reason is known"
            report_failure(settings, self.pipeline, place, f"task {place.task} of {place.dag}: {reason}")


class RecoveryNotifier(BaseNotifier):
    """Reports that a task ended well: an alert about its failure is over.

    Args:
        pipeline: name of the pipeline.
        watched: the task watches the stream.
    """

    def __init__(self, *, pipeline: str, watched: bool = False) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.watched = watched

    def notify(self, context: Any) -> None:
        """Report the success of the task in `context`."""
        report_success(Settings.from_env(), self.pipeline, _place(context), watched=self.watched)


def _is_refused(error: Any) -> bool:
    """Say whether a request was refused, by a task of ours or by a Spark job, whose message then begins with the reason."""
    return isinstance(getattr(error, "__cause__", None), RequestError) or str(error).startswith(f"{REQUEST}: ")


def _is_scheduled(context: Any) -> bool:
    run_type = getattr(context.get("dag_run"), "run_type", "manual")
    return str(run_type).rsplit(".", 1)[-1].lower() == "scheduled"


def _place(context: Any) -> Place:
    run = context.get("dag_run")
    task = context.get("ti") or context.get("task_instance")
    run_id = getattr(run, "run_id", None) or context.get("run_id") or ""
    return Place(
        str(getattr(context.get("dag"), "dag_id", "")), str(run_id), str(getattr(task, "task_id", "") or "unknown")
    )
