"""One JVM for all drivers of a group (`stream.group`). Each has its own process, session, query, lease and checkpoint; code is compiled once.

The host, `python -m rivertwice.engine.group FOLDER CONFS`, starts the JVM and listens on a socket that only the user's account can
reach. A driver asks it for a door: a server of py4j of its own, whose entry is a new session. The connection stays open as long as
the driver lives; at its end the host stops the queries of that session. The first driver starts the host, which ends a minute after
its last one. What kills the JVM ends all its drivers, as a kill of each would: the agent starts them again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from rivertwice.core import Deadline, ServiceError, Settings, open_locked, own_start, run_process, to_iso, utc_now
from rivertwice.engine.jvm import jvm_basis
from rivertwice.engine.session import spark_session
from rivertwice.engine.warm import listen, reach
from rivertwice.storage import replace_json

_log = logging.getLogger(__name__)
IDLE_S, LOOK_S, STOP_S = 60.0, 2.0, 20.0
"""How long a host without a driver stays, how often it looks at itself, and how long a query may take to stop before the JVM is ended."""
GROUP_OF = "rivertwice.group"
"""The setting of a session that says in which group's JVM it is: the folder of its host."""
ANSWER_S = 60.0
"""How long a driver waits for its door: the host's JVM starts meanwhile."""
FAIR = {"spark.scheduler.mode": "FAIR"}
"""The tasks of drivers take turns; by default a long batch of one would come before all later ones of the others."""


# The side of a driver.


@dataclass
class Member:
    """This process's place in a group: at most one."""

    folder: Path
    session: SparkSession
    connection: socket.socket


_MEMBER: list[Member] = []


def group_folder(settings: Settings, group: str, confs: Mapping[str, str]) -> Path:
    """Return the folder of a group's host. Drivers whose JVMs would start with other settings have another host.

    Args:
        confs: what only a new JVM takes, besides the usual.
    """
    basis = json.dumps([sys.executable, jvm_basis(settings, os.environ), dict(confs)], sort_keys=True)
    return settings.home / "groups" / f"{group}-{hashlib.sha256(basis.encode()).hexdigest()[:8]}"


def join_group(settings: Settings, group: str, member: str, confs: Mapping[str, str]) -> SparkSession:
    """Return this process's session in the JVM of a group, which is started if it does not run.

    Args:
        member: name of the driver, one of the group.
        confs: settings of the session and of the JVM; the latter are those that do not begin with `spark.sql.`.

    Raises:
        ServiceError: the JVM does not start or does not answer.
    """
    own = {name: value for name, value in confs.items() if name.startswith("spark.sql.")}
    if not _MEMBER:
        started_with = FAIR | {name: value for name, value in confs.items() if name not in own}
        folder = group_folder(settings, group, started_with)
        connection, door = _ask_for_door(settings, folder, member, started_with)
        _MEMBER.append(Member(folder, _session_behind(door, member), connection))
    session = _MEMBER[0].session
    for name, value in (own | {GROUP_OF: str(_MEMBER[0].folder)}).items():
        session.conf.set(name, value)
    return session


def _ask_for_door(
    settings: Settings, folder: Path, member: str, confs: Mapping[str, str]
) -> tuple[socket.socket, dict[str, Any]]:
    said: list[str] = []
    command = [sys.executable, "-m", __name__, str(folder), json.dumps(dict(confs))]
    for _ in range(2):  # a host that ends at this moment does not answer; the next one does
        connection = reach(folder, command, settings, said.append)
        if connection is not None:
            connection.settimeout(ANSWER_S)
            with contextlib.suppress(OSError, ValueError):
                connection.sendall(json.dumps({"join": member, "pid": os.getpid()}).encode() + b"\n")
                return connection, json.loads(connection.makefile("rb").readline())
            connection.close()
    message = f"the JVM of the group does not answer ({'; '.join(said) or 'it ended'}); read {folder / 'log'}"
    raise ServiceError(message)


def _session_behind(door: Mapping[str, Any], member: str) -> SparkSession:
    """Return the session that a door leads to, as the one of this process."""
    os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = str(door["port"]), door["secret"]
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=gateway)
    inner = gateway.entry_point
    context = gateway.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(inner.sparkContext())
    spark = SparkContext(gateway=gateway, jsc=context, conf=SparkConf(_jconf=inner.sparkContext().conf()))
    # Spark would make the first session of a process the default of the whole JVM, where other drivers' threads would find it.
    SparkSession._instantiatedSession = SimpleNamespace(_sc=SimpleNamespace(_jsc=context))  # type: ignore[assignment]
    session = SparkSession(spark, inner)
    SparkSession._instantiatedSession = SparkSession._activeSession = session
    sessions: Any = SparkSession._get_j_spark_session_class(gateway.jvm)
    sessions.setActiveSession(inner)
    session.stop = lambda: None  # type: ignore[method-assign]
    spark.setLocalProperty("spark.scheduler.pool", member)
    return session


# The side of the host.


@dataclass
class Door:
    """A driver's way into the JVM.

    Attributes:
        session: of the JVM; all queries of the driver are its own.
        server: of py4j, for this driver alone.
        pid: of the driver.
        secret: what the server asks for.
    """

    session: Any
    server: Any
    pid: int
    secret: str = field(repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_shut: bool = False

    def shut(self) -> None:
        """Stop the driver's queries, and then its server; a second call waits for the first one."""
        with self._lock:
            if not self._is_shut:
                for query in self.session.streams().active():
                    query.stop()
                self.server.shutdown()
            self._is_shut = True


class Host:
    """Keeps one JVM, and a door for each driver."""

    def __init__(self, folder: Path, spark: SparkSession, end: Callable[[str], None]) -> None:
        """Create a host without a door.

        Args:
            end: ends this process and its JVM, and is passed the reason.
        """
        self._folder, self._spark, self._end = folder, spark, end
        self._doors: dict[str, Door] = {}
        self._lock = threading.Lock()
        self._since = utc_now()
        self._quiet = Deadline.after(IDLE_S)

    @property
    def is_idle(self) -> bool:
        """Whether there has been no driver for a minute."""
        with self._lock:
            return not self._doors and self._quiet.is_over()

    def record(self) -> None:
        """Write who this is and which drivers it has; the caller has the lock, or is alone."""
        drivers = {name: door.pid for name, door in sorted(self._doors.items())}
        own = {"pid": os.getpid(), "pid_started": own_start(), "since": to_iso(self._since), "drivers": drivers}
        replace_json(self._folder / "host.json", own)

    def serve(self, connection: socket.socket) -> None:
        """Answer one driver, and stay with it until it ends."""
        with connection, contextlib.suppress(OSError, ValueError):
            request = json.loads(connection.makefile("rb").readline())
            if "leave" in request:
                _log.info("the next driver of %s asks for the end of the last one", request["leave"])
                self._shut(request["leave"])
                _answer(connection, {"left": True})
                return
            name = request["join"]
            self._shut(name)
            door = self._open(name, request["pid"])
            try:
                server = door.server.getJavaServer()
                _answer(connection, {"port": server.getListeningPort(), "secret": door.secret})
                connection.recv(1)  # nothing comes before the driver's end
            finally:
                self._shut(name, door)

    def _open(self, name: str, pid: int) -> Door:
        jvm: Any = self._spark._jvm
        session = self._spark._jsparkSession.newSession()
        secret = secrets.token_urlsafe(32)
        builder = jvm.py4j.ClientServer.ClientServerBuilder(session).authToken(secret).javaPort(0)
        server = builder.javaAddress(jvm.java.net.InetAddress.getLoopbackAddress()).build()
        server.startServer()
        door = Door(session, server, pid, secret)
        with self._lock:
            self._doors[name] = door
            self.record()
        _log.info("driver %s (process %s) came", name, pid)
        return door

    def _shut(self, name: str, door: Door | None = None) -> None:
        """Shut a door; a JVM whose query does not stop is ended, so that it does nothing beside the next driver's."""
        with self._lock:
            known = self._doors.get(name)
        door = door or known
        if door is None:
            return
        shutting = threading.Thread(target=door.shut, name=f"end of {name}", daemon=True)
        shutting.start()
        shutting.join(STOP_S)
        if shutting.is_alive():
            self._end(f"the query of {name} did not stop within {STOP_S:.0f} s after its driver had ended")
        with self._lock:
            if self._doors.get(name) is door:
                del self._doors[name]
                self._quiet = Deadline.after(IDLE_S)
                self.record()
                _log.info("driver %s (process %s) left", name, door.pid)


def _answer(connection: socket.socket, answer: Mapping[str, Any]) -> None:
    connection.sendall(json.dumps(answer).encode() + b"\n")


def main() -> int:
    """Keep a JVM for drivers until there is none for a minute."""
    folder, confs = Path(sys.argv[1]), json.loads(sys.argv[2])
    settings = Settings.from_env()
    held = open_locked(folder / "lock")
    if held is None:
        return 0  # another driver's host was first
    with listen(folder) as listener:
        place = folder / "socket"
        own = place.stat().st_ino
        spark = spark_session(settings, f"rivertwice-{folder.name}", extra=confs)
        process: Any = getattr(spark.sparkContext._gateway, "proc", None)

        def end(why: str) -> None:
            _log.error("ends with its JVM: %s", why)
            logging.shutdown()
            process.kill()
            os._exit(1)

        host = Host(folder, spark, end)
        host.record()
        _log.info("process %s has the JVM %s for the drivers of %s", os.getpid(), process.pid, folder.name)
        listener.settimeout(LOOK_S)
        # A home may be removed, and made again.
        while not host.is_idle and place.exists() and place.stat().st_ino == own:
            if process.poll() is not None:
                end(f"the JVM ended with code {process.returncode}")
            with contextlib.suppress(TimeoutError):
                connection = listener.accept()[0]
                threading.Thread(target=host.serve, args=(connection,), name="driver", daemon=True).start()
        if host.is_idle:
            place.unlink(missing_ok=True)
    _log.info("no driver came for a minute, or the home is gone: ends")
    return 0


if __name__ == "__main__":
    run_process(main)
