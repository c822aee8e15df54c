"""Routes of curves, marks and logs."""

from __future__ import annotations

from typing import Annotated

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Query

from rivertwice.airflow.web_access import PipelineDep, SettingsDep, ViewRoute, readable_pipelines
from rivertwice.core import utc_now
from rivertwice.read import describe_log, read_curves

router = APIRouter(prefix="/api/p/{name}", route_class=ViewRoute)


@router.get("/series")
def series(one: PipelineDep, settings: SettingsDep, range_name: Annotated[str, Query(alias="range")] = "6h") -> object:
    """Return the curves of a range, what happened in it, and where the time went."""
    return read_curves(settings, one, range_name, utc_now())


@router.get("/logs")
def logs(
    one: PipelineDep,
    user: GetUserDep,
    session: SessionDep,
    settings: SettingsDep,
    of: str = "driver",
    q: Annotated[str, Query(max_length=200)] = "",
    level: str = "all",
    after: Annotated[str, Query(max_length=60)] = "",
) -> object:
    """Return the end of a log of the pipeline, or what was written since an earlier answer, and where the Spark UI is."""
    names = settings.pipeline_names()
    whole = readable_pipelines(names, user, session) >= set(names)
    return describe_log(settings, one.name, of, q=q, level=level, after=after, whole=whole)
