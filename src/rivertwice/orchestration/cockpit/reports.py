"""The report of one run, which links of Airflow's tasks lead to."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response

from rivertwice.errors import ConfigError, RequestError
from rivertwice.orchestration.cockpit.access import PipelineDep, SettingsDep
from rivertwice.orchestration.cockpit.answers import answer

router = APIRouter(prefix="/api/p/{name}")


@router.get("/report")
def report(request: Request, one: PipelineDep, settings: SettingsDep, run: str) -> Response:
    """Return the report of one run; the answer is 404 with the reason if there is none."""
    from rivertwice.orchestration.report_data import find_report

    try:
        return answer(request, find_report(settings, one.name, run))
    except (RequestError, ConfigError) as error:
        raise HTTPException(404, str(error)) from None
