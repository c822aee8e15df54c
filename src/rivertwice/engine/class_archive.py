"""The class archive: the classes of a driver's JVM, stored once so that every later start maps them instead of parsing them.

JDK class data sharing (JEP 350): a training run dumps its classes at exit, `-XX:SharedArchiveFile` maps them. The JVM
itself refuses an archive of another JVM or another class path, and starts without it. So only set-up can become slower.
Ran here on Java 17: from the driver's start to its first planned batch 5.0 s instead of 8.4 s.

`train_archive` makes it, from a clone as from an installed wheel; `python -m rivertwice.engine.class_archive` calls that for
the project in the working directory. Java and the jars must be there (`rivertwice setup`).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from rivertwice.core import RivertwiceError, Settings
from rivertwice.engine.java import java_env

# Steps of set-up: each prints one line with its result and its duration.


def clone_settings() -> Settings:
    """Return the settings of the clone in the working directory, which set-up prepares."""
    return Settings.from_env({**os.environ, "RIVERTWICE_PROJECT": str(Path.cwd())})


def run_step(name: str, step: Callable[[], str]) -> int:
    """Run a step and print the result that it returns. Return the exit code: 1 if it failed."""
    started = time.monotonic()
    try:
        result = step()
    except RivertwiceError as error:
        sys.stderr.write(f"setup: {name}: {error}\n")
        return 1
    sys.stdout.write(f"setup: {name:<15} {result} ({time.monotonic() - started:.1f} s)\n")
    sys.stdout.flush()
    return 0


TRAINING_S = 600.0
KEPT = 4
"""Archives that stay, the newest ones: each has some 190 MB."""
TRAINING = "rivertwice.local.training"
"""The module of the training run: a room above this one, so it is run by name and not imported."""


def archive_file(settings: Settings) -> Path:
    """Return the file of the archive of this Java and these jars; another Java or jar has another file.

    The JVM refuses an archive if a jar of its class path was written again later, even with the same bytes.
    """
    home = Path(os.path.realpath(java_env(settings)["JAVA_HOME"]))
    parts = [str(home)]
    release = home / "release"
    if release.exists():
        parts.append(release.read_text(errors="replace"))
    jars = [*_spark_home().glob("jars/*.jar"), *settings.spark_jars.glob("*.jar")]
    for jar in sorted({os.path.realpath(jar) for jar in jars}):  # a project may link another's jars
        status = os.stat(jar)
        parts.append(f"{jar} {status.st_size} {status.st_mtime_ns}")
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return settings.build / "jvm" / f"spark-{digest[:16]}.jsa"


def _spark_home() -> Path:
    spec = find_spec("pyspark")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else Path()


def class_options(settings: Settings) -> str:
    """Return the JVM options that map the archive; empty without one, or if a blank would cut its path."""
    archive = archive_file(settings)
    return f"-XX:SharedArchiveFile={archive}" if archive.exists() and " " not in str(archive) else ""


def train_archive(settings: Settings) -> str:
    """Make the archive by a driver's run over its own small log, unless it exists. Returns what to print.

    An archive is a convenience: a Java that cannot make one is reported, and is not an error.
    """
    archive = archive_file(settings)
    if archive.exists():
        return "there"
    archive.parent.mkdir(parents=True, exist_ok=True)
    part = archive.with_suffix(".part")
    part.unlink(missing_ok=True)
    try:
        done = _training(settings, part)
    except subprocess.TimeoutExpired:
        return f"none: the training run did not end within {TRAINING_S:.0f} s; starts take a few seconds longer"
    if done.returncode != 0 or not part.exists():
        reason = (done.stderr.strip().splitlines() or ["no words"])[-1][:300]
        return f"none: {reason}; starts take a few seconds longer"
    part.rename(archive)
    found = sorted(archive.parent.glob("spark-*.jsa"), key=lambda each: each.stat().st_mtime)
    for old in found[:-KEPT]:  # several environments may share this folder, each with its own archive
        old.unlink()
    return f"{archive.stat().st_size / 1e6:.0f} MB"


def _training(settings: Settings, archive: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", TRAINING, str(archive)],
        env={**os.environ, **java_env(settings), **settings.to_env()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TRAINING_S,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(run_step("class archive", lambda: train_archive(clone_settings())))
