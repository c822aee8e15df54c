"""A real Spark standalone cluster on loopback: a master and workers, each a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyspark

from homes.project import REPOSITORY
from rivertwice.config import Settings
from rivertwice.setup.java import java_env
from running.waiting import wait_for

START_S = 90
_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


class SparkCluster:
    """A master and its workers.

    Attributes:
        url: of the master, `spark://127.0.0.1:PORT`.
    """

    def __init__(self, folder: Path, *, workers: int, cores: int) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._start("master", "org.apache.spark.deploy.master.Master", "--port", "0", "--webui-port", "0")
        self.url = self._find("master", r"Starting Spark master at (spark://\S+)")
        self._page = self._find("master", r"(?:MasterWebUI|UI).*(?:started at|http) ?(http://\S+:\d+)")
        for number in range(workers):
            options = [
                "--cores",
                str(cores),
                "--memory",
                "1g",
                "--work-dir",
                str(folder / f"work-{number}"),
                "--webui-port",
                "0",
            ]
            self._start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *options, self.url)
        wait_for(
            "the workers",
            lambda: len(self.state()["workers"]) >= workers,
            START_S,
            every=0.2,
            seen=lambda: self._log(f"worker-{workers - 1}").read_text()[-3000:],
        )

    def _start(self, name: str, main: str, *options: str) -> None:
        env = {**os.environ, **java_env(Settings(REPOSITORY, self._folder)), "SPARK_LOCAL_IP": "127.0.0.1"}
        env |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_MASTER_HOST": "127.0.0.1"}
        host = ("--host", "127.0.0.1")
        with self._log(name).open("ab") as out:
            command = [str(_CLASS), main, *host, *options]
            self._processes.append(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True
                )
            )

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _find(self, name: str, pattern: str) -> str:
        log = self._log(name)
        seen = wait_for(
            f"a line {pattern!r}",
            lambda: re.search(pattern, log.read_text()),
            START_S,
            seen=lambda: log.read_text()[-3000:],
        )
        return seen[1]

    def state(self) -> dict[str, Any]:
        """Return what the master says of workers and applications."""
        with urllib.request.urlopen(f"{self._page}/json/", timeout=10) as answer:
            return dict(json.load(answer))

    def kill_worker(self, number: int) -> None:
        """End a worker and its executors with SIGKILL, as the loss of a machine would."""
        process = self._processes[1 + number]
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for one in family:
            one.send_signal(signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """End all that still runs."""
        for process in reversed(self._processes):
            if process.poll() is None:
                for one in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
                    one.send_signal(signal.SIGKILL)
                process.wait()


@contextmanager
def spark_cluster(folder: Path, *, workers: int, cores: int) -> Iterator[SparkCluster]:
    """Run a cluster for as long as the block lasts."""
    cluster = SparkCluster(folder, workers=workers, cores=cores)
    try:
        yield cluster
    finally:
        cluster.close()
