"""Routes of the heatmap, one number explained, a selection of windows, and the backfills.

What they answer is read from the tables, for what is shown alone. None of it needs Spark: what only Spark can say (the truth of a row,
the plan of sessions) is named as such, with the act or the command that computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.models.dagrun import DagRun
from airflow.models.xcom import XComModel
from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from rivertwice import acts
from rivertwice.airflow.dag_names import dag_id
from rivertwice.airflow.web_access import PipelineDep, SettingsDep, answer
from rivertwice.airflow.web_registry import page_act, register
from rivertwice.core.errors import ConfigError, LedgerError, RequestError, ServiceError
from rivertwice.core.instants import parse_instant, to_iso, utc_now

# Which DAG run made a backfill, who started it, and in what state it is: from Airflow's database and what its task `plan` returned.

VERBS = ("backfill", "repair")
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


router = APIRouter(prefix="/api/p/{name}")

Text = Annotated[str | None, Query(max_length=200)]
From = Annotated[str | None, Query(alias="from", max_length=40)]
Until = Annotated[str | None, Query(alias="to", max_length=40)]
Key = Annotated[str | None, Query(max_length=2000)]
Skip = Annotated[int, Query(ge=0, le=1_000_000)]


def _answered(request: Request, read: Callable[[], Any]) -> Response:
    """Return what a function reads; 400 with the reason if what was asked is refused, 503 if something does not answer.

    Raises:
        HTTPException: see above.
    """
    try:
        return answer(request, read())
    except (RequestError, ConfigError, LedgerError) as error:
        raise HTTPException(400, str(error)) from None
    except ServiceError as error:
        raise HTTPException(503, str(error)) from None


def _instant(text: str | None) -> datetime | None:
    return None if text is None else parse_instant(text)


@router.get("/correctness")
def correctness(request: Request, one: PipelineDep, settings: SettingsDep) -> Response:
    """Return the newest reconcile with its balance, the trend, and what does not agree: open trouble first."""
    from rivertwice.read.trouble import describe_correctness

    return _answered(request, lambda: describe_correctness(settings, one.name))


@router.get("/heatmap")
def heatmap(
    request: Request,
    one: PipelineDep,
    settings: SettingsDep,
    pair: Text = None,
    start: From = None,
    end: Until = None,
    level: Text = None,
    text: Text = None,
    skip: Skip = 0,
    limit: Annotated[int, Query(ge=1, le=50)] = 25,
) -> Response:
    """Return windows and keys with the verdict of the newest reconcile on each cell."""
    from rivertwice.read.heatmap import parse_asked, read_heatmap

    def read() -> dict[str, Any]:
        given = {"pair": pair, "start": _instant(start), "end": _instant(end), "level": level, "text": text}
        return read_heatmap(settings, one.name, parse_asked({**given, "skip": skip, "limit": limit}))

    return _answered(request, read)


@router.get("/cell")
def cell(
    request: Request,
    one: PipelineDep,
    settings: SettingsDep,
    start: Annotated[str, Query(alias="from", max_length=40)],
    end: Annotated[str, Query(alias="to", max_length=40)],
    key: Key = None,
    pair: Text = None,
) -> Response:
    """Return the rows of one cell of the heatmap, the worst first."""
    from rivertwice.read.cell_rows import parse_cell_key, read_cell

    def read() -> dict[str, Any]:
        low, high = parse_instant(start), parse_instant(end)
        return read_cell(settings, one.name, pair or "served", low, high, parse_cell_key(key))

    return _answered(request, read)


@router.get("/lateness")
def lateness(
    request: Request,
    one: PipelineDep,
    settings: SettingsDep,
    start: From = None,
    end: Until = None,
) -> Response:
    """Return how late the late records were, and how many a larger watermark would have let in."""
    from rivertwice.read.lateness import read_lateness

    return _answered(request, lambda: read_lateness(settings, one.name, _instant(start), _instant(end)))


@router.get("/explain")
def explain(
    request: Request,
    one: PipelineDep,
    settings: SettingsDep,
    window: Annotated[str, Query(max_length=40)],
    key: Key = None,
) -> Response:
    """Return one number explained, as `rivertwice explain` does, with the truth as far as a verdict gives it."""
    from rivertwice.read.cell_rows import explain_for_page

    return _answered(
        request, lambda: explain_for_page(settings, one.name, parse_instant(window), key or None, utc_now())
    )


@router.get("/plan")
def plan(
    request: Request,
    one: PipelineDep,
    settings: SettingsDep,
    start: From = None,
    end: Until = None,
) -> Response:
    """Return the plan of a backfill of some windows, without a range of those that are stale; or why there is none."""
    from rivertwice.read.selection import preview_backfill

    return _answered(request, lambda: preview_backfill(settings, one.name, _instant(start), _instant(end)))


@router.get("/backfills")
def backfills(
    request: Request, one: PipelineDep, settings: SettingsDep, session: SessionDep, skip: Skip = 0
) -> Response:
    """Return the stored backfills, newest first, each with the DAG run that made it, and the runs that have no plan yet."""
    from rivertwice.read.backfills import list_of_backfills

    return _answered(request, lambda: add_runs(one.name, list_of_backfills(settings, one.name, skip), session))


@router.get("/backfill")
def backfill(
    request: Request,
    one: PipelineDep,
    settings: SettingsDep,
    id: Annotated[str, Query(max_length=80)],  # noqa: A002 (as the command line calls it)
) -> Response:
    """Return one backfill: plan, audit, verdicts before and after it, and how many rows it changed."""
    from rivertwice.read.selection import describe_backfill

    return _answered(request, lambda: describe_backfill(settings, one.name, id))


register(page_act(acts.find_act("backfill"), preview="plan"))
