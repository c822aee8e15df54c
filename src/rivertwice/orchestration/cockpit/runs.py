"""Runs of a pipeline's DAGs that are at work or wait, from Airflow's database: one query for all pipelines of a page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import select
from sqlalchemy.orm import Session

from rivertwice.instants import to_iso
from rivertwice.orchestration.cockpit.access import VERBS
from rivertwice.orchestration.dag_names import dag_id

AT_WORK = ("running", "queued")
OVER = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
STANDS_FOR = {
    "deferred": "waits without a worker",
    "awaiting_input": "waits for a person",
    "up_for_retry": "will be tried again",
}
MOST = 40
"""Runs that are shown of all pipelines together."""


def runs_at_work(names: Iterable[str], session: Session) -> dict[str, list[dict[str, Any]]]:
    """Return name of a pipeline to its runs at work: title, dag, run, state, since, done and total (tasks).

    The run of supervise is left out: there is one at any time, and the light of the stream says what it finds.
    """
    owners = {dag_id(verb, name): (name, verb) for name in set(names) for verb in VERBS[1:]}
    columns = (DagRun.dag_id, DagRun.run_id, DagRun.state, DagRun.start_date, DagRun.queued_at)
    wanted = select(*columns).where(DagRun.dag_id.in_(owners), DagRun.state.in_(AT_WORK)).order_by(DagRun.queued_at)
    rows = session.execute(wanted.limit(MOST)).all()
    tasks = _tasks([row.run_id for row in rows], [row.dag_id for row in rows], session) if rows else {}
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        name, verb = owners[row.dag_id]
        states = tasks.get((row.dag_id, row.run_id), [])
        since = row.start_date or row.queued_at
        found[name].append(
            {
                "title": verb,
                "dag": row.dag_id,
                "run": row.run_id,
                "state": _words(str(row.state), states),
                "since": None if since is None else to_iso(since),
                "done": sum(state in OVER for _, state in states),
                "total": len(states),
                "of": "tasks",
            }
        )
    return dict(found)


def _tasks(
    runs: list[str], dags: list[str], session: Session
) -> Mapping[tuple[str, str], list[tuple[str, str | None]]]:
    columns = (TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.state)
    wanted = select(*columns).where(TaskInstance.dag_id.in_(dags), TaskInstance.run_id.in_(runs))
    found: dict[tuple[str, str], list[tuple[str, str | None]]] = defaultdict(list)
    for row in session.execute(wanted):
        found[row.dag_id, row.run_id].append((row.task_id, None if row.state is None else str(row.state)))
    return found


def _words(state: str, tasks: list[tuple[str, str | None]]) -> str:
    """Return the state of a run, with the task that is at work."""
    for task, of in tasks:
        if of in STANDS_FOR:
            return f"{task} {STANDS_FOR[of]}"
    at_work = next((task for task, of in tasks if of == "running"), None)
    return state if at_work is None else f"{state}, at {at_work}"
