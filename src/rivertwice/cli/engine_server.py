"""`python -m rivertwice.cli.engine_server`: runs verbs for clients in one process whose Spark and imports are warm (`rivertwice.engine.warm`).

A verb finds what it would find in its own process: arguments, environment, working directory, umask and open files are its client's,
and its Spark session is new. What a JVM takes only at its start, and the code of rivertwice and its packages, must be what this engine
began with; otherwise it ends and the client starts another one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from rivertwice.cli.frame import BARS
from rivertwice.cli.main import cli
from rivertwice.core import Deadline, RivertwiceError, Settings, flush, open_locked, own_start, to_iso, utc_now
from rivertwice.engine import (
    ColdRunError,
    ResidentSpark,
    jvm_basis,
    listen,
)
from rivertwice.log import asked_by_a_person, forget_compared
from rivertwice.storage import replace_json

IDLE_S = 600.0
_LOOK_S = 2.0
_REQUEST_S = 10.0
_PREDECESSOR_S = 20.0
_DYING_S = 0.5  # a verb sees that its JVM is gone a little earlier than the system says so
_DESCRIPTORS = 3
_PACKAGE = Path(__file__).parent
_FOLDERS = tuple(Path(folder) for folder in sys.path if Path(folder).is_dir())


@dataclass(frozen=True)
class Basis:
    """What an engine begins with and cannot change; two that are equal give the same results.

    Attributes:
        code: files of rivertwice and folders of packages, each with its time of change.
        env: variables that Spark, Java, or a package reads when it starts.
        confs: what a JVM of Spark takes only at its start.
        jars: each with size and time of change.
    """

    python: str
    code: tuple[tuple[str, int], ...]
    env: Mapping[str, str]
    confs: Mapping[str, str]
    jars: tuple[tuple[str, int, int], ...]

    def describe_change(self, now: Basis) -> str | None:
        """Return what differs from an earlier basis, or None. Pure."""
        for name, text in (
            ("python", "the interpreter"),
            ("code", "the code of rivertwice or a package"),
            ("env", "the environment"),
            ("jars", "a jar of Spark"),
            ("confs", "a setting of Spark or Java"),
        ):
            if getattr(self, name) != getattr(now, name):
                return f"{text} has changed"
        return None


def look_at_basis(env: Mapping[str, str], python: str) -> Basis:
    """Return what an engine would begin with now."""
    jvm = jvm_basis(Settings.from_env(env), env)
    return Basis(
        python=python,
        code=(
            *_changes_of(_PACKAGE),
            *((str(folder), folder.stat().st_mtime_ns) for folder in _FOLDERS if folder.exists()),
        ),
        env=jvm["env"],
        confs=jvm["confs"],
        jars=jvm["jars"],
    )


def _changes_of(package: Path) -> Iterator[tuple[str, int]]:
    for entry in sorted(os.scandir(package), key=lambda each: each.name):
        if entry.is_dir(follow_symlinks=False):
            if entry.name != "__pycache__":
                yield from _changes_of(Path(entry.path))
        else:
            yield entry.path, entry.stat().st_mtime_ns


@dataclass
class Engine:
    """One engine, from its first client to its end.

    Attributes:
        folder: of its socket and record.
        log: descriptor of its log, which its own output goes to.
        spark: what it keeps between runs.
        basis: what it began with, known after its first client.
    """

    folder: Path
    log: int
    spark: ResidentSpark
    basis: Basis | None = None
    _since: datetime = field(default_factory=utc_now)
    _interrupted: bool = False

    def interrupt(self, *_: object) -> None:
        """Interrupt the verb: the handler of a signal."""
        self._interrupted = True
        raise KeyboardInterrupt

    def record(self, running: str | None) -> None:
        """Write who this is and which verb it runs."""
        own = {"pid": os.getpid(), "pid_started": own_start(), "since": to_iso(self._since), "running": running}
        replace_json(self.folder / "engine.json", own)

    def say(self, line: str) -> None:
        """Write a line to the log."""
        os.write(self.log, f"{to_iso(utc_now())} {line}\n".encode())

    def serve(self, connection: socket.socket) -> bool:
        """Run the verb of one client; return whether the engine stays for the next one."""
        _answer(connection, {"ready": os.getpid()})
        request, files = _receive(connection)
        if request is None:
            for file in files:
                os.close(file)
            return True
        why = self._find_change(request)
        if why is not None:
            self.say(f"ends: {why}")
            (self.folder / "socket").unlink(missing_ok=True)
            _answer(connection, {"stale": why})
            return False
        verb = request["verb"]
        self.record(verb)
        with self._watched(connection, verb), _as_client(request, files):
            signal.signal(signal.SIGINT, self.interrupt)
            answer = _run(request)
            self.spark.end()
        BARS.forget()
        forget_compared()
        if self.spark.is_dead(0.0 if answer.get("code") == 0 else _DYING_S):
            self.say(f"ends: the JVM ended during `rivertwice {verb}`")
            return False
        self.record(None)
        _answer(connection, answer)
        if self._interrupted:
            self.say(f"ends: `rivertwice {verb}` was interrupted")
        return not self._interrupted  # what it began in the JVM may still run

    @contextlib.contextmanager
    def _watched(self, connection: socket.socket, verb: str) -> Iterator[None]:
        """End this process, and by that its JVM and the verb, if the client ends inside the block."""
        over, end = os.pipe()

        def watch() -> None:
            readable, _, _ = select.select([connection.fileno(), over], [], [])
            if over not in readable:
                self.say(f"ends: the client of `rivertwice {verb}` ended")
                os._exit(1)

        watcher = threading.Thread(target=watch, name="client", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            os.close(end)
            watcher.join()
            os.close(over)

    def _find_change(self, request: Mapping[str, Any]) -> str | None:
        try:
            now = look_at_basis(request["env"], request["python"])
        except RivertwiceError:
            return None  # the verb itself says what is wrong with its settings
        if self.basis is None:
            if request["python"] != sys.executable:
                return "it has another interpreter"
            self.basis = now
        return "its JVM has ended" if self.spark.is_dead() else self.basis.describe_change(now)


def _run(request: Mapping[str, Any]) -> dict[str, int | str]:
    """Run a verb or a program; return the answer for its client."""
    try:
        if request["program"] is None:
            with asked_by_a_person():
                cli(list(request["words"]), prog_name="rivertwice")
        else:
            runpy.run_path(request["program"], run_name="__main__")
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            sys.stderr.write(f"{code}\n")
        return {"code": code if isinstance(code, int) else int(code is not None)}
    except ColdRunError as reason:
        return {"cold": str(reason)}
    except BaseException:  # as an interpreter ends
        traceback.print_exc()
        return {"code": 1}
    return {"code": 0}


def _receive(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return a client's request and its open files; None if the client is gone."""
    connection.settimeout(_REQUEST_S)
    try:
        mark, files, _, _ = socket.recv_fds(connection, 1, _DESCRIPTORS)
        line = connection.makefile("rb").readline() if mark else b""
    except OSError:
        return None, []
    connection.settimeout(None)
    return (json.loads(line), files) if line.endswith(b"\n") and len(files) == _DESCRIPTORS else (None, files)


def _answer(connection: socket.socket, answer: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # a client that is gone needs none
        connection.sendall(json.dumps(answer).encode() + b"\n")


@contextlib.contextmanager
def _as_client(request: Mapping[str, Any], files: Sequence[int]) -> Iterator[None]:
    """Make what a process has once that of the client inside the block: environment, folder, umask, signals, open files."""
    env, argv, cwd, umask = dict(os.environ), sys.argv, Path.cwd(), os.umask(request["umask"])
    actions = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    own = [os.dup(number) for number in range(_DESCRIPTORS)]
    streams, root = (sys.stdin, sys.stdout), logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.environ.clear()
        os.environ.update({**request["env"], "RIVERTWICE_ENGINE": "off"})  # a verb does not ask the engine that runs it
        sys.argv = [request["program"] or "rivertwice", *request["words"]]
        sys.stdin, sys.stdout = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
        with contextlib.suppress(FileNotFoundError):
            os.chdir(request["cwd"])
        yield
    finally:
        flush()
        root.handlers[:] = handlers  # a job's write to files of its client
        root.setLevel(level)
        used = sys.stdin, sys.stdout
        sys.stdin, sys.stdout = streams
        for stream in used:
            with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                stream.close()
        for number, file in enumerate(own):
            os.dup2(file, number)
            os.close(file)
        for action, handler in actions.items():
            signal.signal(action, handler)
        os.environ.clear()
        os.environ.update(env)
        logging.getLogger().handlers.clear()
        sys.argv = argv
        os.chdir(cwd)
        os.umask(umask)


@contextlib.contextmanager
def own_output(log: int) -> Iterator[None]:
    """Let a process that starts inside the block, which outlives the verb, write to the engine's log instead of the client's files."""
    kept, interrupt = [os.dup(number) for number in (1, 2)], signal.getsignal(signal.SIGINT)
    try:
        for number in (1, 2):
            os.dup2(log, number)
        yield
    finally:
        signal.signal(signal.SIGINT, interrupt)  # Spark sets its own
        for number, file in zip((1, 2), kept, strict=True):
            os.dup2(file, number)
            os.close(file)


def _open_alone(folder: Path) -> IO[str] | None:
    """Return the lock of a home's engine; None if another one has it. One that has just ended is waited for."""
    for _ in Deadline.after(_PREDECESSOR_S).polls(0.05):
        held = open_locked(folder / "lock")
        if held is not None or (folder / "socket").exists():
            return held
    return None


def _accept(listener: socket.socket, place: Path) -> socket.socket | None:
    """Return the next client; None after the idle time, or if the socket's file is gone."""
    own = place.stat().st_ino
    listener.settimeout(_LOOK_S)
    for _ in Deadline.after(IDLE_S).polls(0.0):
        try:
            return listener.accept()[0]
        except TimeoutError:
            if not place.exists() or place.stat().st_ino != own:
                return None
    return None


def main() -> int:
    """Serve clients until there are none for ten minutes."""
    folder = Path(sys.argv[1])
    held = _open_alone(folder)
    if held is None:
        return 0
    log = os.dup(2)
    engine = Engine(folder, log, ResidentSpark.keep(lambda: own_output(log)))
    engine.record(None)
    with listen(folder) as listener:
        engine.say(f"process {os.getpid()} serves {folder}")
        while (connection := _accept(listener, folder / "socket")) is not None:
            with connection:
                if not engine.serve(connection):
                    break
        (folder / "socket").unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    os._exit(main())  # the JVM ends with the pipe that it reads from here
