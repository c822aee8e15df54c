"""A small client of Airflow's REST API: trigger a run, watch it, show why it failed."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx

from rivertwice.core import Deadline, Progress, RequestError, ServiceError, parse_iso, report_nothing, retry, utc_now

_FINAL = frozenset({"success", "failed"})
_TRIES = 8
_PAUSE_SECONDS = 0.5
_WAITS_FOR_A_PERSON = "awaiting_input"
SETTLED = timedelta(seconds=8)
"""An answer is lost that comes before the scheduler has seen that the task's process ended: it takes the task for killed (Airflow 3.3)."""
_NOISE = ("at ", "... ", "::group::", "::endgroup::")


@dataclass(frozen=True)
class TaskState:
    """One task of a run."""

    task_id: str
    state: str
    try_number: int
    map_index: int = -1


class AirflowClient:
    """Speaks to one Airflow. A token is fetched at the first call and again when it has expired."""

    def __init__(self, url: str, user: str, password: str, *, timeout: float = 30.0) -> None:
        self._login = {"username": user, "password": password}
        self._http = httpx.Client(base_url=url, timeout=timeout, trust_env=False)
        self._token: str | None = None

    @staticmethod
    def health(url: str) -> dict[str, str]:
        """Return the status per component; empty when the API server does not answer."""
        try:
            answer = httpx.get(f"{url}/api/v2/monitor/health", timeout=15.0, trust_env=False)
            answer.raise_for_status()
        except httpx.HTTPError:
            return {}
        return {name: str(part.get("status")) for name, part in answer.json().items() if isinstance(part, dict)}

    def ensure_pool(self, name: str, slots: int, description: str) -> None:
        """Create the pool unless it exists; a size that a person changed is left alone."""
        body = {"name": name, "slots": slots, "description": description, "include_deferred": False}
        answer = self._request("POST", "/api/v2/pools", json=body, repeatable=True)
        if answer.status_code != httpx.codes.CONFLICT:
            self._checked(answer)

    def dag_ids(self) -> set[str]:
        """Return the ids of the DAGs that Airflow knows and can start."""
        body = self._checked(self._request("GET", "/api/v2/dags", params={"limit": 100, "exclude_stale": True}))
        return {str(dag["dag_id"]) for dag in body["dags"]}

    def import_errors(self) -> list[str]:
        """Return why DAG files could not be loaded."""
        body = self._checked(self._request("GET", "/api/v2/importErrors", params={"limit": 100}))
        return [f"{error['filename']}: {error['stack_trace']}" for error in body["import_errors"]]

    def wait_for_dags(self, dag_ids: set[str], timeout: float = 60.0) -> None:
        """Wait until Airflow has parsed every one of `dag_ids`.

        Raises:
            ServiceError: some are still missing; the message carries the import errors.
        """
        deadline = Deadline.after(timeout)
        while missing := dag_ids - self.dag_ids():
            if deadline.is_over():
                errors = "\n".join(self.import_errors()) or "no import errors are reported"
                message = f"Airflow does not know {', '.join(sorted(missing))} after {timeout:.0f} s; {errors}"
                raise ServiceError(message)
            time.sleep(0.5)

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
        """Start a run and return its id. The id is chosen here, so asking again after a server error starts no second run.

        Raises:
            RequestError: Airflow refuses the form (HTTP 400, 404, 409, 422); nothing has started.
        """
        run_id = f"rivertwice__{uuid.uuid4().hex}"
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf or {})}
        answer = self._request("POST", f"/api/v2/dags/{dag_id}/dagRuns", json=body, repeatable=True)
        if answer.status_code == httpx.codes.CONFLICT and self._has_run(dag_id, run_id):
            return run_id  # the answer that was lost had started it
        if answer.status_code in {400, 404, 409, 422}:
            message = f"Airflow refuses to start {dag_id}: {_detail(answer)}"
            raise RequestError(message)
        return str(self._checked(answer)["dag_run_id"])

    def _has_run(self, dag_id: str, run_id: str) -> bool:
        return self._request("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}").is_success

    def clear(self, dag_id: str, run_id: str) -> int:
        """Clear every task of a run, so that Airflow runs all of them again; return how many tasks that are."""
        body = {"dry_run": False, "dag_run_id": run_id, "only_failed": False, "reset_dag_runs": True}
        answer = self._request("POST", f"/api/v2/dags/{dag_id}/clearTaskInstances", json=body)
        return len(self._checked(answer)["task_instances"])

    def state(self, dag_id: str, run_id: str) -> str:
        """Return the state of a run: queued, running, success or failed."""
        return str(self._checked(self._request("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}"))["state"])

    def wait(
        self,
        dag_id: str,
        run_id: str,
        timeout: float = 600.0,
        *,
        progress: Progress = report_nothing,
        interval: float = 0.5,
    ) -> str:
        """Wait until the run has ended and return its state; `progress` is called with each change of a task.

        Raises:
            ServiceError: the run had not ended after `timeout` seconds.
        """
        deadline = Deadline.after(timeout)
        reported: dict[tuple[str, int], str] = {}
        while True:
            state = self.state(dag_id, run_id)
            for task in self.tasks(dag_id, run_id):
                key = (task.task_id, task.map_index)
                if task.state != "none" and reported.get(key) != task.state:
                    reported[key] = task.state
                    progress(f"{dag_id} {task.task_id}: {task.state}")
            if state in _FINAL:
                return state
            if deadline.is_over():
                where = ", ".join(f"{task} {word}" for (task, _), word in reported.items() if word not in _FINAL)
                message = f"{dag_id} {run_id} is still {state} after {timeout:.0f} s ({where or 'no task has begun'})"
                raise ServiceError(message)
            time.sleep(interval)

    def runs(self, dag_id: str) -> list[str]:
        """Return the ids of a DAG's runs, oldest first."""
        params = {"order_by": "run_after", "limit": 100}
        body = self._checked(self._request("GET", f"/api/v2/dags/{dag_id}/dagRuns", params=params))
        return [str(run["dag_run_id"]) for run in body["dag_runs"]]

    def tasks(self, dag_id: str, run_id: str) -> list[TaskState]:
        """Return the tasks of a run with their states."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances"
        rows = self._checked(self._request("GET", path))["task_instances"]
        return [
            TaskState(row["task_id"], row["state"] or "none", int(row["try_number"]), int(row["map_index"]))
            for row in rows
        ]

    def question(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any] | None:
        """Return what a task of a run asks a person (`subject`, `body`, `options`), or None if it does not wait for an answer.

        A question of the last seconds is none yet, for Airflow would lose its answer and ask again.
        """
        tasks = self.tasks(dag_id, run_id)
        if not any(task.task_id == task_id and task.state == _WAITS_FOR_A_PERSON for task in tasks):
            return None
        answer = self._request("GET", _question(dag_id, run_id, task_id))
        asked = dict(answer.json()) if answer.is_success else None
        if asked is None or asked["response_received"]:
            return None
        return asked if utc_now() - parse_iso(asked["created_at"]) >= SETTLED else None

    def answer(self, dag_id: str, run_id: str, task_id: str, option: str) -> None:
        """Answer what a task of a run asks, as the person who is logged in.

        Raises:
            ServiceError: Airflow does not take the answer, for instance because there is one already.
        """
        body = {"chosen_options": [option], "params_input": {}}
        self._checked(self._request("PATCH", _question(dag_id, run_id, task_id), json=body))

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """Return the value that a task passed on."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        return self._checked(self._request("GET", path))["value"]

    def failures(self, dag_id: str, run_id: str, lines: int = 15) -> str:
        """Return the end of the log of each failed task, so that a person sees why the run failed."""
        parts = []
        for task in self.tasks(dag_id, run_id):
            if task.state == "failed":
                lines_of_log = [
                    line for line in self.task_log(dag_id, run_id, task) if not line.lstrip().startswith(_NOISE)
                ]
                tail = "\n".join(f"    {line}" for line in lines_of_log[-lines:])
                parts.append(f"{task.task_id} (try {task.try_number}):\n{tail}")
        return "\n".join(parts) or "no task has failed"

    def page(self, path: str) -> Any:
        """Return what a route of a plugin answers, for instance `/rivertwice/api/overview`."""
        return self._checked(self._request("GET", path))

    def task_log(self, dag_id: str, run_id: str, task: TaskState) -> list[str]:
        """Return the log of one task's last try, line by line."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task.task_id}/logs/{max(task.try_number, 1)}"
        answer = self._request("GET", path, params={"map_index": task.map_index, "full_content": True})
        content = self._checked(answer)["content"]
        return [line for entry in content for line in _log_lines(entry)]

    def _request(self, method: str, path: str, *, repeatable: bool = False, **kwargs: Any) -> httpx.Response:
        """Send a request once; one that may be repeated (every GET, and `repeatable`) is sent again after a server error.

        Observed: with SQLite under Airflow, a request in the first seconds can meet a locked database (HTTP 500).
        """

        def ask() -> httpx.Response:
            answer = self._http.request(method, path, headers=self._headers(), **kwargs)
            if answer.status_code == httpx.codes.UNAUTHORIZED:
                self._token = None
                answer = self._http.request(method, path, headers=self._headers(), **kwargs)
            return answer.raise_for_status() if answer.is_server_error else answer

        tries = _TRIES if repeatable or method == "GET" else 1
        asking = retry(httpx.HTTPStatusError, tries=tries, first_wait_s=_PAUSE_SECONDS, longest_wait_s=_PAUSE_SECONDS)
        try:
            return asking(ask)
        except httpx.HTTPStatusError as error:
            return error.response
        except httpx.HTTPError as error:
            message = f"Airflow at {self._http.base_url} does not answer ({error}); look at `rivertwice status`"
            raise ServiceError(message) from error

    def _headers(self) -> dict[str, str]:
        if self._token is None:
            self._token = str(self._checked(self._http.post("/auth/token", json=self._login))["access_token"])
        return {"Authorization": f"Bearer {self._token}"}

    @staticmethod
    def _checked(answer: httpx.Response) -> Any:
        if answer.is_error:
            message = f"Airflow answered {answer.request.url} with HTTP {answer.status_code}: {_detail(answer)}"
            raise ServiceError(message)
        return answer.json() if answer.content else None


def _question(dag_id: str, run_id: str, task_id: str) -> str:
    return f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/-1/hitlDetails"


def _detail(answer: httpx.Response) -> str:
    try:
        detail = answer.json().get("detail", answer.text)
    except ValueError:
        detail = answer.text
    return str(detail)[:2000]


def _log_lines(entry: Any) -> list[str]:
    if not isinstance(entry, dict):
        return str(entry).splitlines()
    lines = str(entry.get("event", "")).splitlines()
    for error in entry.get("error_detail") or []:
        lines.append(f"{error.get('exc_type')}: {error.get('exc_value')}")
    return lines
