"""An agent on another host, asked over HTTP: what DAGs there are, how a stream is, and the work of a task.

`RIVERTWICE_AGENT` names it, and then a worker of Airflow needs neither the project nor the home, no Spark and no Java. Each task is
asked for under an id that is made of its names, so asking again, after a lost answer, asks for nothing new.
"""

from __future__ import annotations

import hashlib
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx
import tenacity

from rivertwice import __version__
from rivertwice.core import ConfigError, RequestError, RivertwiceError, ServiceError, Settings, to_plain
from rivertwice.tasks.definitions import FoundDag, dags_here
from rivertwice.tasks.run import TaskFailedError, TaskRun, TaskSkippedError
from rivertwice.tasks.watched import Watched

WAIT_S, ANSWER_S, PATIENCE_S = 20.0, 30.0, 180.0
"""How long one question waits for news of a task, how long for its answer, and how long an agent may be away, as while it restarts."""
_UNSURE = (httpx.TransportError, ServiceError)


def task_id(run: TaskRun, attempt: int, name: str) -> str:
    """Return the id of what an attempt of a task asks for. Pure.

    Args:
        name: of the step or job; a task's notifier asks for another one than the task.
    """
    text = "\0".join((run.dag, run.run, run.task, name))
    return f"{hashlib.sha256(text.encode()).hexdigest()[:32]}-{attempt}"


class AgentClient:
    """Asks one agent.

    Args:
        address: `https://HOST:PORT`.
        patience: seconds for which an agent that does not answer is asked again.
    """

    VARIABLE, TOKEN, TOKEN_FILE, CA = (
        "RIVERTWICE_AGENT",
        "RIVERTWICE_AGENT_TOKEN",
        "RIVERTWICE_AGENT_TOKEN_FILE",
        "RIVERTWICE_AGENT_CA",
    )

    def __init__(self, address: str, token: str, ca: str | None = None, patience: float = PATIENCE_S) -> None:
        self._address = address.rstrip("/")
        self._patience = patience
        verify: Any = True if ca is None else ssl.create_default_context(cafile=ca)
        headers = {"authorization": f"Bearer {token}", "user-agent": f"rivertwice/{__version__}"}
        self._http = httpx.Client(base_url=self._address, headers=headers, verify=verify, timeout=ANSWER_S)

    @classmethod
    def is_named(cls, env: Mapping[str, str] | None = None) -> bool:
        """Say whether this Airflow asks an agent elsewhere. It has no home then, which our page would read."""
        return bool((os.environ if env is None else env).get(cls.VARIABLE))

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Self | None:
        """Return a client of the agent that the environment names; None: it names none.

        Raises:
            ConfigError: there is no token, or an address that cannot be one.
        """
        env = os.environ if env is None else env
        address = env.get(cls.VARIABLE)
        if not address:
            return None
        if not address.startswith(("https://", "http://127.0.0.1:", "http://localhost:")):
            message = f"{cls.VARIABLE} is {address!r}, so its token would be sent unencrypted; write https://HOST:PORT (http only for 127.0.0.1)"
            raise ConfigError(message)
        token, file = env.get(cls.TOKEN), env.get(cls.TOKEN_FILE)
        if not token and file:
            try:
                token = Path(file).read_text(encoding="utf-8").strip()
            except OSError as error:
                message = f"{cls.TOKEN_FILE} is {file}, which cannot be read ({error.strerror}); correct it"
                raise ConfigError(message) from error
        if not token:
            message = f"{cls.VARIABLE} names an agent, but neither {cls.TOKEN} nor {cls.TOKEN_FILE} has a token; make one there: `rivertwice agent token NAME`"
            raise ConfigError(message)
        return cls(address, token, env.get(cls.CA) or None)

    def definitions(self, only: str | None = None) -> list[FoundDag]:
        """Return what the token may see. An agent that is away is not waited for: Airflow keeps the DAGs that it knows.

        Raises:
            ServiceError: it does not answer.
        """
        path = "/v1/definitions" if only is None else f"/v1/definitions?only={quote(only)}"
        return [FoundDag.model_validate(each) for each in self._ask("GET", path, patience=0.0)]

    def watch(self, pipeline: str) -> Watched:
        """Return how a stream is.

        Raises:
            ServiceError: the agent does not answer.
        """
        return Watched(**self._ask("GET", f"/v1/pipelines/{quote(pipeline)}/watch", patience=0.0))

    def do(
        self,
        kind: str,
        name: str,
        run: TaskRun,
        attempt: int,
        pipeline: str,
        arguments: Sequence[Any],
        say: Callable[[str], None],
    ) -> Any:
        """Have a step or a job done, pass on what it says, and return its result.

        Args:
            kind: `step` or `job`.

        Raises:
            RivertwiceError: as the work raised it.
            ServiceError: the agent was away for too long; the work may go on, and another attempt ends it first.
        """
        place = f"/v1/tasks/{task_id(run, attempt, name)}"
        asked = {"kind": kind, "name": name, "pipeline": pipeline, "arguments": list(arguments), "run": run}
        self._ask("PUT", place, to_plain(asked))
        offset = 0
        while True:
            answer = self._ask("GET", f"{place}?offset={offset}&wait={WAIT_S}")
            for line in answer["lines"]:
                say(line)
            offset = answer["offset"]
            if answer["ended"] and not answer["lines"]:
                return _result_of(answer)

    def end(self, run: TaskRun, attempt: int, name: str) -> None:
        """End the work of an attempt, and wait until it has ended; one that has ended stays as it is."""
        self._ask("DELETE", f"/v1/tasks/{task_id(run, attempt, name)}", patience=ANSWER_S)

    def _ask(self, method: str, path: str, body: Any = None, *, patience: float | None = None) -> Any:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_UNSURE),
            stop=tenacity.stop_after_delay(self._patience if patience is None else patience),
            wait=tenacity.wait_exponential(multiplier=0.2, max=5.0),
            reraise=True,
        )
        try:
            return retrying(self._ask_once, method, path, body)
        except httpx.TransportError as error:
            message = f"the agent at {self._address} does not answer ({type(error).__name__}: {error}); look there: `rivertwice agent status`"
            raise ServiceError(message) from error

    def _ask_once(self, method: str, path: str, body: Any) -> Any:
        response = self._http.request(method, path, json=body)
        if response.is_success:
            return response.json()
        try:
            detail = str(response.json()["detail"])
        except (ValueError, KeyError, TypeError):
            detail = f"status {response.status_code}"
        message = f"the agent at {self._address} says: {detail}"
        if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise ServiceError(message)
        raise (
            RequestError(message) if response.status_code == httpx.codes.UNPROCESSABLE_ENTITY else ConfigError(message)
        )


def _result_of(answer: Mapping[str, Any]) -> Any:
    """Return the result of work that has ended, or raise what it raised."""
    error = answer["error"]
    if error is None:
        return answer["result"]
    message = str(error["message"])
    if error["reason"] == TaskSkippedError.reason:
        raise TaskSkippedError(message)
    if error["reason"] == TaskFailedError.reason:
        raise TaskFailedError(message, is_reported=bool(error["is_reported"]))
    if error["reason"] == RequestError.reason:
        raise RequestError(message)
    raised: RivertwiceError = ServiceError(message) if error["retryable"] else RivertwiceError(message)
    raised.reason = str(error["reason"])
    raise raised


def find_dags(settings: Settings, only: str | None = None) -> list[FoundDag]:
    """Return what the DAGs of each pipeline depend on: from the definitions here, or from the agent that `RIVERTWICE_AGENT` names.

    Args:
        only: the name of a pipeline or version; None: all.

    Raises:
        ServiceError: that agent does not answer; Airflow shows it as an import error, and keeps the DAGs that it knows.
    """
    agent = AgentClient.from_env()
    return dags_here(settings, only) if agent is None else agent.definitions(only)
