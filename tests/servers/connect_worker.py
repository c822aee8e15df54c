"""A real Kafka Connect worker of a test's own: one process on loopback, with Debezium's connector for PostgreSQL on its class path."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from homes.project import REPOSITORY
from rivertwice.core.ports import held_ports
from rivertwice.core.settings import Settings
from rivertwice.engine.java import java_env
from running.waiting import wait_for

START_S = 120
MAIN = "org.apache.kafka.connect.cli.ConnectStandalone"
LOG4J = """
Configuration:
  Appenders: {Console: {name: out, PatternLayout: {pattern: "%d %p %c{1} %m%n"}}}
  Loggers: {Root: {level: WARN, AppenderRef: {ref: out}}, Logger: [{name: io.debezium, level: INFO}]}
"""


def missing() -> str | None:
    """Return why no worker can be started here, or None."""
    there = any(Settings(REPOSITORY, REPOSITORY).connect_jars.glob("debezium-connector-postgres-*.jar"))
    return None if there else "no jars of Kafka Connect; `make setup-dev` fetches them"


class ConnectWorker:
    """A standalone worker with one connector; what it has read of the database it keeps in `folder`, over its death.

    Args:
        bootstrap: the broker's address.
        folder: configuration, positions, log.
        connector: a file of a connector's configuration, taken as it is.
        env: what the configuration's `${env:NAME}` stand for.
    """

    def __init__(self, bootstrap: str, folder: Path, connector: Path, env: Mapping[str, str]) -> None:
        folder.mkdir(parents=True)
        self._bootstrap, self._folder, self._connector, self._env = bootstrap, folder, connector, dict(env)
        self._name = json.loads(connector.read_text())["name"]
        self._process: subprocess.Popen[bytes] | None = None
        self._held = ExitStack()
        self.log = folder / "worker.log"

    def start(self) -> None:
        """Start the worker and wait until its connector's task runs."""
        (self._port,) = self._held.enter_context(held_ports(1))
        properties = {
            "bootstrap.servers": self._bootstrap,
            "listeners": f"http://127.0.0.1:{self._port}",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "offset.storage.file.filename": str(self._folder / "positions"),
            "offset.flush.interval.ms": "500",
            "config.providers": "env",
            "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        }
        worker, log4j = self._folder / "worker.properties", self._folder / "log4j2.yaml"
        worker.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        log4j.write_text(LOG4J)
        settings = Settings(REPOSITORY, self._folder)
        java = java_env(settings)
        command = [
            str(Path(java["JAVA_HOME"]) / "bin" / "java"),
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
        ]
        command += [f"-Dlog4j2.configurationFile={log4j}"]
        command += [
            "-cp",
            f"{settings.connect_jars}/*:{settings.broker_jars}/*",
            MAIN,
            str(worker),
            str(self._connector),
        ]
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **java, **self._env}
            )
        self._wait()

    def _wait(self) -> None:
        def runs() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, f"the worker ended: {self.log.read_text()[-3000:]}"
            return self.state() == "RUNNING"

        def seen() -> str:
            return f"it is {self.state() or 'not there'}: {self.log.read_text()[-3000:]}"

        wait_for(f"the task of {self._name}", runs, START_S, every=0.2, seen=seen)

    def state(self) -> str:
        """Return the state of the connector's task, or nothing."""
        try:
            address = f"http://127.0.0.1:{self._port}/connectors/{self._name}/status"
            with urllib.request.urlopen(address, timeout=5) as answer:
                tasks = json.load(answer)["tasks"]
        except (OSError, urllib.error.HTTPError):
            return ""
        return str(tasks[0]["state"]) if tasks else ""

    def kill(self) -> None:
        """End the worker with SIGKILL."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
        self._held.close()
