"""The app that Airflow serves at `/rivertwice`: files without data, open to all, and data that asks who wants it."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from rivertwice.orchestration.cockpit import acts, alerts, correctness, health, overview, reports, timelines
from rivertwice.orchestration.cockpit.headers import SecureHeaders

WEB = Path(__file__).parent.parent / "web"
_ROUTERS = (
    overview.router,
    health.router,
    correctness.router,
    timelines.router,
    acts.router,
    alerts.router,
    reports.router,
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
