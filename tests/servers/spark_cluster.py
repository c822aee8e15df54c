"""A real Spark standalone cluster on loopback: a master and workers, each a process of its own.

With `Disks`, each worker has disks of its own, as a host has: a mount namespace in which it sees only the folders that are shared. It
also has an address of its own: executors of one address read each other's files of a shuffle.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyspark

import rivertwice
from homes.project import REPOSITORY
from rivertwice.core.settings import Settings
from rivertwice.engine.java import java_env
from running.waiting import wait_for

START_S = 90
_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
UNSHARE = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--user", "--map-root-user", "--mount")


@dataclass(frozen=True)
class Disks:
    """What a worker's host sees of this one's files.

    Attributes:
        shared: folders that exist and that every worker sees, at the same path.
        hidden: folders that exist and of which a worker has its own, empty ones; the folder for temporary files is one of them.
        made: folders that a worker has below its own ones.
    """

    shared: Sequence[Path]
    hidden: Sequence[Path]
    made: Sequence[Path] = ()

    def script(self, command: Sequence[str]) -> str:
        """Return a shell script that runs a command on such a host, in a mount namespace of its own."""
        hidden = [Path(tempfile.gettempdir()).resolve(), *(path.resolve() for path in self.hidden)]
        shared = [*self.shared, *(path for path in installed() if any(path.is_relative_to(place) for place in hidden))]
        lines = ["set -e", "mount --make-rprivate /", "mount -t tmpfs tmpfs /mnt"]
        for number, path in enumerate(shared):
            lines.append(f"mkdir /mnt/{number}; mount --bind {shlex.quote(str(path))} /mnt/{number}")
        lines += [
            f"mkdir -p {shlex.quote(str(path))}; mount -t tmpfs -o mode=1777 tmpfs {shlex.quote(str(path))}"
            for path in hidden
        ]
        for number, path in enumerate(shared):
            lines.append(
                f"mkdir -p {shlex.quote(str(path))}; mount --bind /mnt/{number} {shlex.quote(str(path))}; umount /mnt/{number}"
            )
        lines += [f"mkdir -p {shlex.quote(str(path))}" for path in self.made]
        return "\n".join([*lines, "umount /mnt", f"exec {shlex.join(command)}"])


def installed() -> list[Path]:
    """Return the folders that every host of a cluster has installed: Python with Spark and rivertwice, and Java."""
    java = java_env(Settings(REPOSITORY, Path(tempfile.gettempdir())))["JAVA_HOME"]
    return [Path(sys.prefix).resolve(), Path(rivertwice.__file__).resolve().parents[1], Path(java).resolve()]


def disks_missing() -> str | None:
    """Return why workers cannot have disks of their own here, or None."""
    tried = subprocess.run(
        [*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, text=True, timeout=30, check=False
    )
    return None if tried.returncode == 0 else f"no mount namespaces here: {tried.stderr.strip()}"


class SparkCluster:
    """A master and its workers.

    Attributes:
        url: of the master, `spark://127.0.0.1:PORT`.
    """

    def __init__(self, folder: Path, *, workers: int, cores: int, disks: Disks | None = None) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._disks = disks
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            self._begin(workers, cores)
        except BaseException:
            self.close()
            raise

    def _begin(self, workers: int, cores: int) -> None:
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
                str(self._folder / f"work-{number}"),
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
        address = "127.0.0.1"
        if self._disks is not None and name != "master":
            address = f"127.0.0.{1 + len(self._processes)}"
        env = {**os.environ, **java_env(Settings(REPOSITORY, self._folder)), "SPARK_LOCAL_IP": address}
        env |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_MASTER_HOST": "127.0.0.1"}
        host = ("--host", address)
        with self._log(name).open("ab") as out:
            command = [str(_CLASS), main, *host, *options]
            if self._disks is not None and name != "master":
                env = {key: value for key, value in env.items() if not key.startswith("RIVERTWICE_")}
                command = [*UNSHARE, "sh", "-c", self._disks.script(command)]
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

    def sees(self, number: int, path: Path) -> bool:
        """Say whether a worker sees a file or folder."""
        return Path(f"/proc/{self._processes[1 + number].pid}/root{path}").exists()

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
def spark_cluster(folder: Path, *, workers: int, cores: int, disks: Disks | None = None) -> Iterator[SparkCluster]:
    """Run a cluster for as long as the block lasts; with `disks` its workers have disks of their own."""
    cluster = SparkCluster(folder, workers=workers, cores=cores, disks=disks)
    try:
        yield cluster
    finally:
        cluster.close()
