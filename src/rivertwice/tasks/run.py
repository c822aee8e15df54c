"""One task of a DAG run as its work sees it, and how the work says that it was skipped or failed.

Plain values and no Airflow: the same work is done in Airflow's own worker, or by an agent on another host that a worker asks over HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rivertwice.core import RivertwiceError

BY_AIRFLOW = "Airflow"
APPROVE = "Approve"
"""What a person's answer contains if it is yes."""


class TaskSkippedError(RivertwiceError):
    """There is nothing to do, which is no failure: the task and what comes after it are skipped."""

    reason = "task_skipped"


class TaskFailedError(RivertwiceError):
    """The task failed, and no other try can cure that.

    Attributes:
        is_reported: an alert says it already, so the failed task is not a second one.
    """

    reason = "task_failed"

    def __init__(self, message: str, *, is_reported: bool = False) -> None:
        super().__init__(message)
        self.is_reported = is_reported


@dataclass(frozen=True)
class TaskRun:
    """A task of a DAG run.

    Attributes:
        dag: id of the DAG.
        run: id of its run.
        task: id of the task.
        is_scheduled: whether the run started without a request.
        is_backfill: whether it is one of Airflow's own Backfill, for the period that begins at `due_at`.
        due_at: when it was due (UTC).
        user: name of the person who asked for the run; "": Airflow itself did.
        params: values of the form.
        results: what tasks before it returned, by their ids; those that the work needs although they may have been skipped.
        active_repairs: repairs of the pipeline, other than this run, whose DAG run is queued or at work; it may wait for a person.
        at_work: tasks that the work asked about, of this run or another of the DAG, that are at work or about to be.
    """

    dag: str
    run: str
    task: str
    due_at: datetime
    is_scheduled: bool = False
    is_backfill: bool = False
    user: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)
    active_repairs: int = 0
    at_work: int = 0

    @property
    def asked_by(self) -> str:
        """Who asked for the run, for records: the person's name, or Airflow itself."""
        return f"{self.user} in Airflow" if self.user else BY_AIRFLOW

    @property
    def details(self) -> dict[str, str]:
        """Where in Airflow it is, as fields of an alert."""
        return {"dag": self.dag, "run": self.run}
