"""The two routes that an open page asks again and again: all pipelines in a row each, and one pipeline in short."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Request
from fastapi.responses import Response

from rivertwice.orchestration.cockpit.access import PipelineDep, SettingsDep, readable_pipelines
from rivertwice.orchestration.cockpit.answers import answer
from rivertwice.orchestration.cockpit.known import known_pipelines, pipelines_without_versions
from rivertwice.orchestration.cockpit.running import running_dag_runs

router = APIRouter(prefix="/api")


@router.get("/overview")
def overview(request: Request, user: GetUserDep, session: SessionDep, settings: SettingsDep) -> Response:
    """Return a row for each pipeline that the user may read. One that cannot be read shows why, and hides no other."""
    names = pipelines_without_versions(settings)
    readable = readable_pipelines(names, user, session)
    known = known_pipelines(settings)
    running = running_dag_runs(readable, session)
    rows: list[dict[str, Any]] = []
    for name in names:
        found = known.get(name)
        if found is None or name not in readable:
            continue
        if found.definition is None:
            rows.append({"name": name, "error": found.refusal})
        else:
            rows.append({"name": name, "description": found.definition.description, "running": running.get(name, [])})
    return answer(request, {"pipelines": rows})


@router.get("/p/{name}/summary")
def summary(request: Request, one: PipelineDep, session: SessionDep) -> Response:
    """Return what is true of a pipeline now: the sentence, the lights, what runs, and a stamp for each tab."""
    running = running_dag_runs([one.name], session).get(one.name, [])
    return answer(request, {"name": one.name, "description": one.description, "running": running, "stamps": {}})
