"""What processes that a test has started use, and the end of streams of a group that it has left: agent, drivers and JVM, by pid."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterable

import psutil

from rivertwice.agent.launch import stop_agent
from rivertwice.core.processes import end_sessions
from rivertwice.core.settings import Settings
from rivertwice.stream.lease import lease_owner


def used_by(session: int) -> tuple[float, float]:
    """Return CPU-seconds and resident bytes of the processes that a session has now."""
    cpu = memory = 0.0
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getsid(process.pid) == session:
                times = process.cpu_times()
                cpu, memory = cpu + times.user + times.system, memory + process.memory_info().rss
    return cpu, memory


def end_streams(settings: Settings, names: Iterable[str]) -> None:
    """End what still runs of these pipelines."""
    stop_agent(settings)
    for name in names:
        owner = lease_owner(settings.pipeline(name))
        if owner is not None:
            os.kill(owner.pid, signal.SIGKILL)
    end_sessions([json.loads(file.read_text())["pid"] for file in settings.home.glob("groups/*/host.json")])
