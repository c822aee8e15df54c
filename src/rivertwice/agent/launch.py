"""Start, stop and look at the agent from outside: a detached process, one per home."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psutil

from rivertwice.core import Deadline, ServiceError, Settings, Started, is_alive, parse_iso, start_detached
from rivertwice.storage import LogFile, read_json

START_SECONDS = 60.0
STOP_SECONDS = 45.0


@dataclass(frozen=True)
class AgentStatus:
    """An agent that lives.

    Attributes:
        pipelines: name to {action, reason} of its last pass.
    """

    pid: int
    pid_started: Started
    beat_at: datetime
    pipelines: dict[str, dict[str, Any]]


def agent_status(settings: Settings) -> AgentStatus | None:
    """Return the living agent's status, or None."""
    folder = settings.home / "agent"
    data = read_json(folder / "heartbeat.json")
    if data is None or not is_alive(data["pid"], data["pid_started"], lock=folder / "lock"):
        return None
    return AgentStatus(data["pid"], data["pid_started"], parse_iso(data["at"]), data["pipelines"])


def start_agent(settings: Settings) -> AgentStatus:
    """Start the agent as a process in its own session, or return the one that lives.

    Raises:
        ServiceError: it ended, or gave no heartbeat in time; the message names its log.
    """
    running = agent_status(settings)
    if running is not None:
        return running
    folder = settings.home / "agent"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log"
    with LogFile(log).open() as output:
        child = start_detached(
            [sys.executable, "-m", "rivertwice.agent.agent"],
            env={**os.environ, **settings.to_env()},
            cwd=settings.project,
            output=output,
        )
    for _ in Deadline.after(START_SECONDS).polls(0.05):
        running = agent_status(settings)
        if running is not None:
            return running
        if child.poll() is not None:
            break
    message = f"the agent (pid {child.pid}) did not come up (return code {child.poll()}); read {log}, then try again"
    raise ServiceError(message)


def stop_agent(settings: Settings) -> int | None:
    """Stop the agent and return its pid, or None if none lived. Drivers are left running.

    Raises:
        ServiceError: it still lives after the time it is given.
    """
    running = agent_status(settings)
    if running is None:
        return None
    if not is_alive(running.pid, running.pid_started):
        message = (
            f"an agent holds the lock of {settings.home}, but process {running.pid} of its record is not it: it runs in another "
            "container, or it is an older version's and the clock was set; nothing was ended; stop it where it runs"
        )
        raise ServiceError(message)
    psutil.Process(running.pid).terminate()
    lock = settings.home / "agent" / "lock"
    ended = Deadline.after(STOP_SECONDS).wait_until(
        lambda: not is_alive(running.pid, running.pid_started, lock=lock), every=0.05
    )
    if not ended:
        message = (
            f"the agent (pid {running.pid}) still lives {STOP_SECONDS:.0f} s after SIGTERM; drivers are not touched; "
            f"read {settings.home / 'agent' / 'log'}, then end process {running.pid}"
        )
        raise ServiceError(message)
    return running.pid
