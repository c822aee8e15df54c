"""Routes of curves, marks and logs."""

from __future__ import annotations

from typing import Annotated

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import Response

from rivertwice.airflow.web_access import PipelineDep, SettingsDep, answer, readable_pipelines
from rivertwice.core.errors import RequestError
from rivertwice.core.instants import parse_iso, to_iso, utc_now
from rivertwice.read.logs import describe_log, spark_ui
from rivertwice.read.marks import KINDS, find_marks
from rivertwice.read.series import describe_series

router = APIRouter(prefix="/api/p/{name}")


@router.get("/series")
def series(
    request: Request, one: PipelineDep, settings: SettingsDep, range_name: Annotated[str, Query(alias="range")] = "6h"
) -> Response:
    """Return the curves of a range, and what happened in it."""
    now = utc_now()
    parts = [f"{source.topic}/{number}" for source in one.sources.values() for number in range(source.partitions)]
    try:
        content = describe_series(settings.pipeline(one.name), range_name, parts, now)
    except RequestError as error:
        raise HTTPException(400, str(error)) from None
    marks = find_marks(settings, one.name, parse_iso(content["from"]), parse_iso(content["to"]))
    content["marks"] = [{"at": to_iso(mark.at), "kind": mark.kind, "text": mark.text} for mark in marks]
    content["kinds"] = KINDS
    return answer(request, content)


@router.get("/logs")
def logs(
    request: Request,
    one: PipelineDep,
    user: GetUserDep,
    session: SessionDep,
    settings: SettingsDep,
    of: str = "driver",
    q: Annotated[str, Query(max_length=200)] = "",
    level: str = "all",
    after: Annotated[str, Query(max_length=60)] = "",
) -> Response:
    """Return the end of a log of the pipeline, or what was written since an earlier answer, and where the Spark UI is."""
    names = settings.pipeline_names()
    whole = readable_pipelines(names, user, session) >= set(names)
    try:
        content = describe_log(settings, one.name, of, q=q, level=level, after=after, whole=whole)
    except RequestError as error:
        raise HTTPException(400, str(error)) from None
    return answer(request, {**content, "whole": whole, "ui": spark_ui(settings, one.name), "ui_on": settings.spark_ui})
