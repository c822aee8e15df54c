"""Routes of the heatmap, one number explained, rows of the tables, a selection of windows, and the backfills.

What they answer is read from the tables, for what is shown alone. None of it needs Spark: what only Spark can say (the truth of a row,
the plan of sessions) is named as such, with the act or the command that computes it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dagrun import DagRun
from airflow.models.xcom import XComModel
from fastapi import APIRouter, Depends, Query
from fastapi.responses import FileResponse
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.background import BackgroundTask

from rivertwice import acts
from rivertwice.airflow.web_access import PipelineDep, SettingsDep, ViewRoute, may_start
from rivertwice.airflow.web_registry import page_act, register
from rivertwice.core import parse_instant, utc_now
from rivertwice.read import (
    BackfillList,
    HeatmapQuery,
    RowsQuery,
    describe_backfill,
    describe_correctness,
    explain_for_page,
    list_of_backfills,
    parse_cell_key,
    preview_backfill,
    read_cell,
    read_lateness,
)
from rivertwice.tasks import dag_id

# Which DAG run made a backfill, who started it, and in what state it is: from Airflow's database and what its task `plan` returned.

PLAN = "plan"
"""The task that plans; it returns the backfill's id, or an empty text if there is nothing to do."""
_NEWEST = 60
_ACTIVE = ("queued", "running", "restarting", "deferred", "up_for_retry")


@dataclass(frozen=True)
class BackfillRun:
    """A DAG run: which, in what state, who started it, and with which request."""

    dag: str
    run: str
    state: str
    by: str | None
    started_at: datetime | None
    ended_at: datetime | None
    asked: Mapping[str, Any]


def add_runs(name: str, listed: BackfillList, session: Session) -> BackfillList:
    """Return the list of backfills with the DAG run of each, and the runs that are active and have planned nothing yet.

    Args:
        listed: what `list_of_backfills` returned.
    """
    runs = newest_runs(session, name)
    planned = planned_by(session, runs)
    by_backfill: dict[str, list[BackfillRun]] = {}
    waiting = []
    for run in runs:
        place = (run.dag_id, run.run_id)
        if planned.get(place):
            by_backfill.setdefault(planned[place], []).append(describe_run(run))
        elif place not in planned and str(run.state) in _ACTIVE and (run.conf or {}).get("act") != acts.ActName.REPAIR:
            waiting.append(describe_run(run))
    rows = tuple(replace(row, runs=tuple(by_backfill.get(row.id, ()))) for row in listed.backfills)
    return replace(listed, backfills=rows, waiting=tuple(waiting))


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
    """Return the newest runs of the DAG that makes backfills of a pipeline, newest first."""
    query = (
        select(DagRun).where(DagRun.dag_id == dag_id("backfill", name)).order_by(DagRun.run_after.desc()).limit(_NEWEST)
    )
    return list(session.scalars(query))


def describe_run(run: DagRun) -> BackfillRun:
    """Return a DAG run as it is shown."""
    conf = run.conf if isinstance(run.conf, dict) else {}
    kept = ("scope", "start", "end", "reason", "dry_run")
    return BackfillRun(
        run.dag_id,
        run.run_id,
        str(run.state),
        run.triggering_user_name,
        run.start_date,
        run.end_date,
        {field: conf[field] for field in kept if field in conf},
    )


router = APIRouter(prefix="/api/p/{name}", route_class=ViewRoute)

Text = Annotated[str | None, Query(max_length=200)]
From = Annotated[str | None, Query(alias="from", max_length=40)]
Until = Annotated[str | None, Query(alias="to", max_length=40)]
Key = Annotated[str | None, Query(max_length=2000)]
Skip = Annotated[int, Query(ge=0, le=1_000_000)]


def _instant(text: str | None) -> datetime | None:
    return None if text is None else parse_instant(text)


@router.get("/correctness")
def correctness(one: PipelineDep, settings: SettingsDep) -> object:
    """Return the newest reconcile with its balance, the trend, and what does not agree: open trouble first."""
    return describe_correctness(settings, one.name)


@router.get("/heatmap")
def heatmap(
    one: PipelineDep,
    settings: SettingsDep,
    pair: Text = None,
    start: From = None,
    end: Until = None,
    level: Text = None,
    text: Text = None,
    skip: Skip = 0,
    limit: Annotated[int, Query(ge=1, le=50)] = 25,
) -> object:
    """Return windows and keys with the verdict of the newest reconcile on each cell."""
    asked = HeatmapQuery(pair or "served", _instant(start), _instant(end), level, text or "", skip, limit)
    return asked.read(settings, one.name)


@router.get("/cell")
def cell(
    one: PipelineDep,
    settings: SettingsDep,
    start: Annotated[str, Query(alias="from", max_length=40)],
    end: Annotated[str, Query(alias="to", max_length=40)],
    key: Key = None,
    pair: Text = None,
) -> object:
    """Return the rows of one cell of the heatmap, the worst first."""
    low, high = parse_instant(start), parse_instant(end)
    return read_cell(settings, one.name, pair or "served", low, high, parse_cell_key(key))


def asked_rows(
    one: PipelineDep,
    user: GetUserDep,
    table: Annotated[str, Query(max_length=40)] = "served",
    start: From = None,
    end: Until = None,
    key: Key = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    order: Annotated[str, Query(max_length=10)] = "newest",
) -> RowsQuery:
    """Return which rows are asked for, with the records' own values if the one who asks may decide about them."""
    raw = may_start(user, acts.OPERATE, one.name)
    return RowsQuery(table, _instant(start), _instant(end), key or None, limit, order == "oldest", raw)


RowsDep = Annotated[RowsQuery, Depends(asked_rows)]


@router.get("/rows")
def rows(one: PipelineDep, settings: SettingsDep, asked: RowsDep) -> object:
    """Return rows of a table, the newest first."""
    return asked.read(settings, one)


@router.get("/rows.{form}")
def rows_file(
    one: PipelineDep, settings: SettingsDep, asked: RowsDep, form: Literal["csv", "parquet", "jsonl"]
) -> FileResponse:
    """Return all rows that are asked for, as a file."""
    folder = Path(tempfile.mkdtemp(prefix="rivertwice-rows-"))
    away = BackgroundTask(shutil.rmtree, folder, ignore_errors=True)
    name = f"{one.name}-{asked.table}.{form}"
    try:
        asked.write(settings, one, folder / name)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return FileResponse(folder / name, filename=name, background=away)


@router.get("/lateness")
def lateness(one: PipelineDep, settings: SettingsDep, start: From = None, end: Until = None) -> object:
    """Return how late the late records were, and how many a larger watermark would have let in."""
    return read_lateness(settings, one.name, _instant(start), _instant(end))


@router.get("/explain")
def explain(
    one: PipelineDep, settings: SettingsDep, window: Annotated[str, Query(max_length=40)], key: Key = None
) -> object:
    """Return one number explained, as `rivertwice explain` does, with the truth as far as a verdict gives it."""
    return explain_for_page(settings, one.name, parse_instant(window), key or None, utc_now())


@router.get("/plan")
def plan(one: PipelineDep, settings: SettingsDep, start: From = None, end: Until = None) -> object:
    """Return the plan of a backfill of some windows, without a range of those that are stale; or why there is none."""
    return preview_backfill(settings, one.name, _instant(start), _instant(end))


@router.get("/backfills")
def backfills(one: PipelineDep, settings: SettingsDep, session: SessionDep, skip: Skip = 0) -> object:
    """Return the stored backfills, newest first, each with the DAG run that made it, and the runs that have no plan yet."""
    return add_runs(one.name, list_of_backfills(settings, one.name, skip), session)


@router.get("/backfill")
def backfill(
    one: PipelineDep,
    settings: SettingsDep,
    id: Annotated[str, Query(max_length=80)],  # noqa: A002 (as the command line calls it)
) -> object:
    """Return one backfill: plan, audit, verdicts before and after it, and how many rows it changed."""
    return describe_backfill(settings, one.name, id)


register(page_act(acts.find_act("backfill"), preview="plan"))
