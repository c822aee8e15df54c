"""Which DAG run made a backfill, who started it, and how far it is: from Airflow's database and the notes of the planning task."""

from __future__ import annotations

from typing import Any

from airflow.models.dagrun import DagRun
from sqlalchemy import select
from sqlalchemy.orm import Session

from rivertwice.backfill.store import planned_for
from rivertwice.cockpit.serving import open_serving
from rivertwice.config import PipelineHome, Settings
from rivertwice.errors import RequestError
from rivertwice.instants import to_iso
from rivertwice.orchestration.dag_names import dag_id
from rivertwice.orchestration.run_names import request_of

VERBS = ("backfill", "correct")
_NEWEST = 60
_ACTIVE = ("queued", "running", "restarting", "deferred", "up_for_retry")


def add_runs(settings: Settings, name: str, listed: dict[str, Any], session: Session) -> dict[str, Any]:
    """Return the list of backfills with the DAG run of each, and the runs that are active and have planned nothing yet.

    Args:
        settings: where everything is stored.
        name: of the pipeline.
        listed: what `list_of_backfills` returned.
        session: of Airflow's database.
    """
    home = open_serving(settings, name).home
    runs = [describe_run(run) for run in newest_runs(session, name)]
    by_backfill: dict[str, list[dict[str, Any]]] = {}
    waiting = []
    for run in runs:
        planned = _planned(home, run["run"])
        if planned:
            by_backfill.setdefault(planned, []).append(run)
        elif planned is None and run["state"] in _ACTIVE:
            waiting.append(run)
    rows = [{**row, "runs": by_backfill.get(row["id"], [])} for row in listed["backfills"]]
    return {**listed, "backfills": rows, "waiting": waiting}


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


def _planned(home: PipelineHome, run: str) -> str | None:
    """Return the backfill that a run planned, empty if there was nothing to do; None: it has planned nothing yet."""
    try:
        return planned_for(home, request_of(run))
    except RequestError:
        return None
