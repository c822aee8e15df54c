"""What a task reports as an alert: that it failed for good or ended well, a stream that is down, findings of a reconcile's gate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from rivertwice.agent import (
    AGENT_DEAD,
    TASK_FAILED,
    Alert,
    AlertCause,
    AlertSeverity,
    Condition,
    Report,
    alerts_of,
    is_about_stream,
    record_gate,
)
from rivertwice.core import Settings, utc_now
from rivertwice.tasks.run import TaskRun

SENDER_PATIENCE_S = 5.0


def report_failure(settings: Settings, run: TaskRun, pipeline: str, message: str) -> None:
    """Report that a task finally failed, once while it fails."""
    cause = AlertCause(pipeline, TASK_FAILED, f"{run.dag}.{run.task}")
    _send(settings, [Report(cause, AlertSeverity.CRITICAL, message, "airflow", run.details)])


def report_stream_fault(settings: Settings, run: TaskRun, pipeline: str, status: str, message: str) -> None:
    """Report a stream that is not in its desired state, unless the agent has reported it already.

    A dead agent is one fact, however many pipelines wait for it.

    Args:
        status: `agent_dead`, `driver_down` or `given_up`.
    """
    if status == Condition.AGENT:
        cause = AlertCause("", AGENT_DEAD)
    else:
        cause = AlertCause(pipeline, status)
        if any(_is_about(alert, pipeline) and alert.cause != cause for alert in alerts_of(settings).state().alerts):
            return
    _send(settings, [Report(cause, AlertSeverity.CRITICAL, message, "airflow", run.details)])


def report_success(settings: Settings, run: TaskRun, pipeline: str, watched: bool) -> None:
    """Report that a task ended well, so that an alert about its failure is over.

    Args:
        watched: the task is the one that watches the stream.
    """
    failed = AlertCause(pipeline, TASK_FAILED, f"{run.dag}.{run.task}")
    faults = (
        {AlertCause("", AGENT_DEAD), AlertCause(pipeline, "driver_down"), AlertCause(pipeline, "given_up")}
        if watched
        else set()
    )
    why = "the stream is in its desired state" if watched else f"task {run.task} of {run.dag} ended well"
    alerts_of(settings).resolve(lambda alert: alert.cause in faults | {failed}, why, utc_now())


def report_gate(
    settings: Settings,
    run: TaskRun,
    pipeline: str,
    newest: Mapping[str, Any],
    *,
    whole: bool,
    repair: Callable[[], Mapping[str, str]] = dict,
    left: Collection[str] = (),
) -> None:
    """Record what a reconcile's gate found, or no longer found, and send it; see `record_gate`."""
    found = record_gate(
        settings, pipeline, newest, by="airflow", details=run.details, whole=whole, repair=repair, left=left
    )
    if found:
        _send_due(settings)


def _is_about(alert: Alert, pipeline: str) -> bool:
    return not alert.closed and alert.cause.pipeline == pipeline and is_about_stream(alert.cause)


def _send(settings: Settings, reports: Sequence[Report]) -> None:
    for report in reports:
        alerts_of(settings).report(report, utc_now())
    if reports:
        _send_due(settings)


def _send_due(settings: Settings) -> None:
    """Send in this process what is due: the agent may be dead, or lack the address of a route."""
    from rivertwice.agent import Sender

    Sender(settings).run_pass(SENDER_PATIENCE_S)
