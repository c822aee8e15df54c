"""Processes: start one that outlives its starter, identify it, end it with all processes that it started.

The name of a process is safe against mistakes: neither a reused process id nor a changed clock makes it the name of another process.

On Linux the name of a start is `BOOT/NAMESPACES/TICKS`: the id of the machine's boot, the namespaces in which process ids and
ticks are counted, and the kernel's count of ticks from the boot to the start. Setting the clock changes none of them. Without
`/proc`, the name is the creation time in seconds since the epoch, which version 0.1 recorded everywhere.

A record that cannot be judged here (from 0.1 after the clock was set, or from another container) is `UNSURE`; then a lock that
the process holds while it lives decides.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import IO, NoReturn

import psutil

from rivertwice.core.locks import is_locked
from rivertwice.core.text import log_to_stdout
from rivertwice.core.tracing import flush
from rivertwice.core.waits import Deadline

Started = str | float
"""The name of a start, as it is stored."""

NEVER_SEEN: Started = 0.0
"""For a process that ended before it could be examined; it is never alive."""

_PROC = Path("/proc")
_NAME = re.compile(r"^([0-9a-f-]{36})/([0-9.]+)/([0-9]+)\Z")
_SAME_SECONDS = 1.0  # between two readings of the same creation time, which 0.1 recorded
_START, _STATE = 19, 0  # fields of /proc/PID/stat, counted after the name in brackets


class Life(Enum):
    """The known state of a recorded process."""

    ALIVE = "alive"
    GONE = "gone"
    UNSURE = "unsure"


def started_of(pid: int) -> Started | None:
    """Return the name of the start of a process, or None if it is gone; a zombie is gone."""
    place = _place()
    if place is None:
        return _creation_time(pid)
    ticks = _ticks(pid)
    return None if ticks is None else f"{place}/{ticks}"


def is_running(pid: int) -> bool:
    """Say whether any process with this id runs; a zombie does not."""
    return started_of(pid) is not None


def same_start(first: Started, second: Started) -> bool:
    """Say whether two records name the same start; two readings of a creation time may differ a little."""
    if isinstance(first, str) or isinstance(second, str):
        return first == second
    return abs(first - second) < _SAME_SECONDS


def own_start() -> Started:
    """Return the name of this process's start."""
    started = started_of(os.getpid())
    assert started is not None, "this process runs"
    return started


def look(pid: int | None, started: Started | None) -> Life:
    """Return the known state of a recorded process."""
    if pid is None or not started:
        return Life.GONE
    if isinstance(started, str):
        return _look_by_name(pid, started)
    created = _creation_time(pid)
    if created is None:
        return Life.GONE
    return Life.ALIVE if abs(created - started) < _SAME_SECONDS else Life.UNSURE


def _look_by_name(pid: int, started: str) -> Life:
    match, place = _NAME.match(started), _place()
    if match is None or place is None:
        return Life.UNSURE
    if f"{match[1]}/{match[2]}" != place:
        return Life.UNSURE  # from an earlier boot, another container or another machine
    return Life.ALIVE if _ticks(pid) == int(match[3]) else Life.GONE


def is_alive(pid: int | None, started: Started | None, *, lock: Path | None = None) -> bool:
    """Say whether the recorded process itself still runs; a zombie does not.

    Args:
        lock: a file whose lock the process holds while it lives; it decides if the record cannot be judged here.
    """
    life = look(pid, started)
    return life is Life.ALIVE or (life is Life.UNSURE and lock is not None and is_locked(lock))


def may_live(pid: int | None, started: Started | None) -> bool:
    """Say whether the process lives, or may live where it cannot be seen: in another container of the same machine."""
    life = look(pid, started)
    if life is not Life.UNSURE:
        return life is Life.ALIVE
    place, match = _place(), _NAME.match(started) if isinstance(started, str) else None
    return match is not None and place is not None and place.startswith(f"{match[1]}/")


def boot_id() -> str | None:
    """Return the id of the machine's boot, unique among running machines; None without `/proc`."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def start_detached(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    output: IO[bytes],
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a command in a new session, so that it outlives this process; its output goes to an open file.

    Args:
        env: all of its environment.
        cwd: its working directory; None: this process's.
        output: file for standard output and error.
    """
    return subprocess.Popen(
        list(command),
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=pass_fds,
    )


def session_members(leaders: Iterable[int]) -> list[psutil.Process]:
    """Return the living processes of the sessions that `leaders` began, also if a leader has ended.

    The kernel does not reuse a process id while a session of that number has members, so no unrelated process is returned.
    """
    sessions = set(leaders)
    members = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) in sessions and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
        except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            continue
    return members


def end_sessions(leaders: Iterable[int], patience: float = 10.0) -> list[int]:
    """Kill every member of the sessions, also those forked meanwhile, and wait until all have ended; return their ids."""
    leaders = list(leaders)
    deadline = Deadline.after(patience)
    ended: list[int] = []
    while (members := session_members(leaders)) and deadline.left():
        for process in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        ended += [process.pid for process in members]
        psutil.wait_procs(members, timeout=0.5)
    return ended


@lru_cache(maxsize=1)
def _place() -> str | None:
    """Return boot and namespaces of this process, in which ids and ticks are valid; None without `/proc`."""
    boot = boot_id()
    if boot is None or _ticks(os.getpid()) is None:
        return None
    return f"{boot}/{_namespace('pid')}.{_namespace('time')}"


def _namespace(kind: str) -> str:
    try:
        return re.sub(r"[^0-9]", "", os.readlink(_PROC / "self/ns" / kind)) or "0"
    except OSError:  # an older kernel
        return "0"


def _ticks(pid: int) -> int | None:
    """Return the ticks from the boot to a process's start; None if the process has ended or is a zombie."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[_STATE] in "ZXx" else int(fields[_START])


def _creation_time(pid: int) -> float | None:
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.NoSuchProcess:
        return None


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM or SIGINT to this process sets; for the process's main thread."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def run_process(work: Callable[[], int]) -> NoReturn:
    """Run a process whose output is its log, and end it with the code that `work` returns.

    All state is on disk then, so a callback thread that waits for a dead JVM must not keep the process alive.
    """
    log_to_stdout()
    code = work()
    logging.shutdown()
    flush()
    sys.stdout.flush()
    os._exit(code)
