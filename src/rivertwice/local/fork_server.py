"""A process that imports Airflow once and forks its services from there.

Each `airflow` command spends five CPU seconds on imports before it does anything, and a fresh start needs five commands.
Forked from one process they share that work and their memory. So do the processes that they fork in turn: every parse of a
DAG file and every task would import our DAGs again, so those are imported here too. The fork server opens no database
connection and starts no thread before it forks, and it ends when its caller closes the pipe; the services live on in their
own sessions.

Its caller writes one JSON object a line: {"arguments": [...], "log": path, "wait": bool}; the answer is {"pid": n} or, after
waiting, {"pid": n, "code": n}.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from rivertwice.core import ServiceError

SHARED = (
    "airflow.cli.commands.dag_processor_command",
    "airflow.cli.commands.scheduler_command",
    "airflow.cli.commands.triggerer_command",
    "airflow.api_fastapi.execution_api.app",  # the API server's, and asked in their own process by DAG processor and triggerer
    "rivertwice.airflow.dags",
)
"""Modules that several services or their forks import. None may start a thread, open a connection or import an engine."""


class ForkServer:
    """The caller's side. Use it as a context."""

    def __init__(self, env: Mapping[str, str], cwd: Path, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rivertwice.local.fork_server"],
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )

    def start(self, arguments: Sequence[str], log: Path) -> int:
        """Start `airflow ARGUMENTS` in its own session and return its process id."""
        return self._ask(arguments, log, "pid")

    def run(self, arguments: Sequence[str], log: Path) -> int:
        """Run `airflow ARGUMENTS` to its end and return its exit code."""
        return self._ask(arguments, log, "code")

    def _ask(self, arguments: Sequence[str], log: Path, wanted: Literal["pid", "code"]) -> int:
        log.parent.mkdir(parents=True, exist_ok=True)
        pipe_in, pipe_out = self._process.stdin, self._process.stdout
        request = json.dumps({"arguments": list(arguments), "log": str(log), "wait": wanted == "code"})
        line = b""
        if pipe_in is not None and pipe_out is not None:
            try:
                pipe_in.write(request.encode() + b"\n")
                pipe_in.flush()
                line = pipe_out.readline()
            except BrokenPipeError:
                line = b""
        if not line:
            message = f"Airflow could not be loaded, so {arguments[0]} was not started; see {self._log}"
            raise ServiceError(message)
        return int(json.loads(line)[wanted])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()


def serve() -> None:
    """Be the fork server: load Airflow, then fork what is asked for until the pipe is closed."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what an import prints must not be taken for an answer

    from airflow.__main__ import main as airflow_main

    for name in SHARED:
        importlib.import_module(name)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.close(answers)
            _become(request["log"])
            sys.argv = ["airflow", *request["arguments"]]
            airflow_main()  # type: ignore[no-untyped-call]
            sys.exit(0)
        answer = {"pid": pid}
        if request["wait"]:
            answer["code"] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(answers, json.dumps(answer).encode() + b"\n")


def _become(log: str) -> None:
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(nothing)
    os.close(output)

    from airflow import settings

    if settings.engine is not None:
        settings.engine.dispose(close=False)


if __name__ == "__main__":
    serve()
