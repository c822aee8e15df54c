"""The app that Airflow serves at `/rivertwice`: files without data, open to all, and data that asks who wants it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, FastAPI, HTTPException, Query
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from rivertwice.airflow import (
    web_acts,
    web_alerts,
    web_correctness,
    web_health,
    web_map,
    web_overview,
    web_query,
    web_timelines,
)
from rivertwice.airflow.report_data import find_report
from rivertwice.airflow.web_access import PipelineDep, SecureHeaders, SettingsDep, ViewRoute
from rivertwice.core import ConfigError, DefinitionError, RequestError, RivertwiceError
from rivertwice.read import view_definition, view_results

# The definition as it runs, to whom the results go, and the report of one run, which links of Airflow's tasks lead to.

router = APIRouter(prefix="/api/p/{name}", route_class=ViewRoute)


@router.get("/definition")
def definition(
    one: PipelineDep, settings: SettingsDep, other: Annotated[str | None, Query(max_length=100)] = None
) -> object:
    """Return the definition as it runs, and how it differs from another one; 404 with the reason if there is no such other one."""
    try:
        return view_definition(settings, one, other)
    except (RequestError, DefinitionError) as error:
        raise HTTPException(404, str(error)) from None


@router.get("/results")
def results(one: PipelineDep, settings: SettingsDep) -> object:
    """Return the sinks, the fast path and the expectations of a pipeline."""
    try:
        return view_results(settings, one)
    except RivertwiceError as error:
        raise HTTPException(503, str(error)) from None


@router.get("/report")
def report(one: PipelineDep, settings: SettingsDep, run: str) -> object:
    """Return the report of one run; the answer is 404 with the reason if there is none."""
    try:
        return find_report(settings, one.name, run)
    except (RequestError, ConfigError) as error:
        raise HTTPException(404, str(error)) from None


WEB = Path(__file__).parent / "web"
_ROUTERS = (
    web_overview.router,
    web_map.router,
    web_health.router,
    web_correctness.router,
    web_query.router,
    web_timelines.router,
    web_acts.router,
    web_alerts.router,
    router,
)


def make_app() -> FastAPI:
    """Return the app: the page at `/`, its files below `/web`, data below `/api`."""
    app = FastAPI(title="rivertwice", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(SecureHeaders)
    app.add_api_route("/", _index, methods=["GET"], include_in_schema=False)
    for router in _ROUTERS:
        app.include_router(router)
    app.mount("/web", StaticFiles(directory=WEB), name="web")
    return app


def _index() -> FileResponse:
    """Return the page; it holds no data."""
    return FileResponse(WEB / "index.html", headers={"Cache-Control": "no-cache"})


app = make_app()
