"""Which DAG run made a backfill, who started it, and in what state it is: from Airflow's database and what its task `plan` returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.models.dagrun import DagRun
from airflow.models.xcom import XComModel
from sqlalchemy import select
from sqlalchemy.orm import Session

from rivertwice.instants import to_iso
from rivertwice.orchestration.dag_names import dag_id

VERBS = ("backfill", "correct", "repair")
PLAN = "plan"
"""The task that plans, in the DAG of each of these verbs; it returns the backfill's id, or an empty text if there is nothing to do."""
_NEWEST = 60
_ACTIVE = ("queued", "running", "restarting", "deferred", "up_for_retry")


def add_runs(name: str, listed: dict[str, Any], session: Session) -> dict[str, Any]:
    """Return the list of backfills with the DAG run of each, and the runs that are active and have planned nothing yet.

    Args:
        name: of the pipeline.
        listed: what `list_of_backfills` returned.
        session: of Airflow's database.
    """
    runs = newest_runs(session, name)
    planned = planned_by(session, runs)
    by_backfill: dict[str, list[dict[str, Any]]] = {}
    waiting = []
    for run in runs:
        place = (run.dag_id, run.run_id)
        if planned.get(place):
            by_backfill.setdefault(planned[place], []).append(describe_run(run))
        elif place not in planned and str(run.state) in _ACTIVE and run.dag_id != dag_id("repair", name):
            waiting.append(describe_run(run))
    rows = [{**row, "runs": by_backfill.get(row["id"], [])} for row in listed["backfills"]]
    return {**listed, "backfills": rows, "waiting": waiting}


def planned_by(session: Session, runs: Sequence[DagRun]) -> dict[tuple[str, str], str]:
    """Return by DAG and run which backfill the run planned, empty if there was nothing to do; a run that planned nothing yet is not in it."""
    ids = {run.run_id for run in runs}
    query = select(XComModel.dag_id, XComModel.run_id, XComModel.value).where(
        XComModel.task_id == PLAN,
        XComModel.key == "return_value",
        XComModel.dag_id.in_({run.dag_id for run in runs}),
        XComModel.run_id.in_(ids),
    )
    return {(dag, run): value for dag, run, value in session.execute(query).all() if isinstance(value, str)}


def newest_runs(session: Session, name: str) -> list[DagRun]:
    """Return the newest runs of the DAGs that make backfills of a pipeline, newest first."""
    dags = [dag_id(verb, name) for verb in VERBS]
    query = select(DagRun).where(DagRun.dag_id.in_(dags)).order_by(DagRun.run_after.desc()).limit(_NEWEST)
    return list(session.scalars(query))


def describe_run(run: DagRun) -> dict[str, Any]:
    """Return a DAG run as plain values: which, in what state, who started it, and with which request."""
    conf = run.conf if isinstance(run.conf, dict) else {}
    kept = ("scope", "start", "end", "reason", "dry_run")
    return {
        "dag": run.dag_id,
        "run": run.run_id,
        "state": str(run.state),
        "by": run.triggering_user_name,
        "started_at": None if run.start_date is None else to_iso(run.start_date),
        "ended_at": None if run.end_date is None else to_iso(run.end_date),
        "asked": {field: conf[field] for field in kept if field in conf},
    }
