"""Drain every stream of a home, before the host or the container is taken down."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from rivertwice.agent.act import ask_to_drain
from rivertwice.agent.memory import load_memory
from rivertwice.core import Deadline, Progress, ServiceError, Settings, is_alive, report_nothing, utc_now
from rivertwice.deliver import read_fast_owner
from rivertwice.stream import lease_owner

POLL_S = 0.1


def drain_all(
    settings: Settings, names: list[str], by: str, seconds: float, progress: Progress = report_nothing
) -> list[str]:
    """Ask every living driver to drain, wait for them, and remove the markers again.

    Args:
        by: who asks; the markers hold while this process lives, so no driver is started meanwhile.
        seconds: how long the drivers may take, all together.

    Returns:
        the pipelines whose driver lived.

    Raises:
        ServiceError: a driver still lives after `seconds`; nothing was killed.
    """
    homes = {name: settings.pipeline(name) for name in names}
    living = {name: home for name, home in homes.items() if driver_lives(settings, name)}
    for name, home in living.items():
        progress(f"draining {name} ...")
        ask_to_drain(home, by, utc_now())
    deadline = Deadline.after(seconds)
    try:
        while left := [name for name in living if driver_lives(settings, name)]:
            if deadline.is_over():
                pids = {name: owner.pid for name in left if (owner := lease_owner(homes[name]))}
                logs = ", ".join(str(homes[name].logs / "driver.log") for name in left)
                message = f"still draining after {seconds:.0f} s: {pids}; nothing was killed; look at {logs}"
                raise ServiceError(message)
            time.sleep(POLL_S)
    finally:
        for home in living.values():
            home.drain.unlink(missing_ok=True)
    return sorted(living)


def end_fast_paths(settings: Settings, names: list[str]) -> list[str]:
    """Send SIGTERM to running fast paths; return their names. They end at once and later continue after their last record."""
    owners = {name: owner for name in names if (owner := read_fast_owner(settings.pipeline(name))) is not None}
    for owner in owners.values():
        with suppress(ProcessLookupError):
            os.kill(owner.pid, signal.SIGTERM)
    return sorted(owners)


def driver_lives(settings: Settings, name: str) -> bool:
    """Say whether a driver of this pipeline lives, also one that has not taken its lease yet."""
    if lease_owner(settings.pipeline(name)) is not None:
        return True
    started = load_memory(settings, name).driver
    return started is not None and is_alive(started.pid, started.pid_started)
