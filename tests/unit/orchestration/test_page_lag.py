"""The page in Airflow says of the lag what `rivertwice status` says."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from rivertwice.cli import cli
from rivertwice.config import Settings
from rivertwice.instants import utc_now
from rivertwice.timeline.intent import Heartbeat, write_heartbeat

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.filterwarnings("ignore"),
]  # Airflow itself imports a deprecated test client
P = "flight_delays"


def ask_page() -> dict[str, Any]:
    """Return what the page's endpoint says of the pipeline, asked by HTTP as somebody who is logged in."""
    from airflow.api_fastapi.core_api.security import get_user

    from rivertwice.orchestration.page import app

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://airflow") as client:
            return await client.get("/api/pipelines")

    app.dependency_overrides[get_user] = lambda: None
    try:
        pipelines = asyncio.run(ask()).json()["pipelines"]
    finally:
        app.dependency_overrides.clear()
    return next(dict(one) for one in pipelines if one["name"] == P)


def ask_command(settings: Settings) -> str:
    return CliRunner().invoke(cli, ["--home", str(settings.home), "--project", str(settings.project), "status"]).output


@pytest.fixture
def settings(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, value in settings.to_env().items():
        monkeypatch.setenv(name, value)
    return settings


def test_a_lag_that_nobody_updates_has_the_same_words_and_age_in_both(settings: Settings) -> None:
    write_heartbeat(settings.pipeline(P), Heartbeat(7, 4711, "t1", "running", utc_now() - timedelta(hours=3), lag=5000))
    lag = ask_page()["stream"]["lag"]
    assert lag["text"] == "5000, 3 h ago"
    assert "the lag is not known now, for no driver lives; 5000 is what waited at 20" in lag["stale"]
    assert lag["rows_per_s"] is None
    shown = ask_command(settings)
    assert lag["text"] in shown
    assert lag["stale"].partition("; `")[0] in shown


def test_before_the_first_driver_there_is_no_lag(settings: Settings) -> None:
    assert ask_page()["stream"]["lag"] == {"text": None, "stale": None, "rows_per_s": None}
