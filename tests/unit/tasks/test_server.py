"""The agent over HTTP: who may ask, what is done and how it ends, over TLS and by real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from click.testing import CliRunner

from homes import savepoint
from homes.backfill import SQL, YAML
from homes.project import make_project
from rivertwice.agent.alert_store import alerts_of
from rivertwice.agent.listening import refuse_listening
from rivertwice.cli.main import cli
from rivertwice.core.errors import ConfigError, RequestError, ServiceError
from rivertwice.core.plain import to_plain
from rivertwice.core.ports import held_ports
from rivertwice.core.settings import Settings
from rivertwice.tasks.client import AgentClient, task_id
from rivertwice.tasks.desk import Desk
from rivertwice.tasks.run import TaskFailedError, TaskRun, TaskSkippedError
from running.waiting import wait_for
from servers.secure_kafka import make_files

NOW = datetime(2026, 11, 27, tzinfo=UTC)
RUN = {"dag": "d", "run": "r", "task": "t", "due_at": "2026-11-27T00:00:00Z"}
FORM = {"prove": False, "reason": None}
EVERY = ["*/15 * * * *", "*/15 * * * *"]
"""Schedules of a rotation, and of the DAG."""


def run_of(task: str, **changes: Any) -> TaskRun:
    return replace(TaskRun("care__p", "manual__1", task, NOW, user="ada", params=FORM), **changes)


@dataclass
class Served:
    """A server of a home, and a client of it for each token."""

    settings: Settings
    port: int
    ca: Path
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def token(self, *words: str) -> str:
        options = ["--project", str(self.settings.project), "--home", str(self.settings.home), "--output", "json"]
        done = CliRunner().invoke(cli, [*options, "agent", "token", *words])
        assert done.exit_code == 0, done.output
        return str(json.loads(done.stdout)["token"])

    def client(self, token: str, patience: float = 20.0) -> AgentClient:
        return AgentClient(f"https://127.0.0.1:{self.port}", token, str(self.ca), patience)

    def start(self) -> None:
        env = {**os.environ, **self.settings.to_env()}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rivertwice.tasks.server"],
                env=env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for("the server to answer", lambda: answers(self), 30, seen=self.log.read_text)

    def stop(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    project = make_project(folder, {name: {"pipeline.yaml": YAML, "transform.sql": SQL} for name in ("p", "other")})
    savepoint.make_home(folder, planned=3, finished=3, committed=3)
    files = make_files(folder / "certificates")
    with held_ports(1) as (port,):
        settings = replace(project, listen=("127.0.0.1", port), listen_certificate=files / "server.pem")
        made = Served(settings, port, files / "ca.pem", folder / "server.log")
        made.start()
        yield made
        made.stop()
        Desk(settings).end_all()


def answers(served: Served) -> bool:
    try:
        return httpx.get(f"https://127.0.0.1:{served.port}/v1/definitions", verify=str(served.ca)).status_code == 401
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def client(served: Served) -> AgentClient:
    return served.client(served.token("shop"))


def do(client: AgentClient, step: str, run: TaskRun, *arguments: Any, pipeline: str = "p", attempt: int = 1) -> Any:
    said: list[str] = []
    return client.do("step", step, run, attempt, pipeline, arguments, said.append)


@pytest.mark.proves("services.md#airflow-mwaa-composer-astronomer")
def test_what_a_task_asks_for_is_done_once_and_its_log_comes_back(served: Served, client: AgentClient) -> None:
    said: list[str] = []
    run = run_of("take")
    taken = [client.do("step", "take_savepoint", run, 1, "p", EVERY, said.append) for _ in range(2)]
    assert taken[0] == taken[1]
    assert taken[0].startswith("sp-t1-3-")
    assert (
        sum(f"took savepoint {taken[0]} of p" in line for line in said) == 2
    )  # the second answer is that of the same work
    (event,) = [json.loads(line) for line in (served.settings.home / "agent/events.jsonl").read_text().splitlines()]
    assert event["by"] == "ada (shop) in Airflow"  # who asked there, and whose token it was
    assert do(client, "report_rotation", run_of("report"), taken[0]) == {
        "savepoint": taken[0],
        "status": "taken",
        "savepoints": 1,
    }


def test_what_work_raises_is_raised_where_it_was_asked_for(client: AgentClient) -> None:
    with pytest.raises(RequestError, match="prove"):
        do(client, "take_savepoint", run_of("wrong form", params={"prove": 3}), *EVERY)
    with pytest.raises(TaskSkippedError, match="other has no timeline yet"):
        do(client, "check_archive", run_of("never started", is_scheduled=True, params={}), *EVERY, pipeline="other")
    with pytest.raises(TaskFailedError, match="no reconcile of p is recorded for the run manual__1"):
        do(client, "gate_reconcile", run_of("gate", params={}))


def test_a_token_is_for_its_pipelines_and_for_what_it_may(served: Served) -> None:
    team, reader = (
        served.client(served.token("team", "--pipelines", "p")),
        served.client(served.token("reader", "--only-reads")),
    )
    assert [found.name for found in team.definitions()] == ["p"]
    assert sorted(found.name for found in reader.definitions()) == ["other", "p"]
    assert reader.watch("p").word == "ok"
    for asked in (lambda: team.watch("other"), lambda: do(team, "prune_savepoints", run_of("a"), pipeline="other")):
        with pytest.raises(ConfigError, match="there is no pipeline other here, or the token team is not for it"):
            asked()
    with pytest.raises(ConfigError, match="the token reader only reads"):
        do(reader, "prune_savepoints", run_of("b"))
    with pytest.raises(ConfigError, match="there is no such task"):  # another team's
        team._ask("GET", f"/v1/tasks/{task_id(run_of('c'), 1, 'prune_savepoints')}")


def test_a_token_that_was_revoked_or_never_made_opens_nothing(served: Served) -> None:
    gone = served.client(served.token("gone"))
    assert gone.definitions()
    options = ["--project", str(served.settings.project), "--home", str(served.settings.home)]
    assert CliRunner().invoke(cli, [*options, "agent", "token", "gone", "--revoke"]).exit_code == 0
    for client in (gone, served.client("rvt_x")):
        with pytest.raises(ConfigError, match="the token is not known here; make one: `rivertwice agent token NAME`"):
            client.definitions()
    assert "rvt_" not in (served.settings.home / "agent/tokens.json").read_text()
    listed = CliRunner().invoke(cli, [*options, "agent", "token"]).output
    assert "gone" not in listed
    assert "rvt_" not in listed


def test_a_failed_task_is_an_alert_until_it_ends_well_and_costs_no_process(served: Served, client: AgentClient) -> None:
    run = run_of("compute", dag="backfill__p")
    do(client, "report_failure", run, "task compute of backfill__p: the disk is full")
    (alert,) = alerts_of(served.settings).state().alerts
    assert (alert.cause.pipeline, alert.cause.kind, alert.resolved_at) == ("p", "task_failed", None)
    do(client, "report_success", run, False, attempt=2)
    (alert,) = alerts_of(served.settings).state().alerts
    assert alert.resolution == "task compute of backfill__p ended well"
    place, _, attempt = task_id(run, 1, "report_failure").partition("-")
    assert not (served.settings.home / "agent/tasks" / place / attempt / "process.json").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "os.system"}, "is unknown to this agent"),
        ({"kind": "shell"}, "is unknown to this agent"),
        ({"kind": "job", "name": "../act", "arguments": ["--pipeline", "p"]}, "is unknown to this agent"),
        ({"kind": "job", "name": "archive", "arguments": ["--pipeline", "other"]}, "cannot be about other"),
        (
            {"kind": "job", "name": "archive", "arguments": ["--pipeline", "p", "--pipe", "other"]},
            "--pipeline NAME, once",
        ),
        ({"kind": "job", "name": "archive", "arguments": ["--pipeline", "p", "--pip=other"]}, "--pipeline NAME, once"),
        ({"kind": "job", "name": "archive", "arguments": ["--pipeline=p"]}, "--pipeline NAME, once"),
        ({"name": "let_serve", "arguments": [{"version": "other@v2"}]}, "cannot be about other@v2"),
        ({"arguments": "x"}, "a task has"),
        ({"pipeline": "../p"}, "pipeline"),
        ({"more": 1}, "a task has"),
        ({"run": {}}, "a run has dag, due_at, run, task"),
        ({"run": {**RUN, "home": "/"}}, "a run has dag, due_at, run, task"),
    ],
)
def test_only_our_own_work_on_the_pipelines_of_the_token_can_be_asked_for(
    served: Served, change: dict[str, Any], says: str
) -> None:
    team = served.client(served.token("team", "--pipelines", "p"))
    asked = {"kind": "step", "name": "prune_savepoints", "pipeline": "p", "arguments": [], "run": RUN, **change}
    with pytest.raises((RequestError, ConfigError), match=says):
        team._ask("PUT", f"/v1/tasks/{'0' * 32}-1", asked)
    assert not (served.settings.home / "agent/tasks" / ("0" * 32)).exists()


@pytest.mark.parametrize("id_", ["..", "a" * 32, "a" * 31 + "-1", "g" * 32 + "-1", "0" * 31 + "%2f-1"])
def test_a_task_has_an_id_and_no_path(client: AgentClient, id_: str) -> None:
    asked = {
        "kind": "step",
        "name": "prune_savepoints",
        "pipeline": "p",
        "arguments": [],
        "run": RUN,
    }
    with pytest.raises((RequestError, ConfigError)):
        client._ask("PUT", f"/v1/tasks/{id_}", asked)


def test_what_nobody_foresaw_is_an_error_that_another_try_may_cure(served: Served, client: AgentClient) -> None:
    with pytest.raises(ServiceError, match="TypeError"):
        do(client, "prune_savepoints", run_of("odd"), *EVERY, "too", "many")
    with pytest.raises(ServiceError, match="TypeError"):
        do(client, "report_success", run_of("odd"))  # in the server itself, which goes on


@pytest.mark.parametrize("query", ["wait=nan", "wait=inf", "wait=26", "wait=-1", "offset=-1", "offset=x"])
def test_a_question_has_an_end(client: AgentClient, query: str) -> None:
    run = run_of("ended")
    do(client, "is_proof_wanted", run, "sp")
    with pytest.raises(RequestError, match="offset"):
        client._ask("GET", f"/v1/tasks/{task_id(run, 1, 'is_proof_wanted')}?{query}")


def test_a_task_that_is_ended_at_once_has_ended(served: Served, client: AgentClient) -> None:
    run = run_of("at once")
    place = begin_to_wait(client, run)
    client.end(run, 1, "await_served")
    assert client._ask("GET", place)["ended"]
    assert work_of(served, "await_served") is None


def test_down_ends_what_is_at_work_for_others(served: Served, client: AgentClient) -> None:
    run = run_of("down")
    begin_to_wait(client, run)
    worker = wait_for("the work to begin", lambda: work_of(served, "await_served"), 20)
    options = ["--project", str(served.settings.project), "--home", str(served.settings.home)]
    done = CliRunner().invoke(cli, [*options, "down"])
    assert done.exit_code == 0, done.output
    assert not lives(worker)
    assert client._ask("GET", f"/v1/tasks/{task_id(run, 1, 'await_served')}")["error"][
        "retryable"
    ]  # Airflow tries again


def test_a_body_without_end_is_refused(served: Served) -> None:
    headers = {"authorization": f"Bearer {served.token('large')}"}
    url = f"https://127.0.0.1:{served.port}/v1/tasks/{'0' * 32}-1"
    assert httpx.put(url, content=b"[" * (1 << 21), headers=headers, verify=str(served.ca)).status_code == 413
    assert httpx.put(url, content=b"[" * 100_000, headers=headers, verify=str(served.ca)).status_code == 422


def test_work_goes_on_while_the_server_is_killed_and_started_again(served: Served, client: AgentClient) -> None:
    """The task waits for `served` of a sequence that never comes; meanwhile its server dies twice."""
    ended: list[Any] = []

    def wait() -> None:
        try:
            do(client, "await_served", run_of("await_served"), 99)
        except ServiceError as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    worker = wait_for("the work to begin", lambda: work_of(served, "await_served"), 20)
    for _ in range(2):
        served.stop()
        time.sleep(0.5)
        served.start()
    assert lives(worker)
    assert work_of(served, "await_served") == worker
    client.end(run_of("await_served"), 1, "await_served")
    waiting.join(20)
    assert "ended without a result" in str(ended[0])
    assert not lives(worker)


def test_another_attempt_ends_the_one_before(served: Served, client: AgentClient) -> None:
    run = run_of("twice")
    begin_to_wait(client, run)
    first = wait_for("the first", lambda: work_of(served, "await_served"), 20)
    begin_to_wait(client, run, attempt=2)
    wait_for("the first to end", lambda: not lives(first), 20)
    second = wait_for("the second", lambda: work_of(served, "await_served"), 20)
    client.end(run, 2, "await_served")
    assert not lives(second)


def begin_to_wait(client: AgentClient, run: TaskRun, attempt: int = 1) -> str:
    """Begin a task that waits for a publication that never comes; return where it is asked about."""
    place = f"/v1/tasks/{task_id(run, attempt, 'await_served')}"
    asked = {"kind": "step", "name": "await_served", "pipeline": "p", "arguments": [99], "run": to_plain(run)}
    client._ask("PUT", place, asked)
    return place


def work_of(served: Served, step: str) -> psutil.Process | None:
    for folder in (served.settings.home / "agent/tasks").glob("*/*"):
        if not (folder / "process.json").exists() or json.loads((folder / "request.json").read_text())["name"] != step:
            continue
        pid = json.loads((folder / "process.json").read_text())["pid"]
        if psutil.pid_exists(pid) and lives(psutil.Process(pid)):
            return psutil.Process(pid)
    return None


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two questions
        return False


def test_an_agent_that_is_away_is_one_that_may_come_back(served: Served) -> None:
    away = AgentClient(f"https://127.0.0.1:{served.port + 1}", "rvt_x", str(served.ca), patience=0.5)
    with pytest.raises(ServiceError, match=r"does not answer .*; look there: `rivertwice agent status`"):
        away.watch("p")
    stranger = AgentClient(f"https://127.0.0.1:{served.port}", "rvt_x", None, patience=0.0)
    with pytest.raises(ServiceError, match="CERTIFICATE_VERIFY_FAILED"):
        stranger.watch("p")


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (
            {"RIVERTWICE_AGENT": "http://agent:8443", "RIVERTWICE_AGENT_TOKEN": "t"},
            "its token would be sent unencrypted",
        ),
        ({"RIVERTWICE_AGENT": "https://agent:8443"}, "neither RIVERTWICE_AGENT_TOKEN nor RIVERTWICE_AGENT_TOKEN_FILE"),
        ({"RIVERTWICE_AGENT": "https://agent:8443", "RIVERTWICE_AGENT_TOKEN_FILE": "/no/such"}, "cannot be read"),
    ],
)
def test_an_address_without_a_way_to_it_is_refused(env: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        AgentClient.from_env(env)
    assert AgentClient.from_env({}) is None


@pytest.mark.parametrize(
    ("host", "refused"),
    [("127.0.0.1", False), ("localhost", False), ("[::1]", False), ("0.0.0.0", True), ("agent", True)],
)
def test_without_a_certificate_the_agent_listens_on_this_machine_alone(
    settings: Settings, host: str, refused: bool, tmp_path: Path
) -> None:
    said = refuse_listening(replace(settings, listen=(host, 8443)))
    assert (said is not None) is refused
    assert refuse_listening(replace(settings, listen=(host, 8443), listen_certificate=tmp_path / "pem")) is None
