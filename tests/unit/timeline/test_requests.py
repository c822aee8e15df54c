"""Requests that wait: stored privately, done once, gone after a day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rivertwice.core.errors import RequestError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.timeline.requests import StoredRequest


@pytest.fixture
def home(tmp_path: Path) -> PipelineHome:
    return Settings(tmp_path, tmp_path / "home").pipeline("p")


def asked(at: datetime) -> StoredRequest:
    return StoredRequest("dead.amend", {"place": "0@1", "value": "{"}, "ada", at, "restore-0a1b2c3d")


def test_a_request_waits_until_it_is_done(home: PipelineHome) -> None:
    request = asked(datetime(2026, 11, 27, tzinfo=UTC))
    request.save(home, "rq-1")
    assert StoredRequest.load(home, "rq-1") == request
    (stored,) = home.operations.glob("request-*.json")
    assert stored.stat().st_mode & 0o077 == 0
    StoredRequest.forget(home, "rq-1")
    StoredRequest.forget(home, "rq-1")
    with pytest.raises(RequestError, match="no request waits under rq-1"):
        StoredRequest.load(home, "rq-1")


def test_a_request_that_nobody_does_goes_after_a_day(home: PipelineHome) -> None:
    now = utc_now()
    asked(now).save(home, "rq-1")
    asked(now + timedelta(hours=23)).save(home, "rq-2")
    assert StoredRequest.load(home, "rq-1").values["value"] == "{"
    asked(now + timedelta(hours=25)).save(home, "rq-3")
    with pytest.raises(RequestError):
        StoredRequest.load(home, "rq-1")


def test_an_erasure_removes_all_of_them_those_of_0_1_too(home: PipelineHome) -> None:
    asked(utc_now()).save(home, "rq-1")
    (home.operations / "amend-rq-2.json").write_text("{}")
    assert StoredRequest.forget_all(home) == 2
    assert list(home.operations.iterdir()) == []
