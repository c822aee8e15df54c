"""The end of streams of a group that a test has left: of their agent, drivers and JVM, by pid."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable

from rivertwice.agent.launch import stop_agent
from rivertwice.core.processes import end_sessions
from rivertwice.core.settings import Settings
from rivertwice.stream.lease import lease_owner


def end_streams(settings: Settings, names: Iterable[str]) -> None:
    """End what still runs of these pipelines."""
    stop_agent(settings)
    for name in names:
        owner = lease_owner(settings.pipeline(name))
        if owner is not None:
            os.kill(owner.pid, signal.SIGKILL)
    end_sessions([json.loads(file.read_text())["pid"] for file in settings.home.glob("groups/*/host.json")])
