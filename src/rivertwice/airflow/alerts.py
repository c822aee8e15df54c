"""What Airflow reports: failed tasks and findings of a reconcile's gate; and notifiers for users' own DAGs."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow.sdk import BaseNotifier

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
from rivertwice.core import RequestError, RivertwiceError, Settings, utc_now

SENDER_PATIENCE_S = 5.0


class ReportedError(Exception):
    """Cause of a task's failure that has been reported already, so that the failure is not a second alert."""


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
    _send(settings, [Report(cause, AlertSeverity.CRITICAL, message, "airflow", place.details)])


def report_stream_fault(settings: Settings, pipeline: str, place: Place, fault: StreamFaultError) -> None:
    """Report a stream that is not in its desired state, unless the agent has reported it already.

    A dead agent is one fact, however many pipelines wait for it.
    """
    if fault.status == Condition.AGENT:
        cause = AlertCause("", AGENT_DEAD)
    else:
        cause = AlertCause(pipeline, fault.status)
        if any(_is_about(alert, pipeline) and alert.cause != cause for alert in alerts_of(settings).state().alerts):
            return
    _send(settings, [Report(cause, AlertSeverity.CRITICAL, str(fault), "airflow", place.details)])


def report_success(settings: Settings, pipeline: str, place: Place, *, watched: bool = False) -> None:
    """Report that a task ended well, so that an alert about its failure is over.

    Args:
        watched: the task is the one that watches the stream.
    """
    failed = AlertCause(pipeline, TASK_FAILED, f"{place.dag}.{place.task}")
    faults = (
        {AlertCause("", AGENT_DEAD), AlertCause(pipeline, "driver_down"), AlertCause(pipeline, "given_up")}
        if watched
        else set()
    )
    why = "the stream is in its desired state" if watched else f"task {place.task} of {place.dag} ended well"
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
    from rivertwice.agent import Sender

    Sender(settings).run_pass(SENDER_PATIENCE_S)


# Whether the task of a Spark job that ended is retried. Pure.

REQUEST = RequestError.reason
_USAGE = 2
_EXIT_CODE = re.compile(r"Error code is: (\d+)")
_REASON = re.compile(r"(?:^|\s)([a-z_]+): (\S.*)$")


def find_refusal(text: str) -> str | None:
    """Return why no retry can cure a job's failure, or None if one may.

    `text` is the operator's error: the exit code, and the end of the job's output. Our jobs print `REASON: message` with the
    reason of the error tree; exit code 2 is a refused argument. A job with neither (a killed JVM, a lost race) may succeed
    the next time.
    """
    final = {error.reason for error in _tree(RivertwiceError) if not error.retryable}
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        matched = _REASON.search(line)
        if matched and matched.group(1) in final:
            return f"{matched.group(1)}: {matched.group(2)}"
    code = _EXIT_CODE.search(text)
    if code and int(code.group(1)) == _USAGE:
        return next((line for line in reversed(lines) if "refused" in line or "error:" in line), lines[-1])
    return None


def _tree(root: type[RivertwiceError]) -> Iterator[type[RivertwiceError]]:
    for child in root.__subclasses__():
        yield child
        yield from _tree(child)


# The notifiers that Airflow calls when a task has finally failed, and when one has ended well.

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
        if _is_refused(error) and not _is_scheduled(context):
            log.info("the form was refused, which is not an alert: %s", error)
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
