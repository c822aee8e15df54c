"""What Airflow reports: failed tasks, and findings of a reconcile's gate. The alerts' room has routes and repetition."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rivertwice.alerts.gates import record_gate
from rivertwice.alerts.kinds import AGENT_DEAD, TASK_FAILED, is_about_stream
from rivertwice.alerts.model import CRITICAL, Alert, AlertCause, Report
from rivertwice.alerts.store import alerts_of
from rivertwice.config import Settings
from rivertwice.instants import utc_now
from rivertwice.supervise.health import AGENT

SENDER_PATIENCE_S = 5.0


class ReportedError(Exception):
    """Cause of a task's failure that has been reported already, so that the failure is no second alert."""


class StreamFaultError(Exception):
    """Cause of a failed supervision epoch.

    Attributes:
        status: `agent_dead`, `driver_down` or `given_up`.
    """

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Place:
    """Where in Airflow something happened."""

    dag: str
    run: str
    task: str

    @property
    def details(self) -> dict[str, str]:
        """Fields of a message."""
        return {"dag": self.dag, "run": self.run}


def report_failure(settings: Settings, pipeline: str, place: Place, message: str) -> None:
    """Report that a task finally failed, once while it fails."""
    cause = AlertCause(pipeline, TASK_FAILED, f"{place.dag}.{place.task}")
    _send(settings, [Report(cause, CRITICAL, message, "airflow", place.details)])


def report_stream_fault(settings: Settings, pipeline: str, place: Place, fault: StreamFaultError) -> None:
    """Report a stream that does not run as wanted, unless the agent has reported it already.

    A dead agent is one fact, however many pipelines wait for it.
    """
    if fault.status == AGENT:
        cause = AlertCause("", AGENT_DEAD)
    else:
        cause = AlertCause(pipeline, fault.status)
        if any(_is_about(alert, pipeline) and alert.cause != cause for alert in alerts_of(settings).state().alerts):
            return
    _send(settings, [Report(cause, CRITICAL, str(fault), "airflow", place.details)])


def report_success(settings: Settings, pipeline: str, place: Place, *, watched: bool = False) -> None:
    """Report that a task ended well, so that an alert about its failure is over.

    Args:
        settings: where things lie.
        pipeline: pipeline of the task.
        place: place of the task.
        watched: the task is the one that watches the stream.
    """
    failed = AlertCause(pipeline, TASK_FAILED, f"{place.dag}.{place.task}")
    faults = (
        {AlertCause("", AGENT_DEAD), AlertCause(pipeline, "driver_down"), AlertCause(pipeline, "given_up")}
        if watched
        else set()
    )
    why = "the stream runs as wanted" if watched else f"task {place.task} of {place.dag} ended well"
    alerts_of(settings).resolve(lambda alert: alert.cause in faults | {failed}, why, utc_now())


def report_gate(
    settings: Settings,
    pipeline: str,
    place: Place,
    newest: Mapping[str, Any],
    *,
    whole: bool,
    repair: Callable[[], Mapping[str, str]] = dict,
    left: Collection[str] = (),
) -> None:
    """Record what a reconcile's gate found, or no longer found, and send it; see `record_gate`."""
    found = record_gate(
        settings, pipeline, newest, by="airflow", details=place.details, whole=whole, repair=repair, left=left
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
    from rivertwice.alerts.sender import Sender

    Sender(settings).run_pass(SENDER_PATIENCE_S)
