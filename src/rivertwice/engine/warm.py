"""The engine: one process per home whose Spark and imports are warm. It runs verbs of this machine; this is its client.

A verb's words, working directory, environment and open files (stdin, stdout, stderr) go to the engine over a socket that only the
user's account can reach; its exit code comes back. One verb runs at a time, in the engine's main thread, with its own Spark session.
The engine starts on demand and ends after ten idle minutes. `rivertwice.cli.engine_server` is the other side.

A verb whose client ends is ended with the whole engine, as a kill ends a verb that has its own process. A verb whose engine ends, or
does not answer, runs in its own process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from rivertwice.core import Deadline, Settings, end_sessions, is_alive, session_members, start_detached
from rivertwice.storage import LogFile, read_json

START_S, WAIT_S, STOP_S = 30.0, 30.0, 10.0
"""How long a client waits for a new engine to answer, for a busy one to be free, and for one that it stops to end."""
_OWN = "this run starts its own Spark"
_SOON_S = 0.3
_LEAVE_S = 2.0
_LINES = 100
_log = logging.getLogger(__name__)
_ONE_PROCESS = ("local", "local[")
_NOT_HERE = ("PYSPARK_GATEWAY_PORT",)
"""Variables of a process that Spark itself started: its Spark is already there."""


@dataclass(frozen=True)
class EngineStatus:
    """An engine that lives.

    Attributes:
        since: when it started, as ISO 8601.
        running: the verb that it runs now; None: it is idle.
        memory_bytes: resident memory of its process, its JVM and their workers.
    """

    pid: int
    since: str
    running: str | None
    memory_bytes: int


def engine_folder(settings: Settings) -> Path:
    """Return the folder of the engine's socket, record, lock and log."""
    return settings.home / "engine"


def _address_of(folder: Path) -> tuple[str, int]:
    """Return the address of the engine's socket, and a descriptor to close after use. A path may be longer than an address can be."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return f"/proc/self/fd/{handle}/socket", handle


def engine_status(settings: Settings) -> EngineStatus | None:
    """Return the engine that lives, or None."""
    folder = engine_folder(settings)
    data = read_json(folder / "engine.json")
    if data is None or not is_alive(data["pid"], data["pid_started"], lock=folder / "lock"):
        return None
    memory = 0
    for process in session_members([data["pid"]]):
        with contextlib.suppress(psutil.NoSuchProcess):
            memory += process.memory_info().rss
    return EngineStatus(data["pid"], data["since"], data["running"], memory)


def stop_engine(settings: Settings) -> int | None:
    """End the engine and all that it started, and the JVMs of groups that have no driver; return the engine's pid, or None if none lived."""
    status = engine_status(settings)
    # A host sees the end of its drivers a moment later.
    Deadline.after(_LEAVE_S).wait_until(lambda: not any(host["drivers"] for host in _group_hosts(settings)), every=0.05)
    idle = [host["pid"] for host in _group_hosts(settings) if not host["drivers"]]
    ending = idle if status is None else [status.pid, *idle]
    for pid in ending:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).terminate()
    # Their JVMs see that, and remove their temporary files.
    Deadline.after(STOP_S).wait_until(lambda: not session_members(ending), every=0.05)
    end_sessions(ending)
    return None if status is None else status.pid


def _group_hosts(settings: Settings) -> list[dict[str, Any]]:
    """Return the records of the hosts of groups that live (`engine.group`)."""
    records = [(file.parent, read_json(file)) for file in sorted((settings.home / "groups").glob("*/host.json"))]
    return [
        record
        for folder, record in records
        if record and is_alive(record["pid"], record["pid_started"], lock=folder / "lock")
    ]


def is_served(settings: Settings) -> bool:
    """Say whether verbs of these settings run in an engine: on this machine's Spark alone, unless it is switched off.

    A Spark Connect server is warm itself.
    """
    local = (
        settings.spark_remote is None
        and settings.spark_master.startswith(_ONE_PROCESS)
        and not settings.spark_master.startswith("local-cluster")
    )
    return settings.engine and local and not any(name in os.environ for name in _NOT_HERE)


def run_in_engine(
    settings: Settings,
    verb: str,
    words: Sequence[str],
    say: Callable[[str], None],
    *,
    program: Path | None = None,
    output: int | None = None,
) -> int | None:
    """Run a verb in the engine of the home, and start that if there is none.

    Args:
        verb: what others are told of it.
        words: the words of this call, after the program's name.
        say: is passed a line when something is unusual.
        program: a file of Python that is run instead of `rivertwice`.
        output: descriptor that takes its stdout and stderr; None: those of this process.

    Returns:
        the verb's exit code; None: it has to run in this process.
    """
    # -P: no module of the home
    command = [sys.executable, "-P", "-m", "rivertwice.cli.engine_server", str(engine_folder(settings))]
    for is_first in (True, False):
        connection = reach(engine_folder(settings), command, settings, lambda line: say(f"{line}; {_OWN}"))
        if connection is None:
            return None
        with connection:
            call = {"verb": verb, "words": list(words), "program": None if program is None else str(program)}
            answer = _ask(connection, settings, call, output, say)
        if answer is None or "code" in answer:
            return None if answer is None else int(answer["code"])
        if "stale" not in answer or not is_first:
            return None  # the work is too large, or two engines in turn do not fit
    return None


def run_program_in_engine(
    settings: Settings, program: Path, arguments: Sequence[str], say: Callable[[str], None]
) -> tuple[int, str] | None:
    """Run a file of Python in the engine, and pass each line of its output on.

    Returns:
        its exit code and the end of its output; None: it has to run elsewhere.
    """
    reading, writing = os.pipe()
    end: deque[str] = deque(maxlen=_LINES)

    def read() -> None:
        with os.fdopen(reading, errors="replace") as lines:
            for line in lines:
                end.append(line.rstrip("\n"))
                say(end[-1])

    reader = threading.Thread(target=read, name="output", daemon=True)
    reader.start()
    try:
        code = run_in_engine(settings, program.stem, arguments, say, program=program, output=writing)
    finally:
        os.close(writing)
    reader.join()
    return None if code is None else (code, "\n".join(end))


def reach(folder: Path, command: Sequence[str], settings: Settings, say: Callable[[str], None]) -> socket.socket | None:
    """Return a connection to the process that listens in a folder, which is started if there is none.

    Args:
        command: starts it; it outlives this process, with its home as working directory and a log in the folder.
        say: is passed why there is no connection.

    Returns:
        None: there is no way to one.
    """
    connection = connect_to(folder)
    if connection is not None:
        return connection
    log = folder / "log"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        with LogFile(log).open() as output:
            env = {**os.environ, **settings.to_env()}
            child = start_detached(command, env=env, cwd=settings.home, output=output)
    except OSError as error:
        say(f"no engine can be started in {folder} ({error})")
        return None
    for _ in Deadline.after(START_S).polls(0.03):
        connection = connect_to(folder)
        if connection is not None:
            return connection
        if child.poll() not in (None, 0):  # 0: another client's engine was first
            break
    say(f"the engine did not start (return code {child.poll()}; see {log})")
    return None


def connect_to(folder: Path) -> socket.socket | None:
    """Return a connection to the process that listens in a folder; None: there is none."""
    try:
        address, handle = _address_of(folder)
    except OSError:
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        return None
    finally:
        os.close(handle)
    return connection


def end_member(folder: str, member: str, patience_s: float) -> bool:
    """Stop what a driver that has ended left in the JVM of its group; return False if no host says that it is stopped."""
    connection = connect_to(Path(folder))
    if connection is None:
        _log.warning("no host of the group is in %s", folder)
        return False
    with connection:
        try:
            connection.settimeout(patience_s)
            connection.sendall(json.dumps({"leave": member}).encode() + b"\n")
            return bool(json.loads(connection.makefile("rb").readline())["left"])
        except (OSError, ValueError) as error:
            _log.warning("the JVM of the group does not answer (%r); it is ended; read %s/log", error, folder)
            return False


def listen(folder: Path) -> socket.socket:
    """Return a socket in a folder that only this user can connect to."""
    (folder / "socket").unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    address, handle = _address_of(folder)
    before = os.umask(0o177)
    try:
        listener.bind(address)
    finally:
        os.umask(before)
        os.close(handle)
    listener.listen(64)
    return listener


def _ask(
    connection: socket.socket,
    settings: Settings,
    call: Mapping[str, Any],
    output: int | None,
    say: Callable[[str], None],
) -> dict[str, Any] | None:
    """Return the engine's answer; None: it was busy too long, or it ended."""
    answers = connection.makefile("rb")
    ready = _wait_until_ready(connection, answers, settings, say)
    if ready is None:
        return None
    request = {
        **call,
        "cwd": os.getcwd(),
        "env": {**os.environ, **settings.to_env()},
        "umask": _umask(),
        "python": sys.executable,
    }
    try:
        with _open_files(output) as files:
            socket.send_fds(connection, [b"!"], files)
        connection.sendall(json.dumps(request).encode() + b"\n")
        answer = _interruptible(answers, ready)
    except (BrokenPipeError, ConnectionResetError):
        answer = None
    if answer is None:
        log = engine_folder(settings) / "log"
        say(f"the engine (process {ready}) ended during this run (see {log}); the run starts again with its own Spark")
    return answer


def _wait_until_ready(
    connection: socket.socket, answers: IO[bytes], settings: Settings, say: Callable[[str], None]
) -> int | None:
    """Return the engine's pid when it is free for this client; None: it is busy, or it has just ended."""
    connection.settimeout(_SOON_S)
    ready = b""
    try:
        ready = connection.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        status = engine_status(settings)
        if status is not None and status.running is not None:
            say(f"waiting for the engine (process {status.pid}), which runs `rivertwice {status.running}`")
        connection.settimeout(WAIT_S)
        try:
            ready = connection.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            say(f"the engine is still busy after {WAIT_S:.0f} s; this run starts its own Spark")
    except ConnectionResetError:
        pass
    connection.settimeout(None)
    line = answers.readline() if ready else b""
    return int(json.loads(line)["ready"]) if line else None


def _interruptible(answers: IO[bytes], pid: int) -> dict[str, Any] | None:
    """Return the next answer. The first Ctrl-C interrupts the verb there, as it would here; a second one leaves it.

    Raises:
        KeyboardInterrupt: the verb was interrupted, and has no answer.
    """
    try:
        line = answers.readline()
    except KeyboardInterrupt:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
        line = answers.readline()
        if not line:
            raise
    return json.loads(line) if line else None


@contextlib.contextmanager
def _open_files(output: int | None) -> Iterator[list[int]]:
    """Give descriptors of stdin, stdout and stderr; one that is closed here is empty there."""
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        yield (
            [nothing, output, output]
            if output is not None
            else [number if _is_open(number) else nothing for number in (0, 1, 2)]
        )
    finally:
        os.close(nothing)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask
