"""The notifier that Airflow calls when a task has finally failed."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseNotifier

from rivertwice.config import Settings
from rivertwice.errors import RequestError
from rivertwice.instants import utc_now
from rivertwice.orchestration.alerts import AirflowAlert, send_alert


class AlertNotifier(BaseNotifier):
    """Sends one alert: to `HOME/alerts.jsonl`, and to the webhook of RIVERTWICE_ALERT_WEBHOOK if it is set.

    A form that was refused is a warning of kind `refused`: nothing is broken, and nothing has started.

    Args:
        pipeline: name of the pipeline.
        kind: stable word for what happened.
        severity: `critical` or `warning`.
        message: what to say; None takes the exception of the failed task.
    """

    def __init__(
        self,
        *,
        pipeline: str,
        kind: str = "task_failed",
        severity: str = "critical",
        message: str | None = None,
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.kind = kind
        self.severity = severity
        self.message = message

    def notify(self, context: Any) -> None:
        """Send the alert for the task in `context`."""
        refused = isinstance(getattr(context.get("exception"), "__cause__", None), RequestError)
        send_alert(
            Settings.from_env(),
            AirflowAlert(
                pipeline=self.pipeline,
                dag=str(_attribute(context.get("dag"), "dag_id")),
                run=str(_attribute(context.get("dag_run"), "run_id") or context.get("run_id") or ""),
                kind="refused" if refused else self.kind,
                severity="warning" if refused else self.severity,
                message=self.message or _describe(context),
                at=utc_now(),
            ),
        )


def _attribute(thing: Any, name: str) -> Any:
    return getattr(thing, name, None) or ""


def _describe(context: Any) -> str:
    task = _attribute(context.get("ti") or context.get("task_instance"), "task_id")
    error = context.get("exception") or context.get("reason") or "no reason is known"
    return f"task {task}: {error}" if task else str(error)
