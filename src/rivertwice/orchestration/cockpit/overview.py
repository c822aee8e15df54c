"""The two routes that an open page asks again and again: all pipelines in a row each, and one pipeline in short."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Request
from fastapi.responses import Response

from rivertwice.cockpit.overview import describe_row, describe_summary
from rivertwice.config import Settings
from rivertwice.errors import RivertwiceError
from rivertwice.instants import utc_now
from rivertwice.orchestration.cockpit.access import PipelineDep, SettingsDep, readable_pipelines
from rivertwice.orchestration.cockpit.answers import answer
from rivertwice.orchestration.cockpit.known import known_pipelines, pipelines_without_versions
from rivertwice.orchestration.cockpit.runs import runs_at_work
from rivertwice.pipeline.definition import Definition

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
