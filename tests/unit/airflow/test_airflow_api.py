"""A run that is asked for twice is started once, whatever became of the first answer."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest

from rivertwice.airflow import airflow_api
from rivertwice.airflow.airflow_api import AirflowClient
from rivertwice.core.errors import RequestError, ServiceError
from rivertwice.core.instants import to_iso, utc_now


class Airflow:
    """Keeps runs as Airflow does, and answers the first `broken` requests to start one with an error."""

    def __init__(self, broken: int, *, keeps: bool) -> None:
        self.broken, self.keeps = broken, keeps
        self.runs: list[str] = []
        self.asked = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/auth/token":
            return httpx.Response(201, json={"access_token": "t"})
        if request.method == "GET":
            name = request.url.path.rpartition("/")[2]
            return httpx.Response(200 if name in self.runs else 404, json={"state": "queued"})
        self.asked += 1
        run_id = json.loads(request.content)["dag_run_id"]
        if run_id in self.runs:
            return httpx.Response(409, json={"detail": "already exists"})
        if self.asked > self.broken or self.keeps:
            self.runs.append(run_id)
        return httpx.Response(500 if self.asked <= self.broken else 200, json={"dag_run_id": run_id})


Connect = Callable[[Callable[[httpx.Request], httpx.Response]], AirflowClient]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    monkeypatch.setattr(airflow_api, "_PAUSE_SECONDS", 0.0)

    def make(handler: Callable[[httpx.Request], httpx.Response]) -> AirflowClient:
        client = AirflowClient("http://airflow", "u", "p")
        client._http = httpx.Client(base_url="http://airflow", transport=httpx.MockTransport(handler))
        return client

    return make


@pytest.mark.parametrize("keeps", [True, False], ids=["it had started", "it had not"])
@pytest.mark.parametrize("broken", [0, 1, 3])
def test_a_server_error_starts_one_run_and_tells_its_id(connect: Connect, broken: int, keeps: bool) -> None:
    airflow = Airflow(broken, keeps=keeps)
    assert [connect(airflow).trigger("care__p")] == airflow.runs
    assert airflow.asked == (1 if broken == 0 else 2 if keeps else broken + 1)


def test_a_refusal_and_a_server_that_stays_broken_are_told_apart(connect: Connect) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        token = request.url.path == "/auth/token"
        return (
            httpx.Response(201, json={"access_token": "t"}) if token else httpx.Response(409, json={"detail": "paused"})
        )

    def other(request: httpx.Request) -> httpx.Response:
        return refuse(request) if request.method == "POST" else httpx.Response(404, json={})

    with pytest.raises(RequestError, match="refuses to start care__p: paused"):
        connect(other).trigger("care__p")
    with pytest.raises(ServiceError, match="HTTP 500"):
        connect(Airflow(99, keeps=False)).trigger("care__p")


def test_a_question_is_one_once_the_task_waits_for_its_answer(connect: Connect) -> None:
    state, answers, created = ["running"], [], [to_iso(utc_now())]

    def ask(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/auth/token":
            return httpx.Response(201, json={"access_token": "t"})
        if request.method == "PATCH":
            answers.append(json.loads(request.content))
            return httpx.Response(200 if len(answers) == 1 else 409, json={"detail": "answered already"})
        if request.url.path.endswith("/-1/hitlDetails"):
            asked = {"subject": "Let p@v2 serve?", "created_at": created[0], "response_received": bool(answers)}
            return httpx.Response(200, json=asked)
        task = {"task_id": "approve", "state": state[0], "try_number": 1, "map_index": -1}
        return httpx.Response(200, json={"task_instances": [task]})

    airflow = connect(ask)
    assert airflow.question("operate__p", "r1", "approve") is None
    state[0] = "awaiting_input"
    assert airflow.question("operate__p", "r1", "report") is None
    assert airflow.question("operate__p", "r1", "approve") is None  # an answer in these seconds is lost
    created[0] = "2026-01-01T00:00:00.123Z"
    asked = airflow.question("operate__p", "r1", "approve")
    assert asked is not None
    assert asked["subject"] == "Let p@v2 serve?"
    airflow.answer("operate__p", "r1", "approve", "Approve")
    assert answers == [{"chosen_options": ["Approve"], "params_input": {}}]
    assert airflow.question("operate__p", "r1", "approve") is None
    with pytest.raises(ServiceError, match="answered already"):
        airflow.answer("operate__p", "r1", "approve", "Approve")


def test_a_wait_that_ends_too_early_names_the_tasks_it_waits_for(connect: Connect) -> None:
    def ask(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/auth/token":
            return httpx.Response(201, json={"access_token": "t"})
        if request.url.path.endswith("/taskInstances"):
            states = {"gate": "success", "approve": "awaiting_input", "serve": None}
            rows = [
                {"task_id": task, "state": state, "try_number": 1, "map_index": -1} for task, state in states.items()
            ]
            return httpx.Response(200, json={"task_instances": rows})
        return httpx.Response(200, json={"state": "running"})

    with pytest.raises(ServiceError, match=r"r1 is still running after 0 s \(approve awaiting_input\)"):
        connect(ask).wait("operate__p", "r1", 0)
