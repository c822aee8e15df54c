"""The embedded broker: a real Apache Kafka (KRaft, one process, loopback) under `HOME/broker`.

Start, in steps:
1. Take `start.lock`: starters queue up.
2. Try `run.lock`. A running broker holds it for its life (it inherits the descriptor), so a starter that cannot
   get it adopts the broker that has it.
3. Choose ports (the ones used before if they are free) and hold them, write the configuration, format the folder once.
4. Start the process in its own session: it outlives the process that started it.
5. Wait until it answers a metadata request.

A crash after any step leaves either no process (the next start begins again) or a process that holds
`run.lock` (the next start adopts it).
"""

from __future__ import annotations

import base64
import functools
import logging
import os
import signal
import subprocess
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

from rivertwice.core import Deadline, ServiceError, Settings, held_ports, is_running, lock, open_locked, start_detached
from rivertwice.engine import java_env
from rivertwice.log import find_silence
from rivertwice.storage import read_json, replace_bytes, replace_json

# Configuration of the embedded broker: properties, logging.

LOG4J = """Configuration:
  status: warn
  Appenders:
    RollingFile:
      name: F
      fileName: ${sys:kafka.logs.dir}/server.log
      filePattern: ${sys:kafka.logs.dir}/server.log.%i
      PatternLayout: {pattern: "[%d] %p %m (%c)%n"}
      SizeBasedTriggeringPolicy: {size: 10MB}
      DefaultRolloverStrategy: {max: 3}
  Loggers:
    Root: {level: info, AppenderRef: {ref: F}}
    Logger:
      - {name: org.apache.kafka.storage.internals.log, level: warn}
"""


_LISTS = ("listeners", "advertised.listeners", "listener.security.protocol.map")


def broker_properties(
    folder: Path, ports: tuple[int, int], advertised_port: int | None = None, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the properties of a broker that keeps all it has in `folder`.

    Args:
        ports: the ports it listens on (broker, controller).
        advertised_port: the port that clients connect to, if something is in front of the broker's own.
        extra: properties that are added; a list of listeners is appended.
    """
    broker, controller = ports
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{advertised_port or broker}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(folder / "log"),
        # Records carry the time of the event's arrival, 2013: any finite retention drops them at once.
        "log.retention.ms": "-1",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
        "num.partitions": "1",
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        # After kill -9 the controller waits for the old session to end; by default that takes 9 s.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "1000",
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "4",
    }
    for name, value in (extra or {}).items():
        properties[name] = f"{properties[name]},{value}" if name in _LISTS else value
    return properties


def encode_properties(properties: dict[str, str]) -> str:
    """Return the text of a Java properties file."""
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def new_cluster_id(make_uuid: Callable[[], uuid.UUID] = uuid.uuid4) -> str:
    """Return a fresh cluster id. One that began with a dash would be read as an option by Kafka's own tools."""
    while True:
        text = base64.urlsafe_b64encode(make_uuid().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


LOG = logging.getLogger(__name__)
STOP_SECONDS = 30.0
_MAIN = "kafka.Kafka"


@dataclass(frozen=True)
class BrokerInfo:
    """A broker that answers.

    Attributes:
        pid: the embedded broker's process; None if the cluster is not ours.
    """

    bootstrap: str
    pid: int | None
    cluster_id: str


def start_broker(
    settings: Settings,
    *,
    heap: str = "384m",
    advertised_port: int | None = None,
    extra: Mapping[str, str] | None = None,
) -> BrokerInfo:
    """Start the embedded broker, or return the one that runs already.

    With a configured address nothing is started: the cluster there must answer.

    Args:
        advertised_port: the port that clients connect to, if a proxy is in front of it.
        extra: properties besides its own (`broker_properties`); for tests, which need other listeners too.

    Raises:
        ServiceError: it did not come up; the message names the log.
        ConfigError: there is no Java.
    """
    from rivertwice.log import await_kafka

    if settings.bootstrap:
        return BrokerInfo(settings.bootstrap, None, await_kafka(settings))
    folder = settings.broker
    with lock(folder / "start.lock"), ExitStack() as held:
        pid = _adopt_or_launch(settings, functools.partial(_launch, settings, heap, advertised_port, extra or {}, held))
        cluster_id = await_kafka(settings, functools.partial(_require_alive, settings, pid))
    return BrokerInfo(settings.bootstrap_servers(), pid, cluster_id)


def _adopt_or_launch(settings: Settings, launch: Callable[[int], int]) -> int:
    """Return the pid of the running broker, or of the one that `launch` starts, which is given the lock.

    A process that was killed a moment ago still holds the lock while the system takes it down, so this waits for a lock
    without a living owner.
    """
    from rivertwice.log import ask_cluster_id

    folder = settings.broker
    for _ in Deadline.after(STOP_SECONDS).polls(0.1):
        run_lock = open_locked(folder / "run.lock")
        if run_lock is not None:
            with run_lock:
                return launch(run_lock.fileno())
        pid = _find_pid(folder)
        if pid is not None and (ask_cluster_id(settings, 2.0) is not None or is_running(pid)):
            return pid
    message = (
        f"{folder / 'run.lock'} is held, but no broker of this folder runs, so none can be started; a process that a "
        "broker once started may hold it: see `fuser` on the file, and end that process"
    )
    raise ServiceError(message)


def stop_broker(settings: Settings) -> bool:
    """Stop the embedded broker cleanly; return False if none runs or the cluster is not ours.

    Raises:
        ServiceError: it still runs after the time it is given.
    """
    if settings.bootstrap or not settings.broker.exists():
        return False
    with lock(settings.broker / "start.lock"):
        pid = _find_pid(settings.broker)
        if pid is None:
            return False
        os.kill(pid, signal.SIGTERM)
        # Not `Process.wait`: a broker whose starter still lives stays a zombie when it has ended, and that waits for it.
        if not Deadline.after(STOP_SECONDS).wait_until(lambda: not is_running(pid), every=0.05):
            message = (
                f"the broker (pid {pid}) still runs {STOP_SECONDS:.0f} s after SIGTERM; its data is safe, but the "
                f"ports stay taken; read {settings.broker / 'logs' / 'server.log'}, then end process {pid}"
            )
            raise ServiceError(message)
    return True


def broker_status(settings: Settings) -> BrokerInfo | None:
    """Return the broker if it runs and answers within a few seconds, else None."""
    if settings.bootstrap is None and (
        not (settings.broker / "ports.json").exists() or _find_pid(settings.broker) is None
    ):
        return None
    if find_silence(settings) is not None:
        return None
    from rivertwice.log import ask_cluster_id

    cluster_id = ask_cluster_id(settings, 5.0)
    if cluster_id is None:
        return None
    return BrokerInfo(
        settings.bootstrap_servers(), None if settings.bootstrap else _find_pid(settings.broker), cluster_id
    )


def _find_pid(folder: Path) -> int | None:
    """Find this folder's broker by its arguments; a stored pid could belong to another process by now."""
    properties = str(folder / "server.properties")
    for process in psutil.process_iter(["cmdline", "status"]):
        arguments = process.info["cmdline"] or []
        if arguments[-2:] == [_MAIN, properties] and process.info["status"] != psutil.STATUS_ZOMBIE:
            return int(process.pid)
    return None


def _launch(
    settings: Settings,
    heap: str,
    advertised_port: int | None,
    extra: Mapping[str, str],
    held: ExitStack,
    run_lock: int,
) -> int:
    folder = settings.broker
    if not any(settings.broker_jars.glob("*.jar")):
        message = (
            f"no broker jars in {settings.broker_jars}, so the embedded broker cannot start; run `rivertwice setup`"
        )
        raise ServiceError(message)
    broker, controller = held.enter_context(held_ports(2, read_json(folder / "ports.json")))
    ports = broker, controller
    replace_json(folder / "ports.json", list(ports))
    properties = folder / "server.properties"
    log4j = folder / "log4j2.yaml"
    replace_bytes(properties, encode_properties(broker_properties(folder, ports, advertised_port, extra)).encode())
    replace_bytes(log4j, LOG4J.encode())
    java = java_env(settings)
    command = [
        str(Path(java["JAVA_HOME"]) / "bin" / "java"),
        f"-Xmx{heap}",
        "-Xms128m",
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",
        "-Djava.awt.headless=true",
        f"-Dkafka.logs.dir={folder / 'logs'}",
        f"-Dlog4j2.configurationFile={log4j}",
        "-cp",
        f"{settings.broker_jars}/*",
    ]
    if not (folder / "log" / "meta.properties").exists():
        _format(command, properties)
    with (folder / "console.log").open("ab") as console:
        process = start_detached(
            [*command, _MAIN, str(properties)],
            env=os.environ | java,
            output=console,
            pass_fds=(run_lock,),
        )
    LOG.info("broker started: pid %s, 127.0.0.1:%s", process.pid, ports[0])
    return process.pid


def _format(command: list[str], properties: Path) -> None:
    cluster = new_cluster_id()
    arguments = [
        "format",
        "-t",
        cluster,
        "-c",
        str(properties),
        "--ignore-formatted",
    ]
    done = subprocess.run(
        [*command, "kafka.tools.StorageTool", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        output = (done.stdout + done.stderr)[-1500:]
        message = f"formatting the broker's folder {properties.parent} failed: {output}"
        raise ServiceError(message)


def _require_alive(settings: Settings, pid: int) -> None:
    if not is_running(pid):
        folder = settings.broker
        message = (
            f"the broker (pid {pid}) ended before it answered at {settings.bootstrap_servers()}; "
            f"read {folder / 'console.log'} and {folder / 'logs'}, then run `rivertwice up` again"
        )
        raise ServiceError(message)
