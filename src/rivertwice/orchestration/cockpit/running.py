"""What Airflow runs for each pipeline at this moment, with how many of its tasks are done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import DagRunState, TaskInstanceState
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from rivertwice.instants import to_iso
from rivertwice.orchestration.cockpit.access import VERBS
from rivertwice.orchestration.dag_names import dag_id

AT_WORK = (DagRunState.QUEUED, DagRunState.RUNNING)
ENDED = (
    TaskInstanceState.SUCCESS,
    TaskInstanceState.SKIPPED,
    TaskInstanceState.FAILED,
    TaskInstanceState.UPSTREAM_FAILED,
    TaskInstanceState.REMOVED,
)
MOST = 20


def running_dag_runs(names: Iterable[str], session: Session) -> dict[str, list[dict[str, Any]]]:
    """Return the DAG runs of each pipeline that are queued or at work, oldest first; at most 20 in all.

    `supervise` is left out: it always runs, and the stream's own light says what it finds.

    Args:
        names: of pipelines or versions.
        session: of Airflow's database.
    """
    owners = {dag_id(verb, name): (verb, name) for name in names for verb in VERBS if verb != "supervise"}
    runs = session.execute(
        select(DagRun.dag_id, DagRun.run_id, DagRun.state, DagRun.start_date, DagRun.queued_at)
        .where(DagRun.dag_id.in_(owners), DagRun.state.in_(AT_WORK))
        .order_by(DagRun.queued_at)
        .limit(MOST)
    ).all()
    counted = _tasks([(run.dag_id, run.run_id) for run in runs], session)
    shown: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        verb, name = owners[run.dag_id]
        states = counted[run.dag_id, run.run_id]
        since = run.start_date or run.queued_at
        shown[name].append(
            {
                "title": verb,
                "dag": run.dag_id,
                "run": run.run_id,
                "state": str(run.state),
                "since": None if since is None else to_iso(since),
                "done": sum(states[state] for state in ENDED),
                "total": sum(states.values()),
            }
        )
    return dict(shown)


def _tasks(runs: list[tuple[str, str]], session: Session) -> dict[tuple[str, str], dict[Any, int]]:
    """Return how many tasks each run has, by state."""
    counted: dict[tuple[str, str], dict[Any, int]] = defaultdict(lambda: defaultdict(int))
    if runs:
        rows = session.execute(
            select(TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.state, func.count())
            .where(TaskInstance.run_id.in_({run for _, run in runs}), TaskInstance.dag_id.in_({dag for dag, _ in runs}))
            .group_by(TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.state)
        )
        for dag, run, state, number in rows:
            counted[dag, run][state] += number
    return counted
