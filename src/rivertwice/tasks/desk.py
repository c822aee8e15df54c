"""The tasks that an agent does for workers elsewhere: a folder and a process each, `agent/tasks/PLACE/ATTEMPT` of the home.

A process outlives the server that started it, and its folder says how it ended: a server that was killed goes on where it was.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from rivertwice.core import RequestError, Settings, base_of, end_sessions, is_alive, start_detached
from rivertwice.storage import LogFile, read_json, replace_json
from rivertwice.tasks.catalogue import IN_PLACE, STEPS
from rivertwice.tasks.jobs import JOBS
from rivertwice.tasks.run import TaskRun
from rivertwice.tasks.work import PROCESS, REQUEST, RESULT, end_of

LOG = "log"
KEPT = timedelta(hours=1)
"""How long the folder of a task that has ended is kept; a worker asks for its end within seconds."""
_STRIPES = 64
MOST_BYTES = 65_536
"""Of a log, in one answer."""
_ID = re.compile(r"[0-9a-f]{32}-\d{1,6}\Z")
"""Of the place in Airflow, and of the attempt."""


_OF_RUN = ({"dag", "run", "task", "due_at"}, {field.name for field in fields(TaskRun)})
"""What a run must have, and may."""


@dataclass(frozen=True)
class News:
    """What is new of a task.

    Attributes:
        offset: in bytes of its log, up to which it was read.
        error: why it failed; None: it has not, or not yet.
    """

    lines: Sequence[str]
    offset: int
    ended: bool
    result: Any = None
    error: Mapping[str, Any] | None = None


def check_request(asked: Any) -> dict[str, Any]:
    """Return a request if it asks for a step or a job of ours, for one pipeline. Pure.

    Raises:
        RequestError: it does not, or its arguments name another pipeline than the one that was allowed.
    """
    wanted = {"kind", "name", "pipeline", "arguments", "run"}
    if not isinstance(asked, dict) or set(asked) != wanted or not isinstance(asked["arguments"], list):
        message = f"a task has {', '.join(sorted(wanted))}, and this one has not"
        raise RequestError(message)
    if not isinstance(asked["run"], dict) or not _OF_RUN[0] <= set(asked["run"]) <= _OF_RUN[1]:
        message = f"a run has {', '.join(sorted(_OF_RUN[0]))}, and this one has not; install the same version of rivertwice here and there"
        raise RequestError(message)
    known = {"step": STEPS, "job": JOBS}.get(asked["kind"], ())
    if asked["name"] not in known:
        message = f"{str(asked['kind'])[:10]} {str(asked['name'])[:60]!r} is unknown to this agent; install the same version of rivertwice here and there"
        raise RequestError(message)
    pipeline, arguments = str(asked["pipeline"]), asked["arguments"]
    if asked["kind"] == "job":
        named = [
            text for text in arguments if "--pipeline".startswith(str(text).partition("=")[0]) and len(str(text)) > 2
        ]
        if len(arguments) < 2 or named != ["--pipeline"] or arguments[0] != "--pipeline":
            message = "the arguments of a job begin with --pipeline NAME, once"
            raise RequestError(message)
        _require_same(pipeline, str(arguments[1]))
    for each in arguments:
        if isinstance(each, dict) and "version" in each:
            _require_same(pipeline, str(each["version"]))
    return asked


def _require_same(pipeline: str, named: str) -> None:
    if base_of(named) != base_of(pipeline):
        message = f"a task of {pipeline} cannot be about {named}"
        raise RequestError(message)


class Desk:
    """The tasks of a home."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._root = settings.home / "agent" / "tasks"
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._locks = [threading.Lock() for _ in range(_STRIPES)]  # a place always has the same one
        self._looked_at = 0.0

    def begin(self, id_: str, asked: Mapping[str, Any], now: datetime) -> None:
        """Begin a task; one that was begun under the id goes on. An earlier attempt of the same task is ended first."""
        folder = self._folder(id_)
        self._forget_old(now)
        with self._locks[int(id_[:8], 16) % _STRIPES]:
            self._begin(id_, folder, asked)

    def _begin(self, id_: str, folder: Path, asked: Mapping[str, Any]) -> None:
        if (folder / PROCESS).exists() or (folder / RESULT).exists() or id_ in self._children:
            return
        for attempt in folder.parent.glob("*"):
            self.end(f"{folder.parent.name}-{attempt.name}")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_json(folder / REQUEST, asked)
        if asked["name"] in IN_PLACE:
            replace_json(folder / RESULT, end_of(self._settings, dict(asked)))
            return
        with LogFile(folder / LOG).open() as log:
            child = start_detached(
                [sys.executable, "-P", "-m", "rivertwice.tasks.work", str(folder)],
                env={**os.environ, **self._settings.to_env()},
                cwd=self._settings.project,
                output=log,
            )
        self._children[id_] = child

    def news(self, id_: str, offset: int) -> News:
        """Return what a task that was begun has said since an offset of its log, and how it ended."""
        folder = self._folder(id_)
        ended = not self._lives(id_)  # looked at before the log, so that no line is missed
        text = _read(folder / LOG, offset)
        whole = (
            text
            if ended and len(text) < MOST_BYTES
            else text[: text.rfind(b"\n") + 1] or text[:MOST_BYTES] * (len(text) >= MOST_BYTES)
        )
        lines = whole.decode(errors="replace").splitlines()
        if not ended:
            return News(lines, offset + len(whole), ended=False)
        stored = read_json(folder / RESULT)
        if stored is None:
            message = "its process ended without a result: it was killed, or failed in a way that nobody foresaw; its log says more"
            stored = {
                "result": None,
                "error": {"reason": "service", "message": message, "retryable": True, "is_reported": False},
            }
        return News(lines, offset + len(whole), ended=True, result=stored["result"], error=stored["error"])

    def asked_for(self, id_: str) -> str | None:
        """Return the pipeline of a task; None: there is no such task."""
        asked = read_json(self._folder(id_) / REQUEST)
        return None if asked is None else str(asked["pipeline"])

    def end(self, id_: str) -> None:
        """End a task and all that it started; what it did stays, and doing it again continues from there."""
        process, child = read_json(self._folder(id_) / PROCESS), self._children.get(id_)
        if process is not None and is_alive(process["pid"], process["started"]):
            end_sessions([process["pid"]])
        elif child is not None and child.poll() is None:
            end_sessions([child.pid])  # it has not written yet who it is
        self._lives(id_)

    def end_all(self) -> int:
        """End every task that is at work, and return how many there were."""
        lives = [f"{folder.parent.name}-{folder.name}" for folder in self._root.glob("*/*")]
        lives = [id_ for id_ in lives if self._lives(id_)]
        for id_ in lives:
            self.end(id_)
        return len(lives)

    def _lives(self, id_: str) -> bool:
        """Say whether a task is at work; one whose process has not written who it is may be just about to."""
        child = self._children.get(id_)
        if child is not None and child.poll() is None:
            return True
        self._children.pop(id_, None)
        process = read_json(self._folder(id_) / PROCESS)
        return process is not None and is_alive(process["pid"], process["started"])

    def _folder(self, id_: str) -> Path:
        if not _ID.match(id_):
            message = f"{id_[:40]!r} is not the id of a task"
            raise RequestError(message)
        return self._root.joinpath(*id_.split("-"))

    def _forget_old(self, now: datetime) -> None:
        """Remove what ended long ago, once in a while: a home may have thousands of tasks an hour."""
        if now.timestamp() - self._looked_at < KEPT.total_seconds() / 4:
            return
        self._looked_at = now.timestamp()
        for folder in self._root.glob("*/*"):
            with suppress(OSError):  # another thread removes it, or begins the next attempt beside it
                is_old = now.timestamp() - folder.stat().st_mtime > KEPT.total_seconds()
                if is_old and not self._lives(f"{folder.parent.name}-{folder.name}"):
                    shutil.rmtree(folder, ignore_errors=True)
                    folder.parent.rmdir()


def _read(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as log:
            log.seek(offset)
            return log.read(MOST_BYTES)
    except FileNotFoundError:
        return b""
