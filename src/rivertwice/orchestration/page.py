"""Our plugin of Airflow: the page "rivertwice" in its navigation, and the check of forms.

The page itself is a file without data. The data comes from one endpoint that asks for the user Airflow has logged in.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.plugins_manager import AirflowPlugin
from fastapi import FastAPI, HTTPException
from fastapi.responses import HTMLResponse

from rivertwice.config import Settings
from rivertwice.errors import ConfigError, RequestError, RivertwiceError
from rivertwice.instants import utc_now
from rivertwice.orchestration.definitions import find_definitions
from rivertwice.orchestration.form_check import middleware

log = logging.getLogger(__name__)

PREFIX = "/rivertwice"
_PAGE = Path(__file__).with_name("page.html")
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'",
    "Cache-Control": "no-store",
}

app = FastAPI(title="rivertwice", docs_url=None, redoc_url=None, openapi_url=None)


@app.get("/", response_class=HTMLResponse)
def page() -> HTMLResponse:
    """Return the page; it holds no data."""
    return HTMLResponse(_PAGE.read_text(encoding="utf-8"), headers=_HEADERS)


@app.get("/api/pipelines")
def pipelines(user: GetUserDep) -> dict[str, Any]:
    """Return the state of every pipeline. A pipeline that cannot be read shows why, and hides no other."""
    from rivertwice.orchestration.page_data import describe_pipeline

    settings, now = Settings.from_env(), utc_now()
    shown: list[dict[str, Any]] = []
    for candidate in find_definitions(settings):
        if candidate.definition is None:
            shown.append({"name": candidate.name, "error": candidate.refusal})
            continue
        try:
            shown.append(describe_pipeline(settings, candidate.definition, now))
        except (RivertwiceError, OSError, ValueError, KeyError) as error:
            log.warning("the page cannot show %s: %s", candidate.name, error)
            shown.append({"name": candidate.name, "error": f"{type(error).__name__}: {error}"})
    return {"pipelines": shown}


@app.get("/api/report")
def report(user: GetUserDep, pipeline: str, run: str) -> dict[str, Any]:
    """Return the report of one run; the answer is 404 with the reason if there is none."""
    from rivertwice.orchestration.report_data import find_report

    try:
        return find_report(Settings.from_env(), pipeline, run)
    except (RequestError, ConfigError) as error:
        raise HTTPException(404, str(error)) from None


class RivertwicePlugin(AirflowPlugin):
    """Adds the page to Airflow (an app of its own, and an entry in the navigation), and the check of forms before a run."""

    name = "rivertwice"
    fastapi_apps = [{"app": app, "url_prefix": PREFIX, "name": "rivertwice"}]  # noqa: RUF012
    fastapi_root_middlewares = [middleware()]  # noqa: RUF012
    external_views = [  # noqa: RUF012
        {
            "name": "rivertwice",
            "href": f"{PREFIX}/",
            "url_route": "rivertwice",
            "destination": "nav",
            "nav_top_level": True,
        }
    ]
