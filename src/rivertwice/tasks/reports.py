"""What a task reports as an alert: that it failed for good or ended well, a stream that is down, findings of a reconcile's gate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
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
from rivertwice.core import RivertwiceError, ServiceError, Settings, base_of, to_iso, utc_now
from rivertwice.tasks.definitions import find_definitions
from rivertwice.tasks.run import TaskRun, TaskSkippedError

SENDER_PATIENCE_S = 5.0
REPORTS = "reports"
KEPT_REPORTS = 53


@dataclass(frozen=True)
class ReportedWeek:
    """Where the report of a week is, and its sentence."""

    sentence: str
    file: str


def report_week(settings: Settings, run: TaskRun, _all: str) -> ReportedWeek:
    """Write the report of the week that ends when the run was due into `HOME/reports`, and send its sentence to the routes.

    Done again for the same week, it replaces the file; a receiver knows the second message by its `Idempotency-Key`.

    A new Airflow runs the tick before it: there is nothing to report before a stream started.

    Raises:
        TaskSkippedError: no stream had started when the run was due.
        ServiceError: a route did not take the message; the file is written.
    """
    from rivertwice.agent import Sender, load_routes
    from rivertwice.read import WeekReport

    until = run.due_at
    names = sorted({base_of(found.name) for found in find_definitions(settings)})  # as on the page, without versions
    if run.is_scheduled and not any(_had_started(settings, name, until) for name in names):
        text = f"no stream had started by {to_iso(until)}, so there is nothing to report"
        raise TaskSkippedError(text)
    report = WeekReport.read(settings, names, until)
    folder = settings.home / REPORTS
    folder.mkdir(exist_ok=True)
    file = folder / f"week-{until:%Y-%m-%d}.html"
    file.write_text(report.page, encoding="utf-8")
    for old in sorted(folder.glob("week-*.html"))[:-KEPT_REPORTS]:
        old.unlink()
    message = f"{report.sentence} The report is {file}."
    alert = Alert(AlertCause("", "week", f"{until:%Y-%m-%d}"), "report", message, "airflow", until, until, run.details)
    routes = {
        name: each for name, each in load_routes(settings).routes.items() if AlertSeverity.WARNING in each.severities
    }
    refused = [f"{name}: {why}" for name, why in Sender(settings).tell(alert, routes).items() if why]
    if refused:
        text = f"the report of the week is {file}; not all routes took its sentence: {'; '.join(refused)}"
        raise ServiceError(text)
    return ReportedWeek(report.sentence, str(file))


def _had_started(settings: Settings, name: str, until: datetime) -> bool:
    from rivertwice.timeline import read_sequence

    try:
        return any(entry.created_at < until for entry in read_sequence(settings.pipeline(name)))
    except RivertwiceError:
        return True  # the report says what cannot be read


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
