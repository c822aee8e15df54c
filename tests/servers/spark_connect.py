"""A Spark Connect server in a process of its own, as a cluster's service would give one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

from homes.project import REPOSITORY
from rivertwice.core.settings import Settings
from rivertwice.engine.java import java_env
from running.waiting import wait_for
from servers.spark_cluster import UNSHARE, Disks

START_S = 120
_SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


@dataclass(frozen=True)
class ConnectServer:
    """A server that answers.

    Attributes:
        url: `sc://localhost:PORT`.
        log: file of what it says.
    """

    url: str
    log: Path
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """End it and its workers with SIGKILL, as the loss of a machine would."""
        if self.process.poll() is None:
            for one in [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]:
                with suppress(psutil.NoSuchProcess):
                    one.send_signal(signal.SIGKILL)
            self.process.wait()


@contextmanager
def spark_connect(
    folder: Path,
    *,
    kafka: bool = True,
    python_path: Sequence[Path] = (REPOSITORY / "src",),
    disks: Disks | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[ConnectServer]:
    """Run a server with its own working directory, home, temporary files and environment for as long as the block lasts.

    Args:
        kafka: whether it has the Kafka connector.
        python_path: what its Python finds beside the installed packages.
        disks: what it sees of this host's files; None: all.
        env: further variables of it.
    """
    (folder / "work").mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = Settings(REPOSITORY, folder / "home")
    jars = ",".join(map(str, settings.connector_jars)) if kafka else ""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RIVERTWICE_", "PYTHON", "SPARK_", "PYSPARK_", "AWS_"))
    }
    own = {
        **inherited,
        **java_env(settings),
        "HOME": str(folder),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "work"),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(map(str, python_path)),
        "SPARK_SUBMIT_OPTS": os.environ.get("SPARK_SUBMIT_OPTS", ""),
        **(env or {}),
    }
    command = [
        str(_SUBMIT), "--class", _CLASS, "--master", "local[2]", "--driver-memory", "1g",
        *(["--jars", jars] if jars else []),
        "--conf", f"spark.connect.grpc.binding.port={port}", "--conf", "spark.connect.grpc.binding.address=127.0.0.1",
        "--conf", "spark.ui.enabled=false", "spark-internal",
    ]  # fmt: skip
    if disks is not None:
        command = [*UNSHARE, "sh", "-c", disks.script(command)]
    log = folder / "server.log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, cwd=folder, env=own, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    server = ConnectServer(f"sc://localhost:{port}", log, process)

    def listens() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_for("the Spark Connect server", listens, START_S, every=0.2, seen=lambda: log.read_text()[-3000:])
        yield server
    finally:
        server.kill()
