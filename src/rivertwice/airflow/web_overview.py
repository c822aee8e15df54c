"""The two routes that an open page asks again and again: all pipelines in a row each, and one pipeline in short."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from fastapi import APIRouter, Request
from fastapi.responses import Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from rivertwice.airflow.dag_names import dag_id
from rivertwice.airflow.web_access import (
    VERBS,
    PipelineDep,
    SettingsDep,
    answer,
    known_pipelines,
    pipelines_without_versions,
    readable_pipelines,
)
from rivertwice.core.errors import RivertwiceError
from rivertwice.core.instants import to_iso, utc_now
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import Definition
from rivertwice.read.overview import describe_row, describe_summary

# Runs of a pipeline's DAGs that are at work or wait, from Airflow's database: one query for all pipelines of a page.

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


log = logging.getLogger(__name__)

router = APIRouter(prefix="/api")


@router.get("/overview")
def overview(request: Request, user: GetUserDep, session: SessionDep, settings: SettingsDep) -> Response:
    """Return a row for each pipeline that the user may read. One that cannot be read shows why, and hides no other."""
    names = pipelines_without_versions(settings)
    readable = readable_pipelines(names, user, session)
    known = known_pipelines(settings)
    runs = runs_at_work(readable, session)
    now = utc_now()
    rows: list[dict[str, Any]] = []
    for name in names:
        found = known.get(name)
        if found is None or name not in readable:
            continue
        rows.append(
            {"name": name, "error": found.refusal}
            if found.definition is None
            else _row(settings, found.definition, now)
        )
        rows[-1]["running"] = [*runs.get(name, []), *rows[-1].get("running", [])]
    return answer(request, {"pipelines": rows})


def _row(settings: Settings, definition: Definition, now: datetime) -> dict[str, Any]:
    try:
        return describe_row(settings, definition, now)
    except (RivertwiceError, OSError, ValueError, KeyError) as error:
        log.warning("the overview cannot show %s: %s", definition.name, error)
        return {
            "name": definition.name,
            "description": definition.description,
            "error": f"{type(error).__name__}: {error}",
        }


@router.get("/p/{name}/summary")
def summary(request: Request, one: PipelineDep, session: SessionDep, settings: SettingsDep) -> Response:
    """Return what is true of a pipeline now: the sentence, the lights, what runs, and a stamp for each tab."""
    content = describe_summary(settings, one, utc_now())
    content["running"] = [*runs_at_work([one.name], session).get(one.name, []), *content["running"]]
    return answer(request, content)
