"""Real processes of a lab run: started in sessions of their own, killed, stopped and continued as whole groups."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from rivertwice.core.processes import start_detached

POLL_S = 0.001
END_S = 20.0


def start_process(command: Sequence[str], *, log: Path, env: Mapping[str, str], cwd: Path) -> subprocess.Popen[bytes]:
    """Start a command in a session (so in a process group) of its own; its output is appended to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        return start_detached(command, env=env, cwd=cwd, output=out)


def signal_group(process: subprocess.Popen[bytes], number: int) -> bool:
    """Send a signal to a process and all it started; return False if the group is gone."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def strike_when(
    process: subprocess.Popen[bytes],
    condition: Callable[[], bool],
    *,
    sig: int = signal.SIGKILL,
    patience_s: float = 120.0,
) -> bool:
    """Send `sig` to the group as soon as `condition()` is true, asked about once a millisecond.

    Returns:
        False if the process ended before.

    Raises:
        TimeoutError: `condition()` stayed false; the group still runs.
    """
    deadline = time.monotonic() + patience_s
    while process.poll() is None:
        if condition():
            if not signal_group(process, sig):
                return False
            if sig == signal.SIGKILL:
                process.wait()
            return True
        if time.monotonic() > deadline:
            message = f"process {process.pid} did not reach the moment within {patience_s:.0f} s"
            raise TimeoutError(message)
        time.sleep(POLL_S)
    return False


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process group, stopped or not, and wait until every member is gone."""
    members = group_members(process.pid)
    signal_group(process, signal.SIGKILL)
    if process.poll() is None:
        process.wait()
    psutil.wait_procs(members, timeout=END_S)


def group_members(group: int) -> list[psutil.Process]:
    """Return the live processes of a process group, without its leader."""
    members = []
    for process in psutil.process_iter(["pid"]):
        try:
            if process.pid != group and os.getpgid(process.pid) == group:
                members.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return members


def jvm_of(process: subprocess.Popen[bytes]) -> psutil.Process | None:
    """Return the JVM that a driver started, or None."""
    for member in group_members(process.pid):
        try:
            if member.name() == "java":
                return member
        except psutil.NoSuchProcess:
            continue
    return None
