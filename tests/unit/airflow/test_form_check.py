"""A form that cannot be meant is answered 400 over HTTP, and what stands behind the check never sees it."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from rivertwice.airflow.form_check import LONGEST_BODY, FormCheck

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
JUNE, JULY = "2013-06-30T04:00:00Z", "2013-07-02T04:00:00Z"


class Airflow:
    """Stands for Airflow: notes each body that reaches it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.app = Starlette(routes=[Route("/{path:path}", self._take, methods=["POST", "GET"])])

    async def _take(self, request: Request) -> JSONResponse:
        self.bodies.append(await request.body())
        return JSONResponse({"dag_run_id": "r1"})

    def post(self, dag: str, content: bytes, path: str = "/api/v2/dags/{}/dagRuns") -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(FormCheck(self.app, now=lambda: NOW))
            async with httpx.AsyncClient(transport=transport, base_url="http://airflow") as client:
                return await client.post(path.format(dag), content=content)

        return asyncio.run(ask())

    def trigger(self, dag: str, conf: Any) -> httpx.Response:
        return self.post(dag, json.dumps({"logical_date": None, "conf": conf}).encode())


@pytest.mark.proves("howto-airflow.md#what-a-form-refuses")
@pytest.mark.parametrize(
    ("dag", "conf", "said"),
    [
        ("backfill__p", {"scope": "range", "start": JULY, "end": JUNE}, "empty or reversed"),
        ("backfill__p", {"scope": "range", "start": JUNE, "end": JUNE}, "empty or reversed"),
        ("backfill__p", {"scope": "range", "start": "junk", "end": JUNE}, "is not an instant with a zone; write it as"),
        ("backfill__p", {"scope": "range", "start": JUNE}, "the range has no end; it is half-open"),
        ("backfill__p", {"scope": "range"}, "give both, or ask for scope stale"),
        ("backfill__p", {"start": JUNE, "end": JULY}, "scope stale takes its windows"),
        ("backfill__p", {"scope": "range", "start": JUNE, "end": "2027-01-01T00:00:00Z"}, "is in the future"),
        ("backfill__p", {"pipeline": "../other"}, "does not take 'pipeline'"),
        ("reconcile__p", {"start": JULY, "end": JUNE}, "empty or reversed"),
        ("reconcile__a-b_2", {"start": "2026-11-21T12:00:00Z", "end": "2026-11-24T12:00:00Z"}, "is in the future"),
        ("care__p", {"prove": "yes"}, "neither true nor false"),
        ("care__p", {"act": "archive", "topic": "other"}, "does not take 'topic'"),
        ("reconcile__p.v2", {"start": JULY, "end": JUNE}, "empty or reversed"),
        ("reconcile_full__p", {"start": JULY}, "reconcile_full__p is now part of reconcile__p"),
        ("operate__p", {"act": "version.serve", "version": "p@v1"}, "write it as NAME@v2, or NAME for the first one"),
        ("operate__p", {"act": "version.serve", "version": "../p"}, "write it as NAME@v2"),
        ("operate__p", {"act": "version.serve", "to": "p"}, "it takes: version, reason"),
        ("correct__p", {"now": True}, "correct__p is now part of backfill__p"),
        ("rotate__p", {"prove": True}, "rotate__p is now part of care__p"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_a_run_exists(dag: str, conf: dict[str, Any], said: str) -> None:
    airflow = Airflow()
    answer = airflow.trigger(dag, conf)
    assert answer.status_code == 400
    assert said in answer.json()["detail"]
    assert airflow.bodies == []


@pytest.mark.parametrize(
    ("dag", "conf"),
    [
        ("backfill__p", None),
        ("backfill__p", {"scope": "stale", "start": None, "end": None, "reason": None, "dry_run": True}),
        ("backfill__p", {"scope": "range", "start": JUNE, "end": JULY, "reason": "storm"}),
        ("reconcile__p", {}),
        ("care__p", {"prove": False}),
        ("operate__p", {"act": "version.serve", "version": "p@v2", "reason": "fixed"}),
        ("operate__p", {"act": "version.serve", "version": None, "reason": None}),
        ("care__p", {}),
        ("somebody_elses", {"start": JULY, "end": JUNE}),
    ],
)
def test_what_can_be_meant_reaches_airflow_as_it_was_sent(dag: str, conf: Any) -> None:
    airflow = Airflow()
    assert airflow.trigger(dag, conf).status_code == 200
    assert [json.loads(body)["conf"] for body in airflow.bodies] == [conf]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 200_000,
        b'{"conf": "start"}',
        b'{"conf": {"x": "' + b"y" * 2 * LONGEST_BODY + b'"}}'[:-4],
    ],
)
def test_a_body_that_is_no_form_is_airflows_to_judge(body: bytes) -> None:
    airflow = Airflow()
    assert airflow.post("backfill__p", body).status_code == 200
    assert airflow.bodies == [body]


def test_an_airflow_below_a_path_is_checked_and_other_requests_are_not() -> None:
    airflow = Airflow()
    conf = json.dumps({"conf": {"start": JULY, "end": JUNE}}).encode()
    assert airflow.post("reconcile__p", conf, "/company/api/v2/dags/{}/dagRuns").status_code == 400
    assert airflow.post("reconcile__p", conf, "/api/v2/dags/{}/dagRuns/r1/clear").status_code == 200
    assert airflow.post("reconcile__p", conf, "/api/v2/dags/{}/clearTaskInstances").status_code == 200
