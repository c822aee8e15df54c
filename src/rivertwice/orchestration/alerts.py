"""What Airflow reports: failed tasks, and findings of a reconcile's gate. The alerts' room has routes and repetition."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rivertwice.alerts.kinds import AGENT_DEAD, TASK_FAILED, is_about_stream
from rivertwice.alerts.model import CRITICAL, WARNING, Alert, AlertCause, Report
from rivertwice.alerts.store import alerts_of
from rivertwice.config import Settings
from rivertwice.instants import utc_now
from rivertwice.reconcile.model import SERVED
from rivertwice.supervise.health import AGENT
from rivertwice.verdicts import DEFECT, LATE, NOT_COMPARABLE

SENDER_PATIENCE_S = 5.0
SHOWN = 3
GATE_KINDS = (
    "defect", "finding", "gap", "balance", "late_share", "not_comparable", "nothing_compared", "suite", "suite_errored",
    "quality", "foreign_write",
)  # fmt: skip
_VERDICTS = {"defect": DEFECT, "late_share": LATE, "not_comparable": NOT_COMPARABLE}
"""The kinds that a backfill repairs: they are over once `served` has no row of the verdict, whatever the stream emitted."""


CURABLE = frozenset({"defect", "late_share"})
"""The kinds that a repair is about."""


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
    """Report what a reconcile's gate found, one alert of each kind, and the end of each kind that it no longer found.

    Args:
        settings: where things lie.
        pipeline: its name.
        place: the place of the gate's task.
        newest: the reconcile, as stored.
        whole: it compared everything; a reconcile of a range cannot end an alert.
        repair: gives the details of the repair that cures a late share or a defect; only called if there is one.
        left: kinds whose end is left to a repair that is at work, which knows the numbers of before and after.
    """
    findings = judge_gate(newest["gate"]["alerts"], newest["counts"])
    now = utc_now()
    if whole:
        why = f"reconcile {newest['run']} found it no more"
        alerts_of(settings).resolve(
            lambda alert: (
                alert.cause.pipeline == pipeline
                and alert.cause.kind in GATE_KINDS
                and alert.cause.kind not in findings
                and alert.cause.kind not in left
            ),
            why,
            now,
        )
    cure = dict(repair()) if findings.keys() & CURABLE else {}
    reports = [
        Report(
            AlertCause(pipeline, kind), severity, message, "airflow", place.details | (cure if kind in CURABLE else {})
        )
        for kind, (severity, message) in findings.items()
    ]
    _send(settings, reports)


def judge_gate(
    alerts: Sequence[Mapping[str, str]], counts: Mapping[str, Mapping[str, int]]
) -> dict[str, tuple[str, str]]:
    """Return kind to (severity, message) of what a person should know now. Pure.

    Several alerts of one kind (a late share per partition) are one, and a suite that says the same once more is none. What a
    backfill has repaired is no alert: the stream's own rows keep their verdict for ever, but it affects no served number any more.
    """
    served = counts.get(SERVED, {})
    by_kind: dict[str, list[Mapping[str, str]]] = {}
    kinds = {alert["kind"] for alert in alerts}
    for alert in alerts:
        if alert.get("repeats") in kinds:
            continue
        verdict = _VERDICTS.get(alert["kind"])
        is_repaired = verdict is not None and sum(served.values()) > 0 and not served.get(verdict)
        if not is_repaired:
            by_kind.setdefault(alert["kind"], []).append(alert)
    return {kind: (_severity(alerts_of_kind), _message(alerts_of_kind)) for kind, alerts_of_kind in by_kind.items()}


def _severity(alerts: Sequence[Mapping[str, str]]) -> str:
    return CRITICAL if any(alert["severity"] == CRITICAL for alert in alerts) else WARNING


def _message(alerts: Sequence[Mapping[str, str]]) -> str:
    shown = "; ".join(alert["message"] for alert in alerts[:SHOWN])
    return shown if len(alerts) <= SHOWN else f"{shown}; and {len(alerts) - SHOWN} more"


def _is_about(alert: Alert, pipeline: str) -> bool:
    return not alert.closed and alert.cause.pipeline == pipeline and is_about_stream(alert.cause)


def _send(settings: Settings, reports: Sequence[Report]) -> None:
    """Record reports and send in this process what is due: the agent may be dead, or lack the address of a route."""
    from rivertwice.alerts.sender import Sender

    for report in reports:
        alerts_of(settings).report(report, utc_now())
    if reports:
        Sender(settings).run_pass(SENDER_PATIENCE_S)
