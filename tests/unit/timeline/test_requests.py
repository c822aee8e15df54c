"""Requests that wait: stored privately, done once, gone after a day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rivertwice.core.errors import RequestError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.timeline.requests import StoredRequest, forget_request, forget_requests, load_request, save_request


@pytest.fixture
def home(tmp_path: Path) -> PipelineHome:
    return Settings(tmp_path, tmp_path / "home").pipeline("p")


def asked(at: datetime) -> StoredRequest:
    return StoredRequest("dead.amend", {"place": "0@1", "value": "{"}, "ada", at, "restore-0a1b2c3d")


def test_a_request_waits_until_it_is_done(home: PipelineHome) -> None:
    request = asked(datetime(2026, 11, 27, tzinfo=UTC))
    save_request(home, "rq-1", request)
    assert load_request(home, "rq-1") == request
    (stored,) = home.operations.glob("request-*.json")
    assert stored.stat().st_mode & 0o077 == 0
    forget_request(home, "rq-1")
    forget_request(home, "rq-1")
    with pytest.raises(RequestError, match="no request waits under rq-1"):
        load_request(home, "rq-1")


def test_a_request_that_nobody_does_goes_after_a_day(home: PipelineHome) -> None:
    now = utc_now()
    save_request(home, "rq-1", asked(now))
    save_request(home, "rq-2", asked(now + timedelta(hours=23)))
    assert load_request(home, "rq-1").values["value"] == "{"
    save_request(home, "rq-3", asked(now + timedelta(hours=25)))
    with pytest.raises(RequestError):
        load_request(home, "rq-1")


def test_an_erasure_removes_all_of_them_those_of_0_1_too(home: PipelineHome) -> None:
    save_request(home, "rq-1", asked(utc_now()))
    (home.operations / "amend-rq-2.json").write_text("{}")
    assert forget_requests(home) == 2
    assert list(home.operations.iterdir()) == []
