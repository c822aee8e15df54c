"""The embedded Airflow itself: start, refuse, be killed, come back, stop. No Spark."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from airflow_browser import Browser, find_chromium, log_in
from airflow_world import PIPELINE, link_project, ready_client
from rivertwice.config import Settings
from rivertwice.errors import RequestError
from rivertwice.orchestration.environment import airflow_home, service_environment
from rivertwice.orchestration.processes import session_members
from rivertwice.orchestration.rest import AirflowClient
from rivertwice.orchestration.services import (
    AirflowInfo,
    airflow_info,
    airflow_status,
    start_airflow,
    stop_airflow,
)
from waiting import wait_for

pytestmark = pytest.mark.airflow


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    folder = tmp_path_factory.mktemp("airflow")
    link_project(folder / "project")
    settings = Settings(project=folder / "project", home=folder / "home", spark_master="local[2]")
    began = time.monotonic()
    start_airflow(settings, timeout=300)
    print(f"Airflow was up after {time.monotonic() - began:.1f} s at load {os.getloadavg()[0]:.1f}")  # noqa: T201
    yield settings
    stop_airflow(settings)


@pytest.fixture(scope="module")
def airflow(world: Settings) -> AirflowClient:
    return ready_client(world)


def pids(settings: Settings) -> dict[str, int]:
    stored = json.loads(airflow_home(settings).services.read_text())["services"]
    return {name: mark["pid"] for name, mark in stored.items()}


def watch_task(airflow: AirflowClient) -> tuple[str, str]:
    dag_id = f"supervise__{PIPELINE}"
    runs = airflow.runs(dag_id)
    return runs[-1], airflow.tasks(dag_id, runs[-1])[0].state


def wait_until_deferred(airflow: AirflowClient, seconds: float = 120) -> str:
    def deferred() -> bool:
        return bool(airflow.runs(f"supervise__{PIPELINE}")) and watch_task(airflow)[1] == "deferred"

    wait_for("the deferral of the watching task", deferred, seconds, every=0.5)
    return airflow.runs(f"supervise__{PIPELINE}")[-1]


def test_a_second_start_changes_nothing(world: Settings) -> None:
    before = pids(world)
    assert start_airflow(world) == airflow_info(world)
    assert pids(world) == before
    assert airflow_status(world).running


def test_secrets_are_for_the_owner_only_and_the_server_listens_on_loopback(world: Settings) -> None:
    home = airflow_home(world)
    for path in (home.config, home.secrets, home.passwords):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    listening = set()
    for process in session_members(pids(world).values()):
        with contextlib.suppress(psutil.NoSuchProcess):  # a worker that ended since it was listed
            listening |= {
                one.laddr.ip for one in process.net_connections(kind="inet") if one.status == psutil.CONN_LISTEN
            }
    assert listening == {"127.0.0.1"}


def test_the_page_holds_no_data_and_its_data_needs_a_login(world: Settings) -> None:
    url = airflow_info(world).url
    page = httpx.get(f"{url}/rivertwice/", trust_env=False, timeout=60)
    assert page.status_code == 200
    assert PIPELINE not in page.text
    assert httpx.get(f"{url}/rivertwice/api/pipelines", trust_env=False, timeout=60).status_code == 401
    token = log_in(airflow_info(world))
    data = httpx.get(
        f"{url}/rivertwice/api/pipelines", headers={"Authorization": f"Bearer {token}"}, trust_env=False, timeout=60
    ).json()
    assert [pipeline["name"] for pipeline in data["pipelines"]] == [PIPELINE]
    assert "error" not in data["pipelines"][0]


JUNE, JULY = "2013-06-01T00:00:00Z", "2013-07-01T00:00:00Z"


@pytest.mark.parametrize(
    ("dag", "conf", "said"),
    [
        ("backfill", {"scope": "everything"}, "is not one of"),
        ("backfill", {"scope": "range", "start": "'; DROP TABLE dag; --", "end": JULY}, "no instant with a zone"),
        ("backfill", {"scope": "range", "start": "2013-06-30T04:00:00", "end": JULY}, "no instant with a zone"),
        ("backfill", {"reason": "$(touch /tmp/x)"}, "cannot be kept"),
        ("backfill", {"reason": "{{ conf }}"}, "cannot be kept"),
        ("backfill", {"scope": "range", "start": "2013-13-01T00:00:00Z", "end": JULY}, "no instant with a zone"),
        ("backfill", {"scope": "range", "start": JULY, "end": JUNE}, "empty or reversed"),
        ("backfill", {"pipeline": "../other"}, "does not know 'pipeline'"),
        ("archive", {"topic": "other"}, "does not know 'topic'"),
        ("reconcile", {"start": JULY}, "end is empty"),
        ("reconcile", {"start": "../../etc/passwd"}, "no instant with a zone"),
        ("rotate", {"prove": "yes"}, "neither true nor false"),
    ],
)
def test_a_form_that_cannot_be_meant_starts_no_run(
    airflow: AirflowClient, dag: str, conf: dict[str, object], said: str
) -> None:
    before = airflow.runs(f"{dag}__{PIPELINE}")
    with pytest.raises(RequestError, match=said):
        airflow.trigger(f"{dag}__{PIPELINE}", conf)
    assert airflow.runs(f"{dag}__{PIPELINE}") == before


def test_an_unknown_pipeline_has_no_dag(airflow: AirflowClient) -> None:
    with pytest.raises(RequestError, match="not found"):
        airflow.trigger("backfill__no_such_pipeline", {})


def test_a_run_that_did_not_come_through_the_api_is_refused_by_its_first_task_at_once(
    world: Settings, airflow: AirflowClient
) -> None:
    dag_id, run = f"backfill__{PIPELINE}", "by-command"
    conf = json.dumps({"scope": "range", "start": JULY, "end": JUNE})
    program = Path(sys.executable).with_name("airflow")
    subprocess.run(
        [str(program), "dags", "trigger", dag_id, "--run-id", run, "--conf", conf],
        env=service_environment(world), cwd=world.project, capture_output=True, check=True, timeout=120,
    )  # fmt: skip
    assert airflow.wait(dag_id, run, 180) == "failed"
    tasks = airflow.tasks(dag_id, run)
    assert {task.state for task in tasks} == {"failed", "upstream_failed"}
    assert max(task.try_number for task in tasks) == 1
    assert "empty or reversed" in airflow.failures(dag_id, run)
    path = world.home / "alerts.jsonl"
    alerts = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    assert not [alert for alert in alerts if alert.get("run") == run and alert["dag"] == dag_id]


@pytest.mark.browser
@pytest.mark.skipif(find_chromium() is None, reason="no Chromium on this machine")
def test_the_page_opens_inside_airflow(world: Settings) -> None:
    info = airflow_info(world)
    with Browser(info.url, log_in(info)) as browser:
        browser.open("/plugin/rivertwice")
        text = browser.wait_for_text("Timeline".upper(), "document.querySelector('iframe').contentDocument")
    assert PIPELINE in text
    assert "[object" not in text


@pytest.mark.parametrize("verb", ["backfill", "rotate", "reconcile", "archive"])
def test_airflows_own_backfill_is_refused_for_no_run_of_ours_means_its_date(world: Settings, verb: str) -> None:
    info = airflow_info(world)
    asked = {"dag_id": f"{verb}__{PIPELINE}", "from_date": "2013-06-30T00:00:00Z", "to_date": "2013-07-02T00:00:00Z"}
    for path in ("backfills", "backfills/dry_run"):
        answer = httpx.post(
            f"{info.url}/api/v2/{path}",
            headers={"Authorization": f"Bearer {log_in(info)}"},
            json=asked,
            trust_env=False,
            timeout=60,
        )
        assert 400 <= answer.status_code < 500, answer.text
        assert "does not allow backfill runs" in answer.text


def test_airflow_killed_as_a_whole_comes_back_and_adopts_the_epoch_it_watched(
    world: Settings, airflow: AirflowClient
) -> None:
    run = wait_until_deferred(airflow)
    before = pids(world)
    for process in session_members(before.values()):
        os.kill(process.pid, signal.SIGKILL)
    wait_for("the end of Airflow's services", lambda: not any(airflow_status(world).services.values()), 30)
    info: AirflowInfo = start_airflow(world, timeout=300)
    assert info.url == airflow_info(world).url
    assert not set(before.values()) & set(pids(world).values())
    assert watch_task(ready_client(world)) == (run, "deferred")


def test_one_killed_service_is_started_again_and_the_others_are_left_alone(world: Settings) -> None:
    before = pids(world)
    os.kill(before["scheduler"], signal.SIGKILL)
    wait_for("the end of the scheduler", lambda: not airflow_status(world).services["scheduler"], 30)
    start_airflow(world, timeout=300)
    after = pids(world)
    assert {name for name in before if before[name] != after[name]} == {"scheduler"}
    assert session_members([before["scheduler"]]) == []


def test_a_stop_leaves_no_process_behind(world: Settings) -> None:
    before = pids(world)
    assert sorted(stop_airflow(world)) == sorted(before)
    assert session_members(before.values()) == []
    assert stop_airflow(world) == []
    assert not airflow_status(world).running
    shutil.rmtree(Path(world.home / "airflow" / "logs"), ignore_errors=True)
