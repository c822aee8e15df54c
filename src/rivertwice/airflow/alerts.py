"""Notifiers, of our DAGs and for those of users: a failed task becomes an alert, and one that ends well ends it."""

from __future__ import annotations

import logging
from typing import Any

from airflow.sdk import BaseNotifier

from rivertwice.airflow.work import ReportedError, attempt_of, do_step, run_of
from rivertwice.core import RequestError


class StreamFaultError(Exception):
    """Cause of a failed supervision epoch.

    Attributes:
        status: `agent_dead`, `driver_down` or `given_up`.
    """

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


log = logging.getLogger(__name__)


class AlertNotifier(BaseNotifier):
    """Reports a task's failure as an alert (docs/howto-watch.md).

    A refused form is not a failure: nothing is broken, nothing has started, and the person who filled it in sees the reason.
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
        if _is_refused(error) and not run_of(context).is_scheduled:
            log.info("the form was refused, which is not an alert: %s", error)
            return
        if isinstance(cause, StreamFaultError):
            _report(context, "report_stream_fault", self.pipeline, cause.status, str(cause))
            return
        reason = error or context.get("reason") or "no reason is known"
        run = run_of(context)
        _report(context, "report_failure", self.pipeline, f"task {run.task} of {run.dag}: {reason}")


class RecoveryNotifier(BaseNotifier):
    """Reports that a task ended well: an alert about its failure is over.

    Args:
        watched: the task watches the stream.
    """

    def __init__(self, *, pipeline: str, watched: bool = False) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.watched = watched

    def notify(self, context: Any) -> None:
        """Report the success of the task in `context`."""
        _report(context, "report_success", self.pipeline, self.watched)


def _is_refused(error: Any) -> bool:
    """Say whether a request was refused, by a task of ours or by a Spark job, whose message then begins with the reason."""
    return isinstance(getattr(error, "__cause__", None), RequestError) or str(error).startswith(
        f"{RequestError.reason}: "
    )


def _report(context: Any, step: str, pipeline: str, *arguments: Any) -> None:
    """Do a step for the task that has just ended; an alert needs no connection, and one that is missing must not keep it back."""
    do_step(step, pipeline, *arguments, run=run_of(context), attempt=attempt_of(context), connects=False)
