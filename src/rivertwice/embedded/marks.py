"""Marks of the embedded Airflow's services: recognised again later, and stopped with all they have started."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from rivertwice.processes import NEVER_SEEN, Life, Started, end_sessions, look, started_of
from rivertwice.waits import Deadline


@dataclass(frozen=True)
class ProcessMark:
    """A process named so that a later process with the same id is not taken for it."""

    pid: int
    started: Started


def mark_of(pid: int) -> ProcessMark:
    """Return the mark of a process that was just started; one that is gone already gets a mark that is never alive."""
    return ProcessMark(pid, started_of(pid) or NEVER_SEEN)


def is_alive(mark: ProcessMark) -> bool:
    """Say whether the very process still runs (a zombie does not).

    0.1 recorded creation times, which move with the clock. Such a mark that does not fit counts for the process if that one
    leads a session of its own and is Airflow: it is not ended for a clock that was set.
    """
    life = look(mark.pid, mark.started)
    return life is Life.ALIVE or (
        life is Life.UNSURE and not isinstance(mark.started, str) and _leads_airflow(mark.pid)
    )


def _leads_airflow(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid and any("airflow" in word for word in psutil.Process(pid).cmdline())
    except (OSError, psutil.Error):
        return False


def stop(marks: Iterable[ProcessMark], grace: float) -> None:
    """End the processes and everything in their sessions: asked first, killed after `grace` seconds."""
    marks = list(marks)
    sessions = [mark.pid for mark in marks if is_alive(mark) or not psutil.pid_exists(mark.pid)]
    for mark in marks:
        if is_alive(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(mark.pid, signal.SIGTERM)

    def ended() -> bool:
        _reap(marks)
        return not any(is_alive(mark) for mark in marks)

    Deadline.after(grace).wait_until(ended, every=0.1)
    end_sessions(sessions)
    _reap(marks)


def _reap(marks: Iterable[ProcessMark]) -> None:
    for mark in marks:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(mark.pid, os.WNOHANG)
